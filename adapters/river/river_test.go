package batonriver_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/batonhq/baton"
	batonriver "github.com/batonhq/baton/adapters/river"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/joblimit"
)

// A rig is a queue, and a store in the same database or in a server of its own.
type rig struct {
	t      *testing.T
	pool   *pgxpool.Pool
	locks  *baton.Locker
	rate   *ratelimit.Limiter
	client *river.Client[pgx.Tx]
	told   atomic.Int64 // errors of which the ErrorHandler was told
}

func newRig(t *testing.T, store *testserver.PostgresServer) *rig {
	t.Helper()
	db := migrated(t)
	r := &rig{t: t, pool: connect(t, db.url)}
	t.Cleanup(r.pool.Close)
	addr, name := db.addr, db.name
	if store != nil {
		addr, name = store.Addr, "postgres"
	}
	s, locks, err := open(t.Context(), addr, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	r.locks = locks
	if r.rate, err = ratelimit.New(s, ratelimit.TokenBucket(10, time.Second, 1)); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) HandleError(context.Context, *rivertype.JobRow, error) *river.ErrorHandlerResult {
	r.told.Add(1)
	return nil
}

func (r *rig) HandlePanic(context.Context, *rivertype.JobRow, any, string) *river.ErrorHandlerResult {
	r.told.Add(1)
	return nil
}

// start works under limits. Jobs that fail are retried at once.
func (r *rig) start(work func(context.Context, *river.Job[args]) error, cfgs ...joblimit.Config) {
	r.t.Helper()
	var middleware []rivertype.Middleware
	for _, cfg := range cfgs {
		limit, err := joblimit.New(cfg)
		if err != nil {
			r.t.Fatal(err)
		}
		middleware = append(middleware, batonriver.Middleware(limit, key))
	}
	client, err := newClient(r.pool, middleware, work, func(cfg *river.Config) { cfg.ErrorHandler = r })
	if err != nil {
		r.t.Fatal(err)
	}
	r.client = client
	if err := client.Start(context.Background()); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := client.StopAndCancel(context.Background()); err != nil {
			r.t.Error(err)
		}
	})
}

func (r *rig) insert(n int, key string, attempts int) {
	r.t.Helper()
	client, err := river.NewClient(riverpgxv5.New(r.pool), &river.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.t.Fatal(err)
	}
	var params []river.InsertManyParams
	for range n {
		params = append(params, insertion(key, attempts))
	}
	if _, err := client.InsertMany(r.t.Context(), params); err != nil {
		r.t.Fatal(err)
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

// count counts the jobs for which a condition in SQL is true.
func (r *rig) count(condition string) (n int) {
	r.t.Helper()
	if err := r.pool.QueryRow(r.t.Context(), "select count(*) from river_job where "+condition).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// Jobs that go back burn no attempt, whatever their MaxAttempts; those that fail do.
func TestAttempts(t *testing.T) {
	for _, c := range []struct {
		name string
		cfgs func(*rig) []joblimit.Config
	}{
		{"permits", func(r *rig) []joblimit.Config {
			return []joblimit.Config{{Locks: r.locks, Running: 1, Wait: -1}}
		}},
		{"rate", func(r *rig) []joblimit.Config { return []joblimit.Config{{Rate: r.rate, Wait: -1}} }},
		{"permits within a rate", func(r *rig) []joblimit.Config {
			return []joblimit.Config{{Rate: r.rate, Wait: -1}, {Locks: r.locks, Running: 1, Wait: -1}}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			var failed, now atomic.Int64
			r.insert(6, "tenant", 2)
			r.insert(4, "tenant", 1)
			r.start(func(ctx context.Context, job *river.Job[args]) error {
				if now.Add(1) > 1 && c.name != "rate" {
					t.Error("two jobs run")
				}
				defer now.Add(-1)
				time.Sleep(50 * time.Millisecond) // the work, while others are refused
				if job.MaxAttempts == 2 && job.Attempt == 1 && failed.Add(1) <= 2 {
					return errors.New("failed")
				}
				return nil
			}, c.cfgs(r)...)
			r.await("all jobs have run", func() bool { return r.count("state = 'completed'") == 10 })
			if n := r.count("attempt = 2 and array_length(errors, 1) = 1"); n != 2 || r.count("attempt = 1 and errors is null") != 8 || r.told.Load() != 2 {
				t.Errorf("%d jobs lost an attempt, the ErrorHandler was told of %d errors: want 2 and 2", n, r.told.Load())
			}
			if r.count("(metadata->>'snoozes')::int > 0") == 0 {
				t.Error("no job went back: the test shows nothing")
			}
		})
	}
}

// While the store of the permits is down jobs go back, and none fails.
func TestStoreDown(t *testing.T) {
	t.Parallel()
	store := testserver.Postgres(t)
	r := newRig(t, store)
	store.Kill()
	r.insert(10, "tenant", 1)
	r.insert(1, "", 1)
	r.start(func(context.Context, *river.Job[args]) error { return nil }, joblimit.Config{Locks: r.locks, Running: 2, Longest: 2 * time.Second})
	r.await("jobs went back, and the one without a limit has run", func() bool {
		return r.count("(metadata->>'snoozes')::int > 0") == 10 && r.count("state = 'completed'") == 1
	})
	store.Restart()
	r.await("all jobs have run", func() bool { return r.count("state = 'completed' and attempt = 1 and errors is null") == 11 })
}

// The context of a job ends with its permit, and a job that panics releases it.
func TestPermitEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	causes, ran := make(chan error), make(chan bool)
	r.insert(1, "tenant", 3)
	r.start(func(ctx context.Context, job *river.Job[args]) error {
		switch job.Attempt {
		case 1:
			if _, err := r.locks.Break(ctx, "tenant"); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return ctx.Err()
		case 2:
			panic("a defect of the job")
		}
		ran <- true
		return nil
	}, joblimit.Config{Locks: r.locks, Running: 1})
	var lost *baton.LostError
	if cause := <-causes; !errors.As(cause, &lost) || lost.Key != "tenant" {
		t.Errorf("the context of the job ended because: %v", cause)
	}
	<-ran
	r.await("the job is complete", func() bool { return r.count("state = 'completed' and array_length(errors, 1) = 2") == 1 })
}

// A client that stops while jobs wait for a permit burns no attempt of theirs.
func TestStopWhileWaiting(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	lease, err := r.locks.Lock(t.Context(), "tenant", baton.Permits(1, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Unlock() }()
	r.insert(1, "tenant", 1)
	r.start(func(context.Context, *river.Job[args]) error { return nil }, joblimit.Config{Locks: r.locks, Running: 1, Wait: time.Hour})
	r.await("the job waits", func() bool {
		info, err := r.locks.Inspect(t.Context(), "tenant")
		return err == nil && len(info.Waiters) == 1
	})
	if err := r.client.StopAndCancel(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := r.count("state = 'available' and attempt = 0 and errors is null"); n != 1 {
		t.Error("the job that waited has lost an attempt")
	}
}

// A job that goes back stays unique, and can be cancelled while it waits in its worker.
func TestUniqueAndCancelled(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	lease, err := r.locks.Lock(t.Context(), "tenant", baton.Permits(1, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Unlock() }()
	insert := func() *rivertype.JobInsertResult {
		t.Helper()
		result, err := r.client.Insert(t.Context(), args{"tenant"}, &river.InsertOpts{Tags: []string{"tenant"}, MaxAttempts: 1, UniqueOpts: river.UniqueOpts{ByArgs: true}})
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	r.start(func(context.Context, *river.Job[args]) error { return nil }, joblimit.Config{Locks: r.locks, Running: 1, Wait: -1, Longest: time.Second})
	job := insert().Job
	r.await("the job went back", func() bool { return r.count("(metadata->>'snoozes')::int > 1") == 1 })
	if again := insert(); !again.UniqueSkippedAsDuplicate || again.Job.ID != job.ID {
		t.Errorf("a second job while the first is away: %+v", again.Job)
	}
	if err := r.client.StopAndCancel(t.Context()); err != nil {
		t.Fatal(err)
	}

	r.start(func(context.Context, *river.Job[args]) error { return nil }, joblimit.Config{Locks: r.locks, Running: 1, Wait: time.Hour})
	r.await("the job waits in its worker", func() bool {
		info, err := r.locks.Inspect(t.Context(), "tenant")
		return err == nil && len(info.Waiters) == 1
	})
	if _, err := r.client.JobCancel(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	r.await("the job is cancelled", func() bool { return r.count("state = 'cancelled'") == 1 })
	info, err := r.locks.Inspect(t.Context(), "tenant")
	if err != nil || len(info.Waiters) != 0 {
		t.Errorf("a job that was cancelled waits on: %+v, %v", info.Waiters, err)
	}
}
