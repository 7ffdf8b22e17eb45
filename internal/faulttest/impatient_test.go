//go:build linux

package faulttest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/testserver"
)

// Three hosts share a lock. The callers of one of them have deadlines that are shorter than
// the others have the lock for at a time, and are served all the same: the process keeps its
// position.
func TestImpatientHost(t *testing.T) {
	testserver.Long(t)
	for _, name := range []string{"redis", "postgres", "etcd"} {
		t.Run(name, func(t *testing.T) {
			url := stores[name](t)
			const hosts, callers, long = 3, 20, 4 * time.Second
			var served [hosts]atomic.Int64
			until := time.Now().Add(long)
			var wg sync.WaitGroup
			for host := range hosts {
				locks := newLocker(t, url, baton.Config{})
				patience := time.Minute
				if host == 0 {
					patience = 150 * time.Millisecond
				}
				for range callers {
					wg.Go(func() {
						for time.Now().Before(until) {
							ctx, cancel := context.WithTimeout(t.Context(), patience)
							lease, err := locks.Lock(ctx, t.Name())
							cancel()
							if err != nil {
								if host > 0 || !errors.Is(err, context.DeadlineExceeded) {
									t.Errorf("host %d: %v", host, err)
								}
								continue
							}
							<-time.After(5 * time.Millisecond) // what the lock is held for
							if err := lease.Unlock(); err != nil {
								t.Errorf("host %d: %v", host, err)
							}
							served[host].Add(1)
						}
					})
				}
			}
			wg.Wait()
			n := [hosts]int64{served[0].Load(), served[1].Load(), served[2].Load()}
			t.Logf("served: %v", n)
			if all := n[0] + n[1] + n[2]; n[0] < all/8 {
				t.Errorf("the host with impatient callers was served %d times of %d", n[0], all)
			}
		})
	}
}
