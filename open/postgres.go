package open

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/pgstore"
)

// postgresTarget is the content of a PostgreSQL URL.
type postgresTarget struct {
	pgstore.Server
	pooler         bool
	connectTimeout time.Duration
}

var sslModes = []string{"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}

// postgres parses a PostgreSQL URL.
func (a *address) postgres() (*postgresTarget, error) {
	if !a.slashes {
		return nil, fmt.Errorf(`"//" is missing after "%s:"`, a.scheme)
	}
	t := &postgresTarget{Server: pgstore.Server{User: a.user, Password: a.password, Database: a.path}}
	const port = "5432"
	for _, h := range a.hosts {
		t.Addrs = append(t.Addrs, h.address(port))
	}
	if strings.Contains(a.path, "/") {
		return nil, errors.New("what follows the hosts is not the name of a database: it has a slash")
	}

	p := &params{given: a.params}
	if socket := p.text("host"); socket != "" {
		switch {
		case len(a.hosts) > 0:
			p.fail("hosts are given twice, in the URL and by a parameter")
		case !strings.HasPrefix(socket, "/"):
			p.fail("parameter host is for the directory of a unix socket: write postgres://HOST/DATABASE for a host")
		}
		t.Addrs = []string{socket + ":" + port}
	} else if len(a.hosts) == 0 {
		t.Addrs = []string{"localhost:" + port}
	}
	if password, ok := p.password("password"); ok {
		if t.Password != "" {
			p.fail("the password is given twice, in the URL and by a parameter")
		}
		t.Password = password
	}
	t.SSLMode = p.text("sslmode")
	if t.SSLMode != "" && !slices.Contains(sslModes, t.SSLMode) {
		p.fail("parameter sslmode is none of %s", strings.Join(sslModes, ", "))
	}
	file := func(name string) string {
		path := p.text(name)
		if path == "" {
			return ""
		}
		if t.SSLMode == "" || t.SSLMode == "disable" {
			p.fail("parameter %s needs TLS: add sslmode=verify-full", name)
		}
		if _, err := os.Stat(path); err != nil {
			p.fail("parameter %s: %w", name, err)
		}
		return path
	}
	t.SSLRootCert, t.SSLCert, t.SSLKey = file("sslrootcert"), file("sslcert"), file("sslkey")
	if (t.SSLCert == "") != (t.SSLKey == "") {
		p.fail("parameters sslcert and sslkey belong together: one of them is missing")
	}
	t.Schema = p.text("schema")
	t.Application = p.text("application_name")
	t.Conns, _ = p.number("connections", 1, 1000)
	if _, given := p.get("migrate"); given {
		t.NoMigrate = !p.flag("migrate")
	}
	t.pooler = p.flag("pooler")
	t.connectTimeout = p.connectTimeout(a.scheme)
	return t, p.finish()
}

func openPostgres(ctx context.Context, a *address) (driver.Store, error) {
	t, err := a.postgres()
	if err != nil {
		return nil, a.refuse(err)
	}
	ctx, cancel := context.WithTimeout(ctx, t.connectTimeout)
	defer cancel()
	store, err := pgstore.Open(ctx, t.Server, pgstore.Config{Pooler: t.pooler})
	if err != nil {
		return nil, err
	}
	return store, nil
}
