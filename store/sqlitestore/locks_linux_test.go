package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
)

// The traps of the SQL stores that SQLite could fall into, each as the
// interleaving that was feared. Those that need two statements to run at once
// in the database (clock after a row lock, InnoDB's deadlocks, SKIP LOCKED,
// the order of SET) have no counterpart here.

// place is a claim with what a test needs around it.
type place struct {
	t testing.TB
	s *Store
	driver.Claim
}

func writer(t testing.TB, s *Store, key string) *place {
	return &place{t, s, driver.Claim{Key: key, ID: driver.NewID(), Owner: "test", Weight: driver.Whole, Capacity: driver.Whole}}
}

func reader(t testing.TB, s *Store, key string) *place {
	p := writer(t, s, key)
	p.Weight = 1
	return p
}

func (p *place) acquire(ttl time.Duration, queue bool) (driver.Grant, error) {
	g, err := p.s.Acquire(context.Background(), driver.Request{Claim: p.Claim, TTL: ttl, Queue: queue})
	if err == nil {
		p.Ticket = g.Ticket
	}
	return g, err
}

// hold acquires and returns the token.
func (p *place) hold(ttl time.Duration) int64 {
	p.t.Helper()
	g, err := p.acquire(ttl, false)
	if err != nil {
		p.t.Fatalf("acquire %q: %v", p.Key, err)
	}
	return g.Token
}

func (p *place) join(ttl time.Duration) *place {
	p.t.Helper()
	if g, err := p.acquire(ttl, true); err != nil || !g.Waiting {
		p.t.Fatalf("join %q: %+v, %v", p.Key, g, err)
	}
	return p
}

func (p *place) renew(ttl time.Duration) driver.Renewal {
	return p.s.Renew(context.Background(), []driver.Claim{p.Claim}, ttl)[0]
}

func (p *place) release() {
	p.t.Helper()
	if err := p.s.Release(context.Background(), p.Claim); err != nil {
		p.t.Fatalf("release %q: %v", p.Key, err)
	}
}

func (p *place) inspect() driver.KeyInfo {
	p.t.Helper()
	info, err := p.s.Inspect(context.Background(), p.Key)
	if err != nil {
		p.t.Fatalf("inspect %q: %v", p.Key, err)
	}
	return info
}

// world is a machine whose clocks and boots a test decides.
type world struct {
	boottime, wall atomic.Int64
	bootID         atomic.Value
}

func newWorld() *world {
	w := &world{}
	w.boottime.Store(time.Hour.Microseconds())
	w.wall.Store(time.Now().UnixMicro())
	w.bootID.Store("first")
	return w
}

func (w *world) pass(d time.Duration) {
	w.boottime.Add(d.Microseconds())
	w.wall.Add(d.Microseconds())
}

func (w *world) option(o *options) {
	o.clock = w.boottime.Load
	o.wall = w.wall.Load
	o.boot = func() (string, error) { return w.bootID.Load().(string), nil }
}

func rows(t *testing.T, s *Store, query string, args ...any) (n int64) {
	t.Helper()
	if err := s.readers.QueryRow(query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Trap 1: a key's row is swept, the wall clock was set back in the meantime.
func TestTokensRiseThroughSweepAndClockStep(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := openNew(t, w.option, func(o *options) { o.sweepGap = 1 })
	var last int64
	for range 5 {
		h := writer(t, s, "k")
		token := h.hold(time.Minute)
		if token <= last {
			t.Fatalf("token %d after %d", token, last)
		}
		last = token
		h.release()
		w.pass(2 * time.Minute)
		w.wall.Add(-24 * time.Hour.Microseconds())
		for i := range 10 {
			o := writer(t, s, fmt.Sprint("other", i))
			o.hold(time.Minute)
			o.release()
		}
		if n := rows(t, s, "SELECT count(*) FROM baton_lock WHERE k = ?", []byte("k")); n != 0 {
			t.Fatal("the row was not swept: the test tests nothing")
		}
	}
}

// A reboot ends every lock, and tokens rise through it even if the wall clock
// of the new boot is wrong.
func TestReboot(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := openNew(t, w.option)
	token := writer(t, s, "k").hold(24 * time.Hour)
	writer(t, s, "k").join(24 * time.Hour)
	reader(t, s, "shared").hold(24 * time.Hour)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	w.bootID.Store("second")
	w.boottime.Store(time.Second.Microseconds())
	w.wall.Store(time.Unix(0, 0).UnixMicro())
	s = openAt(t, s.path, w.option)
	if again := writer(t, s, "k").hold(time.Minute); again <= token {
		t.Errorf("token %d after %d of the boot before", again, token)
	}
	writer(t, s, "shared").hold(time.Minute)
}

// The same boot keeps what was granted, whichever processes open and close the file.
func TestLocksStayThroughClose(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	h := writer(t, s, "k")
	h.hold(time.Minute)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, s.path)
	h.s = s
	if _, err := writer(t, s, "k").acquire(time.Minute, false); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("acquire: %v, want it held", err)
	}
	h.release()
}

// Trap 2: a release and an enqueueing meet, and neither sees the other: the
// lock is free, and the waiter waits for ever.
func TestReleaseMeetsEnqueue(t *testing.T) {
	t.Parallel()
	all := handles(t, 2)
	a, b := all[0].(*Store), all[1].(*Store)
	for i := range 100 {
		key := fmt.Sprint("k", i)
		h, w := writer(t, a, key), writer(t, b, key)
		h.hold(time.Minute)
		var wg sync.WaitGroup
		wg.Go(h.release)
		wg.Go(func() {
			if _, err := w.acquire(time.Minute, true); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		// Inspect grants nothing, so what it shows was granted by then.
		if info := w.inspect(); len(info.Holders) != 1 || len(info.Waiters) != 0 {
			t.Fatalf("after the release: %+v", info)
		}
		w.release()
	}
}

// Trap 4: a request waits until the process may write; its time counts from then.
func TestTimeCountsFromTheTurn(t *testing.T) {
	t.Parallel()
	w := newWorld()
	all := handles(t, 2, w.option)
	s, other := all[0].(*Store), all[1].(*Store)
	if err := other.turn.enter(); err != nil {
		t.Fatal(err)
	}
	h := writer(t, s, "k")
	done := make(chan error, 1)
	go func() {
		_, err := h.acquire(time.Minute, false)
		done <- err
	}()
	await(t, time.Now().Add(10*time.Second), "the request waits", s.waiting)
	w.pass(10 * time.Minute)
	other.turn.leave()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if left := h.inspect().Holders[0].Remaining; left != time.Minute {
		t.Errorf("%v are left of a minute", left)
	}
}

// Trap 6: a waiter's renewals run while it is being granted; none may miss it.
func TestRenewalMeetsGrant(t *testing.T) {
	t.Parallel()
	all := handles(t, 2)
	a, b := all[0].(*Store), all[1].(*Store)
	for i := range 50 {
		key := fmt.Sprint("k", i)
		h := writer(t, a, key)
		h.hold(time.Minute)
		w := writer(t, b, key).join(time.Minute)
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				switch r := w.renew(time.Minute); r.State {
				case driver.Waiting:
				case driver.Held:
					if r.Grant.Token < w.Ticket {
						t.Errorf("token %d, ticket %d", r.Grant.Token, w.Ticket)
					}
					return
				default:
					t.Errorf("renew: %v, %v", r.State, r.Err)
					return
				}
			}
		})
		wg.Go(h.release)
		wg.Wait()
	}
}

// Trap 10: the counter has gone on since the grant; a repeated request is
// answered with the grant's own token, else the next holder's would be lower.
func TestRepeatedAcquireKeepsItsToken(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	h := writer(t, s, "k")
	token := h.hold(time.Minute)
	w := writer(t, s, "k").join(time.Minute)
	if again := h.hold(time.Minute); again != token {
		t.Errorf("asked again: token %d, had %d", again, token)
	}
	h.release()
	r := w.renew(time.Minute)
	if r.State != driver.Held || r.Grant.Token <= token {
		t.Errorf("the next holder: %v with token %d, after %d", r.State, r.Grant.Token, token)
	}
	if again := w.hold(time.Minute); again != r.Grant.Token {
		t.Errorf("the next holder asked again: token %d, had %d", again, r.Grant.Token)
	}
}

// An exclusive lock that is free but has dead claims is not entered by the
// fast path in front of a live one.
func TestFastPathDoesNotOvertake(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := openNew(t, w.option)
	writer(t, s, "k").hold(time.Second)
	first := writer(t, s, "k").join(time.Minute)
	w.pass(1200 * time.Millisecond) // the holder is dead, the waiter is not
	if _, err := writer(t, s, "k").acquire(time.Minute, false); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("acquire: %v, want it held by the waiter", err)
	}
	if r := first.renew(time.Minute); r.State != driver.Held {
		t.Errorf("the waiter: %v, want held", r.State)
	}
}

// Only waiters notice a holder that died, and the head of the queue is told when to
// look.
func TestHeadLooksWhenTheHolderExpires(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := openNew(t, w.option)
	writer(t, s, "k").hold(100 * time.Millisecond)
	head := writer(t, s, "k")
	g, err := head.acquire(time.Minute, true)
	if err != nil || !g.Waiting || g.Again <= 0 || g.Again > 150*time.Millisecond {
		t.Fatalf("head: %+v, %v, want to look again in about 100ms", g, err)
	}
	if g, _ := writer(t, s, "k").acquire(time.Minute, true); g.Again != 0 {
		t.Errorf("second: look again in %v, want only the head to hurry", g.Again)
	}
	w.pass(g.Again)
	if r := head.renew(time.Minute); r.State != driver.Held {
		t.Errorf("head: %v, want held", r.State)
	}
}

// A key whose waiters all died while no other claim came is cleaned up, and rows of
// keys that are not used any more do not pile up.
func TestSweep(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := openNew(t, w.option, func(o *options) { o.sweepGap = 4 })
	writer(t, s, "dead").hold(time.Second)
	writer(t, s, "dead").join(time.Second)
	stays := writer(t, s, "held")
	stays.hold(24 * time.Hour)
	for i := range 500 {
		p := writer(t, s, fmt.Sprint("once/", i))
		p.hold(time.Second)
		if i%2 == 0 {
			p.release()
		}
		w.pass(time.Second)
	}
	if n := rows(t, s, "SELECT count(*) FROM baton_lock"); n > 200 {
		t.Errorf("%d rows are left of 500 unused keys", n)
	}
	if n := rows(t, s, "SELECT count(*) FROM baton_claim"); n != 0 {
		t.Errorf("%d dead claims are left", n)
	}
	if r := stays.renew(time.Hour); r.State != driver.Held {
		t.Errorf("a lock that is held was swept: %v", r.State)
	}
}

// Commands that run for a moment each sweep what commands before them have left,
// wherever in the order of the keys that is.
func TestCommandsSweep(t *testing.T) {
	t.Parallel()
	w := newWorld()
	path := filepath.Join(t.TempDir(), "locks.db")
	const commands = 180
	early := make(map[int]bool)
	for i := range commands {
		s, err := openWith(t.Context(), path, w.option, func(o *options) { early[o.early] = true })
		if err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprintf("once/%03d", i)
		p := writer(t, s, key)
		p.hold(time.Second)
		if i%2 == 0 {
			p.release()
		}
		r := limits.Request{
			Takes: []limits.Take{{Key: key, Limit: limits.Limit{Algorithm: limits.TokenBucket, N: 1, Period: time.Second, Burst: 1}, Cost: 1}},
			ID:    driver.NewID(), Keep: time.Second,
		}
		if _, err := s.Take(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if i == commands-1 {
			for _, table := range []string{"baton_lock", "baton_limit", "baton_limit_id"} {
				if n := rows(t, s, "SELECT count(*) FROM "+table); n > commands/2 {
					t.Errorf("%s has %d rows, of %d that are over", table, n, commands-1)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		w.pass(2 * time.Minute)
	}
	if len(early) < 4 {
		t.Errorf("the first sweeps come after %v commits: that is no chance", early)
	}
}

// Waiters of other processes are woken by the datagram, with the grant, even if the
// process that released exits at once, as a command does.
func TestDatagramCarriesTheGrant(t *testing.T) {
	t.Parallel()
	all := handles(t, 2, func(o *options) { o.poll = time.Hour })
	a, b := all[0].(*Store), all[1].(*Store)
	h, w := writer(t, a, "k"), writer(t, b, "k")
	hints := make(chan driver.Hint, 8)
	stop := b.Watch(w.Claim, func(h driver.Hint) { hints <- h })
	defer stop()
	h.hold(time.Minute)
	w.join(time.Minute)
	h.release()
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	select {
	case hint := <-hints:
		if !hint.Granted || hint.Grant.Token < w.Ticket || hint.Grant.TTL <= 0 || hint.Grant.TTL > driver.ClaimTTL {
			t.Errorf("hint %+v for ticket %d", hint, w.Ticket)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("no hint")
	}
}

// Without waiters nothing listens or polls.
func TestNothingRunsWhenIdle(t *testing.T) {
	t.Parallel()
	all := handles(t, 2)
	a, b := all[0].(*Store), all[1].(*Store)
	h, w := writer(t, a, "k"), writer(t, b, "k")
	stop := b.Watch(w.Claim, func(driver.Hint) {})
	h.hold(time.Minute)
	w.join(time.Minute)
	running := func(s *Store) bool {
		s.mail.mu.Lock()
		defer s.mail.mu.Unlock()
		return s.mail.reading || s.mail.stopPoll != nil
	}
	if !running(b) {
		t.Error("a process that waits neither listens nor polls")
	}
	stop()
	for _, s := range []*Store{a, b} {
		await(t, time.Now().Add(10*time.Second), "all goroutines end", func() bool { return !running(s) })
	}
	// And again, after it stopped once.
	stop = b.Watch(w.Claim, func(driver.Hint) {})
	if r := w.renew(time.Minute); r.State != driver.Waiting || !running(b) {
		t.Errorf("%v, running %v: want it to listen again", r.State, running(b))
	}
	stop()
}

// List reads page by page, by ranges of bytes.
func TestListPages(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	const n = 2*listPage + 1
	for i := range n {
		writer(t, s, fmt.Sprintf("é/%03d", i)).hold(time.Minute)
	}
	writer(t, s, "a").hold(time.Minute)
	writer(t, s, "ê").hold(time.Minute)
	writer(t, s, "gone").hold(time.Minute)
	if holders, err := s.Break(t.Context(), "gone"); err != nil || holders != 1 {
		t.Fatalf("break: %d, %v", holders, err)
	}
	for prefix, want := range map[string]int{"": n + 2, "é/": n, "é": n, "é/000": 1, "a": 1, "gone": 0, "\U0010ffff": 0} {
		got := map[string]bool{}
		for info, err := range s.List(t.Context(), prefix) {
			if err != nil {
				t.Fatal(err)
			}
			if got[info.Key] || len(info.Holders) != 1 {
				t.Errorf("%+v, seen before: %v", info, got[info.Key])
			}
			got[info.Key] = true
		}
		if len(got) != want {
			t.Errorf("List(%q) shows %d keys, want %d", prefix, len(got), want)
		}
	}
}
