package batontemporal

import (
	"errors"
	"slices"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"
)

// ExecuteActivity is workflow.ExecuteActivity, with the same options, for an activity that
// an Interceptor limits. If the activity goes back, the workflow waits and schedules it
// again with the attempts and the ScheduleToCloseTimeout that are left, so that no attempt
// is burnt. The activity itself counts its attempts from 1 again, and the intervals of
// the RetryPolicy begin again.
//
// If the ScheduleToCloseTimeout ends before the activity is to come again, the future has
// the *temporal.ActivityError with which it went back: it wraps a
// *temporal.ApplicationError of BackType. That of a workflow that is cancelled while the
// activity is away has a *temporal.CanceledError.
//
// A workflow that calls it in place of workflow.ExecuteActivity is changed. For
// workflows that run already the change needs a version (workflow.GetVersion), as any
// other change of their code does, and so does its removal.
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
