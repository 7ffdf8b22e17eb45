package baton

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/acquire"
	"github.com/batonhq/baton/internal/leasemath"
)

// DefaultTTL is the default of Config.TTL on stores that accept it.
const DefaultTTL = 15 * time.Second

// DefaultTTLOf is DefaultTTL, or the nearest TTL that a store with the traits accepts.
func DefaultTTLOf(traits driver.Traits) time.Duration {
	ttl := max(DefaultTTL, traits.MinTTL)
	if traits.MaxTTL > 0 {
		ttl = min(ttl, traits.MaxTTL)
	}
	return ttl
}

// MaxPermits is the greatest number of permits that a key can have.
const MaxPermits = 1_000_000

// Config says how a Locker locks. The zero Config is ready to use.
type Config struct {
	// TTL is how long a lock stays taken in the store after its holder crashed or lost
	// the store. A live holder renews the lease every third of it: MaxHold bounds how
	// long a live holder keeps the lock, TTL does not. A TTL that the store does not
	// accept is an error. Defaults to 15s, or to the nearest TTL that the store accepts
	// together with LockDelay.
	TTL time.Duration

	// Margin is the time left to stop working: a lease that could not be renewed ends by
	// Margin before the store can grant the lock to another process. It is at least 10ms
	// and a hundredth of TTL, at most half of TTL. With more than the default, a lock
	// that the store hands over costs one more round trip. Defaults to a tenth of TTL, at
	// least 10ms. A lease that began with a hand-over by the store has a margin of a
	// tenth of driver.ClaimTTL until its first renewal.
	Margin time.Duration

	// Owner is the holder's name for people. The store never compares it. At most 128
	// bytes of printable UTF-8. Defaults to host:pid program.
	Owner string

	// MaxHold ends a lease after this time, even if its holder is alive and renews it.
	// The lock is free at the holder's Unlock, or TTL later. Defaults to 0, no limit.
	MaxHold time.Duration

	// LockDelay keeps the lock taken for this time, on top of TTL, after an abnormal end:
	// a crash, or a loss even if the holder then unlocks it. It protects resources that
	// cannot check tokens from late writes of the lost holder. Defaults to 0.
	LockDelay time.Duration

	// Logger gets losses as errors, failed renewals as warnings, and each
	// acquisition and release at the debug level. Defaults to silence.
	Logger *slog.Logger

	// Events are called when something happens to a lock. Defaults to none.
	Events *Events
}

// A ConfigError says which field of a Config a Locker cannot honour.
type ConfigError struct {
	Field, Reason string
}

func (e *ConfigError) Error() string { return "baton: config: " + e.Field + " " + e.Reason }

func (c *Config) complete(traits driver.Traits) error {
	if c.TTL == 0 {
		c.TTL = DefaultTTLOf(traits)
		if traits.MaxTTL > 0 && c.LockDelay > 0 { // the store must accept the sum
			c.TTL = max(min(c.TTL, traits.MaxTTL-c.LockDelay), traits.MinTTL, 1)
		}
	}
	if c.Margin == 0 {
		c.Margin = leasemath.Margin(c.TTL)
	}
	if c.Owner == "" {
		c.Owner = check.DefaultOwner()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Events == nil {
		c.Events = &Events{}
	}
	switch {
	case c.TTL < 0:
		return &ConfigError{"TTL", fmt.Sprintf("is %v, negative", c.TTL)}
	case c.LockDelay < 0:
		return &ConfigError{"LockDelay", fmt.Sprintf("is %v, negative", c.LockDelay)}
	case c.TTL+c.LockDelay < c.TTL:
		return &ConfigError{"LockDelay", fmt.Sprintf("is %v, too long", c.LockDelay)}
	case c.Margin < leastMargin(c.TTL) || c.Margin > c.TTL/2:
		return &ConfigError{"Margin", fmt.Sprintf("is %v; with a TTL of %v it is between %v and %v", c.Margin, c.TTL, leastMargin(c.TTL), c.TTL/2)}
	case c.MaxHold < 0:
		return &ConfigError{"MaxHold", fmt.Sprintf("is %v, negative", c.MaxHold)}
	}
	// One sample gets the checks that the store makes of every request.
	sample := driver.Claim{Key: "k", ID: "i", Owner: c.Owner, Weight: driver.Whole, Capacity: driver.Whole}
	for _, ttl := range []time.Duration{c.TTL, c.TTL + c.LockDelay} {
		if err := check.Request(driver.Request{Claim: sample, TTL: ttl}, traits); err != nil {
			var bad *driver.RequestError
			if errors.As(err, &bad) {
				return &ConfigError{map[string]string{"ttl": "TTL", "owner": "Owner"}[bad.Field], bad.Reason}
			}
			return err
		}
	}
	return nil
}

func leastMargin(ttl time.Duration) time.Duration {
	return min(max(ttl/100, 10*time.Millisecond), ttl/2)
}

func newTerms(cfg Config) *acquire.Terms {
	return &acquire.Terms{TTL: cfg.TTL, Margin: cfg.Margin, LockDelay: cfg.LockDelay, MaxHold: cfg.MaxHold, Jitter: rand.N[time.Duration]}
}

// An Option changes what one call asks for. Without options a call asks for the
// exclusive lock.
type Option func(*ask)

type ask struct {
	weight, capacity int64
	reentrant        bool
	owner            string         // "" means Config.Owner
	ttl, minHold     time.Duration  // 0: the Locker's, none
	terms            *acquire.Terms // set by check
	maxWaiting       int            // 0: no bound
	part             bool           // LockAll's: MaxHold and MinHold start later
	err              error
}

// Shared asks for the read lock of the key. Readers hold it together, never with a
// writer. Readers and writers are granted in strict order of arrival.
func Shared() Option {
	return func(a *ask) { a.weight, a.capacity = 1, driver.Whole }
}

// Permits asks for n of the key's permits. All programs that use the key must agree
// on their number, of. Another number while some are held is a *CapacityError.
func Permits(n, of int) Option {
	return func(a *ask) {
		a.weight, a.capacity = int64(n), int64(of)
		if n < 1 || of < n || of > MaxPermits {
			a.err = fmt.Errorf("baton: %d of %d permits: n must be between 1 and the number of permits, which is at most %d", n, of, MaxPermits)
		}
	}
}

// Reentrant lets a nested call succeed at once: one whose context comes from a lease on
// the same key (Lease.Context, or the context that Do passes). An exclusive lease covers
// every request, any other lease only the same weight and capacity. Every such call needs
// its own Unlock; the last one releases the lock. The token stays the same. Without this
// option a nested call fails with ErrNested, because it would wait for itself. A call
// with the context that was given to Lock does not count as nested, with or without this
// option: it waits for the first lease.
func Reentrant() Option {
	return func(a *ask) { a.reentrant = true }
}

// Owner is Config.Owner for this call; with "" Config.Owner applies. The call fails if
// text is not legal as an owner. A nested lock is shown with the owner of its outer one.
func Owner(text string) Option {
	return func(a *ask) { a.owner = text }
}

// TTL is Config.TTL for this call. The Margin is Config.Margin if that was set, else the
// default for this TTL. The call fails with a *ConfigError if the store does not accept
// the TTL, or if the Margin does not fit. A nested lock keeps the TTL of its outer one.
func TTL(d time.Duration) Option {
	return func(a *ask) {
		if a.ttl = d; d <= 0 {
			a.err = &ConfigError{"TTL", fmt.Sprintf("is %v, not positive", d)}
		}
	}
}

// MinHold keeps the lock taken for at least d from its grant. It prevents that periodic
// work is done twice in a row, for example by a program whose clock is late. After an
// earlier Unlock the lock has no holder and the process may end; the store keeps the lock
// taken for the rest of the time. LockAll counts from its return.
//
// The MinHold ends early with a lease that was lost, broken or detached: the lock of a
// crashed holder is free within its TTL. So is a lock whose Unlock, and the tries in the
// background after it, failed because the store did not answer. A nested lock has the
// MinHold of its outer one. The call fails with ErrUnsupported on a store that ties locks
// to the process that took them, and with a *ConfigError if d is more than the store's
// longest TTL.
func MinHold(d time.Duration) Option {
	return func(a *ask) {
		if a.minHold = d; d < 0 {
			a.err = &ConfigError{"MinHold", fmt.Sprintf("is %v, negative", d)}
		}
	}
}

// MaxWaiting makes a call that would have to wait fail at once with a *QueueFullError if
// n callers wait for the key already. It bounds two queues, each by itself:
//
//   - In this process at most n goroutines wait behind the front of the local queue.
//     Goroutines that come at the same time count until the store has answered the first
//     of them, even for a read lock or permits that all of them get. Leave room for them.
//   - In the store's queue at most n wait, of all processes. A process has at most one
//     position for a key, that of its front. The next goroutine is counted when it
//     becomes the front: it can then be refused after it has waited in this process. It
//     is not counted if it asks with the same n and gets the position of one that gave
//     up.
//
// Waiters without this option count, but are not refused. Waiters that crashed count
// until their positions have expired. With LockAll the bound applies to each key. The
// option does not affect TryLock, a nested lock, or the first goroutine of a process that
// finds the lock free. On a store without the trait FIFO, such as redlock, only the bound
// on the goroutines of this process is certain.
//
// n is at least 1, else the call fails.
func MaxWaiting(n int) Option {
	return func(a *ask) {
		if a.maxWaiting = n; n < 1 {
			a.err = fmt.Errorf("baton: MaxWaiting(%d): it is at least 1; a call that is not to wait at all is TryLock", n)
		}
	}
}

func newAsk(opts []Option) ask {
	if len(opts) == 0 {
		return ask{weight: driver.Whole, capacity: driver.Whole}
	}
	return optedAsk(opts)
}

// optedAsk is a function of its own because its ask escapes to the heap.
func optedAsk(opts []Option) ask {
	a := ask{weight: driver.Whole, capacity: driver.Whole}
	for _, o := range opts {
		o(&a)
	}
	return a
}
