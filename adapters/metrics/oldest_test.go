package metrics_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/metrics"
)

// A lock that hangs shows while it hangs: the age of the oldest wait grows, and falls to
// that of the next one when it ends, however it ends.
func TestOldestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, events := newFake(t, metrics.Config{})
		store := memory(t)
		locks, err := baton.New(store, baton.Config{Events: events.Locks})
		if err != nil {
			t.Fatal(err)
		}
		want := func(seconds float64) {
			t.Helper()
			synctest.Wait()
			f.look()
			if got := f.sum("baton.lock.waiting.oldest", "memory", "order"); got != seconds {
				t.Errorf("the oldest wait is %v s old, want %v", got, seconds)
			}
		}
		want(0)
		holder, err := locks.Lock(t.Context(), "order/1")
		if err != nil {
			t.Fatal(err)
		}
		want(0)
		var all sync.WaitGroup
		wait := func(key string) (stop func()) {
			ctx, stop := context.WithCancel(t.Context())
			all.Go(func() {
				if lease, err := locks.Lock(ctx, key); err == nil {
					_ = lease.Unlock()
				}
			})
			return stop
		}
		gone := wait("order/1")
		time.Sleep(10 * time.Second)
		twins := []func(){wait("order/1"), wait("order/1")} // since the same moment
		time.Sleep(10 * time.Second)
		want(20)
		gone()
		want(10)
		twins[0]()
		want(10)
		other, err := locks.Lock(t.Context(), "pay/1")
		if err != nil {
			t.Fatal(err)
		}
		defer wait("pay/1")()
		time.Sleep(5 * time.Second)
		want(15)
		if err := holder.Unlock(); err != nil {
			t.Error(err)
		}
		want(0)
		f.look()
		if got := f.sum("baton.lock.waiting.oldest", "memory", "pay"); got != 5 {
			t.Errorf("of the other class: %v", got)
		}
		if err := other.Unlock(); err != nil {
			t.Error(err)
		}
		all.Wait()
		twins[1]()
	})
}
