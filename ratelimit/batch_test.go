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

// Three processes share a busy key: within any second no more is allowed than the
// limit and what their batches may carry into it, and they rarely ask the store.
func TestBatches(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		ratelimit.SlidingLog(300, time.Second), ratelimit.SlidingWindow(300, time.Second), ratelimit.TokenBucket(200, time.Second, 100),
	} {
		t.Run(limit.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &moody{Store: memstore.New()}
				const processes, size = 3, 20
				var mu sync.Mutex
				var allowed []time.Time
				asked := 0
				var wg sync.WaitGroup
				for range processes {
					l := limiter(t, store, limit, ratelimit.InBatches(size, 50*time.Millisecond, processes, processes*size))
					for range 4 {
						wg.Go(func() {
							for range 2500 { // about five seconds
								time.Sleep(2 * time.Millisecond)
								r := allow(t, l, "k", 1)
								mu.Lock()
								asked++
								if r.OK {
									allowed = append(allowed, time.Now())
								} else if r.RetryAfter <= 0 {
									t.Errorf("%+v", r)
								}
								mu.Unlock()
							}
						})
					}
				}
				wg.Wait()
				first, most := 0, 0
				for i, at := range allowed {
					for at.Sub(allowed[first]) >= time.Second {
						first++
					}
					most = max(most, i-first+1)
				}
				if most > 300+processes*size {
					t.Errorf("%d within a second", most)
				}
				if len(allowed) < 4*200 {
					t.Errorf("only %d were allowed in five seconds", len(allowed))
				}
				if n := store.asked.Load(); n > int64(asked)/5 {
					t.Errorf("the store was asked %d times about %d requests", n, asked)
				}
			})
		})
	}
}

// What is left of a batch comes back, so that a quiet process keeps nothing from
// the others; and if the store has less than a batch, a process takes that.
func TestBatchesGiveBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		limit := ratelimit.FixedWindow(30, 24*time.Hour)
		a := limiter(t, store, limit, ratelimit.InBatches(20, time.Second, 2, 40))
		b := limiter(t, store, limit, ratelimit.InBatches(20, time.Second, 2, 40))
		if r := allow(t, a, "k", 1); !r.OK || r.By != ratelimit.ByStore || r.Remaining != 29 {
			t.Errorf("%+v", r)
		}
		if r := allow(t, a, "k", 1); !r.OK || r.By != ratelimit.ByBatch || r.Remaining != 28 {
			t.Errorf("from the batch: %+v", r)
		}
		if r := allow(t, b, "k", 1); !r.OK || r.Remaining != 9 {
			t.Errorf("what a batch leaves: %+v", r)
		}
		time.Sleep(2 * time.Second)
		if r := allow(t, a, "k", 1); !r.OK || r.Remaining != 26 {
			t.Errorf("after a has given 18 back, and b 19: %+v", r)
		}
		used := 4
		for range 100 {
			for _, l := range []*ratelimit.Limiter{a, b} {
				if allow(t, l, "k", 1).OK {
					used++
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		if used != 30 {
			t.Errorf("%d of 30 were used", used)
		}
	})
}

// One goroutine takes a batch, and the others wait for it within their contexts.
func TestBatchesWaitForOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &moody{Store: memstore.New()}
		store.stall.Store(true)
		l := limiter(t, store, ratelimit.SlidingWindow(100, time.Minute), ratelimit.InBatches(50, time.Second, 1, 50))
		first, endFirst := context.WithTimeout(t.Context(), time.Second)
		defer endFirst()
		var wg sync.WaitGroup
		var late, early atomic.Int64
		wg.Go(func() {
			if _, err := l.Allow(first, "k"); errors.Is(err, driver.ErrUnknown) {
				late.Add(1)
			}
		})
		synctest.Wait()
		short, endShort := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer endShort()
		for range 10 {
			wg.Go(func() {
				if _, err := l.Allow(short, "k"); errors.Is(err, context.DeadlineExceeded) {
					early.Add(1)
				}
			})
		}
		wg.Wait()
		if late.Load() != 1 || early.Load() != 10 || store.asked.Load() != 1 {
			t.Errorf("%d, %d, the store was asked %d times", late.Load(), early.Load(), store.asked.Load())
		}
		store.stall.Store(false)
		if r := allow(t, l, "k", 1); !r.OK {
			t.Errorf("%+v", r)
		}
	})
}

// A store that is silent while a batch is given back delays no caller for longer
// than the time that was chosen.
func TestBatchesWhileTheStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const after = 50 * time.Millisecond
		store := &moody{Store: memstore.New()}
		l := limiter(t, store, ratelimit.SlidingWindow(100, time.Minute), ratelimit.InBatches(50, time.Second, 1, 50), ratelimit.FailOpen(after))
		allow(t, l, "k", 1)
		time.Sleep(2 * time.Second)
		store.stall.Store(true)
		start := time.Now()
		if r := allow(t, l, "k", 1); !r.OK || r.By != ratelimit.ByOpen {
			t.Errorf("%+v", r)
		}
		if took := time.Since(start); took > 2*after {
			t.Errorf("it took %v", took)
		}
	})
}

// A key that is asked for once keeps nothing: what is left of its batch comes back
// when the batch is over, and the Limiter forgets the key.
func TestBatchesAreSwept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys, hold = 2000, 50 * time.Millisecond
		store := memstore.New()
		limit := ratelimit.FixedWindow(30, 24*time.Hour)
		l := limiter(t, store, limit, ratelimit.InBatches(20, hold, 1, 20))
		other := limiter(t, store, limit)
		for round := range 4 {
			for i := range keys {
				allow(t, l, fmt.Sprint(round, " ", i), 1)
			}
			time.Sleep(2 * hold)
			synctest.Wait()
			if n := l.Batches(); n != 0 {
				t.Fatalf("round %d: the batches of %d keys are still held", round, n)
			}
			for i := range keys {
				if r := allow(t, other, fmt.Sprint(round, " ", i), 29); !r.OK {
					t.Fatalf("round %d: one of 30 was used, and %d remain", round, r.Remaining)
				}
			}
		}
	})
}

// While the store fails the Limiter does not collect keys whose batches cannot be
// given back, and they do not delay a store that works again.
func TestBatchesAreSweptWhileTheStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys, hold = 500, 50 * time.Millisecond
		store := &moody{Store: memstore.New()}
		l := limiter(t, store, ratelimit.FixedWindow(30, 24*time.Hour), ratelimit.InBatches(20, hold, 1, 20))
		for i := range keys {
			allow(t, l, fmt.Sprint(i), 1)
		}
		store.stall.Store(true)
		time.Sleep(2*hold + time.Second) // fake time: requests under way end after a second
		synctest.Wait()
		if n := l.Batches(); n != 0 {
			t.Errorf("%d keys are held of a store that fails", n)
		}
		if n := store.asked.Load() - keys; n > 8 {
			t.Errorf("a store that is silent was asked to take %d batches back", n)
		}
	})
}

// A caller that asks for a key while its batch is given back is not refused for
// what is under way.
func TestBatchesAreSweptBeforeTheNextIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hold = 50 * time.Millisecond
		store := &slowBack{Store: memstore.New(), takes: 40 * time.Millisecond}
		l := limiter(t, store, ratelimit.FixedWindow(20, 24*time.Hour), ratelimit.InBatches(20, hold, 1, 20))
		allow(t, l, "k", 1)
		time.Sleep(2*hold + 10*time.Millisecond) // fake time: it is being given back
		if r := allow(t, l, "k", 1); !r.OK || r.Remaining != 18 {
			t.Errorf("%+v", r)
		}
		if l.Batches() != 1 {
			t.Errorf("the batch that is in use is forgotten")
		}
		time.Sleep(time.Second) // fake time
	})
}

// slowBack is slow to take back.
type slowBack struct {
	limits.Store
	takes time.Duration
}

func (s *slowBack) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	if r.Mode == limits.GiveBack {
		time.Sleep(s.takes) // fake time
	}
	return s.Store.Take(ctx, r)
}

// A refused caller learns when its own cost is allowed, not when a batch is.
func TestBatchesRefuseWhatIsWanted(t *testing.T) {
	hourly := ratelimit.TokenBucket(1000, time.Hour, 1000)
	for name, limits := range map[string][]ratelimit.Option{
		"one limit": {hourly},
		"two":       {hourly.Named("bucket"), ratelimit.SlidingLog(1050, 24*time.Hour).Named("log")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &moody{Store: memstore.New()}
				l := limiter(t, store, append(limits, ratelimit.InBatches(100, 50*time.Millisecond, 1, 100))...)
				allow(t, l, "k", 1000)
				for i, c := range []struct {
					cost  int64
					retry time.Duration
					asked int64 // so far
				}{
					{1, 3600 * time.Millisecond, 2}, // known from the answer about the batch
					{1, 3600 * time.Millisecond, 2},
					{5, 18 * time.Second, 4},
					{5, 18 * time.Second, 4},
				} {
					r := allow(t, l, "k", c.cost)
					if r.OK || r.RetryAfter != c.retry || r.Cost != c.cost || r.Limits()[0].OK || r.Limits()[0].RetryAfter != c.retry ||
						len(limits) == 2 && (r.Name != "bucket" || !r.Limits()[1].OK || r.Limits()[1].RetryAfter != 0) {
						t.Errorf("%d: %+v", i, r)
					}
					if n := store.asked.Load(); n != c.asked {
						t.Errorf("%d: the store was asked %d times, want %d", i, n, c.asked)
					}
				}
				time.Sleep(3600 * time.Millisecond) // fake time
				if r := allow(t, l, "k", 1); !r.OK {
					t.Errorf("%+v", r)
				}
			})
		})
	}
}

// While the store fails no goroutine takes batches: each takes its own cost from
// the share.
func TestBatchesOfAShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &moody{Store: memstore.New()}
		l := limiter(t, store, ratelimit.SlidingWindow(1000, time.Minute), ratelimit.InBatches(50, 50*time.Millisecond, 4, 200), ratelimit.FailLocal(4, 50*time.Millisecond))
		store.fail(driver.ErrUnavailable)
		ok := 0
		for range 248 {
			if r := allow(t, l, "k", 1); r.OK && r.By == ratelimit.ByLocal {
				ok++
			}
		}
		if r := allow(t, l, "k", 2); ok != 248 || !r.OK || r.Remaining != 0 {
			t.Errorf("%d of the share of 250 were allowed, then %+v", ok, r)
		}
		if r := allow(t, l, "k", 1); r.OK || r.By != ratelimit.ByLocal || r.Cost != 1 || r.RetryAfter != 61*time.Second {
			t.Errorf("above the share: %+v", r)
		}
	})
}

func TestBatchesAreChecked(t *testing.T) {
	t.Parallel()
	limit := ratelimit.SlidingWindow(100, time.Minute)
	for name, opts := range map[string][]ratelimit.Option{
		"of one":            {limit, ratelimit.InBatches(1, time.Second, 1, 100)},
		"for no time":       {limit, ratelimit.InBatches(10, 0, 1, 100)},
		"above the bound":   {limit, ratelimit.InBatches(10, time.Second, 11, 100)},
		"above the limit":   {limit, ratelimit.InBatches(101, time.Second, 1, 200)},
		"of calls":          {limit.PerCall(), ratelimit.InBatches(10, time.Second, 1, 100)},
		"of all keys":       {limit.Named("all").ForAll(), ratelimit.InBatches(10, time.Second, 1, 100)},
		"of a shadow":       {limit.Shadow(), ratelimit.InBatches(10, time.Second, 1, 100)},
		"of a leaky bucket": {ratelimit.LeakyBucket(100, time.Minute, time.Minute), ratelimit.InBatches(10, time.Second, 1, 100)},
	} {
		var bad *ratelimit.LimitError
		if _, err := ratelimit.New(memstore.New(), opts[0].(ratelimit.Limit), opts[1:]...); !errors.As(err, &bad) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
