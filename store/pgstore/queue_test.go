package pgstore

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

func placing(r driver.Request) *operation {
	return &operation{claim: r.Claim, ttl: r.TTL, queue: true}
}

func sendKey(t *testing.T, s *Store, all ...*operation) {
	t.Helper()
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.batcher.sendKey(t.Context(), conn, all); err != nil {
		t.Fatal(err)
	}
}

func mustServe(t *testing.T, want bool, all ...*operation) {
	t.Helper()
	for i, o := range all {
		if o.served != want {
			t.Errorf("%d: served is %v", i, o.served)
		}
	}
}

// placed is the claim of an operation that must have been given a position.
func placed(t *testing.T, o *operation) driver.Claim {
	t.Helper()
	if !o.served || !o.grant.Waiting || o.grant.Token != 0 || o.grant.Ticket == 0 {
		t.Errorf("served is %v, %+v, want a position", o.served, o.grant)
	}
	o.claim.Ticket = o.grant.Ticket
	return o.claim
}

// One statement ends a holder, whichever way it was granted, takes other claims out of
// the queue, gives new ones a position behind it and grants the next.
func TestKeyBatch(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	first := hold(t, s, writer("k"))
	second, leaves, third := join(t, s, writer("k")), join(t, s, writer("k")), join(t, s, writer("k"))
	stay(t, s)
	told := make(chan driver.Hint, 9)
	defer s.Watch(second, func(h driver.Hint) { told <- h })()

	a, b := placing(writer("k")), placing(writer("k"))
	wrong := second
	wrong.ID = driver.NewID()
	strangers := []*operation{{claim: wrong}, {claim: with(writer("k"), driver.Grant{Ticket: 1})}}
	sendKey(t, s, append([]*operation{a, {claim: leaves}, b, {claim: first}}, strangers...)...)
	stay(t, s)
	mustServe(t, false, strangers...)
	mustBe(t, s, first, driver.Lost)
	mustBe(t, s, leaves, driver.Lost)
	h := <-told
	for !h.Granted { // to look again, because listening has begun
		h = <-told
	}
	if h.Grant.Token != second.Ticket {
		t.Errorf("the next was told %+v, want token %d", h, second.Ticket)
	}
	mustBe(t, s, second, driver.Held)
	mustBe(t, s, third, driver.Waiting)
	fourth, fifth := placed(t, a), placed(t, b)
	if fourth.Ticket <= third.Ticket || fifth.Ticket <= fourth.Ticket {
		t.Errorf("tickets %d, %d, %d do not rise", third.Ticket, fourth.Ticket, fifth.Ticket)
	}

	for _, c := range []driver.Claim{second, third, fourth, fifth} {
		stay(t, s)
		mustBe(t, s, c, driver.Held)
		end := &operation{claim: c}
		sendKey(t, s, end)
		mustServe(t, true, end)
		again := &operation{claim: c}
		sendKey(t, s, again)
		mustServe(t, false, again)
	}
	if s.batcher.hot.Has("k") {
		t.Error("the key counts as in demand although no claim is left")
	}
}

// A claim that finds no other in the way holds at once, for the whole time asked for.
func TestKeyBatchGrantsAtOnce(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	last := hold(t, s, writer("k"))
	a, b := placing(writer("k")), placing(writer("k"))
	sendKey(t, s, a, &operation{claim: last}, b)
	if g := a.grant; !a.served || g.Waiting || g.Token <= last.Ticket || g.Token != g.Ticket || g.TTL != time.Minute {
		t.Errorf("the first: served is %v, %+v", a.served, g)
	}
	waiter := placed(t, b)
	stay(t, s)
	info, err := s.Inspect(t.Context(), "k")
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Remaining < 30*time.Second {
		t.Errorf("%+v, %v, want one holder for a minute", info, err)
	}
	a.claim.Ticket = a.grant.Ticket
	release(t, s, a.claim)
	stay(t, s)
	mustBe(t, s, waiter, driver.Held)
}

// A new first waiter is told when the holder's end is near.
func TestKeyBatchTellsWhenToAskAgain(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	short := writer("k")
	short.TTL = 300 * time.Millisecond
	hold(t, s, short)
	a, b := placing(writer("k")), placing(writer("k"))
	sendKey(t, s, a, b)
	// On a slow machine the holder is dead by now.
	if g := a.grant; g.Waiting && (g.Again <= 0 || g.Again > driver.RefreshEvery) {
		t.Errorf("the first waiter: %+v", g)
	}
	if g := b.grant; !a.grant.Waiting && g.Again != 0 {
		t.Errorf("the second waiter: %+v", g)
	}
}

// What cannot be answered in the same statement is left as it was.
func TestKeyBatchLeavesAlone(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	unserved := []*operation{placing(writer("new")), {claim: with(writer("new"), driver.Grant{Ticket: 1})}}
	sendKey(t, s, unserved...)
	mustServe(t, false, unserved...)
	last := hold(t, s, writer("new"))
	release(t, s, last)
	sendKey(t, s, unserved...)
	mustServe(t, false, unserved...)

	mine := hold(t, s, writer("k"))
	repeated := placing(driver.Request{Claim: mine, TTL: time.Minute})
	sendKey(t, s, repeated, placing(writer("k")))
	mustServe(t, false, repeated)
	if info, err := s.Inspect(t.Context(), "k"); err != nil || len(info.Waiters) != 0 {
		t.Errorf("%+v, %v, want no waiter", info, err)
	}

	// Readers hold together, and a writer behind them waits for all of them.
	reader := writer("r")
	reader.Weight = 1
	one, two := hold(t, s, reader), reader
	two.ID = driver.NewID()
	other := hold(t, s, two)
	w := placing(writer("r"))
	sendKey(t, s, w, &operation{claim: one})
	waiter := placed(t, w)
	stay(t, s)
	sendKey(t, s, &operation{claim: other})
	stay(t, s)
	mustBe(t, s, waiter, driver.Held)
}

// A transaction that depends on the lease comes to its end first.
func TestKeyBatchRespectsInTx(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	fast := hold(t, s, writer("fast"))
	first := hold(t, s, writer("queue"))
	next := join(t, s, writer("queue"))
	stay(t, s)
	release(t, s, first)
	stay(t, s)
	mustBe(t, s, next, driver.Held)
	for _, c := range []driver.Claim{fast, next} {
		tx := begin(t, s, pgx.ReadCommitted)
		if err := s.InTx(t.Context(), tx, leased(c)); err != nil {
			t.Fatal(err)
		}
		w, end := placing(writer(c.Key)), &operation{claim: c}
		sendKey(t, s, w, end)
		mustServe(t, true, end)
		waiter := placed(t, w)
		exec(t, s, `UPDATE baton_claim SET ends = ends + interval '1 hour' WHERE seq = $1`, waiter.Ticket)
		mustBe(t, s, waiter, driver.Waiting)
		if err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
		mustBe(t, s, waiter, driver.Held)
	}
}

// A renewal that has its row locked delays the release and does not spoil it.
func TestKeyBatchWaitsForARenewal(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	first := hold(t, s, writer("k"))
	next := join(t, s, writer("k"))
	stay(t, s)
	release(t, s, first)
	stay(t, s)
	tx := begin(t, s, pgx.ReadCommitted)
	if _, err := tx.Exec(t.Context(), `UPDATE baton_claim SET ends = clock_timestamp() + interval '1 minute' WHERE seq = $1`, next.Ticket); err != nil {
		t.Fatal(err)
	}
	end := &operation{claim: next}
	done := make(chan struct{})
	go func() {
		defer close(done)
		sendKey(t, s, end)
	}()
	awaitBlocked(t, s, 1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-done
	mustServe(t, true, end)
	mustBe(t, s, next, driver.Lost)
}

// Many goroutines of two processes at one key: no two hold at once, tokens rise, and
// what each process sends at the same moment goes in one statement.
func TestKeyBatchTraffic(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	_, url := database(t)
	var holders atomic.Int32
	var last atomic.Int64
	var wg sync.WaitGroup
	for p := range 2 {
		s := openOn(t, newPool(t, url, func(c *pgxpool.Config) { c.MaxConns = int32(1 + 4*p) }))
		for range 16 {
			wg.Go(func() {
				for range 15 {
					r := queued(writer("k"))
					wake := make(chan struct{}, 1)
					stop := s.Watch(r.Claim, func(driver.Hint) {
						select {
						case wake <- struct{}{}:
						default:
						}
					})
					g, err := s.Acquire(t.Context(), r)
					for err == nil && g.Waiting {
						select {
						case <-wake:
						case <-time.After(driver.RefreshEvery):
						}
						answer := s.Renew(t.Context(), []driver.Claim{with(r, g)}, r.TTL)[0]
						if answer.State == driver.Lost { // the machine was slow
							stop()
							r.ID = driver.NewID()
							stop = s.Watch(r.Claim, func(driver.Hint) {})
							g, err = s.Acquire(t.Context(), r)
							continue
						}
						g, err = answer.Grant, answer.Err
					}
					stop()
					if err != nil {
						t.Errorf("acquire: %v", err)
						return
					}
					if n := holders.Add(1); n != 1 {
						t.Errorf("%d hold", n)
					}
					if before := last.Swap(g.Token); g.Token <= before {
						t.Errorf("token %d after %d", g.Token, before)
					}
					holders.Add(-1)
					if err := s.Release(t.Context(), with(r, g)); err != nil {
						t.Errorf("release: %v", err)
					}
				}
			})
		}
	}
	wg.Wait()
}

// stalled makes a store send nothing for keys that are contended, and the key one of them.
func stalled(s *Store, key string) {
	s.batcher.hot.Set(key, true)
	s.batcher.keys.Pause()
}

// An operation that was not sent for a while goes alone: the connection of the
// statement before may be dead.
func TestKeyBatchIsNotWaitedForLong(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	first := hold(t, s, writer("k"))
	stalled(s, "k")
	waiter := join(t, s, writer("k"))
	stay(t, s)
	release(t, s, first)
	stay(t, s)
	mustBe(t, s, waiter, driver.Held)
	if n := s.batcher.keys.Waiting(); n > 0 {
		t.Errorf("%d are left in the queue", n)
	}
}

// A caller that gives up before anything was sent has nothing to clean up.
func TestKeyBatchCallerLeavesTheQueue(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url, func(o *options) { o.patience = time.Hour })
	c := hold(t, s, writer("k"))
	stalled(s, "k")
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 2)
	go func() {
		_, err := s.Acquire(ctx, queued(writer("k")))
		errs <- err
	}()
	go func() { errs <- s.Release(ctx, c) }()
	eventually(t, "two in line", 20*time.Second, func() bool { return s.batcher.keys.Waiting() == 2 })
	cancel()
	for range 2 {
		if err := <-errs; !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("left: %v", err)
		}
	}
	mustBe(t, s, c, driver.Held)
}

// Close refuses the operations that wait.
func TestKeyBatchClose(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url, func(o *options) { o.patience = time.Hour })
	c := hold(t, s, writer("k"))
	stalled(s, "k")
	errs := make(chan error, 1)
	go func() { errs <- s.Release(t.Context(), c) }()
	eventually(t, "one in line", 20*time.Second, func() bool { return s.batcher.keys.Waiting() == 1 })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-errs; !errors.Is(err, driver.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// The answer to all of them is lost after its effect: the callers do not know, and
// asking again finds it.
func TestKeyBatchAnswerCut(t *testing.T) {
	t.Parallel()
	server, url := database(t)
	proxy := faultproxy.New(t, server.Addr)
	s := openOn(t, newPool(t, strings.Replace(url, server.Addr, proxy.Addr, 1)))
	plain := openAt(t, url)
	first := hold(t, s, writer("k"))
	second := join(t, s, writer("k"))
	stay(t, s)
	fresh := queued(writer("k"))
	sprung := proxy.CutAfterRequest(func(request []byte) bool { return bytes.Contains(request, []byte(fresh.ID)) })
	_, err := s.Acquire(t.Context(), fresh)
	<-sprung
	if !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("cut: %v, want driver.ErrUnknown", err)
	}
	fresh.Retry = true
	g, err := s.Acquire(t.Context(), fresh)
	if err != nil || !g.Waiting {
		t.Fatalf("asked again: %+v, %v", g, err)
	}
	stay(t, s)
	info, err := plain.Inspect(t.Context(), "k")
	if err != nil || len(info.Waiters) != 2 {
		t.Errorf("%+v, %v, want two waiters", info, err)
	}

	sprung = proxy.CutAfterRequest(func(request []byte) bool { return bytes.Contains(request, []byte(first.ID)) })
	err = s.Release(t.Context(), first)
	<-sprung
	if !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("cut: %v, want driver.ErrUnknown", err)
	}
	if err := s.Release(t.Context(), first); !errors.Is(err, driver.ErrLost) {
		t.Errorf("released again: %v, want driver.ErrLost", err)
	}
	stay(t, plain)
	mustBe(t, plain, second, driver.Held)
}
