// Package batongocron runs the jobs of github.com/go-co-op/gocron/v2 once although
// several schedulers have them: a Locker lets one of them run each tick of each job, an
// Elector lets one scheduler run all jobs.
//
// # Locker or Elector
//
// With a Locker the schedulers share the work, and the difference of their clocks must be
// bounded: see Locker.Hold. With an Elector the clocks do not matter while one leads, one
// scheduler does everything, and after a crash jobs are left out until the next one is
// elected, a TTL later. gocron ignores the Locker if it has an Elector.
//
// # What is not promised
//
// That a tick runs at least once: the tick of a scheduler that crashes during the job is
// used up. And gocron does not tell a job that its lock was lost: long jobs should use
// Locker.Lease, whose context ends then, and pass its token to what they change.
package batongocron

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/election"
)

// A Locker is a gocron.Locker: of the schedulers that try to run a job at the same tick,
// one does. Pass it to gocron.WithDistributedLocker or gocron.WithDistributedJobLocker.
// Its fields must not be changed while it is in use; methods are safe for concurrent use.
type Locker struct {
	// Locks has the store. Its TTL is how long a job cannot run after a scheduler crashed
	// in it. It should not be shorter than Hold: the lock of a program that ends within
	// Hold expires.
	Locks *baton.Locker

	// Prefix and the name of a job are the key of its lock. A job without a name has that
	// of its function.
	Prefix string

	// Hold is how long a lock is kept from the beginning of a job, even after its end.
	// gocron releases the lock at the end of the job, so a scheduler whose clock is later
	// by more than that would run the same tick again. It must be longer than the
	// difference of the clocks, and shorter than the time between two ticks less that
	// difference, or ticks are left out. For schedulers that count their intervals from
	// different moments (gocron.DurationJob without WithStartAt) use a little less than
	// the interval. With 0 the lock lasts as long as the job.
	Hold time.Duration

	mu     sync.Mutex
	leases map[string]*baton.Lease
}

// Lock implements gocron.Locker. It does not wait: a *baton.HeldError says that another
// scheduler has run, or runs, the job. Other errors are those of baton's TryLock; gocron
// leaves the tick out then, too.
func (l *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	began := time.Now()
	lease, err := l.Locks.TryLock(ctx, l.Prefix+job)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leases == nil {
		l.leases = map[string]*baton.Lease{}
	}
	l.leases[job] = lease
	return &lock{locker: l, job: job, lease: lease, until: began.Add(l.Hold)}, nil
}

// Lease is the lease of the named job while it runs, or afterwards while it is held; nil
// otherwise. A job uses its token, and its context, which ends if the lock is lost. Do
// not unlock it.
func (l *Locker) Lease(job string) *baton.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leases[job]
}

type lock struct {
	locker *Locker
	job    string
	lease  *baton.Lease
	until  time.Time
}

// Unlock implements gocron.Lock. It returns at once, and the lock is released after Hold.
// The error says that the lock was lost while the job ran.
func (k *lock) Unlock(context.Context) error {
	err := k.lease.Err()
	left := time.Until(k.until)
	if err != nil || left <= 0 {
		return errors.Join(err, k.release())
	}
	time.AfterFunc(left, func() { _ = k.release() }) // the Locker logs losses; after a failure the lock expires
	return nil
}

func (k *lock) release() error {
	k.locker.mu.Lock()
	if k.locker.leases[k.job] == k.lease {
		delete(k.locker.leases, k.job)
	}
	k.locker.mu.Unlock()
	if err := k.lease.Unlock(); err != nil && !errors.Is(err, baton.ErrLost) {
		return err
	}
	return nil
}

// ErrNotLeader says that this scheduler does not lead, so that another runs the job.
var ErrNotLeader = errors.New("this scheduler does not lead")

// An Elector is a gocron.Elector: the jobs run on the leading scheduler. Pass it to
// gocron.WithDistributedElector, and keep its Run running. The zero Elector is ready to
// use; methods are safe for concurrent use.
type Elector struct {
	leads atomic.Pointer[election.Leadership]
}

// Run takes part in the election until ctx ends, and returns its error, or one of
// Candidate.Run that another try cannot cure. When ctx ends the leadership ends at once,
// although jobs may still run: end it after the scheduler's Shutdown has returned.
func (e *Elector) Run(ctx context.Context, c *election.Candidate) error {
	return c.Run(ctx, func(ctx context.Context, l *election.Leadership) error {
		e.leads.Store(l)
		defer e.leads.Store(nil)
		<-ctx.Done()
		return ctx.Err()
	})
}

// IsLeader implements gocron.Elector: nil while this scheduler leads. It does not ask the
// store; two schedulers never get nil at the same instant. A job that has begun does not
// learn of a lost leadership: see Leadership.
func (e *Elector) IsLeader(context.Context) error {
	l := e.leads.Load()
	if l == nil {
		return ErrNotLeader
	}
	if err := l.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	}
	return nil
}

// Leadership is the present leadership, for its token; nil if this scheduler does not
// lead.
func (e *Elector) Leadership() *election.Leadership { return e.leads.Load() }
