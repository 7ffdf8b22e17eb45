// Package batoncron runs the jobs of github.com/robfig/cron/v3 once although several
// programs have them: of the programs that come to the same tick, one runs the job.
//
//	once := &batoncron.Wrapper{Locks: locks, Hold: 10 * time.Second}
//	c.AddJob("0 3 * * *", cron.NewChain(once.Wrap("report")).Then(job))
//	c.AddJob("@hourly", once.Job("clean", func(ctx context.Context, lease *baton.Lease) { … }))
//
// It is not promised that a tick runs at least once: the tick of a program that crashes
// during the job is used up.
package batoncron

import (
	"context"
	"errors"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/batonhq/baton"
)

// A Wrapper makes jobs that run under a lock. Its fields must not be changed while it is
// in use; methods are safe for concurrent use.
type Wrapper struct {
	// Locks has the store. Its TTL is how long a job cannot run after a program crashed
	// in it. It should not be shorter than Hold: the lock of a program that ends within
	// Hold expires.
	Locks *baton.Locker

	// Prefix and the name of a job are the key of its lock.
	Prefix string

	// Hold is how long a lock is kept from the beginning of a job, even after its end. If
	// it were released with a short job, a program whose clock is later by more than that
	// would run the same tick again. It must be longer than the difference of the clocks,
	// and shorter than the time between two ticks less that difference, or ticks are left
	// out. With 0 the lock lasts as long as the job.
	Hold time.Duration

	// Logger gets jobs that were left out because another program had the lock (Info), or
	// because the store could not be asked, and locks that were lost while a job ran
	// (Error). Defaults to cron.DefaultLogger.
	Logger cron.Logger
}

// Wrap runs jobs under the lock of that name, which must be the same in all programs. A
// wrapped job cannot learn that the lock was lost; see Job. It works in a chain of
// wrappers.
func (w *Wrapper) Wrap(name string) cron.JobWrapper {
	return func(job cron.Job) cron.Job {
		return w.Job(name, func(context.Context, *baton.Lease) { job.Run() })
	}
}

// Job makes a job of f, with a context that ends if the lock is lost, and the lease for
// its token. f must not unlock it.
func (w *Wrapper) Job(name string, f func(context.Context, *baton.Lease)) cron.Job {
	return cron.FuncJob(func() {
		began := time.Now()
		lease, err := w.Locks.TryLock(context.Background(), w.Prefix+name)
		if errors.Is(err, baton.ErrHeld) {
			w.logger().Info("left out: another program runs it", "job", name, "error", err)
			return
		}
		if err != nil {
			w.logger().Error(err, "left out: the lock cannot be had", "job", name)
			return
		}
		defer w.release(name, lease, began.Add(w.Hold)) // even if f panics
		f(lease.Context(context.Background()), lease)
	})
}

// release releases at a time, without waiting for it.
func (w *Wrapper) release(name string, lease *baton.Lease, at time.Time) {
	unlock := func() {
		if err := lease.Unlock(); err != nil {
			w.logger().Error(err, "the lock ended before it was released", "job", name)
		}
	}
	if left := time.Until(at); left > 0 && lease.Err() == nil {
		time.AfterFunc(left, unlock)
		return
	}
	unlock()
}

func (w *Wrapper) logger() cron.Logger {
	if w.Logger != nil {
		return w.Logger
	}
	return cron.DefaultLogger
}
