package batoncron_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/batonhq/baton"
	batoncron "github.com/batonhq/baton/adapters/cron"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

// skewed is a schedule as a program sees it whose clock is late by so much.
type skewed struct {
	cron.Schedule
	late time.Duration
}

func (s skewed) Next(t time.Time) time.Time { return s.Schedule.Next(t.Add(-s.late)).Add(s.late) }

// log keeps what a Wrapper reports.
type log struct {
	mu           sync.Mutex
	infos, fails []string
}

func (l *log) Info(msg string, kv ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.infos = append(l.infos, fmt.Sprint(msg, kv))
}

func (l *log) Error(err error, msg string, kv ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fails = append(l.fails, fmt.Sprint(msg, err, kv))
}

func newLocker(t *testing.T, store driver.Locks) *baton.Locker {
	t.Helper()
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return locks
}

// Three programs with clocks that differ, one job: each tick runs once, with
// short jobs and with long ones. Without Hold short ones run thrice.
func TestOncePerTick(t *testing.T) {
	const minutes = 30
	for _, c := range []struct {
		name      string
		job, hold time.Duration
		want      int
	}{
		{"short jobs", 0, 10 * time.Second, 1},
		{"long jobs", 40 * time.Second, 10 * time.Second, 1},
		{"short jobs and no hold", 0, 0, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(30 * time.Second) // no clock is at a tick
				store := memstore.New()
				var mu sync.Mutex
				runs := map[time.Time]int{}
				var l log
				var all []*cron.Cron
				for _, late := range []time.Duration{0, 700 * time.Millisecond, 2 * time.Second} {
					w := &batoncron.Wrapper{Locks: newLocker(t, store), Prefix: "cron/", Hold: c.hold, Logger: &l}
					program := cron.New(cron.WithLocation(time.UTC))
					every, err := cron.ParseStandard("* * * * *")
					if err != nil {
						t.Fatal(err)
					}
					job := cron.FuncJob(func() {
						mu.Lock()
						runs[time.Now().Round(time.Minute)]++
						mu.Unlock()
						time.Sleep(c.job)
					})
					program.Schedule(skewed{every, late}, cron.NewChain(w.Wrap("report")).Then(job))
					program.Start()
					all = append(all, program)
				}
				time.Sleep(minutes*time.Minute + 20*time.Second)
				for _, program := range all {
					<-program.Stop().Done()
				}
				time.Sleep(time.Minute) // holds end
				synctest.Wait()
				if len(runs) != minutes {
					t.Errorf("%d ticks ran, want %d", len(runs), minutes)
				}
				for tick, n := range runs {
					if n != c.want {
						t.Errorf("the tick of %s ran %d times, want %d", tick.Format("15:04"), n, c.want)
					}
				}
				if n := minutes * (3 - c.want); len(l.infos) != n || len(l.fails) != 0 {
					t.Errorf("%d ticks left out, want %d; errors: %q", len(l.infos), n, l.fails)
				}
			})
		})
	}
}

// A job learns that its lock was lost, and the loss is logged. A job that panics
// frees its lock.
func TestJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memstore.New())
		var l log
		w := &batoncron.Wrapper{Locks: locks, Hold: time.Minute, Logger: &l}
		w.Job("j", func(ctx context.Context, lease *baton.Lease) {
			if lease.Key() != "j" || lease.Token() <= 0 || ctx.Err() != nil {
				t.Errorf("key %q, token %d, %v", lease.Key(), lease.Token(), ctx.Err())
			}
			if _, err := locks.Break(t.Context(), "j"); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			if err := context.Cause(ctx); !errors.Is(err, baton.ErrLost) {
				t.Errorf("cause: %v", err)
			}
		}).Run()
		if len(l.fails) != 1 {
			t.Errorf("a loss was logged as %q", l.fails)
		}

		func() {
			defer func() { _ = recover() }()
			w.Wrap("j")(cron.FuncJob(func() { panic("on purpose") })).Run()
			t.Error("the panic was swallowed")
		}()
		if _, err := locks.TryLock(t.Context(), "j"); !errors.Is(err, baton.ErrHeld) {
			t.Errorf("after a panic, within Hold: %v", err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		lease, err := locks.TryLock(t.Context(), "j")
		if err != nil {
			t.Fatalf("after Hold: %v", err)
		}
		if err := lease.Unlock(); err != nil {
			t.Error(err)
		}
	})
}

// down is a store that is out of reach.
type down struct{ *memstore.Store }

func (down) Acquire(context.Context, driver.Request) (driver.Grant, error) {
	return driver.Grant{}, driver.ErrUnavailable
}

func TestStoreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l log
		w := &batoncron.Wrapper{Locks: newLocker(t, down{memstore.New()}), Logger: &l}
		w.Job("j", func(context.Context, *baton.Lease) { t.Error("it ran without a lock") }).Run()
		if len(l.fails) != 1 || len(l.infos) != 0 {
			t.Errorf("logged %q, %q", l.fails, l.infos)
		}
	})
}
