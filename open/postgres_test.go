package open

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func readPostgres(t *testing.T, url string) (*postgresTarget, error) {
	t.Helper()
	a, err := parse(url)
	if err != nil {
		return nil, err
	}
	return a.postgres()
}

func TestPostgresURLs(t *testing.T) {
	t.Parallel()
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("p q'\\\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	type target struct{ addrs, user, password, database, sslmode, schema string }
	for url, want := range map[string]target{
		"postgres://":                              {addrs: "localhost:5432"},
		"postgresql://db1":                         {addrs: "db1:5432"},
		"postgres://u:p@db1:6000/app":              {"db1:6000", "u", "p", "app", "", ""},
		"postgres://u:p%2F%40@db1/a%20b":           {"db1:5432", "u", "p/@", "a b", "", ""},
		"postgres://h1,h2:7,[::1]/app":             {addrs: "h1:5432 h2:7 [::1]:5432", database: "app"},
		"postgres:///app?host=/run/postgresql":     {addrs: "/run/postgresql:5432", database: "app"},
		"postgres://u@h/d?sslmode=verify-full":     {"h:5432", "u", "", "d", "verify-full", ""},
		"postgres://h/d?schema=Locks":              {addrs: "h:5432", database: "d", schema: "Locks"},
		"postgres://h/d?password-file=" + password: {addrs: "h:5432", database: "d", password: "p q'\\"},
	} {
		got, err := readPostgres(t, url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		flat := target{strings.Join(got.Addrs, " "), got.User, got.Password, got.Database, got.SSLMode, got.Schema}
		if flat != want {
			t.Errorf("%s:\n got %+v\nwant %+v", url, flat, want)
		}
		if got.NoMigrate || got.pooler {
			t.Errorf("%s: %+v", url, got)
		}
	}
	got, err := readPostgres(t, "postgres://h/d?migrate=false&pooler&connections=7")
	if err != nil || !got.NoMigrate || !got.pooler || got.Conns != 7 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestPostgresURLsRefused(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres:h/d":                                 `"//" is missing`,
		"postgres://h/d/e":                             "it has a slash",
		"postgres://h/d?host=/run":                     "hosts are given twice",
		"postgres:///d?host=db1":                       "directory of a unix socket",
		"postgres://h/d?sslmode=on":                    "none of disable, allow",
		"postgres://h/d?sslrootcert=/x":                "add sslmode=verify-full",
		"postgres://h/d?sslmode=require&sslcert=/no/x": "parameter sslcert",
		"postgres://h/d?ssl-mode=require":              "did you mean sslmode?",
		"postgres://h/d?migrat=no":                     "did you mean migrate?",
		"postgres://h/d?connections=0":                 "from 1 to 1000",
		"postgres://u:p@h/d?password-env=X":            "parameter password-env",
	} {
		if _, err := readPostgres(t, url); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
}

// An error of the client library shows neither the user nor the password.
func TestPostgresErrorsShowNoSecret(t *testing.T) {
	t.Parallel()
	_, err := Store(t.Context(), "postgres://"+secret+":"+secret+"@127.0.0.1:1/db")
	if err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v", err)
	}
}
