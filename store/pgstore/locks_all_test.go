package pgstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

func writers(keys ...string) (all []driver.Request) {
	for _, key := range keys {
		all = append(all, writer(key))
	}
	return all
}

// holdAll acquires at once.
func holdAll(t *testing.T, s *Store, all ...driver.Request) (claims []driver.Claim) {
	t.Helper()
	grants, err := s.AcquireAll(t.Context(), all)
	if err != nil {
		t.Fatalf("acquire several: %v", err)
	}
	for i, r := range all {
		if g := grants[i]; g.Token <= 0 || g.Token != g.Ticket || g.TTL != r.TTL || g.Waiting {
			t.Errorf("%q: %+v", r.Key, g)
		}
		claims = append(claims, with(r, grants[i]))
	}
	return claims
}

// rowsOf is how many keys have a row.
func rowsOf(t *testing.T, s *Store) (n int) {
	t.Helper()
	if err := s.pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM baton_lock) + (SELECT count(*) FROM baton_claim)`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// One statement, in one round trip, grants keys that are new and keys that are
// known, or refuses, and then there is no row that was not there before.
func TestTogetherIsOneStatement(t *testing.T) {
	t.Parallel()
	server, url := database(t)
	proxy := faultproxy.New(t, server.Addr)
	one := func(c *pgxpool.Config) {
		c.MaxConns = 1                                                                       // each prepares its statements
		c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // after a second without use
	}
	s := openOn(t, newPool(t, strings.Replace(url, server.Addr, proxy.Addr, 1), one), func(o *options) { o.sweep = time.Hour })
	other := openAt(t, url)
	var keys []string
	for i := range check.MaxTogether {
		keys = append(keys, fmt.Sprint("k", i*37%check.MaxTogether))
	}
	holdAll(t, s, writers("prepared", "by now")...)
	before := rowsOf(t, other)
	blocker := hold(t, other, writer("k9")) // the last in the order of the keys
	var requests atomic.Int64
	proxy.CutAfterRequest(func([]byte) bool { requests.Add(1); return false })
	for _, state := range []string{"refused", "new", "known"} {
		requests.Store(0)
		all := writers(keys...)
		if state == "refused" {
			_, err := s.AcquireAll(t.Context(), all)
			if held, ok := errors.AsType[*driver.HeldError](err); !ok || held.Key != "k9" || held.Owner != "test" || held.Remaining <= 0 {
				t.Errorf("with a holder: %v, want a *driver.HeldError that names k9", err)
			}
			if n := rowsOf(t, other); n != before+1 {
				t.Errorf("%d rows, want %d and one", n, before)
			}
			release(t, other, blocker)
		} else {
			for _, c := range holdAll(t, s, all...) {
				mustRefuse(t, other, c.Key)
				release(t, other, c)
			}
		}
		if n := requests.Load(); n != 1 {
			t.Errorf("%s: %d requests were sent, want 1", state, n)
		}
	}
}

// The answer is lost after the commit: the error says that it may have happened.
// Asking again finds all of it, and so does a release that knows but the IDs.
func TestTogetherAnswerCut(t *testing.T) {
	t.Parallel()
	server, url := database(t)
	proxy := faultproxy.New(t, server.Addr)
	s, plain := openAt(t, strings.Replace(url, server.Addr, proxy.Addr, 1)), openAt(t, url)
	keys := []string{"c", "a", "b"}
	for _, again := range []bool{true, false} {
		all := writers(keys...)
		carries := func(request []byte) bool { return bytes.Contains(request, []byte(all[0].ID)) }
		cut := proxy.CutAfterRequest(carries)
		if _, err := s.AcquireAll(t.Context(), all); !errors.Is(err, driver.ErrUnknown) {
			t.Fatalf("%v, want driver.ErrUnknown", err)
		}
		<-cut
		for _, key := range keys {
			mustRefuse(t, plain, key)
		}
		if again {
			for i := range all {
				all[i].Retry = true
			}
			holdAll(t, s, all...)
		}
		for _, r := range all {
			release(t, s, r.Claim)
		}

		// It never came to the server: nothing was done, though the caller cannot know.
		all = writers(keys...)
		cut = proxy.CutBeforeRequest(carries)
		if _, err := s.AcquireAll(t.Context(), all); !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("%v, want driver.ErrUnknown", err)
		}
		<-cut
		for _, r := range all {
			if err := s.Release(t.Context(), r.Claim); !errors.Is(err, driver.ErrLost) {
				t.Errorf("release: %v, want driver.ErrLost", err)
			}
		}
	}
}

// A repeat that is refused gives up all that the first attempt got, also behind a key
// that goes to a waiter.
func TestTogetherRefusedRepeat(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s, other := openAt(t, url), openAt(t, url)
	all := writers("a", "b", "c", "d")
	claims := holdAll(t, s, all...)
	waiter := join(t, other, writer("a"))
	stay(t, other)
	release(t, s, claims[1])
	hold(t, other, writer("b"))
	for i := range all {
		all[i].Retry = true
	}
	if _, err := s.AcquireAll(t.Context(), all); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("%v, want driver.ErrHeld", err)
	}
	stay(t, other)
	mustBe(t, other, waiter, driver.Held)
	hold(t, other, writer("c"))
	hold(t, other, writer("d"))
}

// A waiter for what a refused repeat gives up hears of it, and need not ask.
func TestTogetherRefusedRepeatTellsTheNext(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s, other := openAt(t, url), openAt(t, url)
	all := writers("a", "b", "c")
	claims := holdAll(t, s, all...)
	granted := map[string]chan driver.Hint{}
	waiters := map[string]driver.Claim{}
	for _, key := range []string{"a", "c"} { // before and behind what refuses
		r, hints := writer(key), make(chan driver.Hint, 1)
		defer other.Watch(r.Claim, func(h driver.Hint) {
			if h.Granted {
				hints <- h
			}
		})()
		eventually(t, "a connection that listens", 20*time.Second, other.hints.listening.Load)
		granted[key], waiters[key] = hints, join(t, other, r)
	}
	stay(t, other)
	release(t, s, claims[1])
	hold(t, other, writer("b"))
	for i := range all {
		all[i].Retry = true
	}
	_, err := s.AcquireAll(t.Context(), all)
	if held, ok := errors.AsType[*driver.HeldError](err); !ok || held.Key != "b" {
		t.Errorf("%v, want a *driver.HeldError that names b", err)
	}
	for key, hints := range granted {
		select {
		case h := <-hints:
			if h.Grant.Token != waiters[key].Ticket {
				t.Errorf("%q: %+v, want the token %d", key, h, waiters[key].Ticket)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("no hint reaches the waiter for %q", key)
		}
	}
}

// A transaction that has a row locked makes another one, as merged requests do, and
// meets one that wants both and waits for the first. That one has made nothing yet.
func TestTogetherMakesRowsLast(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s, other := openAt(t, url), openAt(t, url)
	release(t, s, hold(t, s, writer("b")))
	tx := begin(t, other, pgx.ReadCommitted)
	// A wait of the other for the first fails, and would do so before the server sees
	// the deadlock.
	for _, q := range []string{`SELECT FROM baton_lock WHERE k = 'b' FOR UPDATE`, `SET LOCAL lock_timeout = '500ms'`} {
		if _, err := tx.Exec(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() {
		_, err := s.AcquireAll(context.Background(), writers("a", "b"))
		done <- err
	}()
	awaitBlocked(t, other, 1)
	if _, err := tx.Exec(t.Context(), `SELECT baton_many_1('{}', '{}', '{a}', '{id}', '{owner}', '{60000000}', '')`); err != nil {
		t.Errorf("the other: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	if held, ok := errors.AsType[*driver.HeldError](<-done); !ok || held.Key != "a" {
		t.Errorf("%v, want a *driver.HeldError that names a", held)
	}
	release(t, s, hold(t, s, writer("b")))
}

// Another transaction makes a row that was missing a moment ago. It is locked in its
// order, whether it is free by then or not.
func TestTogetherMeetsAFirstRequest(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s, other := openAt(t, url), openAt(t, url)
	for _, held := range []bool{false, true} {
		keys := []string{fmt.Sprint("a", held), fmt.Sprint("b", held), fmt.Sprint("c", held)}
		release(t, s, hold(t, s, writer(keys[2])))
		tx := begin(t, other, pgx.ReadCommitted)
		if _, err := tx.Exec(t.Context(), acquireSQL, []byte(keys[1]), "first", "first", "", driver.Whole, driver.Whole, int64(60_000_000), false, false, int64(0)); err != nil {
			t.Fatal(err)
		}
		if !held {
			if _, err := tx.Exec(t.Context(), releaseSQL, []byte(keys[1]), "first", int64(0)); err != nil {
				t.Fatal(err)
			}
		}
		before := rowsOf(t, other)
		done := make(chan error, 1)
		go func() {
			_, err := s.AcquireAll(context.Background(), writers(keys...))
			done <- err
		}()
		awaitBlocked(t, other, 1)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := <-done
		if !held {
			if err != nil {
				t.Errorf("a row that was made meanwhile, and is free: %v", err)
			}
			continue
		}
		if e, ok := errors.AsType[*driver.HeldError](err); !ok || e.Key != keys[1] {
			t.Errorf("%v, want a *driver.HeldError that names %s", err, keys[1])
		}
		if n := rowsOf(t, other); n != before+1 {
			t.Errorf("%d rows, want %d and that of %s", n, before, keys[1])
		}
	}
}

// A transaction that depends on a lease by InTx keeps it through its end.
func TestTogetherRespectsInTx(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s, other := openAt(t, url), openAt(t, url)
	r := writer("b")
	r.TTL = time.Second
	c := hold(t, other, r)
	tx := begin(t, other, pgx.ReadCommitted)
	if err := other.InTx(t.Context(), tx, leased(c)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the lease", 20*time.Second, func() bool {
		var left int
		err := s.pool.QueryRow(t.Context(), `SELECT count(*) FROM baton_lock WHERE k = 'b' AND ends > clock_timestamp()`).Scan(&left)
		return err == nil && left == 0
	})
	if _, err := s.AcquireAll(t.Context(), writers("a", "b")); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("%v, want driver.ErrHeld", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	holdAll(t, s, writers("a", "b")...)
}

// Sixty-four clients of four processes want sets of keys that overlap, in any order, or
// one of them alone, and wait, and renew many at once, while rows are swept away under
// them. No caller hears of deadlocks or serialization, no two claims hold at once that
// must not, and no caller has a part of what it asked for.
func TestTogetherNoDeadlockSurfaces(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	server, url := database(t)
	var stores []*Store
	for i := range 4 {
		conns := []int32{1, 2, 4, 8}[i] // with few, requests are merged
		stores = append(stores, openOn(t, newPool(t, url, func(c *pgxpool.Config) {
			if c.MaxConns = conns; i%2 == 1 {
				likeOpen(c)
			}
		}), func(o *options) {
			o.idle, o.sweep = time.Millisecond, 20*time.Millisecond
		}))
	}
	const keys = 24
	var rooms [keys]room
	var several, refused, single atomic.Int64
	end := time.Now().Add(stormFor(t))
	var wg sync.WaitGroup
	for c := range 64 {
		wg.Go(func() {
			random, s := rand.New(rand.NewPCG(uint64(c), 11)), stores[c%4]
			for i := c; i == c || time.Now().Before(end); i++ {
				if random.IntN(6) == 0 {
					n := random.IntN(keys)
					if _, err := traffic(s, fmt.Sprint("k", n), i, &rooms[n]); err != nil {
						t.Errorf("client %d: %v", c, err)
						return
					}
					single.Add(1)
					continue
				}
				granted, err := togetherTraffic(s, random, rooms[:])
				if err != nil {
					t.Errorf("client %d: %v", c, err)
					return
				}
				if granted {
					several.Add(1)
				} else {
					refused.Add(1)
				}
			}
		})
	}
	wg.Wait()
	deadlocks, err := server.Query("postgres", `SELECT sum(deadlocks) FROM pg_stat_database WHERE datname = '`+stores[0].pool.Config().ConnConfig.Database+`'`)
	t.Logf("%d times several were granted, %d times refused, %d single ones; the server saw %s deadlocks, %v",
		several.Load(), refused.Load(), single.Load(), deadlocks, err)
	if several.Load() == 0 {
		t.Error("no client was granted several")
	}
}

// togetherTraffic asks for some keys at once, and holds, renews and releases them.
func togetherTraffic(s *Store, random *rand.Rand, rooms []room) (granted bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var all []driver.Request
	at := random.Perm(len(rooms))[:1+random.IntN(4)]
	for _, n := range at {
		r := writer(fmt.Sprint("k", n))
		switch random.IntN(6) {
		case 0:
			r.Weight = 1
		case 1:
			r.Weight, r.Capacity = 2, 5
		}
		all = append(all, r)
	}
	grants, err := s.AcquireAll(ctx, all)
	if err != nil {
		if !errors.Is(err, driver.ErrHeld) && !errors.As(err, new(*driver.CapacityError)) {
			return false, err
		}
		if random.IntN(8) == 0 {
			for _, r := range all {
				if e := s.Release(ctx, r.Claim); !errors.Is(e, driver.ErrLost) {
					return false, fmt.Errorf("a part was left after a refusal: release: %v", e)
				}
			}
		}
		return false, nil
	}
	var claims []driver.Claim
	for i, n := range at {
		claims = append(claims, with(all[i], grants[i]))
		err = errors.Join(err, rooms[n].enter(claims[i], 1))
	}
	slices.Reverse(claims)
	for i, answer := range s.Renew(ctx, claims, time.Minute) {
		if answer.State != driver.Held {
			err = errors.Join(err, fmt.Errorf("a holder of %q is %v: %w", claims[i].Key, answer.State, answer.Err))
		}
	}
	for i, n := range at {
		_ = rooms[n].enter(all[i].Claim, -1) // as before
	}
	for _, c := range claims {
		err = errors.Join(err, s.Release(ctx, c))
	}
	return true, err
}
