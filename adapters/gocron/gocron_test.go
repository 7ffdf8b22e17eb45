package batongocron_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jonboulle/clockwork"

	"github.com/batonhq/baton"
	batongocron "github.com/batonhq/baton/adapters/gocron"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/memstore"
)

// skewed is a clock that is wrong by so much.
type skewed struct {
	clockwork.Clock
	by time.Duration
}

func (s skewed) Now() time.Time                  { return s.Clock.Now().Add(s.by) }
func (s skewed) Since(t time.Time) time.Duration { return s.Now().Sub(t) }
func (s skewed) Until(t time.Time) time.Duration { return t.Sub(s.Now()) }

func newLocker(t *testing.T, store *memstore.Store, cfg baton.Config) *baton.Locker {
	t.Helper()
	locks, err := baton.New(store, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return locks
}

// scheduler starts a scheduler with one job that runs every minute, by a clock
// that is late by so much.
func scheduler(t *testing.T, late time.Duration, job func(), opts ...gocron.SchedulerOption) gocron.Scheduler {
	t.Helper()
	opts = append(opts, gocron.WithClock(skewed{clockwork.NewRealClock(), -late}), gocron.WithLocation(time.UTC))
	s, err := gocron.NewScheduler(opts...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.NewJob(gocron.CronJob("* * * * *", false), gocron.NewTask(job), gocron.WithName("report")); err != nil {
		t.Fatal(err)
	}
	s.Start()
	return s
}

func shutdown(t *testing.T, all []gocron.Scheduler) {
	t.Helper()
	for _, s := range all {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	}
}

// ticks counts runs by the minute that they are for.
type ticks struct {
	mu   sync.Mutex
	runs map[time.Time]int
	all  int
}

func (k *ticks) add() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.runs == nil {
		k.runs = map[time.Time]int{}
	}
	k.runs[time.Now().Round(time.Minute)]++
	k.all++
}

// atOnce releases as soon as the job has ended, as lockers of gocron do: the
// defect that Hold is there for.
type atOnce struct{ locks *baton.Locker }

type plain struct{ lease *baton.Lease }

func (a atOnce) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	lease, err := a.locks.TryLock(ctx, job)
	return plain{lease}, err
}

func (p plain) Unlock(context.Context) error { return p.lease.Unlock() }

var lateness = []time.Duration{0, 700 * time.Millisecond, 2 * time.Second}

// Three schedulers with clocks that differ, one job: each tick runs once, with
// short jobs and with long ones. Without Hold short ones run thrice.
func TestLockerOncePerTick(t *testing.T) {
	const minutes = 30
	for _, c := range []struct {
		name string
		job  time.Duration
		wrap func(*baton.Locker) gocron.Locker
		want int
	}{
		{"short jobs", 0, func(l *baton.Locker) gocron.Locker { return &batongocron.Locker{Locks: l, Hold: 10 * time.Second} }, 1},
		{"long jobs", 40 * time.Second, func(l *baton.Locker) gocron.Locker { return &batongocron.Locker{Locks: l, Hold: 10 * time.Second} }, 1},
		{"short jobs and no hold", 0, func(l *baton.Locker) gocron.Locker { return &batongocron.Locker{Locks: l} }, 3},
		{"released at once", 0, func(l *baton.Locker) gocron.Locker { return atOnce{l} }, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(30 * time.Second) // no clock is at a tick
				store := memstore.New()
				var k ticks
				var all []gocron.Scheduler
				for _, late := range lateness {
					locker := c.wrap(newLocker(t, store, baton.Config{}))
					all = append(all, scheduler(t, late, func() { k.add(); time.Sleep(c.job) }, gocron.WithDistributedLocker(locker)))
				}
				time.Sleep(minutes*time.Minute + 20*time.Second) // when no job runs: Shutdown would spin, and fake time stand still
				synctest.Wait()
				shutdown(t, all)
				if len(k.runs) != minutes {
					t.Errorf("%d ticks ran, want %d", len(k.runs), minutes)
				}
				for tick, n := range k.runs {
					if n != c.want {
						t.Errorf("the tick of %s ran %d times, want %d", tick.Format("15:04"), n, c.want)
					}
				}
				time.Sleep(time.Minute) // holds end
			})
		})
	}
}

// A scheduler that dies within a job gives way after its TTL.
func TestLockerCrash(t *testing.T) {
	testserver.Long(t)
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		dead := &batongocron.Locker{Locks: newLocker(t, store, baton.Config{MaxHold: 10 * time.Second}), Hold: time.Second}
		lock, err := dead.Lock(t.Context(), "report")
		if err != nil {
			t.Fatal(err)
		}
		lease := dead.Lease("report")
		if lease == nil || lease.Err() != nil || lease.Key() != "report" {
			t.Fatalf("the lease of the job: %v", lease)
		}
		next := &batongocron.Locker{Locks: newLocker(t, store, baton.Config{})}
		if _, err := next.Lock(t.Context(), "report"); !errors.Is(err, baton.ErrHeld) {
			t.Errorf("while it runs: %v", err)
		}
		time.Sleep(10*time.Second + 2*baton.DefaultTTL)
		other, err := next.Lock(t.Context(), "report")
		if err != nil {
			t.Fatalf("after the TTL: %v", err)
		}
		if err := lock.Unlock(t.Context()); !errors.Is(err, baton.ErrLost) {
			t.Errorf("unlocking what was lost: %v", err)
		}
		if dead.Lease("report") != nil {
			t.Error("a lease that was lost and unlocked is shown")
		}
		if err := other.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// One scheduler runs all ticks; when it ends the next one goes on.
func TestElector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(30 * time.Second) // no clock is at a tick
		store := memstore.New()
		var mu sync.Mutex
		var ran []int
		var all []gocron.Scheduler
		var ends []func()
		for i := range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			var e batongocron.Elector
			c := &election.Candidate{Locks: newLocker(t, store, baton.Config{}), Name: "scheduler", Value: fmt.Sprint(i)}
			if err := e.IsLeader(ctx); !errors.Is(err, batongocron.ErrNotLeader) {
				t.Errorf("before Run: %v", err)
			}
			go func() { ended <- e.Run(ctx, c) }()
			synctest.Wait()
			ends = append(ends, func() {
				cancel()
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Errorf("Run: %v", err)
				}
				if err := e.IsLeader(t.Context()); !errors.Is(err, batongocron.ErrNotLeader) || e.Leadership() != nil {
					t.Errorf("after Run: %v", err)
				}
			})
			all = append(all, scheduler(t, lateness[i], func() {
				mu.Lock()
				defer mu.Unlock()
				ran = append(ran, i)
				if l := e.Leadership(); l == nil || l.Token() <= 0 {
					t.Errorf("a job runs and nobody leads")
				}
			}, gocron.WithDistributedElector(&e)))
		}
		for i := range 3 {
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			mu.Lock()
			if len(ran) != 5 {
				t.Errorf("leader %d: %d ticks ran, want 5", i, len(ran))
			}
			for _, who := range ran {
				if who != i {
					t.Errorf("scheduler %d ran a tick, %d leads", who, i)
				}
			}
			ran = nil
			mu.Unlock()
			ends[i]()
		}
		shutdown(t, all)
	})
}
