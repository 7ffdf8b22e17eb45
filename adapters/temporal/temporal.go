// Package batontemporal limits the activities of go.temporal.io/sdk by key, over all
// workers: how many run at a time, and how many begin within a period. An activity that
// may not run now goes back until its turn.
//
//	limit, err := joblimit.New(joblimit.Config{Locks: locks, Running: 5})
//	…
//	w := worker.New(client, "reports", worker.Options{
//		Interceptors: []interceptor.WorkerInterceptor{
//			batontemporal.Interceptor(limit, func(ctx context.Context, in *interceptor.ExecuteActivityInput) string {
//				return activity.GetInfo(ctx).ActivityType.Name
//			}),
//		},
//	})
//
// Package joblimit describes the limits and their promises. A limit with a Running of 1
// is a lock around an activity.
//
// # What Temporal does with an activity that goes back
//
// In Temporal every error of an activity is an attempt. So the effect depends on what
// brings the activity back:
//
//   - The workflow, if it calls ExecuteActivity of this package. The workflow waits with
//     a timer and schedules the activity again with its remaining attempts. That is no
//     attempt. It adds about eleven events to the history of the workflow each time.
//   - The server, if the activity's RetryPolicy has no MaximumAttempts, which is the
//     default. The activity fails with a NextRetryDelay and comes again as its next
//     attempt. No attempt is lost, because there is no last one, and the history does not
//     grow. But the number of the attempt rises, and so the interval after a failure of
//     the activity itself may be longer, up to the MaximumInterval.
//   - In all other cases the activity does not go back. It waits in its worker until it
//     may run, which occupies a slot of the worker and counts towards the
//     StartToCloseTimeout: an activity that waits longer than that loses an attempt. Such
//     activities of one key can occupy all slots, and then no other activity of the
//     worker runs. Use ExecuteActivity for an activity with MaximumAttempts.
//
// An activity with heartbeat details of an earlier attempt also waits in its worker if
// the workflow would bring it back, because the details would be lost.
//
// An activity that waits in its worker sends heartbeats, which keep the details of
// earlier attempts and report a cancellation by the workflow. If the worker stops, a
// waiting activity goes back, which in the third case is an attempt.
//
// Going back is an error of the benign category: it is logged at the level debug, and the
// SDK's metrics do not count it as a failure. The time away counts towards the activity's
// ScheduleToCloseTimeout, as time in a task queue does.
//
// # What is not limited
//
// Local activities run within a task of their workflow, and cannot go back: they run
// without a limit. An activity that returns activity.ErrResultPending releases its permit
// when it returns, not when it is completed.
//
// # When a worker dies
//
// The permits of its activities expire within the TTL of the Locker. Temporal itself
// brings the activities back after their HeartbeatTimeout, or their StartToCloseTimeout.
package batontemporal

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"

	"github.com/batonhq/baton/ratelimit/joblimit"
)

// BackType is the type of the error with which an activity goes back. In the
// NonRetryableErrorTypes of an activity's RetryPolicy, where ExecuteActivity puts it, it
// says that the workflow brings the activity back. The error's NextRetryDelay is when,
// and its only detail the number of the attempt.
const BackType = "BatonBack"

// Interceptor runs activities as jobs of a limit, under the key that the function returns
// for each: "" for an activity without a limit. The context of the activity ends with the
// permit. It is for worker.Options.Interceptors. For several limits use several
// interceptors.
func Interceptor(limit *joblimit.Limit, key func(context.Context, *interceptor.ExecuteActivityInput) string) interceptor.WorkerInterceptor {
	return &limited{limit: limit, key: key}
}

type limited struct {
	interceptor.WorkerInterceptorBase
	limit *joblimit.Limit
	key   func(context.Context, *interceptor.ExecuteActivityInput) string
}

func (l *limited) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &inbound{ActivityInboundInterceptorBase: interceptor.ActivityInboundInterceptorBase{Next: next}, limited: l}
}

type inbound struct {
	interceptor.ActivityInboundInterceptorBase
	*limited
}

func (i *inbound) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (result any, err error) {
	info := activity.GetInfo(ctx)
	key := ""
	if !info.IsLocalActivity {
		key = i.key(ctx, in)
	}
	if key == "" {
		return i.Next.ExecuteActivity(ctx, in)
	}
	run := i.limit.RunWaiting
	if goesBack(ctx, info) {
		run = i.limit.Run
	}
	w := wait(ctx, info)
	var own error // of the activity
	err = run(w.ctx, key, func(ctx context.Context) error {
		if err := w.end(); err != nil {
			return &joblimit.BackError{Key: key, Err: err}
		}
		result, own = i.Next.ExecuteActivity(ctx, in)
		return own
	})
	_ = w.end()
	if own != nil && !errors.Is(own, context.Canceled) {
		err = own // unchanged: the SDK looks at its type. A lost permit explains an error of the context.
	}
	return result, back(key, info, err)
}

// goesBack reports whether an activity can go back without a loss.
func goesBack(ctx context.Context, info activity.Info) bool {
	switch policy := info.RetryPolicy; {
	case policy == nil:
		return false // the server tells no policy: this may be the last attempt
	case slices.Contains(policy.NonRetryableErrorTypes, BackType):
		return !activity.HasHeartbeatDetails(ctx)
	default:
		return policy.MaximumAttempts == 0
	}
}

// back makes Temporal's error of one that says that the activity did not run.
func back(key string, info activity.Info, err error) error {
	var b *joblimit.BackError
	switch {
	case errors.Is(err, errStops):
		b = &joblimit.BackError{Key: key, Err: errStops}
	case !errors.As(err, &b):
		return err
	}
	return temporal.NewApplicationErrorWithOptions("the activity did not run", BackType, temporal.ApplicationErrorOptions{
		NextRetryDelay: max(b.After, time.Millisecond), // 0 would be the policy's own interval
		Category:       temporal.ApplicationErrorCategoryBenign,
		Cause:          b, // an outer limit looks for it
		Details:        []any{info.Attempt},
	})
}

var errStops = errors.New("the worker stops")

// A waiting is an activity that waits in its worker.
type waiting struct {
	ctx         context.Context // also ends when the worker stops
	begun, done chan struct{}
}

// wait keeps an activity alive until end.
func wait(ctx context.Context, info activity.Info) *waiting {
	w := &waiting{begun: make(chan struct{}), done: make(chan struct{})}
	waits, stop := context.WithCancelCause(ctx)
	w.ctx = waits
	every := heartbeatEvery
	if info.HeartbeatTimeout > 0 {
		every = min(every, info.HeartbeatTimeout/3)
	}
	go func() {
		defer close(w.done)
		beat := time.NewTicker(every)
		defer beat.Stop()
		for {
			select {
			case <-w.begun:
				return
			case <-ctx.Done():
				return
			case <-activity.GetWorkerStopChannel(ctx):
				stop(errStops)
				return
			case <-beat.C:
				if details, known := progress(ctx); known {
					activity.RecordHeartbeat(ctx, details...)
				}
			}
		}
	}()
	return w
}

// end ends the waiting, and returns why it ended before, if it did. Afterwards only the
// activity sends heartbeats.
func (w *waiting) end() error {
	select {
	case <-w.begun:
	default:
		close(w.begun)
	}
	<-w.done
	return context.Cause(w.ctx)
}

// heartbeatEvery is for activities without a HeartbeatTimeout: the answer reports a
// cancellation.
const heartbeatEvery = 10 * time.Second

// progress returns the details of earlier attempts, which a heartbeat without them would
// replace. It cannot if their DataConverter has no raw values.
func progress(ctx context.Context) (details []any, known bool) {
	if !activity.HasHeartbeatDetails(ctx) {
		return nil, true
	}
	for n := 4; ; n *= 2 {
		raw := make([]converter.RawValue, n)
		pointers := make([]any, n)
		for i := range raw {
			pointers[i] = &raw[i]
		}
		if err := activity.GetHeartbeatDetails(ctx, pointers...); err != nil {
			return nil, false
		}
		for _, value := range raw {
			if value.Payload() == nil {
				return details, true
			}
			details = append(details, value)
		}
		details = nil // there may be more
	}
}
