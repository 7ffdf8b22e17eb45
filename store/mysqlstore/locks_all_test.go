package mysqlstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/sqlstore"
	"github.com/batonhq/baton/internal/testserver"
)

func requests(keys ...string) (all []driver.Request) {
	for _, key := range keys {
		all = append(all, driver.Request{Claim: claimOf(key, "several"), TTL: time.Minute})
	}
	return all
}

// takeAll acquires at once and returns the claims with their tickets.
func takeAll(t *testing.T, s *Store, all ...driver.Request) (claims []driver.Claim) {
	t.Helper()
	grants, err := s.AcquireAll(t.Context(), all)
	if err != nil {
		t.Fatalf("acquire several: %v", err)
	}
	for i, r := range all {
		g := grants[i]
		if g.Token <= 0 || g.Token != g.Ticket || g.TTL != r.TTL || g.Waiting {
			t.Errorf("%q: %+v", r.Key, g)
		}
		r.Ticket = g.Ticket
		claims = append(claims, r.Claim)
	}
	return claims
}

// proxiedBoth makes a store of each kind whose connections can be broken.
func proxiedBoth(t *testing.T, d *database) (opened, pooled *Store, proxy *faultproxy.Proxy) {
	t.Helper()
	proxy = faultproxy.New(t, d.server.Addr)
	c, o := d.config(), standard
	c.Addr, o.sweepEvery, o.repeats = proxy.Addr, time.Hour, nil // nothing else is to pass
	opened = d.openWith(t, func(c *Server, opts *options) { c.Addr, *opts = proxy.Addr, o })
	db := pool(t, c)
	db.SetMaxOpenConns(1)
	pooled, err := build(t.Context(), &Store{single: db, slow: db, apart: db, opts: o})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pooled.Close() })
	return opened, pooled, proxy
}

// rows is how many rows there are of locks and claims.
func (d *database) rows(t *testing.T) (n int) {
	t.Helper()
	if err := d.plain.QueryRow("SELECT (SELECT COUNT(*) FROM baton_lock)+(SELECT COUNT(*) FROM baton_claim)").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func mustBeHeld(t *testing.T, s *Store, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if _, err := s.Acquire(t.Context(), driver.Request{Claim: claimOf(key, "x"), TTL: time.Minute}); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("%s: %v, want it held", key, err)
		}
	}
}

// Two round trips, or ten statements on a pool that takes one at a time, grant the most
// keys that may be asked for, new or known, or refuse them, which leaves no row that
// was not there before.
func TestTogetherRoundTrips(t *testing.T) {
	t.Parallel()
	d := shared(t)
	opened, pooled, proxy := proxiedBoth(t, d)
	var sent atomic.Int64
	proxy.CutAfterRequest(func([]byte) bool { sent.Add(1); return false })
	plain := d.open(t)
	for name, c := range map[string]struct {
		s                    *Store
		refused, fresh, used int64
	}{
		"Open": {opened, 2, 2, 2},
		"New":  {pooled, 8, 10, 8}, // one row is there, the others are new
	} {
		var keys []string
		for i := range check.MaxTogether {
			keys = append(keys, fmt.Sprint(name, i*37%check.MaxTogether))
		}
		last := name + "9" // in the order of bytes
		blocker, _ := take(t, plain, claimOf(last, "blocker"), time.Minute, false)
		before := d.rows(t)
		takeAll(t, c.s, requests(name+" connected")...)
		for _, step := range []struct {
			state string
			want  int64
		}{{"refused", c.refused}, {"new", c.fresh}, {"known", c.used}} {
			sent.Store(0)
			all := requests(keys...)
			if step.state == "refused" {
				_, err := c.s.AcquireAll(t.Context(), all)
				if held, ok := errors.AsType[*driver.HeldError](err); !ok || held.Key != last || held.Owner != "blocker" || held.Remaining <= 0 {
					t.Errorf("%s: %v, want a *driver.HeldError that names %s", name, err, last)
				}
				if n := sent.Load(); n != step.want {
					t.Errorf("%s, %s: %d requests were sent, want %d", name, step.state, n, step.want)
				}
				if n := d.rows(t); n != before+1 {
					t.Errorf("%s: %d rows, want %d and one", name, n, before)
				}
				mustRelease(t, plain, blocker)
				continue
			}
			claims := takeAll(t, c.s, all...)
			if n := sent.Load(); n != step.want {
				t.Errorf("%s, %s: %d requests were sent, want %d", name, step.state, n, step.want)
			}
			mustBeHeld(t, plain, keys...)
			for _, x := range claims {
				mustRelease(t, plain, x)
			}
		}
	}
}

// The connection ends around the commit. Once the commit was sent its outcome is
// unknown: asking again finds all, as does a release that knows only the IDs. Before,
// nothing was done.
func TestTogetherAnswerCut(t *testing.T) {
	t.Parallel()
	d := shared(t)
	opened, pooled, proxy := proxiedBoth(t, d)
	elsewhere := d.open(t)
	for name, s := range map[string]*Store{"Open": opened, "New": pooled} {
		keys := []string{name + "c", name + "a", name + "b"}
		// What was certainly not done may be asked again at once.
		for _, at := range []string{"START TRANSACTION", "FOR UPDATE", "INSERT INTO baton_lock"} {
			withCommit := name == "Open" && at == "INSERT INTO baton_lock"
			for _, arm := range []func(func([]byte) bool) <-chan struct{}{proxy.CutBeforeRequest, proxy.CutAfterRequest} {
				all := requests(keys...)
				cut := arm(carries(at))
				_, err := s.AcquireAll(t.Context(), all)
				<-cut
				if err != nil && !errors.Is(err, driver.ErrUnavailable) && !(withCommit && errors.Is(err, driver.ErrUnknown)) {
					t.Errorf("%s, cut at %s: %v", name, at, err)
				}
				for _, r := range all {
					if e := elsewhere.Release(t.Context(), r.Claim); errors.Is(err, driver.ErrUnavailable) && !errors.Is(e, driver.ErrLost) {
						t.Errorf("%s, cut at %s: release: %v, want driver.ErrLost", name, at, e)
					}
				}
				for _, c := range takeAll(t, elsewhere, requests(keys...)...) {
					mustRelease(t, elsewhere, c)
				}
			}
		}
		for _, again := range []bool{true, false} {
			all := requests(keys...)
			cut := proxy.CutAfterRequest(func(request []byte) bool {
				return bytes.Contains(request, []byte(";COMMIT ")) || bytes.Contains(request, []byte("\x03COMMIT"))
			})
			if _, err := s.AcquireAll(t.Context(), all); !errors.Is(err, driver.ErrUnknown) {
				t.Fatalf("%s: %v, want ErrUnknown", name, err)
			}
			<-cut
			mustBeHeld(t, elsewhere, keys...)
			if again {
				for i := range all {
					all[i].Retry = true
				}
				takeAll(t, s, all...)
			}
			for _, r := range all {
				mustRelease(t, s, r.Claim)
			}
		}
	}
}

// A user's transaction depends on a lease, and has its row locked. A request for that
// key among others is refused at once, and locks none of them meanwhile. It waits for a
// row of a free key that another transaction has locked.
func TestTogetherWaitsForNoHolder(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.openWith(t, patient)
	for _, s := range []*Store{s, d.wrap(t, d.config())} {
		holder, _ := take(t, s, claimOf("b", "holder"), time.Minute, false)
		waiter, _ := take(t, s, claimOf("b", "waiter"), time.Minute, true)
		blocker := lockRow(t, d, "baton_lock", "b")
		_, err := s.AcquireAll(t.Context(), requests("c", "b", "a"))
		if held, ok := errors.AsType[*driver.HeldError](err); !ok || held.Key != "b" || held.Owner != "holder" || held.Remaining <= 0 {
			t.Errorf("%v, want a *driver.HeldError that names b", err)
		}
		commit(t, blocker)
		_ = s.Release(t.Context(), waiter) // it may have died
		mustRelease(t, s, holder)
	}
	blocker := lockRow(t, d, "baton_lock", "b")
	done := make(chan error, 1)
	go func() {
		_, err := s.AcquireAll(context.Background(), requests("a", "b"))
		done <- err
	}()
	awaitBlocked(t, d, 1)
	commit(t, blocker)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Between the two round trips another transaction makes a row that was missing. This
// one is undone, with certainty, and made again.
func TestTogetherMeetsAFirstRequest(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s, other := d.open(t), d.open(t)
	ses, err := s.session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := requests("a", "b", "c")
	m := newManyTx(t.Context(), ses, all)
	if refused, err := m.lock(); refused != nil || err != nil {
		t.Fatal(refused, err)
	}
	first, _ := take(t, other, claimOf("b", "first"), time.Minute, false)
	if _, refused, err := sqlstore.AcquireAll(all, m.at); refused != nil || err != nil {
		t.Fatalf("%v, %v", refused, err)
	}
	if unsure, err := m.commit(); unsure || !undone(err) {
		t.Errorf("%v, unsure %v, want it undone", err, unsure)
	}
	ses.close()
	if n := d.rows(t); n != 1 {
		t.Errorf("%d rows, want that of the other", n)
	}
	if _, err := s.AcquireAll(t.Context(), all); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("%v, want driver.ErrHeld", err)
	}
	mustRelease(t, other, first)
	takeAll(t, s, all...)
}

// Sixty-four clients of four processes want sets of keys that overlap, in any order, or
// wait for one of them, and renew many at once, while rows are swept away under them.
// No deadlock or timeout of the server reaches a caller, no two claims hold at once
// that must not, and no caller has a part of what it asked for.
func TestTogetherNoDeadlockSurfaces(t *testing.T) { togetherNoDeadlockSurfaces(t, shared(t)) }

func togetherNoDeadlockSurfaces(t *testing.T, d *database) {
	testserver.Long(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), stormFor(t)+2*time.Minute)
	defer cancel()
	const keys, clients = 24, 64
	var stores []*Store
	for range 4 {
		stores = append(stores, d.openWith(t, func(c *Server, o *options) { c.Connections, o.sweepAge, o.stall = 12, time.Microsecond, 60 }))
	}
	var inside [keys]atomic.Int64
	var several, refused, single atomic.Int64
	end := time.Now().Add(stormFor(t))
	var wg sync.WaitGroup
	work := func(s *Store, random *rand.Rand, name string) error {
		var all []driver.Request
		var claims []driver.Claim
		at := random.Perm(keys)[:1+random.IntN(4)]
		if random.IntN(6) == 0 {
			at = at[:1]
			c := claimOf(fmt.Sprint("key", at[0]), name)
			if held, err := stormOnce(ctx, s, &c, random); !held {
				return err
			}
			single.Add(1)
			claims = append(claims, c)
		} else {
			for _, n := range at {
				all = append(all, requests(fmt.Sprint("key", n))...)
			}
			grants, err := s.AcquireAll(ctx, all)
			if errors.Is(err, driver.ErrHeld) {
				refused.Add(1)
				for n := 0; n < len(all) && random.IntN(8) == 0; n++ {
					if err := s.Release(ctx, all[n].Claim); !errors.Is(err, driver.ErrLost) {
						return fmt.Errorf("a part was left after a refusal: release: %v", err)
					}
				}
				return nil
			}
			if err != nil {
				return err
			}
			several.Add(1)
			for i, r := range all {
				r.Ticket = grants[i].Ticket
				claims = append(claims, r.Claim)
			}
		}
		for _, n := range at {
			if inside[n].Add(1) > 1 {
				t.Errorf("key%d has two holders", n)
			}
		}
		var err error
		for i, r := range s.Renew(ctx, claims, 2*time.Minute) {
			if r.State != driver.Held {
				err = errors.Join(err, fmt.Errorf("a holder of %s is %v: %w", claims[i].Key, r.State, r.Err))
			}
		}
		for _, n := range at {
			inside[n].Add(-1)
		}
		for _, c := range claims {
			err = errors.Join(err, s.Release(ctx, c))
		}
		return err
	}
	for i := range clients {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 12))
			for n := 0; (n == 0 || time.Now().Before(end)) && !t.Failed(); n++ {
				if err := work(stores[i%len(stores)], random, fmt.Sprint("client", i)); err != nil {
					t.Errorf("client %d: %v", i, err)
				}
			}
		})
	}
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		for time.Now().Before(end) && !t.Failed() {
			if _, err := stores[0].sweepStep(ctx, "", 100); err != nil {
				t.Errorf("sweep: %v", err)
			}
		}
	}()
	wg.Wait()
	<-swept
	if several.Load() == 0 {
		t.Error("no client was granted several")
	}
	t.Logf("%d times several were granted, %d times refused, %d single ones", several.Load(), refused.Load(), single.Load())
}
