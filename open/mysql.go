package open

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/mysqlstore"
)

// tlsParameters are the parameters whose presence asks for TLS.
var tlsParameters = []string{"ca", "cert", "key", "server-name", "verify", "insecure"}

// mysql parses the URL of a MySQL or MariaDB database.
func (a *address) mysql() (mysqlstore.Server, error) {
	c := mysqlstore.Server{Addr: "localhost:3306", User: a.user, Password: a.password, Database: a.path}
	switch {
	case !a.slashes:
		return c, fmt.Errorf(`"//" is missing after "%s:"`, a.scheme)
	case len(a.hosts) > 1:
		return c, errors.New("it names several hosts: name the one that is written to")
	case a.path == "" || strings.Contains(a.path, "/"):
		return c, fmt.Errorf("the name of the database is missing: write %s://USER@HOST/DATABASE", a.scheme)
	}
	for _, h := range a.hosts {
		c.Addr = h.address("3306")
	}
	p := &params{given: a.params}
	if password, ok := p.password("password"); ok {
		if c.Password != "" {
			p.fail("the password is given twice, in the URL and by a parameter")
		}
		c.Password = password
	}
	c.ConnectTimeout = p.connectTimeout(a.scheme)
	c.Connections, _ = p.number("connections", 2, 10_000)
	secure := p.flag("tls")
	for _, name := range tlsParameters {
		if _, ok := p.get(name); ok {
			secure = true
		}
	}
	if c.TLS = p.tls(secure); c.TLS != nil && c.TLS.ServerName == "" && len(a.hosts) > 0 {
		c.TLS.ServerName = a.hosts[0].name
	}
	return c, p.finish()
}

func openMySQL(ctx context.Context, a *address) (driver.Store, error) {
	c, err := a.mysql()
	if err != nil {
		return nil, a.refuse(err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.ConnectTimeout)
	defer cancel()
	return mysqlstore.Open(ctx, c)
}
