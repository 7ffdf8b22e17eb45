package batonasynq_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	batonasynq "github.com/batonhq/baton/adapters/asynq"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/joblimit"
)

// BenchmarkThroughput runs tasks that do nothing, or take a while, without limits and with
// limits that never bind: what a limit costs.
func BenchmarkThroughput(b *testing.B) {
	addr := testserver.Redis(b).Addr
	store, locks, err := open(b.Context(), addr)
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	rate, err := ratelimit.New(store, ratelimit.TokenBucket(1_000_000, time.Second, 1_000_000))
	if err != nil {
		b.Fatal(err)
	}
	queue := asynq.NewClient(asynq.RedisClientOpt{Addr: addr})
	defer queue.Close()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	for _, work := range []time.Duration{0, 2 * time.Millisecond, 10 * time.Millisecond} {
		for _, c := range []struct {
			name string
			cfg  joblimit.Config
		}{{"none", joblimit.Config{}}, {"permits", joblimit.Config{Locks: locks, Running: 1000}}, {"rate", joblimit.Config{Rate: rate}}} {
			b.Run(fmt.Sprintf("%s/%s", work, c.name), func(b *testing.B) {
				for i := range b.N {
					if _, err := queue.Enqueue(asynq.NewTask("job", fmt.Appendf(nil, "key%d", i%10))); err != nil {
						b.Fatal(err)
					}
				}
				var ran atomic.Int64
				done := make(chan bool)
				handler := asynq.Handler(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
					time.Sleep(work) // the work
					if ran.Add(1) == int64(b.N) {
						close(done)
					}
					return nil
				}))
				if c.name != "none" {
					limit, err := joblimit.New(c.cfg)
					if err != nil {
						b.Fatal(err)
					}
					handler = batonasynq.Middleware(client, limit, key)(handler)
				}
				b.ResetTimer()
				server, err := serve(addr, handler, 10)
				if err != nil {
					b.Fatal(err)
				}
				<-done
				b.StopTimer()
				server.Shutdown()
			})
		}
	}
}
