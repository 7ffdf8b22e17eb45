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

// moody is a store that fails when told to, and counts requests.
type moody struct {
	limits.Store
	err   atomic.Pointer[error]
	stall atomic.Bool
	asked atomic.Int64
}

func (m *moody) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	m.asked.Add(1)
	if m.stall.Load() {
		<-ctx.Done()
		return limits.Taken{}, errors.Join(driver.ErrUnknown, ctx.Err())
	}
	if err := m.err.Load(); err != nil {
		return limits.Taken{}, *err
	}
	return m.Store.Take(ctx, r)
}

func (m *moody) fail(err error) { m.err.Store(&err) }

func TestStoreFails(t *testing.T) {
	const after = 50 * time.Millisecond
	for _, c := range []struct {
		name   string
		option ratelimit.Option
		by     ratelimit.Source
		ok     int // of eight requests, after one that the store allowed
	}{
		{"open", ratelimit.FailOpen(after), ratelimit.ByOpen, 8},
		{"closed", ratelimit.FailClosed(after), ratelimit.ByClosed, 0},
		{"local", ratelimit.FailLocal(3, after), ratelimit.ByLocal, 2},
		{"a share of nothing", ratelimit.FailLocal(9, after), ratelimit.ByLocal, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &moody{Store: memstore.New()}
				l := limiter(t, store, ratelimit.SlidingWindow(7, time.Minute), c.option)
				if r := allow(t, l, "k", 1); r.By != ratelimit.ByStore || !r.OK {
					t.Errorf("%+v", r)
				}
				store.stall.Store(true)
				start := time.Now()
				for i := range 8 {
					if r := allow(t, l, "k", 1); r.OK != (i < c.ok) || r.By != c.by || !r.OK && r.RetryAfter <= 0 {
						t.Errorf("number %d: %+v", i, r)
					}
				}
				if took := time.Since(start); took != 5*after {
					t.Errorf("eight requests took %v: only the first five have to wait for a store that is silent", took)
				}
				if n := store.asked.Load(); n != 6 {
					t.Errorf("the store was asked %d times", n)
				}
				store.stall.Store(false)
				time.Sleep(time.Second)
				if r := allow(t, l, "k", 1); r.By != ratelimit.ByStore || r.Remaining != 5 {
					t.Errorf("the store is back: %+v", r)
				}
			})
		})
	}
}

// A store that denies access, as after a change of the password, decides as little as one
// that is away.
func TestStoreDenies(t *testing.T) {
	t.Parallel()
	store := &moody{Store: memstore.New()}
	l := limiter(t, store, ratelimit.SlidingWindow(1, time.Minute), ratelimit.FailOpen(time.Second))
	store.fail(fmt.Errorf("password: %w", driver.ErrDenied))
	for range 2 {
		if r := allow(t, l, "k", 1); !r.OK || r.By != ratelimit.ByOpen {
			t.Errorf("%+v", r)
		}
	}
}

// A store that fails again and again makes no share larger. What a process has
// given out is forgotten when it has come back.
func TestShareOutlivesTheStoresRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &moody{Store: memstore.New()}
		l := limiter(t, store, ratelimit.SlidingWindow(7, time.Minute), ratelimit.FailLocal(1, 50*time.Millisecond))
		local := func() (n int) {
			store.stall.Store(true)
			for range 10 {
				if r := allow(t, l, "k", 1); r.OK {
					n++
				}
			}
			store.stall.Store(false)
			time.Sleep(150 * time.Millisecond) // fake time: until the store is asked again
			if r := allow(t, l, "another", 1); r.By != ratelimit.ByStore {
				t.Errorf("%+v", r)
			}
			return n
		}
		first, again := local(), local()
		time.Sleep(2 * time.Minute) // fake time: the share is whole again
		allow(t, l, "another", 1)
		if n := l.LocalStates(); n != 0 {
			t.Errorf("%d keys are remembered", n)
		}
		if later := local(); first != 7 || again != 0 || later != 7 {
			t.Errorf("%d were allowed without the store, %d when it failed again, %d after two minutes", first, again, later)
		}
	})
}

// late continues with a request after its context has ended.
type late struct{ moody }

func (l *late) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	t, err := l.moody.Take(ctx, r)
	if ctx.Err() != nil {
		time.Sleep(250 * time.Millisecond) // fake time
	}
	return t, err
}

// No caller waits for a store that is known to fail for longer than was chosen.
func TestLateStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &late{moody{Store: memstore.New()}}
		l := limiter(t, store, ratelimit.SlidingWindow(7, time.Minute), ratelimit.FailOpen(50*time.Millisecond))
		store.stall.Store(true)
		for i, want := range []time.Duration{300, 300, 300, 300, 300, 50, 50} { // the first five discover the failure
			start := time.Now()
			if r := allow(t, l, "k", 1); r.By != ratelimit.ByOpen || time.Since(start) != want*time.Millisecond {
				t.Errorf("%d: %+v after %v", i, r, time.Since(start))
			}
			time.Sleep(100 * time.Millisecond) // fake time: until the store is asked again
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		start := time.Now()
		if _, err := l.Allow(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 10*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		store.stall.Store(false)
		time.Sleep(150 * time.Millisecond) // fake time: the request that was left behind ends, and the store may be asked again
		if r := allow(t, l, "k", 1); r.By != ratelimit.ByStore || r.Remaining != 6 || store.asked.Load() != 9 {
			t.Errorf("%+v, asked %d times", r, store.asked.Load())
		}
		time.Sleep(time.Second) // fake time: until the store has ended what it continued
	})
}

// slowKey is a store that does not answer about one key.
type slowKey struct {
	moody
	key string
}

func (s *slowKey) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	if r.Takes[0].Key == s.key {
		<-ctx.Done()
		return limits.Taken{}, errors.Join(driver.ErrUnknown, ctx.Err())
	}
	return s.moody.Take(ctx, r)
}

// A key that is slow by itself opens no other key, however often it is asked for,
// and however seldom the other is.
func TestOneSlowKeyOpensNoOther(t *testing.T) {
	for every, requests := range map[time.Duration]int{time.Millisecond: 2000, 700 * time.Millisecond: 30} {
		t.Run(every.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &slowKey{moody{Store: memstore.New()}, "slow"}
				l := limiter(t, store, ratelimit.FixedWindow(1, time.Hour), ratelimit.FailOpen(50*time.Millisecond))
				allow(t, l, "exhausted", 1)
				over := make(chan struct{})
				var wg sync.WaitGroup
				for range 24 {
					wg.Go(func() {
						for {
							select {
							case <-over:
								return
							default:
							}
							if r := allow(t, l, "slow", 1); r.By != ratelimit.ByOpen {
								t.Errorf("%+v", r)
							}
							time.Sleep(time.Millisecond) // fake time
						}
					})
				}
				for range requests {
					time.Sleep(every) // fake time
					if r := allow(t, l, "exhausted", 1); r.OK || r.By != ratelimit.ByStore {
						t.Errorf("another key's slow answers allow what is used up: %+v", r)
						break
					}
				}
				close(over)
				wg.Wait()
			})
		})
	}
}

// A store that is silent about many keys fails for all of them.
func TestASilentStoreFailsForAllKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const after = 50 * time.Millisecond
		store := &moody{Store: memstore.New()}
		l := limiter(t, store, ratelimit.FixedWindow(1, time.Hour), ratelimit.FailClosed(after))
		store.stall.Store(true)
		for i := range 5 {
			allow(t, l, fmt.Sprint(i), 1)
		}
		start := time.Now()
		if r := allow(t, l, "another", 1); r.By != ratelimit.ByClosed || time.Since(start) != 0 || store.asked.Load() != 5 {
			t.Errorf("%+v after %v, the store was asked %d times", r, time.Since(start), store.asked.Load())
		}
	})
}

// A policy takes effect although no caller waits as long as the store may take, and
// a caller that leaves sooner is no sign that the store fails.
func TestCallersLessPatientThanThePolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const after = time.Second
		store := &moody{Store: memstore.New()}
		l := limiter(t, store, ratelimit.FixedWindow(100, time.Hour), ratelimit.FailOpen(after))
		ask := func() (ratelimit.Result, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			return l.Allow(ctx, "k")
		}
		store.stall.Store(true)
		start := time.Now()
		var r ratelimit.Result
		for n := 0; r.By != ratelimit.ByOpen; n++ {
			var err error
			if r, err = ask(); err != nil && !errors.Is(err, context.DeadlineExceeded) || n > 20 {
				t.Fatalf("number %d: %+v, %v", n, r, err)
			}
		}
		if took := time.Since(start); took < after || took > after+failing*100*time.Millisecond {
			t.Errorf("it took effect after %v", took)
		}
		store.stall.Store(false)
		time.Sleep(2 * after) // fake time: the probes that were left behind end
		if r, err := ask(); err != nil || r.By != ratelimit.ByStore {
			t.Errorf("the store is back: %+v, %v", r, err)
		}
		for range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			store.stall.Store(true)
			time.AfterFunc(time.Millisecond, cancel)
			if _, err := l.Allow(ctx, "k"); !errors.Is(err, context.Canceled) {
				t.Fatalf("%v", err)
			}
			store.stall.Store(false)
		}
		store.stall.Store(true)
		start = time.Now()
		if r := allow(t, l, "k", 1); r.By != ratelimit.ByOpen || time.Since(start) != after {
			t.Errorf("callers who left at once count as a store that fails: %+v after %v", r, time.Since(start))
		}
	})
}

const failing = 6 // requests of 100 ms until five in a row were not answered

// A cost above the share and not above the limit is allowed when the store is back.
func TestMoreThanAShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &moody{Store: memstore.New()}
		window := ratelimit.SlidingWindow(100, time.Minute)
		one := limiter(t, store, window, ratelimit.FailLocal(3, 50*time.Millisecond))
		two := limiter(t, store, ratelimit.TokenBucket(3, time.Minute, 300).Named("bucket"), window.Named("window"), ratelimit.FailLocal(3, 50*time.Millisecond))
		store.fail(driver.ErrUnavailable)
		for _, c := range []struct {
			l     *ratelimit.Limiter
			taken int64 // before
			cost  int64
			retry time.Duration
		}{
			{one, 1, 34, 100 * time.Millisecond},
			{one, 1, 100, 100 * time.Millisecond},
			{one, 1, 101, ratelimit.Never},
			{two, 1, 50, 100 * time.Millisecond},
			{two, 32, 100, 32 * time.Minute}, // by the bucket
			{two, 1, 101, ratelimit.Never},
		} {
			allow(t, c.l, "k", c.taken)
			if r := allow(t, c.l, "k", c.cost); r.OK || r.By != ratelimit.ByLocal || r.RetryAfter != c.retry {
				t.Errorf("%d: %+v", c.cost, r)
			}
			time.Sleep(24 * time.Hour) // fake time
		}
		waited := make(chan error)
		go func() {
			_, err := one.WaitN(t.Context(), "k", 50)
			waited <- err
		}()
		synctest.Wait()
		store.err.Store(nil)
		if err := <-waited; err != nil {
			t.Error(err)
		}
	})
}

// A store that fails is an error unless an option says otherwise, and the caller's
// mistakes always are.
func TestErrors(t *testing.T) {
	t.Parallel()
	store := &moody{Store: memstore.New()}
	plain := limiter(t, store, ratelimit.SlidingWindow(7, time.Minute))
	open := limiter(t, store, ratelimit.SlidingWindow(7, time.Minute), ratelimit.FailOpen(time.Minute))
	store.fail(driver.ErrUnavailable)
	if _, err := plain.Allow(t.Context(), "k"); !errors.Is(err, ratelimit.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	store.fail(&limits.ClockError{Store: "moody", Ahead: time.Hour})
	var clock *ratelimit.ClockError
	if _, err := open.Allow(t.Context(), "k"); !errors.As(err, &clock) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	store.fail(ctx.Err())
	if _, err := open.Allow(ctx, "k"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// A request whose answer was lost is repeated once, and counted once.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	inner := memstore.New()
	store := &lossy{Store: inner}
	l := limiter(t, store, ratelimit.SlidingWindow(7, time.Minute))
	r, err := l.Reserve(t.Context(), "k", 2)
	if err != nil || !r.Result.OK || r.Result.Remaining != 5 {
		t.Errorf("%+v, %v", r, err)
	}
	if store.lost != 1 {
		t.Errorf("%d answers were lost", store.lost)
	}
}

// What was given back without an answer is not given back again, out of what others
// have taken.
func TestLostAnswerOfCancel(t *testing.T) {
	t.Parallel()
	store := &lossy{Store: memstore.New(), mode: limits.GiveBack}
	l := limiter(t, store, ratelimit.SlidingWindow(100, 24*time.Hour))
	r, err := l.Reserve(t.Context(), "k", 40)
	if err != nil {
		t.Fatal(err)
	}
	allow(t, l, "k", 40)
	if err := r.Cancel(t.Context()); !errors.Is(err, ratelimit.ErrUnknown) {
		t.Errorf("%v", err)
	}
	if err := r.Cancel(t.Context()); err != nil {
		t.Error(err)
	}
	if now, err := l.Peek(t.Context(), "k"); err != nil || now.Remaining != 60 {
		t.Errorf("%+v, %v", now, err)
	}
	if err := r.Cancel(t.Context()); !errors.Is(err, ratelimit.ErrSettled) {
		t.Errorf("%v", err)
	}
}

// lossy loses the first answer to a request of a mode.
type lossy struct {
	limits.Store
	mode limits.Mode
	lost int
}

func (l *lossy) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	t, err := l.Store.Take(ctx, r)
	if l.lost == 0 && err == nil && r.Mode == l.mode {
		l.lost++
		return limits.Taken{}, driver.ErrUnknown
	}
	return t, err
}
