package batontemporal

import (
	"errors"
	"slices"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"
)

// ExecuteActivity is workflow.ExecuteActivity, with the same options, for an activity
// under an Interceptor. If the activity goes back, the workflow waits and schedules it
// again with the remaining attempts and ScheduleToCloseTimeout, so that no attempt is
// lost. The activity itself counts its attempts from 1 again, and the intervals of the
// RetryPolicy begin again.
//
// If the ScheduleToCloseTimeout ends before the activity comes again, the future has the
// *temporal.ActivityError with which it went back: it wraps a *temporal.ApplicationError
// of BackType. If the workflow is cancelled while the activity is away, that error has a
// *temporal.CanceledError.
//
// Replacing workflow.ExecuteActivity by it, or the reverse, changes the code of a
// workflow. For running workflows that needs a version (workflow.GetVersion), like any
// other change.
func ExecuteActivity(ctx workflow.Context, activity any, args ...any) workflow.Future {
	options := workflow.GetActivityOptions(ctx)
	policy := temporal.RetryPolicy{}
	if options.RetryPolicy != nil {
		policy = *options.RetryPolicy
	}
	policy.NonRetryableErrorTypes = append(slices.Clone(policy.NonRetryableErrorTypes), BackType)
	options.RetryPolicy = &policy
	execute := func(ctx workflow.Context) workflow.Future {
		return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, options), activity, args...)
	}

	future, settable := workflow.NewFuture(ctx)
	within, began := options.ScheduleToCloseTimeout, workflow.Now(ctx)
	run := execute(ctx)
	workflow.Go(ctx, func(ctx workflow.Context) {
		for {
			var back *temporal.ApplicationError
			if err := run.Get(ctx, nil); !errors.As(err, &back) || back.Type() != BackType {
				settable.Chain(run)
				return
			}
			var attempt int32 // of this execution
			if policy.MaximumAttempts > 0 && back.Details(&attempt) == nil {
				policy.MaximumAttempts = max(1, policy.MaximumAttempts-attempt+1)
			}
			if within > 0 {
				options.ScheduleToCloseTimeout = within - workflow.Now(ctx).Sub(began) - back.NextRetryDelay()
				if options.ScheduleToCloseTimeout <= 0 {
					settable.Chain(run)
					return
				}
			}
			if err := workflow.Sleep(ctx, back.NextRetryDelay()); err != nil {
				settable.SetError(err)
				return
			}
			run = execute(ctx)
		}
	})
	return future
}
