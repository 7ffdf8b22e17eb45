package open

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/zkstore"
)

// zooKeeper reads the URL of a ZooKeeper server or ensemble.
func (a *address) zooKeeper() (o zkstore.Options, patience time.Duration, err error) {
	o = zkstore.Options{User: a.user, Password: a.password}
	if !a.slashes {
		return o, 0, fmt.Errorf(`"//" is missing after "%s:"`, a.scheme)
	}
	for _, h := range a.hosts {
		o.Servers = append(o.Servers, h.address("2181"))
	}
	if len(o.Servers) == 0 {
		o.Servers = []string{"localhost:2181"}
	}
	if o.Root, err = zkstore.CheckRoot(a.path); err != nil {
		return o, 0, fmt.Errorf("the path: %w", err)
	}
	p := &params{given: a.params}
	if password, ok := p.password("password"); ok {
		if o.Password != "" {
			p.fail("the password is given twice, in the URL and by a parameter")
		}
		o.Password = password
	}
	if strings.Contains(o.User, ":") {
		p.fail(`a user name of ZooKeeper has no ":"`)
	}
	if (o.User == "") != (o.Password == "") {
		p.fail("a user name and a password belong together: one of them is missing")
	}
	switch acl := p.text("acl"); {
	case acl == "" || acl == "user" && o.User != "":
	case acl == "user":
		p.fail("acl=user needs a user name and a password")
	case acl == "world":
		o.World = true
	default:
		p.fail("parameter acl is neither user nor world")
	}
	o.Session = p.duration("session", zkstore.DefaultSession)
	patience = p.duration("connect-timeout", 10*time.Second)
	secure := p.flag("tls")
	for _, name := range tlsParameters {
		if _, ok := p.get(name); ok {
			secure = true
		}
	}
	o.TLS = p.tls(secure)
	return o, patience, p.finish()
}

func openZooKeeper(ctx context.Context, a *address) (driver.Store, error) {
	o, patience, err := a.zooKeeper()
	if err != nil {
		return nil, a.refuse(err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := zkstore.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	return s, nil
}
