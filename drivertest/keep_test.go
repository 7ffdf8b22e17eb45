package drivertest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

// faulty answers some renewals itself.
type faulty struct {
	driver.Locks
	answer func(since time.Duration) driver.State // Held: ask the store
	begun  time.Time
}

func (f *faulty) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	state := f.answer(time.Since(f.begun))
	if state == driver.Held {
		return f.Locks.Renew(ctx, claims, ttl)
	}
	if state == driver.Unknown {
		<-ctx.Done() // a server that hangs
	}
	return []driver.Renewal{{State: state, Err: errors.New("planted")}}
}

// Holders survive a fault that is shorter than their lease, and no longer one, and
// believe a store that says that they have lost their lock.
func TestKeepAll(t *testing.T) {
	const ttl = 6 * time.Second
	during := func(from, to time.Duration, state driver.State) func(time.Duration) driver.State {
		return func(since time.Duration) driver.State {
			if since >= from && since < to {
				return state
			}
			return driver.Held
		}
	}
	for _, test := range []struct {
		name   string
		answer func(time.Duration) driver.State
		want   string // part of the message; "": it passes
	}{
		{"no fault", during(0, 0, driver.Unknown), ""},
		{"half a lease", during(2*time.Second, 5*time.Second, driver.Unknown), ""},
		{"a whole lease", during(2*time.Second, 9*time.Second, driver.Unknown), "k was lost"},
		{"lost", during(8*time.Second, time.Hour, driver.Lost), "k is said to be"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := recorded(t, true, func(r *recorder) {
				s := memstore.New()
				c := driver.Claim{Key: "k", ID: driver.NewID(), Owner: "me", Weight: driver.Whole, Capacity: driver.Whole}
				sent := time.Now()
				g, err := s.Acquire(r.Context(), driver.Request{Claim: c, TTL: ttl})
				if err != nil {
					r.Fatalf("%v", err)
				}
				c.Ticket = g.Ticket
				KeepAll(r, []Holder{{&faulty{s, test.answer, sent}, c, sent, sent.Add(g.TTL)}}, ttl, 15*time.Second)
				if took := time.Since(sent); test.want == "" && took < 12*time.Second {
					r.Errorf("it ended after %v", took)
				}
			})
			said := strings.Join(r.lines, "\n")
			if r.failed != (test.want != "") || !strings.Contains(said, test.want) {
				t.Errorf("failed is %v: %s, want %q", r.failed, said, test.want)
			}
		})
	}
}
