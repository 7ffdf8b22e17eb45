package baton_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

// tally counts Events.
type tally struct{ waiting, acquired, failed atomic.Int64 }

func (n *tally) events() *baton.Events {
	return &baton.Events{
		Waiting:  func(context.Context, baton.LockEvent) { n.waiting.Add(1) },
		Acquired: func(context.Context, baton.LockEvent) { n.acquired.Add(1) },
		Failed:   func(context.Context, baton.LockEvent) { n.failed.Add(1) },
	}
}

func (n *tally) want(t *testing.T, waiting, acquired, failed int) {
	t.Helper()
	got := fmt.Sprint(n.waiting.Load(), " waited, ", n.acquired.Load(), " acquired, ", n.failed.Load(), " failed")
	if want := fmt.Sprint(waiting, " waited, ", acquired, " acquired, ", failed, " failed"); got != want {
		t.Errorf("%s; want %s", got, want)
	}
}

// Every call that waits is reported once, though it waits in the local queue and
// then in the store's, and again after its position was lost; and each reported
// wait has one reported end.
func TestEveryWaitIsToldOnceAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		var n tally
		l, other := newLocker(t, store, baton.Config{Events: n.events()}), newLocker(t, store, baton.Config{})
		first := mustLock(t, other, "k")
		var wg sync.WaitGroup
		var acquired atomic.Int64
		for i := range 60 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Second)
				defer cancel()
				lease, err := l.Lock(ctx, "k")
				if err != nil {
					return
				}
				acquired.Add(1)
				behind := make(chan struct{}) // every front has to wait in the store, too
				go func() {
					defer close(behind)
					there := mustLock(t, other, "k")
					time.Sleep(time.Second)
					mustUnlock(t, there)
				}()
				time.Sleep(time.Second)
				mustUnlock(t, lease)
				<-behind
			})
		}
		time.Sleep(10500 * time.Millisecond)
		if n.waiting.Load() != 60 {
			t.Errorf("%d wait", n.waiting.Load())
		}
		mustUnlock(t, first)
		wg.Wait()
		if got := acquired.Load(); got < 5 || got > 50 {
			t.Errorf("%d acquired: the test is none", got)
		}
		n.want(t, 60, int(acquired.Load()), 60-int(acquired.Load()))
	})
}

// A call that asks for nothing is not reported; one that does not wait is, once.
func TestWhatIsToldWithoutWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		var n tally
		l, other := newLocker(t, store, baton.Config{Events: n.events()}), newLocker(t, store, baton.Config{})
		if _, err := l.Lock(t.Context(), ""); err == nil {
			t.Error("a lock without a name")
		}
		lease := mustLock(t, l, "k")
		if _, err := l.Lock(lease.Context(t.Context()), "k"); !errors.Is(err, baton.ErrNested) {
			t.Error(err)
		}
		mustUnlock(t, mustLockIn(t, lease.Context(t.Context()), l, baton.Reentrant()))
		n.want(t, 0, 1, 0)
		if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, baton.ErrHeld) {
			t.Error(err)
		}
		n.want(t, 0, 1, 1)
		mustUnlock(t, lease)
		there := mustLock(t, other, "b")
		if _, err := l.TryLockAll(t.Context(), []string{"a", "b"}); !errors.Is(err, baton.ErrHeld) {
			t.Error(err)
		}
		n.want(t, 0, 1, 3) // neither of the two
		mustUnlock(t, there)
		all, err := l.LockAll(t.Context(), []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		if err := all.Unlock(); err != nil {
			t.Error(err)
		}
		n.want(t, 0, 3, 3)
	})
}

func mustLockIn(t *testing.T, ctx context.Context, l *baton.Locker, opts ...baton.Option) *baton.Lease {
	t.Helper()
	lease, err := l.Lock(ctx, "k", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// books keeps what Events have told, by key.
type books struct {
	mu       sync.Mutex
	waiting  map[string]int  // calls that wait
	held     map[string]bool // leases, by key and token
	early    map[string]bool // ended before Acquired was called
	acquired int
	wrong    []string
}

func newBooks() *books {
	return &books{waiting: map[string]int{}, held: map[string]bool{}, early: map[string]bool{}}
}

func (b *books) complain(format string, args ...any) {
	b.wrong = append(b.wrong, fmt.Sprintf(format, args...))
}

// ends is about a call that has a lock, or has failed.
func (b *books) ends(c *call, e baton.LockEvent) {
	switch {
	case !e.Queued && !e.Since.IsZero(), e.Queued && e.Since != c.since:
		b.complain("Queued is %t, since %v; Waiting was called at %v", e.Queued, e.Since, c.since)
	case e.Queued:
		b.waiting[e.Key]--
		c.waiting--
	}
}

func leaseOf(e baton.LockEvent) string { return fmt.Sprint(e.Key, "/", e.Token) }

type callKey struct{}

// call is in the context of each call, so that the events of one can be told from
// those of another.
type call struct {
	waiting int
	since   time.Time // when Waiting was called
}

func (b *books) events() *baton.Events {
	of := func(ctx context.Context, what string, e baton.LockEvent) *call {
		c, _ := ctx.Value(callKey{}).(*call)
		if c == nil {
			b.complain("%s of %s has not the context of its call", what, e.Key)
			return &call{}
		}
		if e.Store != "memory" {
			b.complain("%s of %s in store %q", what, e.Key, e.Store)
		}
		return c
	}
	ended := func(ctx context.Context, what string, e baton.LockEvent) {
		b.mu.Lock()
		defer b.mu.Unlock()
		of(ctx, what, e)
		if ctx.Err() != nil {
			b.complain("%s of %s has a context that has ended", what, e.Key)
		}
		lease := leaseOf(e)
		if !b.held[lease] {
			if b.early[lease] {
				b.complain("lease %s ended twice", lease)
			}
			b.early[lease] = true
		}
		delete(b.held, lease)
		if e.Held < 0 || e.Token == 0 {
			b.complain("%s: %+v", what, e)
		}
	}
	return &baton.Events{
		Waiting: func(ctx context.Context, e baton.LockEvent) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.waiting[e.Key]++
			c := of(ctx, "waiting", e)
			c.waiting++
			if c.since = e.Since; time.Since(e.Since) != 0 {
				b.complain("waiting since %v, now", e.Since)
			}
		},
		Acquired: func(ctx context.Context, e baton.LockEvent) {
			b.mu.Lock()
			defer b.mu.Unlock()
			c := of(ctx, "acquired", e)
			if e.Queued != (c.waiting > 0) {
				b.complain("acquired: %d calls of Waiting, and Queued is %t", c.waiting, e.Queued)
			}
			b.ends(c, e)
			b.acquired++
			lease := leaseOf(e)
			if b.held[lease] {
				b.complain("lease %s acquired twice", lease)
			}
			if b.early[lease] {
				delete(b.early, lease)
			} else {
				b.held[lease] = true
			}
		},
		Failed: func(ctx context.Context, e baton.LockEvent) {
			b.mu.Lock()
			defer b.mu.Unlock()
			c := of(ctx, "failed", e)
			if e.Queued != (c.waiting > 0) {
				b.complain("failed: %d calls of Waiting, and Queued is %t", c.waiting, e.Queued)
			}
			b.ends(c, e)
			if e.Err == nil {
				b.complain("failed without an error")
			}
		},
		Lost:     func(ctx context.Context, e baton.LockEvent) { ended(ctx, "lost", e) },
		Released: func(ctx context.Context, e baton.LockEvent) { ended(ctx, "released", e) },
	}
}

// Events of a storm of calls of all kinds that wait, hang up, lose their locks and
// cannot reach the store agree: no call waits for ever, and every lease that was
// acquired is released or lost, once.
func TestCountsAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		var calls atomic.Int64
		outage := func() error { // a few requests in a row are not answered
			if n := calls.Add(1); n%200 >= 195 {
				return driver.ErrUnknown
			}
			return nil
		}
		store.onAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := store.Store.Acquire(ctx, r)
			return g, errors.Join(err, outage())
		}
		var slow atomic.Int64
		store.onAll = func(ctx context.Context, r []driver.Request) ([]driver.Grant, error) {
			g, err := store.Store.AcquireAll(ctx, r)
			if slow.Add(1)%3 == 0 {
				time.Sleep(1200 * time.Millisecond) // so that the grant is too old to be used
			}
			return g, errors.Join(err, outage())
		}
		b := newBooks()
		var lockers []*baton.Locker
		for range 3 {
			lockers = append(lockers, newLocker(t, store, baton.Config{TTL: 2 * time.Second, MaxHold: 3 * time.Second, Events: b.events()}))
		}
		var wg sync.WaitGroup
		for i := range 90 {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			l := lockers[i%3]
			wg.Go(func() {
				for range 60 {
					key := fmt.Sprint("k", random.IntN(4))
					ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), callKey{}, &call{}), time.Duration(random.IntN(3000))*time.Millisecond)
					hold := time.Duration(random.IntN(40)) * time.Millisecond
					if random.IntN(40) == 0 {
						hold = 4 * time.Second // longer than MaxHold
					}
					switch random.IntN(8) {
					case 0:
						if all, err := l.LockAll(ctx, []string{"k0", "k1", fmt.Sprint("own", i)}); err == nil {
							time.Sleep(hold)
							_ = all.Unlock()
						}
					case 1:
						if all, err := l.TryLockAll(ctx, []string{fmt.Sprint("own", i), fmt.Sprint("own too", i)}); err == nil {
							time.Sleep(hold)
							_ = all.Unlock()
						}
					case 2:
						if lease, err := l.Lock(ctx, key, baton.Shared()); err == nil {
							time.Sleep(hold)
							_ = lease.Unlock()
						}
					case 3:
						if lease, err := l.TryLock(ctx, key); err == nil {
							time.Sleep(hold)
							_ = lease.Unlock()
						}
					case 4:
						lease, err := l.Lock(ctx, key)
						if err != nil {
							break
						}
						if handle, err := lease.Detach(); err == nil {
							_ = lease.Unlock()
							if lease, err = l.Attach(ctx, handle); err == nil {
								time.Sleep(hold)
							}
						}
						if lease != nil {
							_ = lease.Unlock()
						}
					case 5:
						lease, err := l.Lock(ctx, key)
						if err != nil {
							break
						}
						if random.IntN(3) == 0 {
							_, _ = l.Break(ctx, key)
						}
						inner, err := l.Lock(lease.Context(ctx), key, baton.Reentrant())
						_ = lease.Unlock()
						time.Sleep(hold)
						if err == nil {
							_ = inner.Unlock()
						}
					default:
						if lease, err := l.Lock(ctx, key); err == nil {
							time.Sleep(hold)
							_ = lease.Unlock()
						}
					}
					cancel()
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		b.mu.Lock()
		defer b.mu.Unlock()
		for key, n := range b.waiting {
			if n != 0 {
				t.Errorf("%d calls still wait for %s", n, key)
			}
		}
		for lease := range b.held {
			t.Errorf("lease %s is still held", lease)
		}
		for lease := range b.early {
			t.Errorf("lease %s ended and was never acquired", lease)
		}
		for _, w := range b.wrong {
			t.Error(w)
		}
		if b.acquired < 1000 {
			t.Errorf("%d leases: the storm was none", b.acquired)
		}
	})
}

// What events say about a lock, a read lock, permits, a hand-over, a lease that was
// taken up by another process.
func TestWhatEventsSay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []string
		say := func(what string) func(context.Context, baton.LockEvent) {
			return func(_ context.Context, e baton.LockEvent) {
				mu.Lock()
				defer mu.Unlock()
				var lost *baton.LostError
				cause := ""
				if errors.As(e.Err, &lost) {
					cause = fmt.Sprintf(" cause %d", lost.Cause)
				}
				told = append(told, fmt.Sprintf("%s %s shared=%v %d/%d local=%v waited %v held %v%s", what, e.Key, e.Shared, e.Permits, e.Of, e.Local, e.Waited, e.Held, cause))
			}
		}
		l := newLocker(t, memstore.New(), baton.Config{Events: &baton.Events{
			Waiting: say("waiting"), Acquired: say("acquired"), Failed: say("failed"), Lost: say("lost"), Released: say("released"),
		}})
		want := func(lines ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(told, lines) {
				t.Errorf("told\n%s\nwant\n%s", strings.Join(told, "\n"), strings.Join(lines, "\n"))
			}
			told = nil
		}
		lease := mustLock(t, l, "k")
		next := lockSoon(t, l)
		time.Sleep(100 * time.Millisecond)
		mustUnlock(t, lease)
		mustUnlock(t, <-next)
		want(
			"acquired k shared=false 0/0 local=false waited 0s held 0s",
			"waiting k shared=false 0/0 local=true waited 0s held 0s",
			"released k shared=false 0/0 local=true waited 0s held 100ms",
			"acquired k shared=false 0/0 local=true waited 100ms held 0s",
			"released k shared=false 0/0 local=false waited 0s held 0s",
		)
		permits, err := l.Lock(t.Context(), "p", baton.Permits(2, 5))
		if err != nil {
			t.Fatal(err)
		}
		handle, err := permits.Detach()
		if err != nil {
			t.Fatal(err)
		}
		if permits, err = l.Attach(t.Context(), handle); err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, permits)
		if _, err := l.Attach(t.Context(), handle); !errors.Is(err, baton.ErrLost) {
			t.Error(err)
		}
		want(
			"acquired p shared=false 2/5 local=false waited 0s held 0s",
			"released p shared=false 2/5 local=false waited 0s held 0s cause "+fmt.Sprint(uint8(baton.Detached)),
			"acquired p shared=false 2/5 local=false waited 0s held 0s",
			"released p shared=false 2/5 local=false waited 0s held 0s",
			"failed p shared=false 2/5 local=false waited 0s held 0s cause "+fmt.Sprint(uint8(baton.Gone)),
		)
		reader, err := l.Lock(t.Context(), "r", baton.Shared())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Break(t.Context(), "r"); err != nil {
			t.Fatal(err)
		}
		<-reader.Done()
		want(
			"acquired r shared=true 0/0 local=false waited 0s held 0s",
			"lost r shared=true 0/0 local=false waited 0s held 5ms cause "+fmt.Sprint(uint8(baton.Gone)),
		)
	})
}
