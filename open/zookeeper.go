package open

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/zkstore"
)

// zooKeeper parses the URL of a ZooKeeper server or ensemble.
func (a *address) zooKeeper() (at zkstore.Server, cfg zkstore.Config, patience time.Duration, err error) {
	at = zkstore.Server{User: a.user, Password: a.password}
	if !a.slashes {
		return at, cfg, 0, fmt.Errorf(`"//" is missing after "%s:"`, a.scheme)
	}
	for _, h := range a.hosts {
		at.Addrs = append(at.Addrs, h.address("2181"))
	}
	if len(at.Addrs) == 0 {
		at.Addrs = []string{"localhost:2181"}
	}
	if cfg.Root, err = zkstore.CheckRoot(a.path); err != nil {
		return at, cfg, 0, fmt.Errorf("the path: %w", err)
	}
	p := &params{given: a.params}
	if password, ok := p.password("password"); ok {
		if at.Password != "" {
			p.fail("the password is given twice, in the URL and by a parameter")
		}
		at.Password = password
	}
	if strings.Contains(at.User, ":") {
		p.fail(`a user name of ZooKeeper has no ":"`)
	}
	if (at.User == "") != (at.Password == "") {
		p.fail("a user name and a password belong together: one of them is missing")
	}
	switch acl := p.text("acl"); {
	case acl == "" || acl == "user" && at.User != "":
	case acl == "user":
		p.fail("acl=user needs a user name and a password")
	case acl == "world":
		cfg.ACL = zk.WorldACL(zk.PermAll)
	default:
		p.fail("parameter acl is neither user nor world")
	}
	at.Session = p.duration("session", zkstore.DefaultSession)
	patience = p.connectTimeout(a.scheme)
	secure := p.flag("tls")
	for _, name := range tlsParameters {
		if _, ok := p.get(name); ok {
			secure = true
		}
	}
	at.TLS = p.tls(secure)
	return at, cfg, patience, p.finish()
}

func openZooKeeper(ctx context.Context, a *address) (driver.Store, error) {
	at, cfg, patience, err := a.zooKeeper()
	if err != nil {
		return nil, a.refuse(err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := zkstore.Open(ctx, at, cfg)
	if err != nil {
		return nil, err
	}
	return s, nil
}
