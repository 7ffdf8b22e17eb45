package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

// limiter makes a Limiter. The first option is a Limit.
func limiter(t *testing.T, store limits.Store, opts ...ratelimit.Option) *ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.New(store, opts[0].(ratelimit.Limit), opts[1:]...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func allow(t *testing.T, l *ratelimit.Limiter, key string, n int64) ratelimit.Result {
	t.Helper()
	r, err := l.AllowN(t.Context(), key, n)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// until sleeps, in fake time, to that offset of the present minute.
func until(offset time.Duration) {
	now := time.Now()
	time.Sleep(now.Truncate(time.Minute).Add(offset).Sub(now)) // fake time: this is the timeline
}

// 60 at 0:50 and 60 at 1:10 under 100 per minute.
func TestBoundary(t *testing.T) {
	for _, c := range []struct {
		limit  ratelimit.Limit
		second int           // how many of the second sixty are allowed
		retry  time.Duration // of the first that is refused
	}{
		{ratelimit.FixedWindow(100, time.Minute), 60, 0},
		{ratelimit.SlidingWindow(100, time.Minute), 40, 41 * time.Second},
		{ratelimit.SlidingWindow(100, time.Minute).Parts(6), 40, 50 * time.Second},
		{ratelimit.SlidingWindow(100, time.Minute).Parts(6).Classic(), 40, 40 * time.Second},
		{ratelimit.SlidingLog(100, time.Minute), 40, 40 * time.Second},
		{ratelimit.EstimatedWindow(100, time.Minute), 50, time.Second},
		{ratelimit.TokenBucket(100, time.Minute, 100), 60, 0},
		{ratelimit.TokenBucket(100, time.Minute, 20), 20, 600 * time.Millisecond},
		{ratelimit.LeakyBucket(100, time.Minute, 12*time.Second), 20, 600 * time.Millisecond},
	} {
		t.Run(c.limit.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, memstore.New(), c.limit)
				until(50 * time.Second)
				for range 60 {
					allow(t, l, "k", 1)
				}
				until(70 * time.Second)
				ok, retry := 0, time.Duration(0)
				for range 60 {
					if r := allow(t, l, "k", 1); r.OK {
						ok++
					} else if retry == 0 {
						retry = r.RetryAfter
					}
				}
				if ok != c.second || retry != c.retry {
					t.Errorf("%d of the second sixty are allowed, the next after %v; want %d, %v", ok, retry, c.second, c.retry)
				}
			})
		})
	}
}

func TestSeveralLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, memstore.New(),
			ratelimit.SlidingWindow(3, time.Minute).Named("requests").PerCall(),
			ratelimit.TokenBucket(100, time.Minute, 1000).Named("tokens"),
			ratelimit.FixedWindow(1500, time.Hour).Named("everybody").ForAll())
		if r := allow(t, l, "a", 900); !r.OK || r.Name != "requests" || r.Remaining != 2 || r.Limit != 3 || len(r.Limits()) != 3 ||
			r.Limits()[1].Remaining != 100 || r.Limits()[2].Remaining != 600 || r.Limits()[1].Period != 10*time.Minute {
			t.Errorf("%+v", r)
		}
		if r := allow(t, l, "b", 700); r.OK || r.Name != "everybody" || r.Remaining != 600 || r.Limits()[0].Remaining != 3 || r.Limits()[1].Remaining != 1000 {
			t.Errorf("above what there is for all: %+v", r)
		}
		if r := allow(t, l, "a", 200); r.OK || r.Name != "tokens" || r.RetryAfter != time.Minute {
			t.Errorf("too many tokens: %+v", r)
		}
		if r := allow(t, l, "a", 1001); r.OK || r.RetryAfter != ratelimit.Never {
			t.Errorf("never: %+v", r)
		}
		if err := l.Forget(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		r, err := l.Peek(t.Context(), "a")
		if err != nil || r.Limits()[0].Remaining != 3 || r.Limits()[1].Remaining != 1000 || r.Limits()[2].Remaining != 600 {
			t.Errorf("forgotten: %+v, %v", r, err)
		}
	})
}

func TestLimitsAreChecked(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]ratelimit.Option{
		"of nothing":       {ratelimit.FixedWindow(0, time.Minute)},
		"of less":          {ratelimit.SlidingLog(-1, time.Minute)},
		"of too much":      {ratelimit.FixedWindow(math.MaxInt64, time.Minute)},
		"in no time":       {ratelimit.EstimatedWindow(1, 0)},
		"in less":          {ratelimit.SlidingWindow(1, -time.Minute)},
		"in nanoseconds":   {ratelimit.SlidingLog(1, 1500)},
		"for ever":         {ratelimit.SlidingWindow(1, math.MaxInt64)},
		"no burst":         {ratelimit.TokenBucket(1, time.Minute, 0)},
		"too large bursts": {ratelimit.TokenBucket(1, time.Minute, math.MaxInt64)},
		"negative waits":   {ratelimit.LeakyBucket(1, time.Minute, -time.Minute)},
		"more ahead":       {ratelimit.LeakyBucket(1, time.Minute, time.Minute).Ahead(2)},
		"no parts":         {ratelimit.SlidingWindow(1, time.Minute).Parts(0)},
		"a log too long":   {ratelimit.SlidingLog(1_000_000, time.Minute)},
		"none a day":       {ratelimit.PerDay(0, nil)},
		"two without name": {ratelimit.FixedWindow(1, time.Minute), ratelimit.FixedWindow(2, time.Minute)},
		"twice one name":   {ratelimit.FixedWindow(1, time.Minute).Named("a"), ratelimit.FixedWindow(2, time.Minute).Named("a")},
		"a slash":          {ratelimit.FixedWindow(1, time.Minute).Named("a/b")},
		"a long name":      {ratelimit.FixedWindow(1, time.Minute).Named(strings.Repeat("a", 41))},
		"all of no name":   {ratelimit.FixedWindow(1, time.Minute).ForAll()},
		"parts of a log":   {ratelimit.SlidingLog(1, time.Minute).Parts(3)},
		"uneven parts":     {ratelimit.SlidingWindow(1, time.Minute).Parts(7)},
		"too long a queue": {ratelimit.LeakyBucket(1<<40, time.Microsecond, 1<<60)},
		"no time":          {ratelimit.FixedWindow(1, time.Minute), ratelimit.FailOpen(0)},
		"no instances":     {ratelimit.FixedWindow(1, time.Minute), ratelimit.FailLocal(0, time.Second)},
		"two policies":     {ratelimit.FixedWindow(1, time.Minute), ratelimit.FailOpen(time.Second), ratelimit.FailClosed(time.Second)},
	} {
		var bad *ratelimit.LimitError
		if _, err := ratelimit.New(memstore.New(), opts[0].(ratelimit.Limit), opts[1:]...); !errors.As(err, &bad) {
			t.Errorf("%s: %v", name, err)
		}
	}
	l := limiter(t, memstore.New(), ratelimit.FixedWindow(1, time.Minute).Named("a"))
	if err := l.SetLimits(ratelimit.FixedWindow(2, time.Minute), ratelimit.FixedWindow(0, time.Minute)); err == nil || l.Limits()[0].String() != "a: fixed-window 1 per 1m0s" {
		t.Errorf("bad limits: %v, in force are %v", err, l.Limits())
	}
	if err := l.SetLimits(); err == nil || len(l.Limits()) != 1 {
		t.Errorf("no limits: %v, in force are %v", err, l.Limits())
	}
	reserved, err := l.Reserve(t.Context(), "reserved", 1)
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"no key":         second(l.Allow(t.Context(), "")),
		"no cost":        second(l.AllowN(t.Context(), "k", 0)),
		"a negative one": second(l.WaitN(t.Context(), "k", -1)),
		"none reserved":  second(l.Reserve(t.Context(), "k", 0)),
		"no key to wait": second(l.Wait(t.Context(), "")),
		"no key at all":  l.Forget(t.Context(), ""),
		"a negative end": reserved.Commit(t.Context(), -1),
	} {
		var limit *ratelimit.LimitError
		var key *ratelimit.KeyError
		if !errors.As(err, &limit) && !errors.As(err, &key) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r, err := l.Peek(t.Context(), "k"); err != nil || r.ResetAfter != 0 {
		t.Errorf("bad requests left %+v, %v", r, err)
	}
	// A cost above the capacity is no error, and never allowed.
	if r, err := l.AllowN(t.Context(), "k", math.MaxInt64); err != nil || r.OK || r.RetryAfter != ratelimit.Never || r.Remaining != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	var refused *ratelimit.RefusedError
	if _, err := l.WaitN(t.Context(), "k", 2); !errors.As(err, &refused) || refused.Result.RetryAfter != ratelimit.Never {
		t.Errorf("waiting for more than there can be: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// Allowed decides as Allow does, whichever way it takes to the store.
func TestAllowed(t *testing.T) {
	bucket := ratelimit.TokenBucket(2, time.Second, 3)
	for name, opts := range map[string][]ratelimit.Option{
		"prepared":       {bucket},
		"per call":       {bucket.PerCall()},
		"named":          {bucket.Named("a")},
		"another window": {ratelimit.SlidingWindow(3, time.Second)},
		"a calendar":     {ratelimit.PerDay(3, time.UTC)},
		"several":        {bucket.Named("a"), ratelimit.FixedWindow(7, time.Minute).Named("b")},
		"batches":        {bucket, ratelimit.InBatches(2, time.Second, 1, 2)},
	} {
		for _, far := range []bool{false, true} {
			t.Run(fmt.Sprint(name, far), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					open := func() limits.Store {
						if far {
							return struct{ limits.Store }{memstore.New()} // without Prepare
						}
						return memstore.New()
					}
					one, other := limiter(t, open(), opts...), limiter(t, open(), opts...)
					yes := 0
					for step := range 30 {
						want := allow(t, one, "k", 1)
						ok, err := other.Allowed(t.Context(), "k")
						if ok != want.OK || err != nil {
							t.Fatalf("step %d: %v, %v; Allow says %+v", step, ok, err, want)
						}
						if ok {
							yes++
						}
						time.Sleep(100 * time.Millisecond)
					}
					if yes < 3 || yes == 30 {
						t.Errorf("%d of 30 were allowed", yes)
					}
				})
			})
		}
	}
}

func TestAllowedRefusesToAsk(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	closed := memstore.New()
	closed.Close()
	bucket := ratelimit.TokenBucket(1, time.Hour, 1)
	l := limiter(t, memstore.New(), bucket)
	var bad *ratelimit.KeyError
	if ok, err := l.Allowed(t.Context(), ""); ok || !errors.As(err, &bad) {
		t.Errorf("no key: %v, %v", ok, err)
	}
	if ok, err := l.Allowed(ended, "k"); ok || !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v, %v", ok, err)
	}
	if ok, err := limiter(t, closed, bucket).Allowed(t.Context(), "k"); ok || !errors.Is(err, driver.ErrClosed) {
		t.Errorf("a closed store: %v, %v", ok, err)
	}
	var limit *ratelimit.LimitError
	queue := limiter(t, memstore.New(), ratelimit.LeakyBucket(1, time.Hour, time.Hour))
	if ok, err := queue.Allowed(t.Context(), "k"); ok || !errors.As(err, &limit) {
		t.Errorf("a queue: %v, %v", ok, err)
	}
	for _, l := range []*ratelimit.Limiter{l, queue} {
		if r := allow(t, l, "k", 1); !r.OK || r.Wait != 0 {
			t.Errorf("something was taken: %+v", r)
		}
	}
}

func TestDecisionsInMemoryAllocateNothing(t *testing.T) {
	l := limiter(t, memstore.New(), ratelimit.TokenBucket(1, time.Hour, 100))
	for range 2 { // until it is used up
		if n := testing.AllocsPerRun(100, func() {
			l.Allow(t.Context(), "k")
			l.Allowed(t.Context(), "k")
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

// Waiters are let in one by one, in the order in which they came.
func TestWait(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(1, time.Second, 1), ratelimit.LeakyBucket(1, time.Second, time.Minute),
		ratelimit.FixedWindow(1, time.Second), ratelimit.SlidingWindow(1, time.Second).Parts(1).Classic(), ratelimit.SlidingLog(1, time.Second),
	} {
		t.Run(limit.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, memstore.New(), limit)
				var mu sync.Mutex
				var order []string
				start := time.Now()
				var wg sync.WaitGroup
				for i := range 5 {
					wg.Go(func() {
						r, err := l.Wait(t.Context(), "k")
						if err != nil || !r.OK || r.Wait != 0 {
							t.Errorf("%d: %+v, %v", i, r, err)
						}
						mu.Lock()
						defer mu.Unlock()
						order = append(order, fmt.Sprint(i, " at ", time.Since(start)))
					})
					synctest.Wait()
				}
				wg.Wait()
				if want := []string{"0 at 0s", "1 at 1s", "2 at 2s", "3 at 3s", "4 at 4s"}; !slices.Equal(order, want) {
					t.Errorf("let in: %v", order)
				}
			})
		})
	}
}

// A caller whose deadline is too near is refused at once, and consumes nothing.
func TestWaitTooShort(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(1, time.Second, 1), ratelimit.FixedWindow(1, time.Second), ratelimit.LeakyBucket(1, time.Second, 500*time.Millisecond),
	} {
		t.Run(limit.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, memstore.New(), limit)
				allow(t, l, "k", 1)
				go l.Wait(t.Context(), "k") // a waiter
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
				defer cancel()
				start := time.Now()
				r, err := l.Wait(ctx, "k")
				var refused *ratelimit.RefusedError
				if !errors.As(err, &refused) || !errors.Is(err, ratelimit.ErrRefused) || r.OK || time.Since(start) != 0 || r.RetryAfter < time.Second {
					t.Errorf("%+v, %v after %v", r, err, time.Since(start))
				}
				if _, err := l.WaitN(t.Context(), "k", 100); !errors.Is(err, ratelimit.ErrRefused) {
					t.Errorf("more than there ever is: %v", err)
				}
				time.Sleep(5 * time.Second)
				if r := allow(t, l, "k", 1); !r.OK {
					t.Errorf("it consumed something: %+v", r)
				}
			})
		})
	}
}

// The store refuses a turn that comes after the deadline: no caller waits in vain
// for one.
func TestWaitForATurnThatComesTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, memstore.New(), ratelimit.LeakyBucket(1, time.Second, time.Minute).Named("queue"), ratelimit.TokenBucket(1, time.Second, 100).Named("bucket"))
		allow(t, l, "k", 2) // the next turn is in two seconds
		ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
		defer cancel()
		start := time.Now()
		r, err := l.Wait(ctx, "k")
		var refused *ratelimit.RefusedError
		if !errors.As(err, &refused) || time.Since(start) != 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if r.OK || r.Wait != 0 || r.RetryAfter != 1100*time.Millisecond || r.Name != "queue" || r.Limits()[0].OK || r.Limits()[0].RetryAfter != r.RetryAfter || !r.Limits()[1].OK {
			t.Errorf("%+v", r)
		}
		if r := allow(t, l, "k", 1); !r.OK || r.Wait != 2*time.Second || r.Limits()[1].Remaining != 97 {
			t.Errorf("it consumed something: %+v", r)
		}
	})
}

// A waiter that stops waiting gives its turn back.
func TestWaitCancelled(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(1, time.Minute, 1), ratelimit.LeakyBucket(1, time.Minute, time.Hour), ratelimit.FixedWindow(1, time.Minute),
	} {
		t.Run(limit.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, memstore.New(), limit)
				allow(t, l, "k", 1)
				for range 3 {
					ctx, cancel := context.WithCancel(t.Context())
					ended := make(chan error, 1)
					go func() {
						_, err := l.Wait(ctx, "k")
						ended <- err
					}()
					synctest.Wait()
					cancel()
					if err := <-ended; !errors.Is(err, context.Canceled) {
						t.Errorf("%v", err)
					}
				}
				start := time.Now()
				if _, err := l.Wait(t.Context(), "k"); err != nil || time.Since(start) > time.Minute {
					t.Errorf("%v after %v", err, time.Since(start))
				}
			})
		})
	}
}

func TestReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, memstore.New(), ratelimit.TokenBucket(1, time.Hour, 1000).Named("tokens"), ratelimit.FixedWindow(10, 24*time.Hour).Named("calls").PerCall())
		left := func() string {
			r, err := l.Peek(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(r.Limits()[0].Remaining, " ", r.Limits()[1].Remaining)
		}
		reserve := func(n int64) *ratelimit.Reservation {
			r, err := l.Reserve(t.Context(), "k", n)
			if err != nil || r.Result.OK != (n <= 1000) {
				t.Fatalf("%+v, %v", r, err)
			}
			return r
		}
		for _, c := range []struct {
			reserved, actual int64
			want             string
		}{
			{500, 300, "700 9"},
			{500, 0, "700 9"},
			{500, 500, "200 8"},
			{100, 300, "0 7"},
		} {
			r := reserve(c.reserved)
			if err := r.Commit(t.Context(), c.actual); err != nil {
				t.Error(err)
			}
			if got := left(); got != c.want {
				t.Errorf("%d reserved, %d needed: %s remain, want %s", c.reserved, c.actual, got, c.want)
			}
			if err := r.Cancel(t.Context()); !errors.Is(err, ratelimit.ErrSettled) {
				t.Errorf("settled twice: %v", err)
			}
		}
		if err := reserve(1001).Commit(t.Context(), 1); !errors.Is(err, ratelimit.ErrSettled) {
			t.Errorf("committed what was refused: %v", err)
		}
		if got := left(); got != "0 7" {
			t.Errorf("%s remain", got)
		}
	})
}

// What has come back to a bucket by itself is not given back again.
func TestReservationOfABucket(t *testing.T) {
	queue := ratelimit.LeakyBucket(1, time.Second, 10*time.Second)
	for i, limit := range []ratelimit.Limit{ratelimit.TokenBucket(1, time.Second, 10), queue.Ahead(10), queue} {
		for _, c := range []struct {
			reserved int64
			after    time.Duration
			taken    int64 // by others at that time
			left     int64 // after the cancellation
			queue    int64 // the same if the others have been promised a later turn
		}{
			{10, 10 * time.Second, 10, 0, 0},
			{10, time.Hour, 10, 0, 0},
			{10, 4 * time.Second, 0, 10, 10},
			{10, time.Millisecond, 0, 10, 10},
			{1, time.Millisecond, 0, 10, 10},
			{10, 4 * time.Second, 4, 6, 0},
			{10, 4 * time.Second, 3, 7, 1},
			{1, time.Millisecond, 9, 1, 0},
			{3, 0, 7, 3, 0},
		} {
			want := c.left
			if i == 2 {
				want = c.queue
			}
			t.Run(fmt.Sprint(limit, c), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := limiter(t, memstore.New(), limit)
					reserved, err := l.Reserve(t.Context(), "k", c.reserved)
					if err != nil {
						t.Fatal(err)
					}
					time.Sleep(c.after) // fake time
					if c.taken > 0 && !allow(t, l, "k", c.taken).OK {
						t.Error("what has come back is refused")
					}
					if err := reserved.Cancel(t.Context()); err != nil {
						t.Error(err)
					}
					if r, err := l.Peek(t.Context(), "k"); err != nil || r.Remaining != want {
						t.Errorf("%d remain, want %d (%v)", r.Remaining, want, err)
					}
				})
			})
		}
	}
}

func TestLimitsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, memstore.New(), ratelimit.SlidingWindow(100, time.Minute))
		r, err := l.Reserve(t.Context(), "k", 60)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.SetLimits(ratelimit.SlidingWindow(200, time.Minute)); err != nil {
			t.Fatal(err)
		}
		if x := allow(t, l, "k", 1); x.Remaining != 139 || x.Limit != 200 {
			t.Errorf("%+v", x)
		}
		if err := r.Commit(t.Context(), 10); err != nil {
			t.Error(err)
		}
		if x := allow(t, l, "k", 1); x.Remaining != 188 {
			t.Errorf("%+v", x)
		}
		if err := l.SetLimits(); err == nil {
			t.Error("no limits at all are accepted")
		}
		if got := l.Limits(); len(got) != 1 || got[0].String() != "sliding-window 200 per 1m0s" {
			t.Errorf("%v", got)
		}
	})
}

// A limit is identified by its name, whether or not there are others.
func TestLimitsAreJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, other := ratelimit.FixedWindow(10, 24*time.Hour).Named("one"), ratelimit.FixedWindow(20, 24*time.Hour).Named("other")
		l := limiter(t, memstore.New(), one)
		for _, key := range []string{"k", "{k}", "/{k}", "k{"} {
			for step, c := range []struct {
				limits []ratelimit.Limit
				want   string
			}{
				{[]ratelimit.Limit{one}, "[7]"},
				{[]ratelimit.Limit{one, other}, "[4 17]"},
				{[]ratelimit.Limit{other}, "[14]"},
				{[]ratelimit.Limit{other, one}, "[11 1]"},
			} {
				if err := l.SetLimits(c.limits...); err != nil {
					t.Fatal(err)
				}
				var left []int64
				for _, x := range allow(t, l, key, 3).Limits() {
					left = append(left, x.Remaining)
				}
				if got := fmt.Sprint(left); got != c.want {
					t.Errorf("%q, step %d: %s remain, want %s", key, step, got, c.want)
				}
			}
		}
	})
}

func TestQueues(t *testing.T) {
	t.Parallel()
	l := limiter(t, memstore.New(), ratelimit.TokenBucket(1, time.Second, 1).Named("a"), ratelimit.SlidingLog(1, time.Second).Named("b"))
	if l.Queues() {
		t.Error("a token bucket is no queue")
	}
	if err := l.SetLimits(ratelimit.TokenBucket(1, time.Second, 1).Named("a"), ratelimit.LeakyBucket(1, time.Second, 0).Named("b")); err != nil {
		t.Fatal(err)
	}
	if !l.Queues() {
		t.Error("a leaky bucket is a queue")
	}
}

func TestPerDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, memstore.New(), ratelimit.PerDay(2, time.UTC))
		time.Sleep(18 * time.Hour)
		if r := allow(t, l, "k", 2); !r.OK || r.ResetAfter != 6*time.Hour || r.Limits()[0].Period != 24*time.Hour {
			t.Errorf("%+v", r)
		}
		if r := allow(t, l, "k", 1); r.OK || r.RetryAfter != 6*time.Hour {
			t.Errorf("%+v", r)
		}
		time.Sleep(6 * time.Hour)
		if r := allow(t, l, "k", 2); !r.OK {
			t.Errorf("%+v", r)
		}
	})
}

// The mistakes of a first program are named.
func TestFirstMistakes(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	perMinute := ratelimit.SlidingWindow(3, time.Minute)
	for want, open := range map[string]func() error{
		"the store is nil":           func() error { _, err := ratelimit.New(nil, perMinute); return err },
		"the zero Limit":             func() error { _, err := ratelimit.New(store, ratelimit.Limit{}); return err },
		"did you mean 10*time.Secon": func() error { _, err := ratelimit.New(store, ratelimit.SlidingWindow(3, 10)); return err },
		"whole microseconds":         func() error { _, err := ratelimit.New(store, ratelimit.SlidingWindow(3, 1500)); return err },
	} {
		err := open()
		if _, ok := errors.AsType[*ratelimit.LimitError](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want a *LimitError that says %q", err, want)
		}
	}
}
