package joblimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/ratelimit"
)

// Defaults of a Config.
const (
	DefaultWait    = 500 * time.Millisecond
	DefaultLongest = time.Minute
)

// Config limits the jobs that run, the jobs that begin, or both.
type Config struct {
	// Locks has the permits. Its TTL is how long the permit of a killed worker stays
	// taken. Required with Running.
	Locks *baton.Locker

	// Running is how many jobs of a key run at a time. All programs that use the key must
	// agree on it: jobs go back while jobs with another number run. Defaults to 0, no
	// limit.
	Running int

	// Rate limits how many jobs of a key begin within a period. Its policy for a store
	// that fails, if any, decides before a job goes back. Defaults to nil, no limit.
	Rate *ratelimit.Limiter

	// Prefix begins the keys of permits and rate, before the job's key.
	Prefix string

	// Wait is how long a job may wait in its worker for its permit and its rate before it
	// goes back, at most half of the time to its context's deadline. One job of a key
	// waits at a time in each process, and at most half of all jobs in their workers;
	// others go back at once. Below 0 no job waits. Defaults to 500ms.
	Wait time.Duration

	// Longest is the longest time for which a job goes back, unless the rate says that it
	// cannot run before. An early free permit stays unused for at most that long.
	// Defaults to 1m.
	Longest time.Duration
}

// A Limit runs jobs under permits and a rate. All methods are safe for concurrent use. It
// needs no Close.
type Limit struct {
	cfg   Config
	paces paces
}

// New makes a Limit. It sends no request to the store. It refuses a Config that cannot be
// honoured with a *baton.ConfigError, and permits that the store does not have with
// baton.ErrUnsupported.
func New(cfg Config) (*Limit, error) {
	switch {
	case cfg.Running < 0 || cfg.Running > baton.MaxPermits:
		return nil, &baton.ConfigError{Field: "Running", Reason: fmt.Sprintf("is %d: want 0 to %d", cfg.Running, baton.MaxPermits)}
	case cfg.Running > 0 && cfg.Locks == nil:
		return nil, &baton.ConfigError{Field: "Locks", Reason: "is missing: Running needs it"}
	case cfg.Running == 0 && cfg.Rate == nil:
		return nil, &baton.ConfigError{Field: "Running", Reason: "and Rate are missing: nothing is limited"}
	case cfg.Longest < 0:
		return nil, &baton.ConfigError{Field: "Longest", Reason: "is below 0"}
	case cfg.Running > 0 && !cfg.Locks.Traits().Permits:
		return nil, fmt.Errorf("joblimit: store %s has no permits: %w", cfg.Locks.Traits().Store, baton.ErrUnsupported)
	}
	if cfg.Wait == 0 {
		cfg.Wait = DefaultWait
	}
	if cfg.Longest == 0 {
		cfg.Longest = DefaultLongest
	}
	return &Limit{cfg: cfg}, nil
}

// A BackError says that a job did not run and goes back to its queue. It is no failure of
// the job.
type BackError struct {
	Key   string        // of the job, without the prefix
	After time.Duration // when to try again, from now

	// Err is the reason: a *baton.HeldError, a *ratelimit.RefusedError, a
	// *baton.CapacityError, a *baton.LostError if the permit was lost before the job
	// began, or the error of a store that could not be asked.
	Err error
}

func (e *BackError) Error() string {
	return fmt.Sprintf("job of %q goes back for %s: %v", e.Key, e.After.Round(time.Millisecond), e.Err)
}

// Unwrap returns Err.
func (e *BackError) Unwrap() error { return e.Err }

// Run runs f as a job of the key if it may run, now or within Config.Wait; otherwise it
// returns a *BackError and f does not run. Jobs of the key "" have no limit.
//
// f gets a context that ends when its permit does. Run returns the error of f; if that is
// not nil and the permit was lost while f ran, joined with the *baton.LostError. A
// *BackError of f, from a Limit within it, says that the job did not run: nothing of the
// rate is consumed. Other errors: that of ctx, with its cause, if it has ended; errors
// that no repetition cures, such as a *baton.KeyError, or baton.ErrNested for a Limit
// within itself.
func (l *Limit) Run(ctx context.Context, key string, f func(context.Context) error) error {
	return l.run(ctx, key, false, f)
}

// RunWaiting is Run for a job that cannot go back: it waits until the job may run, or
// until ctx ends, even while the store fails. A *BackError can only come from f. Any
// number of waiting jobs hold their workers: use it only if the queue has no other way.
func (l *Limit) RunWaiting(ctx context.Context, key string, f func(context.Context) error) error {
	return l.run(ctx, key, true, f)
}

type leaseKey struct{}

// Lease is the lease on the permit of a job, for its token; nil if ctx is not that of a
// job with a permit. With several Limits it is that of the innermost one with permits. Do
// not unlock it.
func Lease(ctx context.Context) *baton.Lease {
	lease, _ := ctx.Value(leaseKey{}).(*baton.Lease)
	return lease
}

func (l *Limit) run(ctx context.Context, key string, stay bool, f func(context.Context) error) (err error) {
	if key == "" {
		return f(ctx)
	}
	l.paces.enter()
	defer l.paces.leave()
	e := entry{Limit: l, key: key, stay: stay, until: time.Now().Add(l.cfg.Wait)}
	lease, reserved, err := e.enter(ctx)
	if err != nil {
		return err
	}
	if lease != nil {
		defer release(ctx, lease) // also after a panic
		ctx = context.WithValue(lease.Context(ctx), leaseKey{}, lease)
	}
	err = f(ctx)
	var back *BackError
	if errors.As(err, &back) {
		cancel(ctx, reserved)
		return err
	}
	l.paces.ran(key, time.Now())
	if err != nil && lease != nil {
		if lost := lease.Err(); lost != nil && !errors.Is(err, lost) {
			err = errors.Join(err, lost)
		}
	}
	return err
}

// settleWithin is the longest wait for the store at the end of a job, or when it goes
// back, at most half of the time to its deadline, at which the queue would count a
// failure.
const settleWithin = 2 * time.Second

func settling(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok && time.Until(end) > 0 {
		return min(settleWithin, time.Until(end)/2)
	}
	return settleWithin
}

// cancel gives back the reservation of a job that did not run. After a failure the
// reservation counts as consumed.
func cancel(ctx context.Context, r *ratelimit.Reservation) {
	if r == nil {
		return
	}
	ctx, end := context.WithTimeout(context.WithoutCancel(ctx), settling(ctx))
	defer end()
	_ = r.Cancel(ctx)
}

// release releases a permit, in the background if the store is slow. After a failure the
// permit expires.
func release(ctx context.Context, lease *baton.Lease) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = lease.Unlock()
	}()
	t := time.NewTimer(settling(ctx))
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// An entry is one job on its way to its permit and its rate.
type entry struct {
	*Limit
	key     string
	stay    bool      // it waits as long as its context lasts
	until   time.Time // else it may wait until then
	waiting bool      // it is the one job of the key in this process that may wait
}

// mayWait reports whether the job may wait in its worker, and for how long.
func (e *entry) mayWait() (time.Duration, bool) {
	left := time.Until(e.until)
	if left <= 0 || !e.waiting && !e.paces.enterWait(e.key) {
		return 0, false
	}
	e.waiting = true
	return left, true
}

// enter takes the permit first: an unused permit returns at once, a rate does not.
func (e *entry) enter(ctx context.Context) (*baton.Lease, *ratelimit.Reservation, error) {
	defer func() {
		if e.waiting {
			e.paces.leaveWait(e.key)
		}
	}()
	asking := ctx
	if end, ok := ctx.Deadline(); ok && !e.stay { // a queue would count an attempt at the deadline
		half := time.Now().Add(time.Until(end) / 2)
		if half.Before(e.until) {
			e.until = half
		}
		var cancel context.CancelFunc
		asking, cancel = context.WithDeadlineCause(ctx, half, errSlow)
		defer cancel()
	}
	for {
		lease, reserved, after, err := e.attempt(asking)
		switch {
		case err == nil:
			return lease, reserved, nil
		case ctx.Err() != nil:
			return nil, nil, whyEnded(ctx)
		case hopeless(err):
			return nil, nil, err
		case e.stay:
			if err := sleep(ctx, max(after, outage/2+rand.N(outage/2))); err != nil {
				return nil, nil, err
			}
			continue
		}
		refused, capacity := new(ratelimit.RefusedError), new(baton.CapacityError)
		switch {
		case errors.As(err, &refused):
			if left, ok := e.mayWait(); ok && after <= left {
				if err := sleep(ctx, after); err != nil {
					return nil, nil, err
				}
				continue
			}
		case errors.Is(err, baton.ErrHeld):
		case errors.Is(err, baton.ErrLost), errors.As(err, &capacity):
			after = outage
		default:
			// The store fails. The next job would, too, so this worker pauses.
			if err := sleep(ctx, min(max(0, time.Until(e.until)), outage)); err != nil {
				return nil, nil, err
			}
			after = outage
		}
		return nil, nil, &BackError{Key: e.key, After: e.paces.back(e.key, time.Now(), after, e.cfg.Longest), Err: err}
	}
}

// outage is the least time for which a job goes back when the store fails.
const outage = time.Second

var errSlow = errors.New("no answer of the store within half of the time that the job has")

// attempt takes both the permit and the rate, or neither. after is the time until the
// rate may allow the job.
func (e *entry) attempt(ctx context.Context) (lease *baton.Lease, reserved *ratelimit.Reservation, after time.Duration, err error) {
	if e.cfg.Running > 0 {
		if lease, err = e.permit(ctx); err != nil {
			return nil, nil, 0, err
		}
		defer func() {
			if err == nil {
				err = lease.Err() // lost before the job began: that is no attempt of it
			}
			if err != nil {
				cancel(ctx, reserved)
				release(ctx, lease)
				lease, reserved = nil, nil
			}
		}()
	}
	if e.cfg.Rate != nil {
		if lease != nil {
			ctx = lease.Context(ctx) // the wait for a turn ends with the permit
		}
		reserved, after, err = e.reserve(ctx)
	}
	return lease, reserved, after, err
}

func (e *entry) permit(ctx context.Context) (*baton.Lease, error) {
	key, permits := e.cfg.Prefix+e.key, baton.Permits(1, e.cfg.Running)
	if e.stay {
		return e.cfg.Locks.Lock(ctx, key, permits)
	}
	lease, err := e.cfg.Locks.TryLock(ctx, key, permits)
	if !errors.Is(err, baton.ErrHeld) {
		return lease, err
	}
	left, ok := e.mayWait()
	if !ok {
		return nil, err
	}
	wait, end := context.WithTimeout(ctx, left)
	defer end()
	lease, later := e.cfg.Locks.Lock(wait, key, permits)
	if later != nil && wait.Err() != nil {
		return nil, err // a refusal, and not the error of the context
	}
	return lease, later
}

// reserve takes one of the rate. It waits for the turn of a leaky bucket, if that comes
// soon enough.
func (e *entry) reserve(ctx context.Context) (*ratelimit.Reservation, time.Duration, error) {
	var r *ratelimit.Reservation
	var err error
	key := e.cfg.Prefix + e.key
	switch {
	case e.stay || !e.cfg.Rate.Queues():
		r, err = e.cfg.Rate.Reserve(ctx, key, 1)
	default:
		left, _ := e.mayWait()
		r, err = e.cfg.Rate.ReserveWithin(ctx, key, 1, left)
	}
	if err != nil {
		return nil, 0, err
	}
	if result := r.Result; !result.OK {
		blocked := func(l ratelimit.LimitResult) bool { return !l.OK && l.Overridden && l.Limit == 0 }
		if result.RetryAfter == ratelimit.Never && slices.ContainsFunc(result.Limits(), blocked) {
			result.RetryAfter = e.cfg.Longest // Never, but an override ends
		}
		return nil, result.RetryAfter, &ratelimit.RefusedError{Result: result}
	}
	if err := sleep(ctx, r.Result.Wait); err != nil {
		cancel(ctx, r)
		return nil, 0, err
	}
	return r, 0, nil
}

// hopeless reports whether the job can never run, because its key or its limits are
// wrong.
func hopeless(err error) bool {
	var refused *ratelimit.RefusedError
	if errors.As(err, &refused) {
		return refused.Result.RetryAfter == ratelimit.Never
	}
	for _, as := range []any{new(*baton.KeyError), new(*baton.NotLockError), new(*driver.RequestError), new(*ratelimit.LimitError)} {
		if errors.As(err, as) {
			return true
		}
	}
	return errors.Is(err, baton.ErrUnsupported) || errors.Is(err, baton.ErrNested)
}

// sleep waits for d, or returns why ctx ended before.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return whyEnded(ctx)
	}
}

// whyEnded is the cause of the end of ctx. errors.Is finds the context's error in it,
// too.
func whyEnded(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
