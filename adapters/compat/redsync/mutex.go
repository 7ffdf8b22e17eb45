package redsync

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
)

// A Mutex is a lock. As in the original library, it is not safe for concurrent use.
type Mutex struct {
	of     *Redsync
	name   string
	expiry time.Duration

	tries                      int
	delayFunc                  DelayFunc
	driftFactor, timeoutFactor float64
	genValueFunc               func() (string, error)
	setNXOnExtend              bool

	value string
	until time.Time
	claim driver.Claim // of the value, once this Mutex has locked
	grant driver.Grant
}

// Name is the name of the lock: the Redis key.
func (m *Mutex) Name() string { return m.name }

// Value is that of the last lock, or of WithValue; "" if there is none. It is no fencing
// token: see FencingToken.
func (m *Mutex) Value() string { return m.value }

// Until is the time until which the lock lasts at least, by the clock of this process.
func (m *Mutex) Until() time.Time { return m.until }

// TryLock is TryLockContext with the background context.
func (m *Mutex) TryLock() error { return m.TryLockContext(context.Background()) }

// TryLockContext makes one attempt.
func (m *Mutex) TryLockContext(ctx context.Context) error { return m.lock(ctx, 1) }

// Lock is LockContext with the background context.
func (m *Mutex) Lock() error { return m.LockContext(context.Background()) }

// LockContext makes attempts until one succeeds. Errors: a *ErrTaken if the last one
// found another holder, a *RedisError with the error of the store after another failure,
// ErrFailed if its answer came too late or ctx ended before the next one. A request that
// the store refuses for good, for example for a bad name, is not repeated. After an error
// the caller holds no lock.
func (m *Mutex) LockContext(ctx context.Context) error { return m.lock(ctx, m.tries) }

func (m *Mutex) lock(ctx context.Context, tries int) error {
	ctx = or(ctx)
	failed := ErrFailed
	for i := range tries {
		if i > 0 && sleep(ctx, m.delayFunc(i)) != nil {
			return ErrFailed
		}
		store, err := m.of.Store()
		if err != nil {
			failed = &RedisError{Err: err}
			if !errors.Is(err, driver.ErrUnavailable) {
				return failed
			}
			continue
		}
		value, err := m.newValue()
		if err != nil {
			return err
		}
		claim, sent := m.claimOf(value), time.Now()
		attempt, cancel := context.WithTimeout(ctx, part(m.expiry, m.timeoutFactor))
		g, err := store.Acquire(attempt, driver.Request{Claim: claim, TTL: m.expiry})
		late := attempt.Err() != nil
		cancel()
		if err == nil {
			if until := m.lasts(sent, g); time.Now().Before(until) {
				m.value, m.until = value, until
				m.hold(claim, g)
				return nil
			}
			failed = ErrFailed // another caller may have the lock already
			m.discard(ctx, store, claim)
			continue
		}
		failed = m.of.failed(err)
		switch {
		case errors.Is(err, driver.ErrHeld):
		case late || errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrUnavailable):
			m.discard(ctx, store, claim)
		default: // another attempt would not help
			return failed
		}
	}
	return failed
}

// hold notes the store's grant.
func (m *Mutex) hold(claim driver.Claim, g driver.Grant) {
	claim.Ticket = g.Ticket
	m.claim, m.grant = claim, g
}

// discard releases, in the background, the possible claim of an attempt.
func (*Mutex) discard(ctx context.Context, store driver.Locks, claim driver.Claim) {
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		_ = store.Release(ctx, claim) // if it fails, the lock expires
	}()
}

// newValue draws a value. A value from the caller's function gets a random end: it may be
// that of another lock, which this one must not join.
func (m *Mutex) newValue() (string, error) {
	if m.genValueFunc == nil {
		return driver.NewID(), nil
	}
	value, err := m.genValueFunc()
	return value + "." + driver.NewID(), err
}

// Unlock is UnlockContext with the background context.
func (m *Mutex) Unlock() (bool, error) { return m.UnlockContext(context.Background()) }

// UnlockContext ends the lock, and lets the store grant the next waiter. The error is
// ErrLockAlreadyExpired if the lock had ended before the call; otherwise a *RedisError,
// after which it may last for its expiry.
func (m *Mutex) UnlockContext(ctx context.Context) (bool, error) {
	store, err := m.of.Store()
	if err != nil {
		return false, &RedisError{Err: err}
	}
	held := time.Now().Before(m.until)
	err = store.Release(or(ctx), m.current())
	switch {
	case errors.Is(err, driver.ErrLost) && held && !time.Now().Before(m.until):
		return true, nil // it may have expired since
	case errors.Is(err, driver.ErrLost):
		return false, ErrLockAlreadyExpired
	case err != nil:
		return false, &RedisError{Err: err}
	}
	return true, nil
}

// Extend is ExtendContext with the background context.
func (m *Mutex) Extend() (bool, error) { return m.ExtendContext(context.Background()) }

// ExtendContext makes the lock last for its expiry from now. The error is a *ErrTaken if
// the lock has ended, ErrExtendFailed if the answer came too late, otherwise a
// *RedisError, after which the lock may last for either time.
func (m *Mutex) ExtendContext(ctx context.Context) (bool, error) {
	store, err := m.of.Store()
	if err != nil {
		return false, &RedisError{Err: err}
	}
	ctx = or(ctx)
	sent := time.Now()
	r := store.Renew(ctx, []driver.Claim{m.current()}, m.expiry)[0]
	switch r.State {
	case driver.Held:
		m.grant = r.Grant
	case driver.Lost, driver.Waiting: // this package never waits in the queue
		if !m.setNXOnExtend {
			return false, m.of.failed(driver.ErrHeld)
		}
		claim := m.claimOf(m.value)
		g, err := store.Acquire(ctx, driver.Request{Claim: claim, TTL: m.expiry})
		if err != nil {
			return false, m.of.failed(err)
		}
		m.hold(claim, g)
	default:
		return false, &RedisError{Err: r.Err}
	}
	until := m.lasts(sent, m.grant)
	if !time.Now().Before(until) {
		return false, ErrExtendFailed
	}
	m.until = until
	return true, nil
}

// Valid is ValidContext with a context that does not end.
//
// Deprecated: Use Until.
func (m *Mutex) Valid() (bool, error) { return m.ValidContext(context.Background()) }

// ValidContext asks whether the lock is held. It may have ended when the answer comes.
//
// Deprecated: Use Until.
func (m *Mutex) ValidContext(ctx context.Context) (bool, error) {
	if m.value == "" {
		return false, nil
	}
	store, err := m.of.Store()
	if err != nil {
		return false, &RedisError{Err: err}
	}
	renamer, ok := driver.As[driver.Renamer](store)
	if !ok {
		return false, &RedisError{Err: errors.ErrUnsupported}
	}
	c := m.current()
	err = renamer.Rename(or(ctx), c, c.Owner) // changes nothing, and fails if the lock has ended
	switch {
	case errors.Is(err, driver.ErrLost):
		return false, nil
	case err != nil:
		return false, &RedisError{Err: err}
	}
	return true, nil
}

// FencingToken is positive and higher than that of every earlier lock of the name, or 0
// if this Mutex has not locked. Pass it to what the lock protects: package guard checks
// it.
func (m *Mutex) FencingToken() int64 {
	if m.claim.ID == "" {
		return 0
	}
	_, token, _ := baton.ReadHandle(m.handle()) // cannot fail for a held grant
	return token
}

func (m *Mutex) handle() string { return baton.ClaimHandle(m.current(), m.grant, m.expiry) }

// Attach makes the lock a lease of locks, with renewal and contexts: see
// baton.Locker.Attach for its errors. locks must be made of Redsync.Store, or of another
// store over the same servers without a prefix. Afterwards the lock has ended for this
// Mutex.
func (m *Mutex) Attach(ctx context.Context, locks *baton.Locker) (*baton.Lease, error) {
	return locks.Attach(ctx, m.handle())
}

// current is the claim of this Mutex's lock, or of a value from elsewhere.
func (m *Mutex) current() driver.Claim {
	if m.claim.ID != "" {
		return m.claim
	}
	return m.claimOf(m.value)
}

// claimOf makes the claim of a value, which may have any characters.
func (m *Mutex) claimOf(value string) driver.Claim {
	sum := sha256.Sum256([]byte(value))
	return driver.Claim{Key: m.name, ID: base64.RawURLEncoding.EncodeToString(sum[:]), Weight: driver.Whole, Capacity: driver.Whole}
}

// lasts is the time until which a grant lasts at least, for a request sent at sent.
func (m *Mutex) lasts(sent time.Time, g driver.Grant) time.Time {
	return sent.Add(min(g.TTL, m.expiry-part(m.expiry, m.driftFactor)))
}

func part(of time.Duration, factor float64) time.Duration {
	return time.Duration(float64(of) * factor)
}

func or(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
