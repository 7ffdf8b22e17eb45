// Package batonasynq limits the tasks of github.com/hibiken/asynq by key, over all
// servers: how many run at a time, and how many begin within a period. A task that may
// not run now goes back to its queue, which is no attempt.
//
//	limit, err := joblimit.New(joblimit.Config{Locks: locks, Running: 5})
//	…
//	queue := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	mux := asynq.NewServeMux()
//	mux.Use(batonasynq.Middleware(queue, limit, func(ctx context.Context, t *asynq.Task) string {
//		return "tenant/" + t.Headers()["tenant"]
//	}))
//	server := asynq.NewServerFromRedisClient(queue, batonasynq.Config(asynq.Config{Concurrency: 10}))
//
// Package joblimit describes the limits and their promises. Both calls are needed:
// without Config asynq takes a task that goes back for a failed one.
//
// # What asynq does with a task that goes back
//
// It is among the tasks to retry, with the reason as its last error. Its count of retries
// and the queue's counts of failures do not change.
//
// asynq keeps times in whole seconds, and looks for due tasks every
// asynq.Config.DelayedTaskCheckInterval, 5s by default. With shorter jobs set it to 1s;
// otherwise permits stay unused while tasks wait to be found.
//
// # The last attempt
//
// asynq archives a task that returns any error in its last attempt, and so a task with
// MaxRetry(0) at once. When such a task goes back, Middleware enqueues it again and makes
// asynq forget the one that ran. The new task has the queue, type, payload, headers,
// timeout, deadline and retention of the old one and one attempt, its last. Its ID is the
// old one, "~" and a random text, and its retries count from 0. The lock of asynq.Unique
// ends with the old task. asynq counts each old one as processed and logs "revoke task".
// If a server dies between the two steps, the old task is archived.
//
// # Timeouts and unique tasks
//
// The wait in the worker is part of a task's timeout. A task goes back before half of it
// has passed, and has all of it again next time. A deadline (asynq.Deadline) and the time
// of asynq.Unique continue while a task is away: after the time of Unique a second task
// can be enqueued, so make it long enough for the queue.
//
// # When a server dies
//
// The permits of its tasks expire within the TTL of the Locker. asynq itself resumes the
// tasks about a minute later.
package batonasynq

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/ratelimit/joblimit"
)

// Middleware runs tasks as jobs of a limit, under the key that the function returns for
// each: "" for a task without a limit. The context of the handler ends with the permit.
// For several limits call mux.Use several times. queue is the Redis of the server, for
// tasks that go back in their last attempt. The server needs Config, too.
func Middleware(queue redis.UniversalClient, limit *joblimit.Limit, key func(context.Context, *asynq.Task) string) asynq.MiddlewareFunc {
	again := enqueuer{asynq.NewClientFromRedisClient(queue), asynq.NewInspectorFromRedisClient(queue)}
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			err := limit.Run(ctx, key(ctx, task), func(ctx context.Context) error { return next.ProcessTask(ctx, task) })
			if b := back(err); b != nil && last(ctx) && !errors.Is(err, asynq.RevokeTask) { // an inner Middleware has done it
				return again.replace(ctx, task, b)
			}
			return err
		})
	}
}

// last reports whether asynq would archive the task at any error.
func last(ctx context.Context) bool {
	retried, known := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	return known && retried >= most
}

// An enqueuer puts tasks back that asynq would archive.
type enqueuer struct {
	client    *asynq.Client
	inspector *asynq.Inspector
}

// replace enqueues a task with one attempt in place of the running one, and returns the
// error with which asynq forgets that. It tries until ctx ends, always with the same ID,
// so that a lost answer enqueues no second task.
func (e enqueuer) replace(ctx context.Context, task *asynq.Task, b *joblimit.BackError) error {
	queue, _ := asynq.GetQueueName(ctx)
	id, _ := asynq.GetTaskID(ctx)
	opts := []asynq.Option{
		asynq.Queue(queue), asynq.MaxRetry(0), asynq.TaskID(nextID(id)),
		asynq.ProcessAt(time.Now().Add(wholeSeconds(time.Now(), b.After))),
	}
	for {
		err := e.enqueue(ctx, queue, id, task, opts)
		switch {
		case err == nil, errors.Is(err, asynq.ErrTaskIDConflict):
			return fmt.Errorf("%w: %w", asynq.RevokeTask, b)
		case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound): // the running task is gone
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("batonasynq: task %s could not be put back, so it is archived: %w", id, err)
		case <-time.After(time.Second):
		}
	}
}

func (e enqueuer) enqueue(ctx context.Context, queue, id string, task *asynq.Task, opts []asynq.Option) error {
	info, err := e.inspector.GetTaskInfo(queue, id)
	if err != nil {
		return err
	}
	if info.Timeout > 0 {
		opts = append(opts, asynq.Timeout(info.Timeout))
	}
	if !info.Deadline.IsZero() {
		opts = append(opts, asynq.Deadline(info.Deadline))
	}
	if info.Retention > 0 {
		opts = append(opts, asynq.Retention(info.Retention))
	}
	_, err = e.client.EnqueueContext(ctx, asynq.NewTaskWithHeaders(task.Type(), task.Payload(), task.Headers()), opts...)
	return err
}

// nextID is the ID of a replacement: the first task's ID, and a unique text.
func nextID(id string) string {
	text := rand.Text()
	if i := len(id) - len(text) - 1; i > 0 && id[i] == '~' {
		id = id[:i]
	}
	return id + "~" + text
}

// Config makes a server put back the tasks that Middleware stops: it is cfg with an
// IsFailure, a RetryDelayFunc and an ErrorHandler for these. For other tasks those of cfg
// apply. The ErrorHandler is not called for tasks that go back.
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

// wholeSeconds lengthens d so that asynq, which cuts off fractions of seconds, does not
// bring the task back early.
func wholeSeconds(now time.Time, d time.Duration) time.Duration {
	at := now.Add(d)
	if cut := at.Truncate(time.Second); cut.Before(at) {
		return cut.Add(time.Second).Sub(now)
	}
	return d
}
