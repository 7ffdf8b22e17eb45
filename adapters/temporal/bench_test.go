package batontemporal_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/joblimit"
	"github.com/batonhq/baton/store/redisstore"
)

// BenchmarkThroughput runs activities that do nothing, or take a while, in ten slots,
// without limits and with limits that never bind: what a limit costs. There is no server,
// whose own requests for each activity would make the share of the limit smaller.
func BenchmarkThroughput(b *testing.B) {
	store, err := redisstore.Open(b.Context(), redisstore.Server{Addrs: []string{testserver.Redis(b).Addr}}, redisstore.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		b.Fatal(err)
	}
	rate, err := ratelimit.New(store, ratelimit.TokenBucket(1_000_000, time.Second, 1_000_000))
	if err != nil {
		b.Fatal(err)
	}
	for _, work := range []time.Duration{0, 10 * time.Millisecond, 50 * time.Millisecond} {
		for _, c := range []struct {
			name string
			cfgs []joblimit.Config
		}{{"none", nil}, {"permits", []joblimit.Config{{Locks: locks, Running: 1000}}}, {"rate", []joblimit.Config{{Rate: rate}}}} {
			b.Run(fmt.Sprintf("%s/%s", work, c.name), func(b *testing.B) {
				var next atomic.Int64
				var slots sync.WaitGroup
				do := func(context.Context, string) error {
					time.Sleep(work) // the work
					return nil
				}
				for range 10 {
					env := activityEnv(b, unlimited, c.cfgs...)
					env.RegisterActivity(do)
					slots.Go(func() {
						for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
							if _, err := env.ExecuteActivity(do, fmt.Sprint("key", i%10)); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				slots.Wait()
			})
		}
	}
}
