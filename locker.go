package baton

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/acquire"
	"github.com/batonhq/baton/internal/leasemath"
)

// A Locker gives out leases on the locks of one store. All methods are safe for
// concurrent use. It needs no Close; the caller closes the store. There are no tries or
// delays to configure: Lock waits until its context ends, TryLock does not wait. Several
// Lockers may share a store, for example to lock with another TTL; their callers exclude
// each other.
type Locker struct {
	store         driver.Locks
	watcher       driver.Watcher  // nil if the store has none
	many          driver.Together // likewise
	cfg           Config
	traits        driver.Traits
	marginFollows bool // from the TTL: Config.Margin was not set
	watched       bool // by Events that learn of the ends of leases

	terms   *acquire.Terms                // of calls without TTL and MinHold
	other   atomic.Pointer[acquire.Terms] // of the last call with one of them
	clock   acquire.Clock
	renewer renewer
	latency acquire.Latency
	queues  [64]queueShard
	callers sync.Pool
	seed    maphash.Seed

	acquiring, releasing bound
}

// New makes a Locker. It never talks to the store. It does not ignore what the
// store cannot honour in a Config, but refuses it with a *ConfigError.
func New(store driver.Locks, cfg Config) (*Locker, error) {
	if store == nil {
		return nil, &ConfigError{"store", "is nil: look at the error of the function that opened it"}
	}
	traits, marginFollows := store.Traits(), cfg.Margin == 0
	if err := cfg.complete(traits); err != nil {
		return nil, err
	}
	l := &Locker{store: store, cfg: cfg, traits: traits, marginFollows: marginFollows, terms: newTerms(cfg), clock: acquire.NewClock(), seed: maphash.MakeSeed()}
	l.watcher, _ = driver.As[driver.Watcher](store)
	l.many, _ = driver.As[driver.Together](store)
	l.watched = cfg.Events.Lost != nil || cfg.Events.Released != nil
	l.renewer.clock, l.renewer.send = l.clock, l.renew
	for i := range l.queues {
		l.queues[i].queues = make(map[string]*waitQueue)
	}
	return l, nil
}

// Lock waits until it holds the lock of key and returns a lease on it. ctx bounds
// the wait, not the hold: a lease lives on after ctx has ended. While the store is
// out of reach Lock continues to try for about Config.TTL, at least 5s, however
// many goroutines want the key.
//
// Errors: the context's if it ended first, joined with a *HeldError if its deadline
// passed and the holder is known; ErrNested; *QueueFullError with MaxWaiting;
// *CapacityError, *NotLockError, *KeyError; ErrUnsupported for a kind of lock that
// the store does not have; ErrUnavailable or ErrUnknown for a store that stayed out
// of reach. After any error the caller holds no lock. A request without an answer may
// have left a claim in the store: the Locker releases it in the background, or it
// expires within the TTL.
func (l *Locker) Lock(ctx context.Context, key string, opts ...Option) (*Lease, error) {
	a := newAsk(opts)
	return l.lock(ctx, key, &a, true)
}

// TryLock makes one attempt and does not wait for other holders, whatever deadline its
// context has: it returns a *HeldError at once if the lock is held or has waiters. To
// wait for a bounded time, call Lock with a context that has a deadline. Its other errors are
// Lock's. It does not try again if the store is out of reach, and waits for an
// answer for at most about half of Config.TTL.
func (l *Locker) TryLock(ctx context.Context, key string, opts ...Option) (*Lease, error) {
	a := newAsk(opts)
	return l.lock(ctx, key, &a, false)
}

// Do locks key, runs f with a context that ends when the lease does, and unlocks.
// Its error is that of Lock, or f's and Unlock's joined: if the lease was lost
// while f ran, errors.Is(err, ErrLost) is true even if f returned nil.
func (l *Locker) Do(ctx context.Context, key string, f func(context.Context, *Lease) error, opts ...Option) (err error) {
	lease, err := l.Lock(ctx, key, opts...)
	if err != nil {
		return err
	}
	defer func() { // also when f panics
		if unlocked := lease.Unlock(); !errors.Is(err, unlocked) { // else f returned the loss itself
			err = errors.Join(err, unlocked)
		}
	}()
	return f(lease.Context(ctx), lease)
}

// Traits are what the store promises, and its short name.
func (l *Locker) Traits() driver.Traits { return l.traits }

// Inspect shows who holds key and who waits for it. The token shown is that of the
// first lease of a grant. Leases that a process makes of the same grant by
// hand-overs have tokens up to 31 higher.
//
// Errors: ErrUnsupported if the store cannot tell, *KeyError, the context's,
// ErrUnavailable.
func (l *Locker) Inspect(ctx context.Context, key string) (driver.KeyInfo, error) {
	if err := check.Key(key); err != nil {
		return driver.KeyInfo{}, err
	}
	in, err := l.inspector()
	if err != nil {
		return driver.KeyInfo{}, err
	}
	info, err := in.Inspect(ctx, key)
	if err != nil {
		return info, fail("inspect", key, err)
	}
	return leaseTokens(info), nil
}

// leaseTokens shows each grant by the token of its first lease. The store does not
// know the later leases that a process makes of it.
func leaseTokens(info driver.KeyInfo) driver.KeyInfo {
	for i := range info.Holders {
		info.Holders[i].Token *= leasemath.TokensPerGrant
	}
	return info
}

// List shows all keys that begin with prefix and have a holder or a waiter, in no
// particular order. It is no snapshot. Its errors are Inspect's; the first one ends
// it.
func (l *Locker) List(ctx context.Context, prefix string) iter.Seq2[driver.KeyInfo, error] {
	return func(yield func(driver.KeyInfo, error) bool) {
		in, err := l.inspector()
		if err != nil {
			yield(driver.KeyInfo{}, err)
			return
		}
		for info, err := range in.List(ctx, prefix) {
			if err != nil {
				err = fail("list", prefix, err)
			}
			if !yield(leaseTokens(info), err) || err != nil {
				return
			}
		}
	}
}

// Break ends the claims of all who hold key and lets the store grant the next
// waiter. It reports how many holders there were. The next token is higher than
// theirs. A holder's contexts end when its process notices, at its next renewal at
// the latest; until then it may act. Break is meant for people. Its errors are
// those of Inspect, and ErrUnknown.
func (l *Locker) Break(ctx context.Context, key string) (holders int, err error) {
	if err := check.Key(key); err != nil {
		return 0, err
	}
	in, err := l.inspector()
	if err != nil {
		return 0, err
	}
	if holders, err = in.Break(ctx, key); err != nil {
		return holders, fail("break", key, err)
	}
	return holders, nil
}

func (l *Locker) inspector() (driver.Inspector, error) {
	in, ok := driver.As[driver.Inspector](l.store)
	if !ok {
		return nil, fmt.Errorf("baton: store %s cannot show its locks: %w", l.traits.Store, ErrUnsupported)
	}
	return in, nil
}

// ownerOf is the name that the store shows for the holder of what a asks for.
func (l *Locker) ownerOf(a *ask) string { return cmp.Or(a.owner, l.cfg.Owner) }

func (l *Locker) debug(ctx context.Context) bool {
	return l.cfg.Logger.Enabled(ctx, slog.LevelDebug)
}

func (l *Locker) logLock(key string, token int64) slog.Attr {
	return slog.Group("lock", "key", key, "token", token, "owner", l.cfg.Owner, "store", l.traits.Store)
}
