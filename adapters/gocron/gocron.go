// Package batongocron runs the jobs of github.com/go-co-op/gocron/v2 once
// though several schedulers have them: a Locker lets one of them run each tick
// of each job, an Elector lets one scheduler run all jobs.
//
// # Locker or Elector
//
// With a Locker the schedulers share the work, and the skew of their clocks must
// be bounded: see Locker.Hold. With an Elector the clocks do not matter while
// one leads, one scheduler does everything, and after a crash jobs are left out
// until the next one is elected, a TTL later. gocron asks no Locker if it has an
// Elector.
//
// # What is not promised
//
// That a tick runs at least once: a scheduler that crashes while it runs a job
// has used up the tick. And gocron does not tell a job that its lock was lost;
// long jobs should work under Locker.Lease, whose context ends then, and pass
// its token to what they change.
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

// A Locker is a gocron.Locker: of the schedulers that try to run a job at the
// same tick, one does. Give it to gocron.WithDistributedLocker or
// gocron.WithDistributedJobLocker. Its fields are not to be changed while it is
// in use; methods are safe for concurrent use.
type Locker struct {
	// Locks holds the store. Its TTL is how long a job cannot run after a
	// scheduler crashed in it. It should not be shorter than Hold: a program
	// that ends within Hold leaves the lock to expire.
	Locks *baton.Locker

	// Prefix is put before the name of a job to make the key of its lock.
	// Jobs without a name have that of their function.
	Prefix string

	// Hold is how long a lock is kept from the beginning of a job, even if the
	// job ends before. gocron releases the lock as soon as the job has ended, so
	// that a scheduler whose clock is late by more than that would run the same
	// tick again. It must be longer than clocks may differ, and shorter than the
	// time between two ticks less that difference, or ticks are left out. For
	// schedulers that count their intervals from different moments
	// (gocron.DurationJob without WithStartAt) a little less than the interval
	// is right. With 0 the lock lasts as long as the job.
	Hold time.Duration

	mu     sync.Mutex
	leases map[string]*baton.Lease
}

// Lock implements gocron.Locker. It does not wait: a *baton.HeldError says that
// another scheduler has run, or runs, the job. Other errors are those of
// baton's TryLock; gocron leaves the tick out then, too.
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

// Lease is the lease under which the named job runs now, or ran last and is
// still held; nil if there is none. A job uses it for its token, and for a
// context that ends if the lock is lost. It must not be unlocked.
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

// Unlock implements gocron.Lock. It returns at once and releases when Hold is
// over. The error says that the lock was lost while the job ran.
func (k *lock) Unlock(context.Context) error {
	err := k.lease.Err()
	left := time.Until(k.until)
	if err != nil || left <= 0 {
		return errors.Join(err, k.release())
	}
	time.AfterFunc(left, func() { _ = k.release() }) // the Locker logs losses; what cannot be released expires
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

// ErrNotLeader says that this scheduler does not lead, so that another runs the
// job.
var ErrNotLeader = errors.New("this scheduler does not lead")

// An Elector is a gocron.Elector: the jobs run on the scheduler that leads. Give
// it to gocron.WithDistributedElector, and keep its Run running. The zero
// Elector is ready to use; methods are safe for concurrent use.
type Elector struct {
	leads atomic.Pointer[election.Leadership]
}

// Run stands for the election until ctx ends, and returns its error, or one of
// Candidate.Run that cannot be helped by trying again. When ctx ends the
// leadership passes on at once, though jobs may still run: end it after the
// scheduler's Shutdown has returned.
func (e *Elector) Run(ctx context.Context, c *election.Candidate) error {
	return c.Run(ctx, func(ctx context.Context, l *election.Leadership) error {
		e.leads.Store(l)
		defer e.leads.Store(nil)
		<-ctx.Done()
		return ctx.Err()
	})
}

// IsLeader implements gocron.Elector: nil while this scheduler leads. It does
// not ask the store; no two schedulers get nil at the same instant. A job that
// has begun is not told when the leadership is lost: see Leadership.
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

// Leadership is the present one, for its token; nil if this scheduler does not
// lead.
func (e *Elector) Leadership() *election.Leadership { return e.leads.Load() }
