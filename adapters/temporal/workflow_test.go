package batontemporal_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	batontemporal "github.com/batonhq/baton/adapters/temporal"
	"github.com/batonhq/baton/ratelimit/joblimit"
)

func contains(text string, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

// Activities that go back to their workflow burn no attempt, whatever their
// MaximumAttempts; those that fail do, and what an activity returns passes.
func TestExecuteActivity(t *testing.T) {
	t.Parallel()
	locks := newLocks(t)
	env := workflowEnv(t, byWorkflow, joblimit.Config{Locks: locks, Running: 1, Wait: -1, Longest: time.Second})
	var now, failures, back atomic.Int64
	var mu sync.Mutex
	runs := map[int]int{}
	work := func(_ context.Context, _ string, n int) (int, error) {
		if now.Add(1) > 1 {
			t.Error("two activities run")
		}
		defer now.Add(-1)
		time.Sleep(20 * time.Millisecond) // the work, while others are refused
		mu.Lock()
		runs[n]++
		first := runs[n] == 1
		mu.Unlock()
		if n%3 == 2 || n%3 == 1 && first {
			failures.Add(1)
			return 0, errors.New("failed")
		}
		return n, nil
	}
	env.RegisterActivity(work)
	env.SetOnTimerFiredListener(func(string) { back.Add(1) })
	env.ExecuteWorkflow(func(ctx workflow.Context) error {
		var futures []workflow.Future
		for n := range 9 {
			attempts := int32(2)
			if n%3 == 0 {
				attempts = 1
			}
			futures = append(futures, batontemporal.ExecuteActivity(withTimeout(ctx, attempts), work, "tenant", n))
		}
		for n, future := range futures {
			var got int
			err := future.Get(ctx, &got)
			var failed *temporal.ActivityError
			if n%3 == 2 && (!errors.As(err, &failed) || !contains(err.Error(), "failed")) || n%3 != 2 && (err != nil || got != n) {
				t.Errorf("activity %d: %d, %v", n, got, err)
			}
		}
		return nil
	})
	if err := env.GetWorkflowError(); err != nil {
		t.Fatal(err)
	}
	for n := range 9 {
		if want := min(n%3, 1) + 1; runs[n] != want {
			t.Errorf("activity %d ran %d times, want %d", n, runs[n], want)
		}
	}
	if back.Load() == 0 || failures.Load() != 9 {
		t.Errorf("%d activities went back, %d failed: the test shows nothing", back.Load(), failures.Load())
	}
}

// The policy of the caller stays as it is, so that it can be that of several activities.
func TestPolicyOfTheCaller(t *testing.T) {
	t.Parallel()
	env := workflowEnv(t, byWorkflow, joblimit.Config{Locks: newLocks(t), Running: 1})
	policy := temporal.RetryPolicy{NonRetryableErrorTypes: append(make([]string, 0, 8), "Own")}
	work := func(context.Context, string) error { return temporal.NewApplicationError("own", "Own") }
	env.RegisterActivity(work)
	env.ExecuteWorkflow(func(ctx workflow.Context) error {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute, RetryPolicy: &policy})
		return batontemporal.ExecuteActivity(ctx, work, "tenant").Get(ctx, nil)
	})
	var failed *temporal.ApplicationError
	if err := env.GetWorkflowError(); !errors.As(err, &failed) || failed.Type() != "Own" {
		t.Error(err)
	}
	if len(policy.NonRetryableErrorTypes) != 1 || policy.NonRetryableErrorTypes[:2][1] != "" {
		t.Errorf("the policy became %q", policy.NonRetryableErrorTypes[:2])
	}
}

// While an activity is away its workflow can be cancelled, and its time ends.
func TestAway(t *testing.T) {
	t.Parallel()
	locks := newLocks(t)
	defer hold(t, locks)()
	work := func(context.Context, string) error { t.Error("it ran"); return nil }
	for _, cancels := range []bool{false, true} {
		env := workflowEnv(t, byWorkflow, joblimit.Config{Locks: locks, Running: 1, Wait: -1})
		env.RegisterActivity(work)
		var began, ended time.Time
		back := 0
		env.SetOnActivityCompletedListener(func(*activity.Info, converter.EncodedValue, error) {
			if back++; cancels && back == 3 {
				env.CancelWorkflow()
			}
		})
		env.ExecuteWorkflow(func(ctx workflow.Context) error {
			began = workflow.Now(ctx)
			ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{ScheduleToCloseTimeout: time.Hour})
			err := batontemporal.ExecuteActivity(ctx, work, "tenant").Get(ctx, nil)
			ended = workflow.Now(ctx)
			return err
		})
		err := env.GetWorkflowError()
		if cancels {
			var canceled *temporal.CanceledError
			if !errors.As(err, &canceled) || back != 3 {
				t.Errorf("a workflow that was cancelled when its activity had come back %d times: %v", back, err)
			}
			continue
		}
		wantBack(t, err)
		if took := ended.Sub(began); took < time.Hour-2*joblimit.DefaultLongest || took > time.Hour {
			t.Errorf("an activity with an hour gave up after %s", took)
		}
	}
}
