//go:build linux

package faulttest

import (
	"context"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
)

// A program that is 300 ms away from Redis, each way, shares a lock with one
// beside it that wants it all the time: it is served, and keeps what it is
// granted. The portable layer's own tests try further distances in fake time.
func TestFarFromRedis(t *testing.T) {
	t.Parallel()
	direct, open := networked["redis"](t)
	through, proxies := open()
	near, distant := newLocker(t, direct, baton.Config{}), newLocker(t, through, baton.Config{})
	lock := func(ctx context.Context, l *baton.Locker) *baton.Lease {
		lease, err := l.Lock(ctx, t.Name())
		if err != nil {
			if ctx.Err() == nil {
				t.Errorf("Lock: %v", err)
			}
			return nil
		}
		return lease
	}
	if lease := lock(t.Context(), distant); lease == nil || lease.Unlock() != nil { // it is connected
		t.Fatal("not even without a delay")
	}
	proxies[0].Delay(faultproxy.ToServer, 300*time.Millisecond)
	proxies[0].Delay(faultproxy.ToClient, 300*time.Millisecond)

	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan int)
	go func() {
		n := 0
		for ; ; n++ {
			lease := lock(ctx, near)
			if lease == nil {
				served <- n
				return
			}
			select {
			case <-time.After(200 * time.Millisecond):
			case <-lease.Done():
				t.Errorf("the near one lost its lease: %v", lease.Err())
			}
			_ = lease.Unlock()
		}
	}()
	for range 3 {
		bound, stop := context.WithTimeout(ctx, 30*time.Second)
		lease := lock(bound, distant)
		stop()
		if lease == nil {
			t.Fatal("the distant one waited for 30s")
		}
		select {
		case <-time.After(2 * driver.ClaimTTL):
		case <-lease.Done():
			t.Errorf("the distant one lost its lease: %v", lease.Err())
		}
		_ = lease.Unlock()
	}
	cancel()
	if n := <-served; n < 3 {
		t.Errorf("the near one was served %d times", n)
	}
}
