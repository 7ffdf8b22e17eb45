package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

// slowOnce is a store that does not answer until it is told to, and loses answers.
type slowOnce struct {
	limits.Store
	hold chan struct{} // nil: it answers
	mu   sync.Mutex
	lose int // how many answers to requests that take
}

func (s *slowOnce) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	t, err := s.Store.Take(ctx, r)
	if s.hold != nil && r.MaxWait > 0 {
		select {
		case <-s.hold:
		case <-ctx.Done():
			return limits.Taken{}, errors.Join(driver.ErrUnknown, ctx.Err())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lose > 0 && r.MaxWait > 0 && t.OK {
		s.lose--
		return limits.Taken{}, driver.ErrUnknown
	}
	return t, err
}

// A waiter that leaves while its turn is asked for leaves at once, and the next
// waiter gets the answer.
func TestGoingAwayWhileTheStoreIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowOnce{Store: memstore.New(), hold: make(chan struct{})}
		l := limiter(t, store, ratelimit.TokenBucket(1, time.Minute, 1))
		allow(t, l, "k", 1)
		ctx, leave := context.WithCancel(t.Context())
		gone, served := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := l.Wait(ctx, "k")
			gone <- err
		}()
		synctest.Wait()
		start := time.Now()
		time.Sleep(59960 * time.Millisecond) // fake time: the turn is being asked for
		leave()
		if err := <-gone; !errors.Is(err, context.Canceled) || time.Since(start) != 59960*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		go func() {
			_, err := l.Wait(t.Context(), "k")
			served <- err
		}()
		synctest.Wait()
		time.Sleep(time.Second) // fake time
		close(store.hold)
		if err := <-served; err != nil || time.Since(start) > 61100*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		synctest.Wait()
		if l.LocalQueues() != 0 {
			t.Error("the queue is left")
		}
	})
}

// A store that never answers is an error, and keeps no waiter that leaves.
func TestWaitingForAStoreThatIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowOnce{Store: memstore.New(), hold: make(chan struct{})}
		l := limiter(t, store, ratelimit.TokenBucket(1, time.Second, 1))
		allow(t, l, "k", 1)
		start := time.Now()
		if _, err := l.Wait(t.Context(), "k"); !errors.Is(err, ratelimit.ErrUnknown) || errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 10*time.Second+950*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// A request for a turn whose answer was lost is repeated once, and taken once. If
// both answers are lost it is an error for one waiter, and the others continue.
func TestLostAnswersOfTurns(t *testing.T) {
	for lose, failed := range map[int]int{1: 0, 2: 1} {
		t.Run(fmt.Sprint(lose), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &slowOnce{Store: memstore.New(), lose: lose}
				l := limiter(t, store, ratelimit.TokenBucket(1, time.Second, 1))
				allow(t, l, "k", 1)
				start := time.Now()
				var errs atomic.Int64
				var wg sync.WaitGroup
				for range 5 {
					wg.Go(func() {
						if _, err := l.Wait(t.Context(), "k"); errors.Is(err, ratelimit.ErrUnknown) {
							errs.Add(1)
						} else if err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				// With two answers lost there was a turn that no process knows of.
				if int(errs.Load()) != failed || time.Since(start) != 5*time.Second {
					t.Errorf("%d of 5 failed, after %v", errs.Load(), time.Since(start))
				}
			})
		})
	}
}

// A store that fails is an error for all waiters, unless an option says otherwise.
func TestWaitingWhileTheStoreFails(t *testing.T) {
	for _, open := range []bool{false, true} {
		t.Run(fmt.Sprint(open), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &moody{Store: memstore.New()}
				opts := []ratelimit.Option{ratelimit.TokenBucket(1, time.Minute, 1)}
				if open {
					opts = append(opts, ratelimit.FailOpen(50*time.Millisecond))
				}
				l := limiter(t, store, opts...)
				allow(t, l, "k", 1)
				var ok, failed atomic.Int64
				var wg sync.WaitGroup
				for range 100 {
					wg.Go(func() {
						r, err := l.Wait(t.Context(), "k")
						if err == nil && r.By == ratelimit.ByOpen {
							ok.Add(1)
						} else if errors.Is(err, driver.ErrUnavailable) {
							failed.Add(1)
						}
					})
				}
				synctest.Wait()
				store.fail(driver.ErrUnavailable)
				wg.Wait()
				if open && ok.Load() != 100 || !open && failed.Load() != 100 || l.LocalQueues() != 0 {
					t.Errorf("of 100, %d were let in and %d got the error", ok.Load(), failed.Load())
				}
			})
		})
	}
}
