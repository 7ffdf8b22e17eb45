package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/store/memstore"
)

// eachStore runs f on a fresh database of every kind.
func eachStore(t *testing.T, f func(t *testing.T, store driver.Store, db *sql.DB)) {
	t.Helper()
	for name, locate := range map[string]func(t *testing.T) (url, driver, dsn string){
		"sqlite": func(t *testing.T) (string, string, string) {
			path := filepath.Join(t.TempDir(), "shop.db")
			return "sqlite:" + path, "sqlite", "file:" + path + "?_pragma=busy_timeout(20000)"
		},
		"postgres": func(t *testing.T) (string, string, string) {
			s := testserver.SharedPostgres(t)
			url := s.URL(s.Database(t))
			return url, "pgx", url
		},
		"mysql": func(t *testing.T) (string, string, string) {
			addr := testserver.SharedMariaDB(t).Addr
			name := "redeem_" + strings.ToLower(rand.Text())
			admin, err := sql.Open("mysql", "root@tcp("+addr+")/")
			if err != nil {
				t.Fatal(err)
			}
			defer admin.Close()
			if _, err := admin.Exec("CREATE DATABASE " + name); err != nil {
				t.Fatal(err)
			}
			return "mysql://root@" + addr + "/" + name, "mysql", "root@tcp(" + addr + ")/" + name
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, driver, dsn := locate(t)
			store, err := open.Store(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { store.Close() })
			db, err := sql.Open(driver, dsn)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			f(t, store, db)
		})
	}
}

// The lock is broken between the check and the commit. The next holder comes after the
// commit, and the member can commit nothing any more.
func TestBrokenBeforeTheCommit(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store driver.Store, db *sql.DB) {
		s, err := redemption(t.Context(), store, db)
		if err != nil {
			t.Fatal(err)
		}
		if !s.After || s.Found != 1 || s.Left != 1 {
			t.Errorf("%+v, want the next holder after the commit, and one point", s)
		}
		if !errors.Is(s.Again, driver.ErrLost) && !errors.Is(s.Again, baton.ErrLost) {
			t.Errorf("the second try: %v, want ErrLost", s.Again)
		}
	})
}

// stopped is a store that answers no renewal, as for a program that is stopped: its
// leases run out.
type stopped struct{ driver.Locks }

func (stopped) Renew(_ context.Context, claims []driver.Claim, _ time.Duration) []driver.Renewal {
	all := make([]driver.Renewal, len(claims))
	for i := range all {
		all[i].Err = driver.ErrUnavailable
	}
	return all
}

// The lease runs out between the check and the commit.
func TestExpiredBeforeTheCommit(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store driver.Store, db *sql.DB) {
		if _, err := db.Exec("CREATE TABLE account (id INTEGER PRIMARY KEY, points INTEGER NOT NULL)"); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec("INSERT INTO account VALUES (7, 1000)"); err != nil {
			t.Fatal(err)
		}
		inTx, err := tieTo(store)
		if err != nil {
			t.Fatal(err)
		}
		const ttl = 2 * time.Second
		member, err := baton.New(stopped{store}, baton.Config{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		other, err := baton.New(store, baton.Config{})
		if err != nil {
			t.Fatal(err)
		}
		next := make(chan *baton.Lease, 1)
		for try := 0; ; try++ {
			lease, err := member.Lock(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			err = redeem(t.Context(), db, inTx, lease, func() {
				go func() {
					l, err := other.Lock(t.Context(), key)
					if err != nil {
						t.Error(err)
					}
					next <- l
				}()
				<-lease.Done() // it has run out, and soon for the store, too
				late := time.NewTimer(ttl)
				defer late.Stop()
				select {
				case <-next:
					t.Error("granted while the transaction is open")
					next <- nil
				case <-late.C:
				}
			})
			lease.Unlock()
			if (errors.Is(err, baton.ErrLost) || errors.Is(err, driver.ErrLost)) && try < 10 {
				continue // a busy machine: it had run out before the check
			}
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		if l := <-next; l != nil {
			defer l.Unlock()
		}
		if n, err := points(t.Context(), db); err != nil || n != 1 {
			t.Errorf("the next holder finds %d points, %v", n, err)
		}
	})
}

// The lock has changed hands before the check, and the member does not know.
func TestLostBeforeTheCheck(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store driver.Store, db *sql.DB) {
		if _, err := db.Exec("CREATE TABLE account (id INTEGER PRIMARY KEY, points INTEGER NOT NULL)"); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec("INSERT INTO account VALUES (7, 1000)"); err != nil {
			t.Fatal(err)
		}
		inTx, err := tieTo(store)
		if err != nil {
			t.Fatal(err)
		}
		member, err := baton.New(stopped{store}, baton.Config{})
		if err != nil {
			t.Fatal(err)
		}
		other, err := baton.New(store, baton.Config{})
		if err != nil {
			t.Fatal(err)
		}
		lease, err := member.Lock(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		next, err := takeOver(t.Context(), other)
		if err != nil {
			t.Fatal(err)
		}
		defer next.Unlock()
		if err := redeem(t.Context(), db, inTx, lease, func() { t.Error("the check was passed") }); !errors.Is(err, driver.ErrLost) && !errors.Is(err, baton.ErrLost) {
			t.Errorf("%v, want ErrLost", err)
		}
		if n, err := points(t.Context(), db); err != nil || n != atFirst {
			t.Errorf("%d points are left, %v", n, err)
		}
	})
}

func TestOtherStoresHaveNone(t *testing.T) {
	t.Parallel()
	if _, err := tieTo(memstore.New()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("%v", err)
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(&out); err != nil {
		t.Fatal(err)
	}
	const want = `The next holder was granted the lock after the commit: true. He found 1 point.
The member's second try was refused: true. 1 point is left.
`
	if out.String() != want {
		t.Errorf("printed:\n%s\nwant:\n%s", out.String(), want)
	}
}
