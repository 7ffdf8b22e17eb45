// Package batonasynq limits the tasks of github.com/hibiken/asynq by key, over all
// servers: how many run at a time, and how many begin within a period. A task that may
// not run now goes back to its queue, and that is no attempt.
//
//	limit, err := joblimit.New(joblimit.Config{Locks: locks, Running: 5})
//	…
//	mux := asynq.NewServeMux()
//	mux.Use(batonasynq.Middleware(limit, func(ctx context.Context, t *asynq.Task) string {
//		return "tenant/" + t.Headers()["tenant"]
//	}))
//	server := asynq.NewServer(redis, batonasynq.Config(asynq.Config{Concurrency: 10}))
//
// What is limited, and what is promised, is described in package joblimit. Both calls are
// needed: without Config asynq takes a task that goes back for one that failed.
//
// # What asynq does with a task that goes back
//
// It stands among the tasks that are retried, with the reason as its last error. Its
// count of retries and the queue's counts of failures stay as they are.
//
// asynq keeps times in whole seconds, and looks for tasks whose time has come every
// asynq.Config.DelayedTaskCheckInterval, 5s by default. With jobs that are shorter than
// that, set it to 1s, or the permits are free while tasks wait to be looked for.
//
// # The last attempt
//
// asynq archives a task that returns an error in its last attempt, whatever the error, and
// so a task with MaxRetry(0) at once. Such a task cannot go back: it waits in its worker
// until it may run, for as long as its timeout lets it; then asynq archives it. Give
// tasks that are limited a MaxRetry of 1 and more, so that this is seldom.
//
// # Timeouts and unique tasks
//
// The wait in the worker is part of a task's timeout. A task goes back before half of it
// has passed, unless it is the last attempt, and has all of it again next time. A deadline
// (asynq.Deadline) and the time of asynq.Unique go on while a task is away: when the time
// of Unique is over a second task can be enqueued, so give it long enough for the queue.
//
// # When a server dies
//
// The permits of its tasks are free when they have expired, within the TTL of the Locker.
// asynq itself takes up the tasks again about a minute later.
package batonasynq

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/batonhq/baton/ratelimit/joblimit"
)

// Middleware runs tasks as jobs of a limit, under the key that the function returns for
// each: "" for a task without a limit. The context of the handler ends with the permit.
// Several limits are several calls of mux.Use. The server needs Config, too.
func Middleware(limit *joblimit.Limit, key func(context.Context, *asynq.Task) string) asynq.MiddlewareFunc {
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			run := limit.Run
			if last(ctx) {
				run = limit.RunWaiting
			}
			return run(ctx, key(ctx, task), func(ctx context.Context) error { return next.ProcessTask(ctx, task) })
		})
	}
}

// last reports whether asynq would archive the task at any error.
func last(ctx context.Context) bool {
	retried, known := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	return known && retried >= most
}

// Config makes a server put back the tasks that Middleware stops: it is cfg with an
// IsFailure, a RetryDelayFunc and an ErrorHandler that know them, and leave all other
// tasks to those of cfg. The ErrorHandler is not told of tasks that go back.
func Config(cfg asynq.Config) asynq.Config {
	isFailure, delay, handler := cfg.IsFailure, cfg.RetryDelayFunc, cfg.ErrorHandler
	cfg.IsFailure = func(err error) bool {
		if back(err) != nil {
			return false
		}
		return isFailure == nil || isFailure(err)
	}
	if delay == nil {
		delay = asynq.DefaultRetryDelayFunc
	}
	cfg.RetryDelayFunc = func(n int, err error, task *asynq.Task) time.Duration {
		if b := back(err); b != nil {
			return wholeSeconds(time.Now(), b.After)
		}
		return delay(n, err, task)
	}
	if handler != nil {
		cfg.ErrorHandler = asynq.ErrorHandlerFunc(func(ctx context.Context, task *asynq.Task, err error) {
			if back(err) == nil {
				handler.HandleError(ctx, task, err)
			}
		})
	}
	return cfg
}

func back(err error) *joblimit.BackError {
	var b *joblimit.BackError
	errors.As(err, &b)
	return b
}

// wholeSeconds lengthens d so that asynq, which cuts the fraction off the second, does
// not bring the task back early.
func wholeSeconds(now time.Time, d time.Duration) time.Duration {
	at := now.Add(d)
	if cut := at.Truncate(time.Second); cut.Before(at) {
		return cut.Add(time.Second).Sub(now)
	}
	return d
}
