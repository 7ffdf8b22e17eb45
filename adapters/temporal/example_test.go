package batontemporal_test

import (
	"context"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/batonhq/baton"
	batontemporal "github.com/batonhq/baton/adapters/temporal"
	"github.com/batonhq/baton/ratelimit/joblimit"
	"github.com/batonhq/baton/store/redisstore"
)

func MakeReport(ctx context.Context, tenant string) error {
	return nil // the work, which ends when ctx does
}

// At most five reports of each tenant are made at a time, over all workers, and a report
// that has to wait keeps its three attempts.
func ReportWorkflow(ctx workflow.Context, tenant string) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: 10 * time.Minute,
		RetryPolicy:         &temporal.RetryPolicy{MaximumAttempts: 3},
	})
	return batontemporal.ExecuteActivity(ctx, MakeReport, tenant).Get(ctx, nil)
}

func Example() {
	store, err := redisstore.Open(context.Background(), redisstore.Server{Addrs: []string{"localhost:6379"}}, redisstore.Config{})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		panic(err)
	}
	limit, err := joblimit.New(joblimit.Config{Locks: locks, Running: 5, Prefix: "reports/"})
	if err != nil {
		panic(err)
	}
	temporalClient, err := client.Dial(client.Options{})
	if err != nil {
		panic(err)
	}
	defer temporalClient.Close()
	w := worker.New(temporalClient, "reports", worker.Options{
		Interceptors: []interceptor.WorkerInterceptor{
			batontemporal.Interceptor(limit, func(_ context.Context, in *interceptor.ExecuteActivityInput) string {
				tenant, _ := in.Args[0].(string)
				return tenant
			}),
		},
	})
	w.RegisterWorkflow(ReportWorkflow)
	w.RegisterActivity(MakeReport)
	if err := w.Run(worker.InterruptCh()); err != nil {
		panic(err)
	}
}
