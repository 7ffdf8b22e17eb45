package open

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/mysqlstore"
)

func readMySQL(t *testing.T, url string) (mysqlstore.Server, error) {
	t.Helper()
	a, err := parse(url)
	if err != nil {
		return mysqlstore.Server{}, err
	}
	return a.mysql()
}

func TestMySQLURLs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "password")
	write(t, file, "from file\n")
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, cert, key)
	type target struct {
		addr, database, user, password, tls string
		connections                         int
		timeout                             time.Duration
	}
	for url, want := range map[string]target{
		"mysql://h/db":                                  {addr: "h:3306", database: "db"},
		"mariadb://u:p@h:3307/db":                       {addr: "h:3307", database: "db", user: "u", password: "p"},
		"MySQL:///db":                                   {addr: "localhost:3306", database: "db"},
		"mysql://u:a%2Fb@[::1]/my%20db":                 {addr: "[::1]:3306", database: "my db", user: "u", password: "a/b"},
		"mysql://u@h/db?password-file=" + file:          {addr: "h:3306", database: "db", user: "u", password: "from file"},
		"mysql://h/db?connections=4&connect-timeout=2s": {addr: "h:3306", database: "db", connections: 4, timeout: 2 * time.Second},
		"mysql://h/db?tls=true":                         {addr: "h:3306", database: "db", tls: "h"},
		"mysql://h/db?ca=" + cert + "&server-name=s":    {addr: "h:3306", database: "db", tls: "s"},
		"mysql://h/db?cert=" + cert + "&key=" + key:     {addr: "h:3306", database: "db", tls: "h"},
		"mysql://h/db?tls=false":                        {addr: "h:3306", database: "db"},
	} {
		c, err := readMySQL(t, url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		got := target{addr: c.Addr, database: c.Database, user: c.User, password: c.Password, connections: c.Connections, timeout: c.ConnectTimeout}
		if c.TLS != nil {
			got.tls = c.TLS.ServerName
		}
		if want.timeout == 0 {
			want.timeout = 5 * time.Second
		}
		if got != want {
			t.Errorf("%s:\n got %+v\nwant %+v", url, got, want)
		}
	}
}

func TestMySQLURLsRefused(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"mysql:db":                                 `"//" is missing`,
		"mysql://h":                                "name of the database is missing: write mysql://",
		"mariadb://h/":                             "write mariadb://",
		"mysql://h/a/b":                            "name of the database",
		"mysql://h1,h2/db":                         "several hosts",
		"mysql://h/db?conections=3":                "did you mean connections?",
		"mysql://h/db?connections=1":               "parameter connections",
		"mysql://h/db?pasword-env=X":               "did you mean password-env?",
		"mysql://h/db?charset=utf8":                "unknown parameter charset: there are",
		"mysql://h/db?tls=maybe":                   "neither true nor false",
		"mysql://h/db?verify=ca":                   "needs ca=FILE",
		"mysql://h/db?verify=full":                 "parameter verify is not ca",
		"mysql://h/db?insecure&verify=ca&ca=/x":    "parameter",
		"mysql://h/db?cert=/x":                     "belong together",
		"mysql://u:p@h/db?password-env=BATON_NONE": "not set",
		"mysql://u:p@h/db?password-env=PATH":       "twice",
	} {
		got, err := readMySQL(t, url)
		if err == nil {
			t.Errorf("%s: accepted as %+v", url, got)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %q, want it to contain %q", url, err, want)
		}
	}
}

// Missing tables are made, and errors do not show the password.
func TestMySQLOpens(t *testing.T) {
	t.Parallel()
	server := testserver.MariaDB(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for range 2 {
		store, err := Store(ctx, "mysql://root@"+server.Addr+"/baton")
		if err != nil {
			t.Fatal(err)
		}
		c := driver.Claim{Key: "k", ID: driver.NewID(), Weight: driver.Whole, Capacity: driver.Whole}
		if _, err := store.Acquire(ctx, driver.Request{Claim: c, TTL: time.Minute}); err != nil {
			t.Error(err)
		}
		if err := store.Release(ctx, c); err != nil {
			t.Error(err)
		}
		store.Close()
	}
	migrateByWhoMayNot(ctx, t, server.Addr)
	for url, want := range map[string]string{
		"mysql://root@" + server.Addr + "/nowhere":      "Unknown database",
		"mariadb://root:hush@" + server.Addr + "/baton": "Access denied",
	} {
		store, err := Store(ctx, url)
		if err == nil {
			store.Close()
			t.Errorf("%s: opened", url)
		} else if !errors.Is(err, driver.ErrDenied) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: error %q, want it to contain %q and no password", url, err, want)
		}
	}
	server.Kill()
	if store, err := Store(ctx, "mysql://root:hush@"+server.Addr+"/baton"); err == nil {
		store.Close()
		t.Error("opened on a server that is gone")
	} else if strings.Contains(err.Error(), "hush") {
		t.Errorf("the error shows the password: %v", err)
	}
}

// Where a table is missing, opening and Migrate say that the user may not make it.
func migrateByWhoMayNot(ctx context.Context, t *testing.T, addr string) {
	t.Helper()
	db, err := sql.Open("mysql", "root@tcp("+addr+")/baton")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, text := range []string{"DROP TABLE baton_kept", "CREATE USER worker", "GRANT SELECT,INSERT,UPDATE,DELETE ON baton.* TO worker"} {
		if _, err := db.ExecContext(ctx, text); err != nil {
			t.Fatal(err)
		}
	}
	url := "mysql://worker@" + addr + "/baton"
	if store, err := Store(ctx, url); err == nil || !strings.Contains(err.Error(), "denied") {
		t.Errorf("opened by a user who may not: %v, %v", store, err)
	}
	if err := Migrate(ctx, url); err == nil || !strings.Contains(err.Error(), "denied") {
		t.Errorf("by a user who may not: %v", err)
	}
	for _, user := range []string{"root", "worker"} {
		if err := Migrate(ctx, "mysql://"+user+"@"+addr+"/baton"); err != nil {
			t.Errorf("%s: %v", user, err)
		}
	}
}

// A certificate without the host's name, as those that MySQL makes itself.
func TestMySQLVerifiesTheChainAlone(t *testing.T) {
	testserver.NeedMariaDB(t)
	t.Parallel()
	dir := t.TempDir()
	cert, key, other := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "other.pem")
	writeCertificate(t, other, filepath.Join(dir, "other-key.pem"))
	writeCertificate(t, cert, key)
	server := testserver.MariaDB(t, "--ssl-ca="+cert, "--ssl-cert="+cert, "--ssl-key="+key, "--require-secure-transport=ON")
	for query, want := range map[string]string{
		"?ca=" + cert:                 "or ca=FILE and verify=ca",
		"?ca=" + cert + "&verify=ca":  "",
		"?ca=" + other + "&verify=ca": "authority",
	} {
		store, err := Store(t.Context(), "mysql://root@"+server.Addr+"/baton"+query)
		switch {
		case err == nil:
			store.Close()
			if want != "" {
				t.Errorf("%s: accepted", query)
			}
		case want == "" || !strings.Contains(err.Error(), want):
			t.Errorf("%s: error %v, want %q", query, err, want)
		}
	}
}
