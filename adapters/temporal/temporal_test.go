package batontemporal_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/batonhq/baton"
	batontemporal "github.com/batonhq/baton/adapters/temporal"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/joblimit"
	"github.com/batonhq/baton/store/memstore"
)

// hold takes the only permit of a key until the test ends, or release.
func hold(t *testing.T, locks *baton.Locker) (release func()) {
	t.Helper()
	lease, err := locks.Lock(t.Context(), "tenant", baton.Permits(1, 1))
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := lease.Unlock(); err != nil {
			t.Error(err)
		}
	}
}

// waits polls until one waits for the permit.
func waits(t *testing.T, locks *baton.Locker) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		info, err := locks.Inspect(t.Context(), "tenant")
		if err == nil && len(info.Waiters) == 1 {
			return
		}
		if time.Now().After(end) {
			t.Errorf("after a minute nothing waits: %v", err)
			return
		}
	}
}

func free(t *testing.T, locks *baton.Locker) {
	t.Helper()
	info, err := locks.Inspect(t.Context(), "tenant")
	if err != nil || len(info.Holders) > 0 || len(info.Waiters) > 0 {
		t.Errorf("the permit was not given back: %+v, %v", info, err)
	}
}

// wantBack wants the error with which an activity goes back.
func wantBack(t *testing.T, err error) {
	t.Helper()
	var back *temporal.ApplicationError
	if !errors.As(err, &back) || back.Type() != batontemporal.BackType || back.NextRetryDelay() <= 0 ||
		back.Category() != temporal.ApplicationErrorCategoryBenign || back.NonRetryable() {
		t.Errorf("want an activity that goes back: %v", err)
	}
}

// An activity goes back only where it loses nothing; in other cases it waits for its permit.
func TestGoesBack(t *testing.T) {
	for _, c := range []struct {
		name    string
		policy  func(*activity.Info)
		details bool
		back    bool
	}{
		{"the server brings it back", unlimited, false, true},
		{"the server keeps its details", unlimited, true, true},
		{"the workflow brings it back", byWorkflow, false, true},
		{"the workflow would lose its details", byWorkflow, true, false},
		{"attempts are limited", limited, false, false},
		{"the policy is not known", func(*activity.Info) {}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			locks := newLocks(t)
			env := activityEnv(t, c.policy, joblimit.Config{Locks: locks, Running: 1, Wait: -1})
			work := func(context.Context, string) (string, error) { return "done", nil }
			env.RegisterActivity(work)
			if c.details {
				env.SetHeartbeatDetails("half")
			}
			release := hold(t, locks)
			if c.back {
				_, err := env.ExecuteActivity(work, "tenant")
				wantBack(t, err)
				release()
				c.policy = limited
			} else {
				go func() {
					waits(t, locks)
					release()
				}()
			}
			var result string
			value, err := env.ExecuteActivity(work, "tenant")
			if err != nil || value.Get(&result) != nil || result != "done" {
				t.Errorf("an activity with its permit: %q, %v", result, err)
			}
			free(t, locks)
			if _, err := env.ExecuteActivity(work, ""); err != nil {
				t.Errorf("an activity without a limit: %v", err)
			}
		})
	}
}

// Local activities cannot go back, and run without a limit.
func TestLocalActivity(t *testing.T) {
	t.Parallel()
	locks := newLocks(t)
	env := activityEnv(t, unlimited, joblimit.Config{Locks: locks, Running: 1, Wait: -1})
	defer hold(t, locks)()
	if _, err := env.ExecuteLocalActivity(func(context.Context, string) error { return nil }, "tenant"); err != nil {
		t.Error(err)
	}
}

// A permit within a rate, and a rate within permits: who goes back consumes neither.
func TestSeveralLimits(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	defer store.Close()
	rate, err := ratelimit.New(store, ratelimit.TokenBucket(1, time.Hour, 1))
	if err != nil {
		t.Fatal(err)
	}
	locks := newLocks(t)
	work := func(context.Context, string) error { return nil }
	env := activityEnv(t, unlimited, joblimit.Config{Rate: rate, Wait: -1}, joblimit.Config{Locks: locks, Running: 1, Wait: -1})
	env.RegisterActivity(work)
	release := hold(t, locks)
	for range 3 {
		_, err := env.ExecuteActivity(work, "tenant")
		wantBack(t, err)
	}
	release()
	if _, err := env.ExecuteActivity(work, "tenant"); err != nil {
		t.Errorf("those that went back have consumed the rate: %v", err)
	}
	_, err = env.ExecuteActivity(work, "tenant")
	wantBack(t, err)
	free(t, locks)
}

// The context of an activity ends with its permit, which explains the error of the context
// and leaves other errors as they are.
func TestPermitEnds(t *testing.T) {
	t.Parallel()
	own := temporal.NewNonRetryableApplicationError("own", "Own", nil)
	for _, returned := range []error{own, context.Canceled, activity.ErrResultPending} {
		locks := newLocks(t)
		env := activityEnv(t, unlimited, joblimit.Config{Locks: locks, Running: 1})
		work := func(ctx context.Context, _ string) error {
			if joblimit.Lease(ctx) == nil {
				t.Error("the activity has no lease")
			}
			if _, err := locks.Break(ctx, "tenant"); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			var lost *baton.LostError
			if cause := context.Cause(ctx); !errors.As(cause, &lost) || lost.Key != "tenant" {
				t.Errorf("the context of the activity ended because: %v", cause)
			}
			return returned
		}
		env.RegisterActivity(work)
		_, err := env.ExecuteActivity(work, "tenant")
		var failed *temporal.ApplicationError
		var canceled *temporal.CanceledError
		switch isApplication := errors.As(err, &failed); {
		case errors.As(err, &canceled):
			t.Errorf("a lost permit is told as a cancelled activity: %v", err)
		case returned == activity.ErrResultPending && !errors.Is(err, returned):
			t.Errorf("an activity that is completed later: %v", err)
		case returned == own && (!isApplication || failed.Type() != "Own" || !failed.NonRetryable()):
			t.Errorf("the activity's own error became: %v", err)
		case returned == context.Canceled && (!isApplication || !contains(failed.Error(), "canceled", `lease on "tenant"`)):
			t.Errorf("a failure does not tell of the permit: %v", err)
		}
	}
}

// An activity that panics releases its permit.
func TestPanic(t *testing.T) {
	t.Parallel()
	locks := newLocks(t)
	env := activityEnv(t, unlimited, joblimit.Config{Locks: locks, Running: 1})
	work := func(context.Context, string) error { panic("a defect of the activity") }
	env.RegisterActivity(work)
	_, err := env.ExecuteActivity(work, "tenant")
	var panicked *temporal.PanicError
	if !errors.As(err, &panicked) {
		t.Error(err)
	}
	free(t, locks)
}

// An activity that waits when its worker stops goes back.
func TestWorkerStops(t *testing.T) {
	t.Parallel()
	for _, policy := range []func(*activity.Info){unlimited, limited} {
		locks := newLocks(t)
		env := activityEnv(t, policy, joblimit.Config{Locks: locks, Running: 1, Wait: time.Hour})
		stop := make(chan struct{})
		env.SetWorkerStopChannel(stop)
		work := func(context.Context, string) error { t.Error("it ran"); return nil }
		env.RegisterActivity(work)
		release := hold(t, locks)
		go func() {
			waits(t, locks)
			close(stop)
		}()
		_, err := env.ExecuteActivity(work, "tenant")
		wantBack(t, err)
		release()
		free(t, locks)
	}
}

// The heartbeats of an activity that waits keep the details of earlier attempts, and none
// comes after its own.
func TestHeartbeats(t *testing.T) {
	t.Parallel()
	locks := newLocks(t)
	env := activityEnv(t, func(info *activity.Info) {
		limited(info)
		info.HeartbeatTimeout = 30 * time.Millisecond
	}, joblimit.Config{Locks: locks, Running: 1})
	var began atomic.Bool
	beats := make(chan string, 1000)
	env.SetOnActivityHeartbeatListener(func(_ *activity.Info, details converter.EncodedValues) {
		var got string
		if err := details.Get(&got); err != nil {
			t.Error(err)
		}
		beats <- got
	})
	env.SetHeartbeatDetails("half")
	release := hold(t, locks)
	go func() {
		if got := <-beats; got != "half" || began.Load() {
			t.Errorf("a heartbeat of an activity that waits: %q", got)
		}
		release()
	}()
	work := func(ctx context.Context, _ string) error {
		began.Store(true)
		var got string
		if err := activity.GetHeartbeatDetails(ctx, &got); err != nil || got != "half" {
			t.Errorf("the details of the earlier attempt: %q, %v", got, err)
		}
		return nil
	}
	env.RegisterActivity(work)
	if _, err := env.ExecuteActivity(work, "tenant"); err != nil {
		t.Error(err)
	}
}

// A worker that ends the contexts of its activities gets the permits back, of those that
// wait and of those that run.
func TestContextEnds(t *testing.T) {
	t.Parallel()
	for _, runs := range []bool{false, true} {
		locks := newLocks(t)
		ctx, cancel := context.WithCancel(t.Context())
		env := suite().NewTestActivityEnvironment()
		o := options(t, limited, joblimit.Config{Locks: locks, Running: 1})
		o.BackgroundActivityContext = ctx
		env.SetWorkerOptions(o)
		release := func() {}
		if runs {
			defer cancel()
		} else {
			release = hold(t, locks)
			go func() {
				waits(t, locks)
				cancel()
			}()
		}
		work := func(ctx context.Context, _ string) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		}
		env.RegisterActivity(work)
		if _, err := env.ExecuteActivity(work, "tenant"); err == nil || !contains(err.Error(), "canceled") {
			t.Errorf("runs: %t: %v", runs, err)
		}
		release()
		free(t, locks)
	}
}

// A workflow that cancels its activity gets the permit back, of one that waits and of one
// that runs: their heartbeats tell them.
func TestWorkflowCancels(t *testing.T) {
	t.Parallel()
	for _, runs := range []bool{false, true} {
		locks := newLocks(t)
		env := workflowEnv(t, limited, joblimit.Config{Locks: locks, Running: 1})
		release := func() {}
		ended := make(chan bool)
		if runs {
			close(ended)
		} else {
			release = hold(t, locks)
			go func() {
				defer close(ended)
				waits(t, locks)
				env.CancelWorkflow()
			}()
		}
		work := func(ctx context.Context, _ string) error {
			env.CancelWorkflow()
			for ctx.Err() == nil {
				activity.RecordHeartbeat(ctx)
				time.Sleep(time.Millisecond) // the work
			}
			return ctx.Err()
		}
		env.RegisterActivity(work)
		env.ExecuteWorkflow(func(ctx workflow.Context) error {
			ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute, HeartbeatTimeout: time.Second})
			return workflow.ExecuteActivity(ctx, work, "tenant").Get(ctx, nil)
		})
		var canceled *temporal.CanceledError
		if err := env.GetWorkflowError(); !errors.As(err, &canceled) {
			t.Errorf("runs: %t: %v", runs, err)
		}
		<-ended
		release()
		lease, err := locks.Lock(t.Context(), "tenant", baton.Permits(1, 1)) // the activity learns of it a little later
		if err != nil {
			t.Errorf("runs: %t: %v", runs, err)
			continue
		}
		_ = lease.Unlock()
	}
}
