package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/server/batonv1"
	"github.com/batonhq/baton/store/memstore"
)

// remaining_ms counts from when the client sent its call, so it includes the wait.
func TestTheWaitIsInWhatRemains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := replica(t, memstore.New())
		first := s.held(t, &batonv1.AcquireRequest{Key: "k", TtlMs: 60_000})
		if first.RemainingMs != 54_000 {
			t.Errorf("%d ms remain of 60 s, want all but a tenth", first.RemainingMs)
		}
		sent := time.Now()
		go func() {
			time.Sleep(3 * time.Second) // fake
			if err := s.releases(t.Context(), first.Handle); err != nil {
				t.Error(err)
			}
		}()
		second := s.held(t, &batonv1.AcquireRequest{Key: "k", TtlMs: 5000, WaitMs: 10_000})
		if waited := time.Since(sent); waited != 3*time.Second {
			t.Errorf("waited %v, want 3s", waited)
		}
		if second.RemainingMs != 7500 {
			t.Errorf("%d ms remain of 5 s after 3 s, want 7500", second.RemainingMs)
		}
		if second.Token <= first.Token || second.Token%64 != 0 {
			t.Errorf("token %d after %d, want one that is higher, and a multiple of 64", second.Token, first.Token)
		}
		end := sent.Add(time.Duration(second.RemainingMs) * time.Millisecond)
		time.Sleep(time.Until(end)) // fake
		if got := s.stateOf(t, &batonv1.AcquireRequest{Key: "k"}); got != batonv1.AcquireResponse_REFUSED {
			t.Errorf("at the end of what remains the lock is %v for others", got)
		}
		time.Sleep(time.Second) // fake
		s.held(t, &batonv1.AcquireRequest{Key: "k"})
	})
}

// slow is a store with slow answers.
type slow struct {
	driver.Locks
	mu     sync.Mutex
	before time.Duration // until the store gets a request
	after  time.Duration // until its answer arrives
	renews atomic.Int64
}

func (s *slow) set(before, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before, s.after = before, after
}

func (s *slow) delays() (time.Duration, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.before, s.after
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", driver.ErrUnknown, ctx.Err())
	}
}

func (s *slow) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	before, after := s.delays()
	if err := sleep(ctx, before); err != nil {
		return driver.Grant{}, err
	}
	g, err := s.Locks.Acquire(context.WithoutCancel(ctx), r)
	if err := sleep(ctx, after); err != nil {
		return driver.Grant{}, err
	}
	return g, err
}

func (s *slow) Renew(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
	s.renews.Add(1)
	before, after := s.delays()
	if err := sleep(ctx, before); err != nil {
		return []driver.Renewal{{Err: err}}
	}
	r := s.Locks.Renew(context.WithoutCancel(ctx), c, ttl)
	if err := sleep(ctx, after); err != nil {
		return []driver.Renewal{{Err: err}}
	}
	return r
}

func (s *slow) Unwrap() driver.Locks { return s.Locks }

// With answers of any delay, the client's lease ends before the store grants the lock to
// another holder.
func TestBeliefEndsBeforeTheLease(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{0, 100 * time.Millisecond, 400 * time.Millisecond, time.Second} {
		for _, held := range []time.Duration{0, 2 * time.Second} {
			t.Run(fmt.Sprintf("%v/%v", d, held), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					store := &slow{Locks: memstore.New()}
					s := replica(t, store)
					quick := replica(t, store.Locks)
					if held > 0 {
						first := quick.held(t, &batonv1.AcquireRequest{Key: "k"})
						time.AfterFunc(held, func() { _ = quick.releases(context.Background(), first.Handle) })
					}
					store.set(d/4, d*3/4) // most of it after the grant
					sent := time.Now()
					const ttl = 5000
					res, err := s.acquire(t.Context(), &batonv1.AcquireRequest{Key: "k", Op: "op x of 16 bytes", TtlMs: ttl, WaitMs: 20_000})
					if err != nil || res.State != batonv1.AcquireResponse_HELD {
						t.Fatal(res, err)
					}
					end := sent.Add(time.Duration(res.RemainingMs) * time.Millisecond)
					if left := time.Until(end); left < ttl/4*time.Millisecond {
						t.Errorf("%v is left of a lease of %d ms", left, ttl)
					}
					time.Sleep(time.Until(end)) // fake
					if got := quick.stateOf(t, &batonv1.AcquireRequest{Key: "k"}); got == batonv1.AcquireResponse_HELD {
						t.Error("the lock is another's while the client believes that it has it")
					}
				})
			})
		}
	}
}

// A grant whose answer took most of its TTL is renewed before use.
func TestLateGrantIsRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &slow{Locks: memstore.New()}
		s := replica(t, store)
		store.set(0, 1900*time.Millisecond) // of the 2 s that an attempt may take
		time.AfterFunc(2*time.Second, func() { store.set(0, 0) })
		res := s.held(t, &batonv1.AcquireRequest{Key: "k", TtlMs: 5000})
		if n := store.renews.Load(); n != 0 {
			t.Errorf("a grant with more than half of its time was renewed %d times", n)
		}
		if err := s.releases(t.Context(), res.Handle); err != nil {
			t.Fatal(err)
		}
		store.set(0, 195*time.Millisecond)
		s.held(t, &batonv1.AcquireRequest{Key: "k", TtlMs: 300})
		if n := store.renews.Load(); n == 0 {
			t.Error("a grant that arrives with less than half of its time is not renewed")
		}
	})
}

// A pushed grant is short, and of unknown age: it is renewed before the client gets it.
func TestPushIsConfirmed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &slow{Locks: memstore.New()}
		s := replica(t, store)
		first := s.held(t, &batonv1.AcquireRequest{Key: "k"})
		var at time.Time
		time.AfterFunc(150*time.Millisecond, func() {
			at = time.Now()
			_ = s.releases(context.Background(), first.Handle)
		})
		sent := time.Now()
		res := s.held(t, &batonv1.AcquireRequest{Key: "k", TtlMs: 10_000, WaitMs: 5000})
		if took := time.Since(at); took > 10*time.Millisecond {
			t.Errorf("the hand-over took %v: no hint was heard", took)
		}
		if store.renews.Load() == 0 {
			t.Error("what the store pushed was not renewed")
		}
		if want := time.Since(sent) + 9*time.Second; time.Duration(res.RemainingMs)*time.Millisecond != want {
			t.Errorf("%d ms remain, want %v", res.RemainingMs, want)
		}
	})
}

// What a client without an op got is released when the client has gone. With an op it
// stays until it expires.
func TestVanishedClient(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"", someOp} {
		t.Run("op="+op, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := replica(t, memstore.New())
				first := s.held(t, &batonv1.AcquireRequest{Key: "k", TtlMs: 60_000})
				ctx, hangUp := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() {
					_, err := s.acquire(ctx, &batonv1.AcquireRequest{Key: "k", Op: op, WaitMs: 30_000})
					ended <- err
				}()
				synctest.Wait()
				hangUp()
				wantCode(t, <-ended, connect.CodeCanceled)
				if err := s.releases(t.Context(), first.Handle); err != nil {
					t.Fatal(err)
				}
				free := time.Now()
				s.held(t, &batonv1.AcquireRequest{Key: "k", WaitMs: 30_000})
				took := time.Since(free)
				if op == "" && took > 0 || op != "" && (took < time.Second || took > 3*time.Second+driver.RefreshEvery) {
					t.Errorf("the lock was free %v after its holder's release", took)
				}
			})
		})
	}
}

// A wait ends in time. With an op the position stays, and the next call has it; without
// one it is gone.
func TestSlices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		s, other := replica(t, store), replica(t, store)
		first := s.held(t, &batonv1.AcquireRequest{Key: "k", TtlMs: 60_000, Owner: "first"})
		res, err := s.acquire(t.Context(), &batonv1.AcquireRequest{Key: "k", WaitMs: 1000})
		if err != nil || res.State != batonv1.AcquireResponse_REFUSED || len(res.Holders) != 1 || res.Holders[0].Owner != "first" || res.Waiting != 0 {
			t.Fatalf("%v, %v: want REFUSED, with the holder", res, err)
		}
		res, err = s.acquire(t.Context(), &batonv1.AcquireRequest{Key: "k", Op: "op x of 16 bytes", WaitMs: 1000})
		if err != nil || res.State != batonv1.AcquireResponse_WAITING || res.Waiting != 1 {
			t.Fatalf("%v, %v: want WAITING, and one who does", res, err)
		}
		// One who came later stands behind.
		order := make(chan string, 2)
		go func() {
			r := other.held(t, &batonv1.AcquireRequest{Key: "k", WaitMs: 30_000})
			order <- "later"
			_ = other.releases(context.Background(), r.Handle)
		}()
		time.Sleep(time.Second) // fake
		go func() {
			r := other.held(t, &batonv1.AcquireRequest{Key: "k", Op: "op x of 16 bytes", Retry: true, WaitMs: 30_000})
			order <- "earlier"
			_ = other.releases(context.Background(), r.Handle)
		}()
		time.Sleep(5 * time.Second) // fake
		if err := s.releases(t.Context(), first.Handle); err != nil {
			t.Fatal(err)
		}
		if got := []string{<-order, <-order}; !slices.Equal(got, []string{"earlier", "later"}) {
			t.Errorf("the lock was granted to %v", got)
		}
	})
}

// A repeated call, at another replica, finds what the first one got.
func TestRepeatedElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b := replica(t, store), replica(t, store)
		r := &batonv1.AcquireRequest{Key: "k", Op: "op x of 16 bytes", TtlMs: 5000}
		first := a.held(t, r)
		r.Retry = true
		second := b.held(t, r)
		if second.Token < first.Token {
			t.Errorf("the token fell from %d to %d", first.Token, second.Token)
		}
		if left, err := b.renews(t.Context(), first.Handle); err != nil || left != 4500*time.Millisecond {
			t.Errorf("renewed elsewhere: %v, %v", left, err)
		}
		for _, caller := range []someone{{name: "b"}} {
			ctx := as(t.Context(), caller)
			if res, err := b.acquire(ctx, r); err != nil || res.State != batonv1.AcquireResponse_REFUSED {
				t.Errorf("%s with the same op: %v, %v", caller.name, res, err)
			}
			_, err := b.renews(ctx, first.Handle)
			wantCode(t, err, connect.CodeInvalidArgument)
			wantCode(t, b.releases(ctx, first.Handle), connect.CodeInvalidArgument)
		}
		if err := b.releases(t.Context(), first.Handle); err != nil {
			t.Error(err)
		}
		wantCode(t, a.releases(t.Context(), second.Handle), connect.CodeNotFound)
		_, err := a.renews(t.Context(), second.Handle)
		wantCode(t, err, connect.CodeNotFound)
	})
}

// Cancel ends a position, and a wait for it, and a lease.
func TestCancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b := replica(t, store), replica(t, store)
		first := a.held(t, &batonv1.AcquireRequest{Key: "k", TtlMs: 60_000})
		ended := make(chan error, 1)
		go func() {
			_, err := a.acquire(t.Context(), &batonv1.AcquireRequest{Key: "k", Op: "op x of 16 bytes", WaitMs: 60_000})
			ended <- err
		}()
		time.Sleep(time.Second) // fake
		cancel := func(s *Server, key, op string, caller Caller) {
			t.Helper()
			if _, err := (locksService{s}).Cancel(as(t.Context(), caller), &batonv1.CancelRequest{Key: key, Op: op}); err != nil {
				t.Error(err)
			}
		}
		cancel(b, "k", "op x of 16 bytes", someone{name: "another"})
		cancel(b, "j", "op x of 16 bytes", someone{})
		cancel(b, "k", "op y of 16 bytes", someone{})
		time.Sleep(time.Second) // fake
		select {
		case err := <-ended:
			t.Fatalf("what others cancel ended the wait: %v", err)
		default:
		}
		cancel(b, "k", "op x of 16 bytes", someone{})
		wantCode(t, <-ended, connect.CodeAborted)
		if err := a.releases(t.Context(), first.Handle); err != nil {
			t.Fatal(err)
		}
		a.held(t, &batonv1.AcquireRequest{Key: "k", Op: "op z of 16 bytes"})
		cancel(b, "k", "op z of 16 bytes", someone{})
		b.held(t, &batonv1.AcquireRequest{Key: "k"})
	})
}

// broken is a store that does not answer while it is down.
type broken struct {
	driver.Locks
	down atomic.Bool
}

var errDown = fmt.Errorf("%w: dial tcp 10.1.2.3:6379: connection refused", driver.ErrUnavailable)

func (s *broken) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if s.down.Load() {
		return driver.Grant{}, errDown
	}
	return s.Locks.Acquire(ctx, r)
}

func (s *broken) Renew(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
	if s.down.Load() {
		return []driver.Renewal{{Err: errDown}}
	}
	return s.Locks.Renew(ctx, c, ttl)
}

func (s *broken) Unwrap() driver.Locks { return s.Locks }

// A store that is out of reach is asked again as long as the client waits. The client
// does not hear where the store is.
func TestStoreOutOfReach(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &broken{Locks: memstore.New()}
		s := replica(t, store)
		store.down.Store(true)
		_, err := s.acquire(t.Context(), &batonv1.AcquireRequest{Key: "k"})
		wantCode(t, err, connect.CodeUnavailable)
		if message := err.Error(); strings.Contains(message, "10.1.2.3") || !strings.Contains(message, "memory") {
			t.Errorf("the client is told %q", message)
		}
		begin := time.Now()
		_, err = s.acquire(t.Context(), &batonv1.AcquireRequest{Key: "k", WaitMs: 3000})
		wantCode(t, err, connect.CodeUnavailable)
		if took := time.Since(begin).Round(time.Millisecond); took != 3*time.Second {
			t.Errorf("a wait of 3 s ended after %v", took)
		}
		time.AfterFunc(2*time.Second, func() { store.down.Store(false) })
		first := s.held(t, &batonv1.AcquireRequest{Key: "k", WaitMs: 10_000})

		// Also while it waits.
		time.AfterFunc(time.Second, func() { store.down.Store(true) })
		time.AfterFunc(2*time.Second, func() { store.down.Store(false) })
		time.AfterFunc(3*time.Second, func() { _ = s.releases(context.Background(), first.Handle) })
		s.held(t, &batonv1.AcquireRequest{Key: "k", WaitMs: 30_000})
	})
}

// A stopping server answers all waiting calls, and releases no lease.
func TestShutdown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		s, other := replica(t, store), replica(t, store)
		first := s.held(t, &batonv1.AcquireRequest{Key: "k", TtlMs: 60_000})
		type ended struct {
			res *batonv1.AcquireResponse
			err error
		}
		with, without := make(chan ended, 1), make(chan ended, 1)
		go func() {
			res, err := s.acquire(t.Context(), &batonv1.AcquireRequest{Key: "k", Op: "op x of 16 bytes", WaitMs: 60_000})
			with <- ended{res, err}
		}()
		go func() {
			res, err := s.acquire(t.Context(), &batonv1.AcquireRequest{Key: "k", WaitMs: 60_000})
			without <- ended{res, err}
		}()
		synctest.Wait()
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if got := <-with; got.err != nil || got.res.State != batonv1.AcquireResponse_WAITING {
			t.Errorf("with an op: %v, %v", got.res, got.err)
		}
		wantCode(t, (<-without).err, connect.CodeUnavailable)
		_, err := s.acquire(t.Context(), &batonv1.AcquireRequest{Key: "j"})
		wantCode(t, err, connect.CodeUnavailable)
		if _, err := s.renews(t.Context(), first.Handle); err != nil {
			t.Errorf("a renewal during the stop: %v", err)
		}
		if err := s.releases(t.Context(), first.Handle); err != nil {
			t.Error(err)
		}
		other.held(t, &batonv1.AcquireRequest{Key: "k", Op: "op x of 16 bytes", Retry: true})
		if err := s.Shutdown(t.Context()); err != nil {
			t.Errorf("once more: %v", err)
		}
	})
}

func TestWaitsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := replica(t, memstore.New(), func(c *Config) { c.MaxWaits = 2 })
		s.held(t, &batonv1.AcquireRequest{Key: "k", TtlMs: 60_000})
		var ends sync.WaitGroup
		for range 2 {
			ends.Go(func() { s.stateOf(t, &batonv1.AcquireRequest{Key: "k", WaitMs: 5000}) })
		}
		synctest.Wait()
		_, err := s.acquire(t.Context(), &batonv1.AcquireRequest{Key: "k", WaitMs: 5000})
		wantCode(t, err, connect.CodeResourceExhausted)
		s.stateOf(t, &batonv1.AcquireRequest{Key: "k"}) // one that does not wait
		if _, err := s.acquire(as(t.Context(), someone{name: "another"}), &batonv1.AcquireRequest{Key: "k", WaitMs: 10}); err != nil {
			t.Errorf("another caller: %v", err)
		}
		ends.Wait()
		s.stateOf(t, &batonv1.AcquireRequest{Key: "k", WaitMs: 10})
	})
}

// A clock that is set forward while a call is under way does not make its lease longer.
// It is not parallel: the clock is that of all tests.
func TestClockThatIsSetForward(t *testing.T) {
	s := replica(t, memstore.New())
	sets := someone{forbid: func(string, string) bool { bootclock.Suspend(5 * time.Second); return false }}
	res, err := s.acquire(as(t.Context(), sets), &batonv1.AcquireRequest{Key: "k", TtlMs: 30_000})
	if err != nil || res.State != batonv1.AcquireResponse_HELD {
		t.Fatal(res, err)
	}
	if res.RemainingMs > 27_100 { // it took some time
		t.Errorf("%d ms remain of 30 s", res.RemainingMs)
	}
}

// A spied store tells when it was asked last, and shows its locks to nobody.
type spied struct {
	*memstore.Store
	renewed atomic.Int64 // when a claim was renewed last
}

func (s *spied) Renew(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
	s.renewed.Store(time.Now().UnixNano())
	return s.Store.Renew(ctx, c, ttl)
}

func (s *spied) Inspect(ctx context.Context, key string) (driver.KeyInfo, error) {
	<-ctx.Done()
	return driver.KeyInfo{}, ctx.Err()
}

func (s *spied) Break(ctx context.Context, key string, grants ...string) (int, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// The position of a client that is told that it waits is fresh, also if the store is slow
// to tell the holder.
func TestPositionIsFreshInTheAnswer(t *testing.T) {
	t.Parallel()
	for _, wait := range []uint32{1000, 1150, 1300} {
		synctest.Test(t, func(t *testing.T) {
			store := &spied{Store: memstore.New()}
			s := replica(t, store)
			s.held(t, &batonv1.AcquireRequest{Key: "k", TtlMs: 60_000})
			began := time.Now()
			res, err := s.acquire(t.Context(), &batonv1.AcquireRequest{Key: "k", Op: someOp, WaitMs: wait})
			if err != nil || res.State != batonv1.AcquireResponse_WAITING {
				t.Fatal(res, err)
			}
			if late := time.Since(began) - time.Duration(wait)*time.Millisecond; late > waitingTimeout {
				t.Errorf("answered %v after the wait", late)
			}
			if age := time.Since(time.Unix(0, store.renewed.Load())); age > waitingTimeout {
				t.Errorf("the position was renewed %v before the answer", age)
			}
		})
	}
}

// A demoting store answers the first grant late, and then says that its claim waits again.
type demoting struct {
	*memstore.Store
	acquires, renews atomic.Int64
}

func (s *demoting) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := s.Store.Acquire(ctx, r)
	if s.acquires.Add(1) == 1 {
		err = cmp.Or(err, sleep(ctx, 195*time.Millisecond))
	}
	return g, err
}

func (s *demoting) Renew(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
	r := s.Store.Renew(ctx, c, ttl)
	if s.renews.Add(1) == 1 {
		r[0].State, r[0].Grant.Waiting, r[0].Grant.Again = driver.Waiting, true, 10*time.Millisecond
	}
	return r
}

// A grant that became a position is waited for under its own ID: a new ID would queue
// behind it.
func TestGrantThatBecomesAPosition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &demoting{Store: memstore.New()}
		s := replica(t, store)
		s.held(t, &batonv1.AcquireRequest{Key: "k", TtlMs: 400, WaitMs: 10_000})
		if n := store.acquires.Load(); n != 1 {
			t.Errorf("the lock was asked for %d times, want once", n)
		}
		if n := store.renews.Load(); n != 2 {
			t.Errorf("%d renewals, want the one that told of the position, and one more", n)
		}
	})
}
