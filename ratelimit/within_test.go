package ratelimit_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

// However many callers there are who cannot wait for long, a queue serves as fast as
// its rate is.
func TestImpatientCallersAreServed(t *testing.T) {
	for name, deadline := range map[string]bool{"a deadline": true, "a longest wait": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, memstore.New(), ratelimit.LeakyBucket(10, time.Second, time.Minute))
				ask := func() bool {
					if deadline {
						ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
						defer cancel()
						_, err := l.Wait(ctx, "k")
						return err == nil
					}
					res, err := l.ReserveWithin(t.Context(), "k", 1, 250*time.Millisecond)
					if err == nil && res.Result.OK {
						time.Sleep(res.Result.Wait)
					}
					return err == nil && res.Result.OK
				}
				var served atomic.Int64
				var wg sync.WaitGroup
				end := time.Now().Add(10 * time.Second)
				for i := range 10 {
					wg.Go(func() {
						for time.Now().Before(end) {
							if ask() {
								served.Add(1)
							} else {
								time.Sleep(time.Duration(5+i) * time.Millisecond)
							}
						}
					})
				}
				wg.Wait()
				if n := served.Load(); n < 100 || n > 104 { // one each tenth of a second, and those whose turn is after the end
					t.Errorf("%d were served in 10 s at 10/s", n)
				}
			})
		})
	}
}
