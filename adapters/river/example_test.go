package batonriver_test

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/batonhq/baton"
	batonriver "github.com/batonhq/baton/adapters/river"
	"github.com/batonhq/baton/ratelimit/joblimit"
	"github.com/batonhq/baton/store/pgstore"
)

type reportArgs struct {
	Tenant string `json:"tenant"`
}

func (reportArgs) Kind() string { return "report" }

// At most five reports of each tenant are made at a time, over all clients, with the
// permits in the database of the jobs.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/app")
	if err != nil {
		panic(err)
	}
	if err := pgstore.Migrate(ctx, pool); err != nil {
		panic(err)
	}
	store, err := pgstore.New(ctx, pool, pgstore.Config{})
	if err != nil {
		panic(err)
	}
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		panic(err)
	}
	limit, err := joblimit.New(joblimit.Config{Locks: locks, Running: 5, Prefix: "jobs/"})
	if err != nil {
		panic(err)
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, job *river.Job[reportArgs]) error {
		return nil // the work, which ends when ctx does
	}))
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}},
		Workers: workers,
		Middleware: []rivertype.Middleware{batonriver.Middleware(limit, func(_ context.Context, job *rivertype.JobRow) string {
			var args reportArgs
			_ = json.Unmarshal(job.EncodedArgs, &args) // River tells of arguments that are none
			return "tenant/" + args.Tenant
		})},
	})
	if err != nil {
		panic(err)
	}
	if err := client.Start(ctx); err != nil {
		panic(err)
	}
}
