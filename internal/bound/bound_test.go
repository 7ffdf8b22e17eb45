package bound

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// What Within returns is like context.WithTimeout's, whatever is asked first.
func TestForOneTry(t *testing.T) {
	dated, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	var b Contexts
	for name, c := range map[string]struct {
		ctx  context.Context
		want bool
	}{
		"a caller without a deadline": {b.Within(t.Context(), time.Now(), time.Second), true},
		"a caller with a deadline":    {b.Within(dated, time.Now(), time.Second), false},
		"another context":             {dated, false},
	} {
		if got := ForOneTry(c.ctx); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestWithin(t *testing.T) {
	type key struct{}
	boom := errors.New("boom")
	for name, first := range map[string]func(context.Context){
		"Done":     func(c context.Context) { c.Done() },
		"Err":      func(c context.Context) { _ = c.Err() },
		"Value":    func(c context.Context) { c.Value(key{}) },
		"Deadline": func(c context.Context) { c.Deadline() },
		"a child":  func(c context.Context) { _, cancel := context.WithCancel(c); cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var b Contexts
				const limit = 48 * time.Second // and a quarter
				parent, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, 1))
				began := time.Now()
				c := b.Within(parent, time.Now(), limit)
				defer c.Release()
				first(c)
				if d, ok := c.Deadline(); !ok || d.Sub(began) != time.Minute || c.Err() != nil || c.Value(key{}) != 1 {
					t.Errorf("deadline %v, error %v, value %v", d, c.Err(), c.Value(key{}))
				}
				child, stopChild := context.WithCancel(c)
				defer stopChild()
				cancel(boom)
				<-child.Done()
				<-c.Done()
				if !errors.Is(c.Err(), context.Canceled) || context.Cause(c) != boom || context.Cause(child) != boom {
					t.Errorf("after the caller's end: %v, causes %v and %v", c.Err(), context.Cause(c), context.Cause(child))
				}

				c = b.Within(t.Context(), time.Now(), limit)
				defer c.Release()
				first(c)
				time.Sleep(time.Minute)
				synctest.Wait()
				if !errors.Is(c.Err(), context.DeadlineExceeded) {
					t.Errorf("after the bound: %v", c.Err())
				}
				<-c.Done()

				sooner, stopSooner := context.WithTimeout(t.Context(), time.Second)
				defer stopSooner()
				c = b.Within(sooner, time.Now(), limit)
				defer c.Release()
				first(c)
				if d, _ := c.Deadline(); time.Until(d) != time.Second {
					t.Errorf("the caller's own deadline is in %v", time.Until(d))
				}
				<-c.Done()
			})
		})
	}
}

// A context that has no user any more is not reused.
func TestWithinAGivenUpOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen Contexts // by a call that did not run for a while
		var b Contexts
		const limit = 40 * time.Second
		one := b.Within(t.Context(), time.Now(), limit)
		one.Done() // its timer runs
		seen.last.Store(one)
		b.Within(context.Background(), time.Now(), limit).Release()
		one.Release()
		for range 100 {
			var calls sync.WaitGroup
			for range 4 {
				calls.Go(func() {
					if c := seen.last.Load(); c.enter() {
						t.Errorf("given out when it was given up: %v", c.Err())
					}
				})
			}
			calls.Wait()
		}
	})
}

// One context serves the calls of one caller for a quarter of the limit, and does
// not end during a call that still uses it.
func TestWithinIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Contexts
		const limit = 40 * time.Second
		one, cancelOne := context.WithCancel(t.Context())
		defer cancelOne()
		two, cancelTwo := context.WithCancel(t.Context())
		defer cancelTwo()

		first := b.Within(one, time.Now(), limit)
		first.Done() // its timer runs
		again := b.Within(one, time.Now(), limit)
		if again != first {
			t.Error("the same caller got another context")
		}
		other := b.Within(two, time.Now(), limit)
		if other == first {
			t.Error("another caller got the same context")
		}
		first.Release()
		if first.Err() != nil {
			t.Error("ended under a call that uses it")
		}
		again.Release()
		synctest.Wait()
		if first.Err() == nil {
			t.Error("nobody uses it, and its timer runs on")
		}
		other.Release()
		time.Sleep(10 * time.Second)
		later := b.Within(two, time.Now(), limit)
		if later == other {
			t.Error("it was given out again although its time is short")
		}
		later.Release()

		type odd struct {
			context.Context
			_ []int // cannot be compared
		}
		for range 2 {
			b.Within(odd{Context: t.Context()}, time.Now(), limit).Release()
		}
	})
}
