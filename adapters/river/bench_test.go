package batonriver_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	batonriver "github.com/batonhq/baton/adapters/river"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/joblimit"
)

// BenchmarkThroughput runs jobs that do nothing, or take a while, without limits and with
// limits that never bind: what a limit costs.
func BenchmarkThroughput(b *testing.B) {
	db := migrated(b)
	pool := connect(b, db.url)
	defer pool.Close()
	store, locks, err := open(b.Context(), db.addr, db.name)
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	rate, err := ratelimit.New(store, ratelimit.TokenBucket(1_000_000, time.Second, 1_000_000))
	if err != nil {
		b.Fatal(err)
	}
	for _, work := range []time.Duration{0, 10 * time.Millisecond, 50 * time.Millisecond} {
		for _, c := range []struct {
			name string
			cfg  joblimit.Config
		}{{"none", joblimit.Config{}}, {"permits", joblimit.Config{Locks: locks, Running: 1000}}, {"rate", joblimit.Config{Rate: rate}}} {
			b.Run(fmt.Sprintf("%s/%s", work, c.name), func(b *testing.B) {
				var middleware []rivertype.Middleware
				if c.name != "none" {
					limit, err := joblimit.New(c.cfg)
					if err != nil {
						b.Fatal(err)
					}
					middleware = append(middleware, batonriver.Middleware(limit, key))
				}
				var ran atomic.Int64
				done := make(chan bool)
				client, err := newClient(pool, middleware, func(context.Context, *river.Job[args]) error {
					time.Sleep(work) // the work
					if ran.Add(1) == int64(b.N) {
						close(done)
					}
					return nil
				}, nil)
				if err != nil {
					b.Fatal(err)
				}
				var params []river.InsertManyParams
				for i := range b.N {
					params = append(params, insertion(fmt.Sprint("key", i%10), 5))
				}
				if _, err := client.InsertManyFast(b.Context(), params); err != nil {
					b.Fatal(err)
				}
				b.ResetTimer()
				if err := client.Start(context.Background()); err != nil {
					b.Fatal(err)
				}
				<-done
				b.StopTimer()
				if err := client.Stop(context.Background()); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}
