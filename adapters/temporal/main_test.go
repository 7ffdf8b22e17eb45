package batontemporal_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/batonhq/baton"
	batontemporal "github.com/batonhq/baton/adapters/temporal"
	"github.com/batonhq/baton/ratelimit/joblimit"
	"github.com/batonhq/baton/store/memstore"
)

// told is an interceptor that tells activities what a server would tell: the SDK's test
// environments know RetryPolicy and HeartbeatTimeout, and do not tell all of it.
type told struct {
	interceptor.WorkerInterceptorBase
	change func(*activity.Info)
}

func (i *told) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &toldInbound{interceptor.ActivityInboundInterceptorBase{Next: next}, i}
}

type toldInbound struct {
	interceptor.ActivityInboundInterceptorBase
	told *told
}

func (i *toldInbound) Init(next interceptor.ActivityOutboundInterceptor) error {
	return i.Next.Init(&toldOutbound{interceptor.ActivityOutboundInterceptorBase{Next: next}, i.told})
}

type toldOutbound struct {
	interceptor.ActivityOutboundInterceptorBase
	told *told
}

func (i *toldOutbound) GetInfo(ctx context.Context) activity.Info {
	info := i.Next.GetInfo(ctx)
	i.told.change(&info)
	return info
}

// key is the key of an activity, which the tests give as its first argument.
func key(_ context.Context, in *interceptor.ExecuteActivityInput) string { return in.Args[0].(string) }

func newLocks(t testing.TB) *baton.Locker {
	t.Helper()
	store := memstore.New()
	t.Cleanup(func() { store.Close() })
	locks, err := baton.New(store, baton.Config{TTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return locks
}

// options are those of a worker with limits, the outermost first.
func options(t testing.TB, change func(*activity.Info), cfgs ...joblimit.Config) worker.Options {
	t.Helper()
	options := worker.Options{Interceptors: []interceptor.WorkerInterceptor{&told{change: change}}}
	for _, cfg := range cfgs {
		limit, err := joblimit.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		options.Interceptors = append(options.Interceptors, batontemporal.Interceptor(limit, key))
	}
	return options
}

func suite() *testsuite.WorkflowTestSuite {
	s := &testsuite.WorkflowTestSuite{}
	s.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	return s
}

func activityEnv(t testing.TB, change func(*activity.Info), cfgs ...joblimit.Config) *testsuite.TestActivityEnvironment {
	t.Helper()
	env := suite().NewTestActivityEnvironment()
	env.SetTestTimeout(time.Minute)
	env.SetWorkerOptions(options(t, change, cfgs...))
	return env
}

func workflowEnv(t testing.TB, change func(*activity.Info), cfgs ...joblimit.Config) *testsuite.TestWorkflowEnvironment {
	t.Helper()
	env := suite().NewTestWorkflowEnvironment()
	env.SetTestTimeout(time.Minute)
	env.SetWorkerOptions(options(t, change, cfgs...))
	return env
}

// unlimited, limited and byWorkflow are policies of activities: Temporal's default, some attempts, and that
// of ExecuteActivity.
func unlimited(info *activity.Info) { info.RetryPolicy = &temporal.RetryPolicy{} }
func limited(info *activity.Info)   { info.RetryPolicy = &temporal.RetryPolicy{MaximumAttempts: 3} }
func byWorkflow(info *activity.Info) {
	info.RetryPolicy = &temporal.RetryPolicy{MaximumAttempts: 3, NonRetryableErrorTypes: []string{batontemporal.BackType}}
}

func withTimeout(ctx workflow.Context, attempts int32) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: time.Minute,
		RetryPolicy:         &temporal.RetryPolicy{MaximumAttempts: attempts},
	})
}
