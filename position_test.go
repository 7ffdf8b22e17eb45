package baton_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

// A goroutine that gives up leaves its position in the store's queue to the next one of
// its process.

// A wait is one call of Lock in the background.
type wait struct {
	giveUp context.CancelFunc
	got    chan *baton.Lease
	failed chan error
}

// waitFor asks for a lock and returns when the caller waits.
func waitFor(t *testing.T, l *baton.Locker, opts ...baton.Option) *wait {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &wait{cancel, make(chan *baton.Lease, 1), make(chan error, 1)}
	go func() {
		if lease, err := l.Lock(ctx, "k", opts...); err != nil {
			w.failed <- err
		} else {
			w.got <- lease
		}
	}()
	synctest.Wait()
	return w
}

// hangUp gives up, and wants the call to fail for that.
func (w *wait) hangUp(t *testing.T) {
	t.Helper()
	w.giveUp()
	select {
	case err := <-w.failed:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("gave up: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("a call whose context has ended does not return")
	}
	synctest.Wait()
}

// wantQueue fails unless the store's queue has these owners.
func wantQueue(t *testing.T, store driver.Inspector, owners ...string) {
	t.Helper()
	info, err := store.Inspect(context.Background(), "k")
	var got []string
	for _, w := range info.Waiters {
		got = append(got, w.Owner)
	}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(owners) {
		t.Errorf("the queue is %v (%v), want %v", got, err, owners)
	}
}

func TestPositionStaysInTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		var told []baton.LockEvent
		var n tally
		events := n.events()
		count := events.Acquired
		events.Acquired = func(ctx context.Context, e baton.LockEvent) { count(ctx, e); told = append(told, e) }
		l := newLocker(t, store, baton.Config{Owner: "here", Events: events})
		there := newLocker(t, store.Store, baton.Config{Owner: "there"})
		held := mustLock(t, there, "k")
		first, second, third := waitFor(t, l), waitFor(t, l), waitFor(t, l)
		other := waitFor(t, newLocker(t, store.Store, baton.Config{Owner: "other"}))
		wantQueue(t, store, "here", "other")
		first.hangUp(t)
		wantQueue(t, store, "here", "other")
		time.Sleep(2 * driver.WaiterTTL) // it is still renewed
		second.hangUp(t)
		wantQueue(t, store, "here", "other")
		if a, r := store.acquires.Load(), store.releases.Load(); a != 1 || r != 0 {
			t.Errorf("the store was asked %d times for the lock and %d times to forget it", a, r)
		}
		mustUnlock(t, held)
		lease := within(t, time.Millisecond, third.got)
		if lease.Token()%64 != 0 {
			t.Errorf("token %d: it is said to come from another goroutine", lease.Token())
		}
		if lease.Context(t.Context()).Err() != nil || lease.Err() != nil {
			t.Error("the lease has ended")
		}
		mustUnlock(t, lease)
		mustUnlock(t, within(t, time.Millisecond, other.got))
		n.want(t, 3, 1, 2)
		if len(told) != 1 || told[0].Local || !told[0].Queued || told[0].Token != lease.Token() {
			t.Errorf("told %+v", told)
		}
		wantFree(t, store, []string{"k"}, l)
	})
}

// Who is next and asks for something else requests that: nothing is passed on.
func TestPositionIsForTheSame(t *testing.T) {
	for name, opts := range map[string][2][]baton.Option{
		"TTL":        {nil, {baton.TTL(5 * time.Second)}},
		"owner":      {nil, {baton.Owner("another")}},
		"kind":       {nil, {baton.Shared()}},
		"permits":    {{baton.Permits(1, 3)}, {baton.Permits(2, 3)}},
		"MinHold":    {nil, {baton.MinHold(time.Second)}},
		"MaxWaiting": {nil, {baton.MaxWaiting(9)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newHooked()
				l, there := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
				held := mustLock(t, there, "k")
				first, second := waitFor(t, l, opts[0]...), waitFor(t, l, opts[1]...)
				first.hangUp(t)
				if a, r := store.acquires.Load(), store.releases.Load(); a != 2 || r != 1 {
					t.Errorf("the store was asked %d times for the lock and %d times to forget it", a, r)
				}
				mustUnlock(t, held)
				mustUnlock(t, within(t, time.Millisecond, second.got))
				time.Sleep(2 * time.Second) // MinHold
				wantFree(t, store, []string{"k"}, l)
			})
		})
	}
}

// Readers and permits pass a position on, too.
func TestPositionOfAReader(t *testing.T) {
	for _, opt := range []baton.Option{baton.Shared(), baton.Permits(2, 3)} {
		synctest.Test(t, func(t *testing.T) {
			store := newHooked()
			l, there := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
			held := mustLock(t, there, "k")
			first, second, third := waitFor(t, l, opt), waitFor(t, l, opt), waitFor(t, l, opt)
			first.hangUp(t)
			if r := store.releases.Load(); r != 0 {
				t.Errorf("%d releases", r)
			}
			mustUnlock(t, held)
			mustUnlock(t, within(t, time.Millisecond, second.got))
			mustUnlock(t, within(t, time.Millisecond, third.got))
			wantFree(t, store, []string{"k"}, l)
		})
	}
}

// The store grants, or loses, the position at the very moment at which its goroutine
// gives up, and perhaps the next one, too.
func TestGivingUpWhenGranted(t *testing.T) {
	const rounds = 300
	for _, loses := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New()
			var n tally
			l, there := newLocker(t, store, baton.Config{Events: n.events()}), newLocker(t, store, baton.Config{})
			served := 0
			for i := range rounds {
				held := mustLock(t, there, "k")
				all := []*wait{waitFor(t, l), waitFor(t, l), waitFor(t, l)}
				leaving := all[:1+i%2]
				var wg sync.WaitGroup
				wg.Go(func() {
					if loses {
						_, _ = store.Break(t.Context(), "k")
						_ = held.Unlock()
					} else {
						mustUnlock(t, held)
					}
				})
				for _, w := range leaving {
					wg.Go(w.giveUp)
				}
				wg.Wait()
				for j, w := range all {
					select {
					case lease := <-w.got:
						served++
						mustUnlock(t, lease)
					case err := <-w.failed:
						if j >= len(leaving) || !errors.Is(err, context.Canceled) {
							t.Fatalf("round %d: number %d failed: %v", i, j, err)
						}
					case <-time.After(time.Minute):
						t.Fatalf("round %d: number %d waits for ever", i, j)
					}
					w.giveUp()
				}
				wantFree(t, store, []string{"k"}, l)
			}
			if failed := 3*rounds - served; n.waiting.Load() != 3*rounds || n.acquired.Load() != int64(served) || n.failed.Load() != int64(failed) {
				t.Errorf("%d waited, %d acquired, %d failed; %d were served", n.waiting.Load(), n.acquired.Load(), n.failed.Load(), served)
			}
		})
	}
}

// The goroutine that gets the position gives up, too, before it knows: the one behind it
// gets it.
func TestPositionOfOneWhoLeavesToo(t *testing.T) {
	for range 20 { // which of the two is seen first is chance
		synctest.Test(t, func(t *testing.T) {
			store := newHooked()
			goOn := make(chan struct{})
			locals := 0
			l := newLocker(t, store, baton.Config{Owner: "here", Events: &baton.Events{Waiting: func(_ context.Context, e baton.LockEvent) {
				if e.Local {
					if locals++; locals == 1 {
						<-goOn
					}
				}
			}}})
			held := mustLock(t, newLocker(t, store.Store, baton.Config{}), "k")
			first, second, third := waitFor(t, l), waitFor(t, l), waitFor(t, l)
			other := waitFor(t, newLocker(t, store.Store, baton.Config{Owner: "other"}))
			second.giveUp()
			first.hangUp(t)
			close(goOn)
			synctest.Wait()
			wantQueue(t, store, "here", "other")
			if r := store.releases.Load(); r != 0 {
				t.Errorf("%d releases", r)
			}
			mustUnlock(t, held)
			select {
			case lease := <-second.got: // it may hold, as the first may
				mustUnlock(t, lease)
			case err := <-second.failed:
				if !errors.Is(err, context.Canceled) {
					t.Errorf("the second: %v", err)
				}
			}
			mustUnlock(t, within(t, time.Millisecond, third.got))
			mustUnlock(t, within(t, time.Millisecond, other.got))
			wantFree(t, store, []string{"k"}, l)
		})
	}
}

// The front gives up while its request is under way, and the answer is lost. The next
// goroutine repeats that request and finds what came of it: a position or the lock.
func TestRequestUnderWayIsPassedOn(t *testing.T) {
	for _, granted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := newHooked()
			l, there := newLocker(t, store, baton.Config{Owner: "here"}), newLocker(t, store.Store, baton.Config{Owner: "there"})
			var held *baton.Lease
			if !granted {
				held = mustLock(t, there, "k")
			}
			var requests []driver.Request
			store.set(func() {
				store.onAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
					requests = append(requests, r)
					g, err := store.Store.Acquire(context.WithoutCancel(ctx), r)
					if len(requests) == 1 {
						<-ctx.Done()
						return driver.Grant{}, fmt.Errorf("%w: %w", driver.ErrUnknown, ctx.Err())
					}
					return g, err
				}
			})
			first, second := waitFor(t, l), waitFor(t, l)
			other := waitFor(t, newLocker(t, store.Store, baton.Config{Owner: "other"}))
			first.hangUp(t)
			if len(requests) != 2 || requests[0].ID != requests[1].ID || !requests[1].Retry || store.releases.Load() != 0 {
				t.Errorf("the requests are %+v, and %d releases", requests, store.releases.Load())
			}
			if !granted {
				wantQueue(t, store, "here", "other")
				mustUnlock(t, held)
			}
			mustUnlock(t, within(t, time.Millisecond, second.got))
			mustUnlock(t, within(t, time.Millisecond, other.got))
			wantFree(t, store, []string{"k"}, l)
		})
	}
}

// A goroutine that comes during an outage, and gets the position of one that has waited
// it out for long, waits for as long as by itself.
func TestPositionInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, there := newLocker(t, store, baton.Config{TTL: 10 * time.Second}), newLocker(t, store.Store, baton.Config{})
		held := mustLock(t, there, "k")
		first := waitFor(t, l)
		store.set(func() {
			store.onRenew = func(_ context.Context, c []driver.Claim, _ time.Duration) []driver.Renewal {
				return unavailable(len(c))
			}
		})
		time.Sleep(8 * time.Second)
		second := waitFor(t, l)
		first.hangUp(t)
		time.Sleep(4 * time.Second)
		select {
		case err := <-second.failed:
			t.Fatalf("after 4s: %v", err)
		default:
		}
		store.set(func() { store.onRenew = nil })
		mustUnlock(t, held)
		mustUnlock(t, within(t, 10*time.Second, second.got))
		first = waitFor(t, l)
		if lease := within(t, time.Second, first.got); lease != nil {
			mustUnlock(t, lease)
		}
	})
}

// The front's patience with the store ends at the moment at which the front gives up. The
// next goroutine, which has not waited for long, does not get that answer.
func TestOutcomeOfAnotherIsNotPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		const patience = 10 * time.Second
		l, there := newLocker(t, store, baton.Config{TTL: patience}), newLocker(t, store.Store, baton.Config{TTL: time.Minute})
		held := mustLock(t, there, "k")
		for i := range 100 { // which of the two is seen first is chance
			first := waitFor(t, l)
			var since time.Time // the store is away
			store.set(func() {
				store.onRenew = func(_ context.Context, c []driver.Claim, _ time.Duration) []driver.Renewal {
					if since.IsZero() {
						since = time.Now()
					}
					if time.Since(since) >= patience {
						first.giveUp()
					}
					return unavailable(len(c))
				}
			})
			time.Sleep(patience * 9 / 10)
			second := waitFor(t, l)
			if err := <-first.failed; time.Since(since) < patience {
				t.Errorf("the first: %v after %v", err, time.Since(since))
			}
			store.set(func() { store.onRenew = nil })
			select {
			case err := <-second.failed:
				t.Fatalf("round %d: the second, after %v: %v", i, time.Since(since)-patience*9/10, err)
			case <-time.After(time.Second):
			}
			second.hangUp(t)
		}
		mustUnlock(t, held)
		wantFree(t, store, []string{"k"}, l)
	})
}

// Hosts of which one has impatient callers: each gets its share, though no caller of the
// one waits for as long as another host has the lock.
func TestImpatientCallersDoNotStarve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := far{memstore.New(), time.Millisecond}
		var served [3]atomic.Int64
		until := time.Now().Add(time.Minute)
		var wg sync.WaitGroup
		for host := range served {
			l := newLocker(t, store, baton.Config{Owner: fmt.Sprint("host ", host)})
			for range 20 {
				wg.Go(func() {
					for time.Now().Before(until) {
						patience := time.Hour
						if host == 0 {
							patience = 50 * time.Millisecond
						}
						ctx, cancel := context.WithTimeout(t.Context(), patience)
						lease, err := l.Lock(ctx, "k")
						cancel()
						if err != nil {
							if !errors.Is(err, context.DeadlineExceeded) {
								t.Errorf("host %d: %v", host, err)
							}
							time.Sleep(rand.N(10 * time.Millisecond))
							continue
						}
						time.Sleep(5 * time.Millisecond)
						served[host].Add(1)
						mustUnlock(t, lease)
					}
				})
			}
		}
		wg.Wait()
		var n [3]int64
		total := int64(0)
		for i := range served {
			n[i] = served[i].Load()
			total += n[i]
		}
		t.Logf("served: %v", n)
		if n[0] < total/6 {
			t.Errorf("the host with impatient callers was served %d times of %d", n[0], total)
		}
		wantFree(t, store, []string{"k"})
	})
}

// A call with other options for another key changes nothing for callers who ask for the
// same.
func TestPositionBesideOtherTTLs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, there := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
		held := mustLock(t, there, "k")
		first := waitFor(t, l, baton.TTL(5*time.Second))
		mustUnlock(t, mustLock(t, l, "another", baton.TTL(7*time.Second)))
		second := waitFor(t, l, baton.TTL(5*time.Second))
		before := store.acquires.Load()
		first.hangUp(t)
		if a := store.acquires.Load(); a != before {
			t.Error("the store was asked for the lock again")
		}
		mustUnlock(t, held)
		mustUnlock(t, within(t, time.Millisecond, second.got))
		wantFree(t, store, []string{"k", "another"}, l)
	})
}

// slowToInspect takes a while to say who holds a lock.
type slowToInspect struct{ *hooked }

func (s slowToInspect) Inspect(ctx context.Context, key string) (driver.KeyInfo, error) {
	time.Sleep(50 * time.Millisecond)
	return s.hooked.Inspect(ctx, key)
}

// A goroutine comes, or the grant does, while the one that gives up asks who holds the
// lock.
func TestPositionWhileTheHolderIsAskedFor(t *testing.T) {
	for _, granted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := newHooked()
			l, there := newLocker(t, slowToInspect{store}, baton.Config{}), newLocker(t, store.Store, baton.Config{})
			held := mustLock(t, there, "k")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			failed := make(chan error, 1)
			go func() {
				_, err := l.Lock(ctx, "k")
				failed <- err
			}()
			time.Sleep(time.Second + 10*time.Millisecond)
			next := waitFor(t, l)
			if granted {
				mustUnlock(t, held)
			}
			if err := <-failed; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("gave up: %v", err)
			}
			synctest.Wait()
			if a, r := store.acquires.Load(), store.releases.Load(); a != 1 || r != 0 {
				t.Errorf("granted %v: the store was asked %d times for the lock and %d times to forget it", granted, a, r)
			}
			if !granted {
				mustUnlock(t, held)
			}
			mustUnlock(t, within(t, time.Millisecond, next.got))
			wantFree(t, store, []string{"k"}, l)
		})
	}
}
