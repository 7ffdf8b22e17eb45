package batonasynq_test

import (
	"context"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton"
	batonasynq "github.com/batonhq/baton/adapters/asynq"
	"github.com/batonhq/baton/ratelimit/joblimit"
	"github.com/batonhq/baton/store/redisstore"
)

// At most five tasks of each tenant run at a time, over all servers.
func Example() {
	ctx := context.Background()
	store, err := redisstore.Open(ctx, redisstore.Server{Addrs: []string{"localhost:6379"}}, redisstore.Config{})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		panic(err)
	}
	limit, err := joblimit.New(joblimit.Config{Locks: locks, Running: 5, Prefix: "jobs/"})
	if err != nil {
		panic(err)
	}
	queue := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	mux := asynq.NewServeMux()
	mux.Use(batonasynq.Middleware(queue, limit, func(_ context.Context, t *asynq.Task) string { return "tenant/" + t.Headers()["tenant"] }))
	server := asynq.NewServerFromRedisClient(queue, batonasynq.Config(asynq.Config{Concurrency: 10}))
	mux.HandleFunc("report", func(ctx context.Context, t *asynq.Task) error {
		return nil // the work, which ends when ctx does
	})
	if err := server.Run(mux); err != nil {
		panic(err)
	}
}
