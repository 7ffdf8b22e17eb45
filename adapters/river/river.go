// Package batonriver limits the jobs of github.com/riverqueue/river by key, over all
// clients: how many run at a time, and how many begin within a period. A job that may not
// run now is snoozed, which River counts as no attempt.
//
//	limit, err := joblimit.New(joblimit.Config{Locks: locks, Running: 5})
//	…
//	client, err := river.NewClient(driver, &river.Config{
//		Middleware: []rivertype.Middleware{
//			batonriver.Middleware(limit, func(ctx context.Context, job *rivertype.JobRow) string {
//				return job.Kind
//			}),
//		},
//		…
//	})
//
// Package joblimit describes the limits and their promises.
//
// # What River does with a job that goes back
//
// It is scheduled again with the same attempt; "snoozes" in its metadata counts how
// often. The job gets no error, and the ErrorHandler is not called.
//
// A client looks for jobs every river.Config.FetchPollInterval (1s by default), and at
// most every FetchCooldown. For shorter jobs a shorter interval uses the permits better.
//
// The wait in the worker is not part of river.Config.JobTimeout, which begins with the
// job.
//
// # When a client dies
//
// The permits of its jobs expire within the TTL of the Locker. River itself resumes the
// jobs after river.Config.RescueStuckJobsAfter, an hour by default. It records results in
// batches: a job that went back, or was complete, just before the client died may be
// among them, and have one attempt less.
package batonriver

import (
	"context"
	"errors"
	"fmt"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/batonhq/baton/ratelimit/joblimit"
)

// Middleware runs jobs as jobs of a limit, under the key that the function returns for
// each: "" for a job without a limit. The context of the worker ends with the permit. It
// is for river.Config.Middleware, or for the Middleware of a Worker. For several limits
// use several middlewares.
func Middleware(limit *joblimit.Limit, key func(context.Context, *rivertype.JobRow) string) rivertype.WorkerMiddleware {
	return river.WorkerMiddlewareFunc(func(ctx context.Context, job *rivertype.JobRow, work func(context.Context) error) error {
		err := limit.Run(ctx, key(ctx, job), work)
		var back *joblimit.BackError
		var snoozed *river.JobSnoozeError
		if errors.As(err, &back) && !errors.As(err, &snoozed) {
			return fmt.Errorf("%w: %w", river.JobSnooze(back.After), back) // an outer limit looks for the BackError
		}
		return err
	})
}
