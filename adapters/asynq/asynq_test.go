package batonasynq_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton"
	batonasynq "github.com/batonhq/baton/adapters/asynq"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/joblimit"
)

// A rig is a queue and a store of its own, in one Redis or two.
type rig struct {
	t         *testing.T
	queue     *asynq.Client
	inspector *asynq.Inspector
	addr      string
	locks     *baton.Locker
	limits    *ratelimit.Limiter
	told      atomic.Int64 // errors of which the ErrorHandler was told
}

func newRig(t *testing.T, queueAddr, storeAddr string) *rig {
	t.Helper()
	r := &rig{t: t, addr: queueAddr}
	at := asynq.RedisClientOpt{Addr: queueAddr}
	r.queue, r.inspector = asynq.NewClient(at), asynq.NewInspector(at)
	store, locks, err := open(t.Context(), storeAddr)
	if err != nil {
		t.Fatal(err)
	}
	r.locks = locks
	if r.limits, err = ratelimit.New(store, ratelimit.TokenBucket(5, time.Second, 1)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.queue.Close(); r.inspector.Close(); store.Close() })
	return r
}

// start serves tasks with a limit, until stop. Tasks that fail are retried at once.
func (r *rig) start(cfg joblimit.Config, handler asynq.HandlerFunc) (stop func()) {
	r.t.Helper()
	limit, err := joblimit.New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	mux := asynq.NewServeMux()
	queue := redis.NewClient(&redis.Options{Addr: r.addr})
	mux.Use(batonasynq.Middleware(queue, limit, key))
	mux.HandleFunc("job", handler)
	server := asynq.NewServer(asynq.RedisClientOpt{Addr: r.addr}, batonasynq.Config(asynq.Config{
		Concurrency: 10, Logger: quiet{}, ShutdownTimeout: 500 * time.Millisecond,
		TaskCheckInterval: 50 * time.Millisecond, DelayedTaskCheckInterval: 200 * time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
		ErrorHandler:   asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) { r.told.Add(1) }),
	}))
	if err := server.Start(mux); err != nil {
		r.t.Fatal(err)
	}
	stop = sync.OnceFunc(func() { server.Shutdown(); queue.Close() })
	r.t.Cleanup(stop)
	return stop
}

func (r *rig) enqueue(n int, key string, opts ...asynq.Option) {
	r.t.Helper()
	for range n {
		if _, err := r.queue.Enqueue(asynq.NewTask("job", []byte(key)), opts...); err != nil {
			r.t.Fatal(err)
		}
	}
}

// await polls until something is so.
func (r *rig) await(what string, so func() bool) {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("after a minute not yet: %s", what)
		}
	}
}

func (r *rig) info() *asynq.QueueInfo {
	r.t.Helper()
	info, err := r.inspector.GetQueueInfo("default")
	if err != nil {
		r.t.Fatal(err)
	}
	return info
}

// Tasks that go back burn no attempt, whatever their MaxRetry; those that fail do.
func TestAttempts(t *testing.T) {
	for _, c := range []struct {
		name string
		rate bool
	}{{"permits", false}, {"rate", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, testserver.Redis(t).Addr, testserver.Redis(t).Addr)
			cfg := joblimit.Config{Locks: r.locks, Running: 1, Wait: -1}
			if c.rate {
				cfg = joblimit.Config{Rate: r.limits, Wait: -1}
			}
			var ran, failed, runs, now atomic.Int64
			r.enqueue(6, "k", asynq.MaxRetry(1))
			r.enqueue(2, "k", asynq.MaxRetry(0))
			r.start(cfg, func(ctx context.Context, _ *asynq.Task) error {
				if now.Add(1) > 1 && !c.rate {
					t.Error("two tasks run")
				}
				defer now.Add(-1)
				runs.Add(1)
				n, _ := asynq.GetRetryCount(ctx)
				most, _ := asynq.GetMaxRetry(ctx)
				time.Sleep(50 * time.Millisecond) // the work, while others are refused
				if most == 1 && n == 0 && failed.Add(1) <= 2 {
					return errors.New("failed")
				}
				ran.Add(1)
				return nil
			})
			r.await("all tasks have run", func() bool { return ran.Load() == 8 })
			r.await("the queue is empty", func() bool { return r.info().Size == 0 })
			// Each of two tasks failed once and ran again; all others ran once, and none was archived.
			if info := r.info(); info.Failed != 2 || info.Archived != 0 || runs.Load() != 10 || r.told.Load() != 2 {
				t.Errorf("%d failures, %d archived, %d runs, the ErrorHandler was told of %d: want 2, 0, 10, 2", info.Failed, info.Archived, runs.Load(), r.told.Load())
			}
		})
	}
}

// Tasks of one key in their last attempt do not take all workers: tasks without a limit run
// beside them. They keep what they were enqueued with, and run once each.
func TestLastAttemptsLeaveWorkers(t *testing.T) {
	for _, c := range []struct {
		name  string
		retry int
	}{{"no retry", 0}, {"failed once", 1}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, testserver.Redis(t).Addr, testserver.SharedRedis(t).Addr)
			const limited, free = 30, 5 // of 10 workers
			deadline := time.Now().Add(time.Hour).Truncate(time.Second)
			open := make(chan bool)
			var failed, ran, others atomic.Int64
			r.start(joblimit.Config{Locks: r.locks, Running: 1, Prefix: t.Name() + "/", Longest: time.Second}, func(ctx context.Context, task *asynq.Task) error {
				if len(task.Payload()) == 0 {
					others.Add(1)
					return nil
				}
				retried, _ := asynq.GetRetryCount(ctx)
				most, _ := asynq.GetMaxRetry(ctx)
				if retried < most {
					failed.Add(1)
					return errors.New("failed")
				}
				<-open
				id, _ := asynq.GetTaskID(ctx)
				info, err := r.inspector.GetTaskInfo("default", id)
				if err != nil || info.Timeout != time.Minute || !info.Deadline.Equal(deadline) || info.Retention != time.Hour || info.MaxRetry != retried {
					t.Errorf("the task has become %+v: %v", info, err)
				}
				ran.Add(1)
				return nil
			})
			opts := []asynq.Option{asynq.MaxRetry(c.retry), asynq.Timeout(time.Minute), asynq.Deadline(deadline), asynq.Retention(time.Hour)}
			r.enqueue(limited, "last/k", opts...)
			r.await("each has had all attempts but the last", func() bool { return failed.Load() == int64(limited*c.retry) })
			r.await("one runs, and the others went back", func() bool { return r.info().Scheduled > limited/2 })
			r.enqueue(free, "", asynq.MaxRetry(0))
			r.await("tasks without a limit run", func() bool { return others.Load() == free })
			close(open)
			r.await("all have run", func() bool { return ran.Load() == limited })
			r.await("the queue is done", func() bool {
				info := r.info()
				return info.Pending+info.Active+info.Scheduled+info.Retry == 0
			})
			if info := r.info(); ran.Load() != limited || info.Archived != 0 || info.Failed != limited*c.retry {
				t.Errorf("%d ran, %d archived, %d failed: want %d, 0, %d", ran.Load(), info.Archived, info.Failed, limited, limited*c.retry)
			}
		})
	}
}

// Without Config a task that goes back burns an attempt: what Config is there for.
func TestWithoutConfig(t *testing.T) {
	t.Parallel()
	r := newRig(t, testserver.Redis(t).Addr, testserver.SharedRedis(t).Addr)
	limit, err := joblimit.New(joblimit.Config{Locks: r.locks, Running: 1, Wait: -1, Prefix: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := r.locks.Lock(t.Context(), t.Name()+"k", baton.Permits(1, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Unlock()
	queue := redis.NewClient(&redis.Options{Addr: r.addr})
	t.Cleanup(func() { queue.Close() })
	server := asynq.NewServerFromRedisClient(queue, asynq.Config{Logger: quiet{}, TaskCheckInterval: 50 * time.Millisecond})
	if err := server.Start(batonasynq.Middleware(queue, limit, key)(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	r.enqueue(1, "k", asynq.MaxRetry(1))
	r.await("a failure is counted", func() bool { return r.info().Failed == 1 })
}

// While the store of the permits is down tasks go back, and none fails.
func TestStoreDown(t *testing.T) {
	t.Parallel()
	store := testserver.Redis(t)
	r := newRig(t, testserver.Redis(t).Addr, store.Addr)
	store.Kill()
	var ran atomic.Int64
	r.enqueue(10, "k", asynq.MaxRetry(1))
	r.enqueue(1, "k", asynq.MaxRetry(0))
	r.enqueue(1, "", asynq.MaxRetry(0))
	r.start(joblimit.Config{Locks: r.locks, Running: 2, Longest: 2 * time.Second}, func(ctx context.Context, task *asynq.Task) error {
		if n, _ := asynq.GetRetryCount(ctx); n > 0 {
			t.Errorf("a task has lost an attempt")
		}
		ran.Add(1)
		return nil
	})
	r.await("tasks went back, and the one without a limit has run", func() bool { return r.info().Retry == 10 && ran.Load() == 1 })
	store.Restart()
	r.await("all tasks have run", func() bool { return ran.Load() == 12 })
	if info := r.info(); info.Failed != 0 || info.Archived != 0 {
		t.Errorf("%d tasks failed, %d were archived", info.Failed, info.Archived)
	}
}

// The context of a task ends with its permit, and a task that panics releases it.
func TestPermitEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, testserver.Redis(t).Addr, testserver.SharedRedis(t).Addr)
	causes, ran := make(chan error), make(chan bool)
	prefix := t.Name() + "/"
	r.start(joblimit.Config{Locks: r.locks, Running: 1, Prefix: prefix}, func(ctx context.Context, _ *asynq.Task) error {
		switch n, _ := asynq.GetRetryCount(ctx); n {
		case 0:
			if _, err := r.locks.Break(ctx, prefix+"k"); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return ctx.Err()
		case 1:
			panic("a defect of the task")
		}
		ran <- true
		return nil
	})
	r.enqueue(1, "k", asynq.MaxRetry(2))
	var lost *baton.LostError
	if cause := <-causes; !errors.As(cause, &lost) || lost.Key != prefix+"k" {
		t.Errorf("the context of the task ended because: %v", cause)
	}
	<-ran
}

// A task without a permit goes back before its timeout, at which asynq would count a failure.
func TestTimeoutWhileWaiting(t *testing.T) {
	t.Parallel()
	r := newRig(t, testserver.Redis(t).Addr, testserver.SharedRedis(t).Addr)
	prefix := t.Name() + "/"
	lease, err := r.locks.Lock(t.Context(), prefix+"k", baton.Permits(1, 1))
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan int, 1)
	r.start(joblimit.Config{Locks: r.locks, Running: 1, Prefix: prefix, Wait: time.Hour}, func(ctx context.Context, _ *asynq.Task) error {
		n, _ := asynq.GetRetryCount(ctx)
		ran <- n
		return nil
	})
	r.enqueue(1, "k", asynq.MaxRetry(1), asynq.Timeout(2*time.Second))
	r.await("the task went back", func() bool { return r.info().Retry == 1 })
	if err := lease.Unlock(); err != nil {
		t.Fatal(err)
	}
	if n := <-ran; n != 0 || r.info().Failed != 0 {
		t.Errorf("the task had lost %d attempts, %d failures are counted", n, r.info().Failed)
	}
}

// A server that stops while a task waits in its last attempt puts it back whole: the next
// server runs it once, in that attempt, and the permit is free.
func TestStopWhileWaiting(t *testing.T) {
	t.Parallel()
	r := newRig(t, testserver.Redis(t).Addr, testserver.SharedRedis(t).Addr)
	prefix := t.Name() + "/"
	cfg := joblimit.Config{Locks: r.locks, Running: 1, Prefix: prefix, Wait: time.Hour}
	lease, err := r.locks.Lock(t.Context(), prefix+"k", baton.Permits(1, 1))
	if err != nil {
		t.Fatal(err)
	}
	var ran atomic.Int64
	handler := func(context.Context, *asynq.Task) error { ran.Add(1); return nil }
	stop := r.start(cfg, handler)
	r.enqueue(1, "k", asynq.MaxRetry(0))
	r.await("the task waits", func() bool {
		info, err := r.locks.Inspect(t.Context(), prefix+"k")
		return err == nil && len(info.Waiters) == 1
	})
	stop()
	r.await("nobody waits", func() bool {
		info, err := r.locks.Inspect(t.Context(), prefix+"k")
		return err == nil && len(info.Waiters) == 0
	})
	if info := r.info(); info.Pending != 1 || info.Archived != 0 || ran.Load() != 0 {
		t.Errorf("%d tasks are pending, %d archived, %d have run: want 1, 0, 0", info.Pending, info.Archived, ran.Load())
	}
	if err := lease.Unlock(); err != nil {
		t.Fatal(err)
	}
	r.start(cfg, handler)
	r.await("the task has run", func() bool { return r.info().Size == 0 })
	if ran.Load() != 1 {
		t.Errorf("it ran %d times", ran.Load())
	}
}

// asynq counts the time of asynq.Unique from when the task was enqueued, also while it is
// away: what the package's documentation says.
func TestUnique(t *testing.T) {
	t.Parallel()
	r := newRig(t, testserver.Redis(t).Addr, testserver.SharedRedis(t).Addr)
	prefix := t.Name() + "/"
	lease, err := r.locks.Lock(t.Context(), prefix+"k", baton.Permits(1, 1))
	if err != nil {
		t.Fatal(err)
	}
	var ran atomic.Int64
	r.start(joblimit.Config{Locks: r.locks, Running: 1, Prefix: prefix, Wait: -1, Longest: time.Second}, func(context.Context, *asynq.Task) error {
		ran.Add(1)
		return nil
	})
	r.enqueue(1, "k", asynq.Unique(2*time.Second))
	r.await("the task went back", func() bool { return r.info().Retry == 1 })
	again := func() error {
		_, err := r.queue.Enqueue(asynq.NewTask("job", []byte("k")), asynq.Unique(time.Minute))
		return err
	}
	if err := again(); !errors.Is(err, asynq.ErrDuplicateTask) {
		t.Errorf("a second task while the first is away: %v", err)
	}
	r.await("the time of the first is over, and it is still away", func() bool { return again() == nil })
	if err := lease.Unlock(); err != nil {
		t.Fatal(err)
	}
	r.await("both have run", func() bool { return ran.Load() == 2 && r.info().Size == 0 })
}
