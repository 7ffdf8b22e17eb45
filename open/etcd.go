package open

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/store/etcdstore"
)

// etcdTarget is the content of an etcd URL.
type etcdTarget struct {
	endpoints      []string
	user, password string
	prefix         string
	tls            *tls.Config // nil without TLS
	connectTimeout time.Duration
}

// etcd parses an etcd URL.
func (a *address) etcd() (*etcdTarget, error) {
	if !a.slashes {
		return nil, fmt.Errorf(`"//" is missing after "%s:"`, a.scheme)
	}
	t := &etcdTarget{user: a.user, password: a.password, prefix: strings.TrimSuffix(a.path, "/")}
	for _, h := range a.hosts {
		t.endpoints = append(t.endpoints, h.address("2379"))
	}
	if len(t.endpoints) == 0 {
		t.endpoints = []string{"localhost:2379"}
	}
	if t.prefix != "" && check.Key(t.prefix) != nil {
		return nil, fmt.Errorf("what follows the hosts is no beginning of a key: it is longer than %d bytes, or has control characters", check.MaxKey)
	}
	p := &params{given: a.params}
	if password, ok := p.password("password"); ok {
		if t.password != "" {
			p.fail("the password is given twice, in the URL and by a parameter")
		}
		t.password = password
	}
	t.connectTimeout = p.connectTimeout(a.scheme)
	t.tls = p.tls(a.scheme == "etcds")
	if err := p.finish(); err != nil {
		return nil, err
	}
	if (t.user == "") != (t.password == "") {
		return nil, errors.New("a user name and a password belong together: one of them is missing")
	}
	return t, nil
}

func openEtcd(ctx context.Context, a *address) (driver.Store, error) {
	t, err := a.etcd()
	if err != nil {
		return nil, a.refuse(err)
	}
	ctx, cancel := context.WithTimeout(ctx, t.connectTimeout)
	defer cancel()
	return etcdstore.Open(ctx, etcdstore.Server{
		Endpoints: t.endpoints,
		Username:  t.user,
		Password:  t.password,
		TLS:       t.tls,
	}, etcdstore.Config{Prefix: t.prefix})
}
