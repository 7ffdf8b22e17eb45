package mysqlstore

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
)

// pastSession is a DSN parameter: the clock of the server stops, an
// hour ago.
var pastSession = map[string]string{"timestamp": "UNIX_TIMESTAMP()-3600"}

// A released row keeps the ID of its last holder. No reader may take that for a lock,
// not even when the server's clock was set back.
func TestReleasedRowIsNotHeld(t *testing.T) {
	t.Parallel()
	d := shared(t)
	now := d.open(t)
	c := d.config()
	c.Params = pastSession
	for name, s := range map[string]*Store{"now": now, "set back": d.wrap(t, c)} {
		row := func(key string) (id string, ended bool) {
			if err := d.plain.QueryRow("SELECT id, ends='1970-01-01' FROM baton_lock WHERE k=?", key).Scan(&id, &ended); err != nil {
				t.Fatal(err)
			}
			return id, ended
		}
		for i, act := range []struct {
			name string
			do   func(c driver.Claim) error
		}{
			{"release", func(c driver.Claim) error { return want(s.Release(t.Context(), c), driver.ErrLost) }},
			{"renew", func(c driver.Claim) error {
				if r := renewOne(t, s, c, time.Minute); r.State != driver.Lost {
					return fmt.Errorf("%+v", r)
				}
				return nil
			}},
			{"downgrade", func(c driver.Claim) error {
				_, err := s.Downgrade(t.Context(), c, time.Minute)
				return want(err, driver.ErrLost)
			}},
			{"InTx", func(c driver.Claim) error {
				tx := begin(t, s.single, 0)
				defer tx.Rollback()
				return want(s.InTx(t.Context(), tx, leased{claim: c}), driver.ErrLost)
			}},
			{"inspect", func(c driver.Claim) error {
				if info, err := s.Inspect(t.Context(), c.Key); err != nil || len(info.Holders)+len(info.Waiters) > 0 {
					return fmt.Errorf("%+v, %w", info, err)
				}
				return nil
			}},
			{"list", func(c driver.Claim) error {
				for info, err := range s.List(t.Context(), c.Key) {
					return fmt.Errorf("%+v, %w", info, err)
				}
				return nil
			}},
			{"break", func(c driver.Claim) error {
				if n, err := s.Break(t.Context(), c.Key); err != nil || n > 0 {
					return fmt.Errorf("%d holders, %w", n, err)
				}
				return nil
			}},
			{"acquire again", func(c driver.Claim) error { return higher(s, c.Ticket, driver.Request{Claim: c, Retry: true}) }},
			{"acquire", func(c driver.Claim) error {
				return higher(s, c.Ticket, driver.Request{Claim: claimOf(c.Key, "next")})
			}},
			{"share", func(c driver.Claim) error {
				reader := claimOf(c.Key, "reader")
				reader.Weight = 1
				return higher(s, c.Ticket, driver.Request{Claim: reader})
			}},
		} {
			// Released by the one statement, and by a transaction.
			for path, release := range map[string]func(driver.Claim){
				"fast": func(c driver.Claim) { mustRelease(t, now, c) },
				"slow": func(c driver.Claim) {
					w, _ := take(t, now, claimOf(c.Key, "waiter"), time.Minute, true)
					mustRelease(t, now, c)
					if err := now.Release(t.Context(), w); err != nil && !errors.Is(err, driver.ErrLost) { // a slow machine lost it
						t.Fatal(err)
					}
				},
			} {
				c, _ := take(t, now, claimOf(fmt.Sprint(name, i, path), "a"), time.Minute, false)
				release(c)
				id, ended := row(c.Key)
				if !ended || path == "fast" && id != c.ID {
					t.Fatalf("%s: the row has id %q, ended: %v", path, id, ended)
				}
				if err := act.do(c); err != nil {
					t.Errorf("clock %s, %s release, %s: %v", name, path, act.name, err)
				}
			}
		}
	}
}

func want(err, is error) error {
	if errors.Is(err, is) {
		return nil
	}
	return fmt.Errorf("%w, want %w", err, is)
}

// higher acquires with a token above the given one.
func higher(s *Store, token int64, r driver.Request) error {
	r.TTL = time.Minute
	if r.Retry {
		r.Ticket = 0
	}
	g, err := s.Acquire(s.life, r)
	if err == nil && g.Token <= token {
		err = fmt.Errorf("token %d after %d", g.Token, token)
	}
	return err
}
