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
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/acquire"
	"github.com/batonhq/baton/internal/bound"
	"github.com/batonhq/baton/internal/leasemath"
)

// A Locker locks the keys of one store and renews the leases. All methods are safe for
// concurrent use. A Locker needs no Close; the caller closes the store. Lock waits until
// its context ends, TryLock does not wait; there are no tries or delays to configure.
// Several Lockers may share a store, for example with different TTLs; their callers
// exclude each other. Make one Locker for each store and set of terms, not one for each
// call: only leases of the same Locker are renewed in one batch.
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

	acquiring, releasing bound.Contexts
}

// New makes a Locker. It returns a *ConfigError if the store cannot honour the Config. It
// sends no request to the store.
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

// Lock waits until it holds the lock of key and returns a lease on it. ctx bounds the
// wait, not the hold: a lease lives on after ctx has ended. While the store is out of
// reach Lock tries again for about Config.TTL, at least 5s.
//
// Errors: the context's if it ended first, joined with a *HeldError if its deadline
// passed and the holder is known; ErrNested; *QueueFullError with MaxWaiting;
// *CapacityError, *NotLockError, *KeyError; ErrUnsupported for a kind of lock that the
// store does not have; ErrUnavailable or ErrUnknown for a store that stayed out of reach;
// ErrDenied for one that denies access. After any error the caller holds no lock. A
// request without an answer may have left a claim in the store: the Locker releases it in
// the background, or it expires within the TTL.
func (l *Locker) Lock(ctx context.Context, key string, opts ...Option) (*Lease, error) {
	a := newAsk(opts)
	return l.lock(ctx, key, &a, true)
}

// TryLock makes one attempt and does not wait for other holders, even if ctx has a
// deadline: it returns a *HeldError at once if the lock is held or has waiters. To wait
// for a bounded time, call Lock with a deadline. TryLock does not try again if the store
// is out of reach, and waits at most about half of Config.TTL for an answer. Its other
// errors are Lock's.
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

// Traits returns what the store promises, and its short name.
func (l *Locker) Traits() driver.Traits { return l.traits }

// Inspect shows the holders of key and the waiters. A holder is shown with the token of
// its grant's first lease. Later leases that its process makes of the grant by hand-overs
// have tokens up to 31 higher.
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
// particular order. It is no snapshot. Its errors are Inspect's; the first one ends the
// list.
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

// Break ends the claims of all holders of key and lets the store grant the next waiter.
// With grants, each the HolderInfo.Grant of a holder that Inspect has shown, Break ends
// only these: a later grant to another holder stays. It reports how many claims it has
// ended. The next token is higher than theirs. A holder's contexts end when its process
// notices, at its next renewal at the latest; until then it may act. Break is meant for
// people. Its errors are those of Inspect, and ErrUnknown.
func (l *Locker) Break(ctx context.Context, key string, grants ...string) (ended int, err error) {
	if err := check.Key(key); err != nil {
		return 0, err
	}
	in, err := l.inspector()
	if err != nil {
		return 0, err
	}
	if ended, err = in.Break(ctx, key, grants...); err != nil {
		return ended, fail("break", key, err)
	}
	return ended, nil
}

func (l *Locker) inspector() (driver.Inspector, error) {
	in, ok := driver.As[driver.Inspector](l.store)
	if !ok {
		return nil, fmt.Errorf("baton: store %s cannot show its locks: %w", l.traits.Store, ErrUnsupported)
	}
	return in, nil
}

// AskPrefix followed by a key is the key of the requests to release that key's lock. The
// store keeps these requests as locks. "baton ls" shows them, with the reason as the
// owner.
const AskPrefix = "@ask/"

// Ask asks the holders of key to release it, and says why: a deployment that waits for a
// long job, for example. Holders that call Lease.Asked learn of the request within about
// a third of their TTL, or a second if that is longer, and decide. The lock need not be
// held. Break ends a lock without its holder's consent.
//
// The request lasts until the lease that Ask returns is unlocked, for at most
// Config.MaxHold; after a crash it lasts for the TTL. Ask does not wait, and does not
// lock key: call Lock for that. A key can have several requests at once on a store with
// read locks, else one.
//
// Errors are TryLock's; a *HeldError if there is another request on a store without read
// locks; a *KeyError also for a key that is too long to follow AskPrefix; ErrUnsupported
// if the store cannot show its locks, because then no holder could learn of the request.
// The rules for reason are those of Config.Owner.
func (l *Locker) Ask(ctx context.Context, key, reason string) (*Lease, error) {
	if err := askable(key); err != nil {
		return nil, err
	}
	if _, err := l.inspector(); err != nil {
		return nil, err
	}
	opts := []Option{Owner(reason)}
	if l.traits.Shared {
		opts = append(opts, Shared())
	}
	return l.TryLock(ctx, AskPrefix+key, opts...)
}

func askable(key string) error {
	return check.Prefixed(AskPrefix, key, "a request to release it")
}

// The steps of a Lock call, in order: check, enclosing, enter, obtain, await, issue.
// Between them the acquisition handles the events.

func (l *Locker) lock(ctx context.Context, key string, a *ask, wait bool) (*Lease, error) {
	if err := l.check(ctx, key, a); err != nil {
		return nil, err
	}
	if outer := l.enclosing(ctx, key); outer != nil {
		if lease, err := outer.nest(a); lease != nil || err != nil {
			return lease, err
		}
	}
	o := l.observe(ctx, key, a)
	lease, err := l.acquire(ctx, key, a, wait, &o)
	if err != nil {
		o.failed(err)
		return nil, err
	}
	o.acquired(lease)
	return lease, nil
}

// check refuses bad input before it changes any state.
func (l *Locker) check(ctx context.Context, key string, a *ask) error {
	if a.err != nil {
		return a.err
	}
	if err := check.Key(key); err != nil {
		return err
	}
	if a.capacity == driver.Whole && a.weight == 1 && !l.traits.Shared {
		return fmt.Errorf("baton: store %s has no read locks: %w", l.traits.Store, ErrUnsupported)
	}
	if a.capacity != driver.Whole && !l.traits.Permits {
		return fmt.Errorf("baton: store %s has no permits: %w", l.traits.Store, ErrUnsupported)
	}
	if ctx.Err() != nil {
		return fail("lock", key, whyEnded(ctx))
	}
	var err error
	a.terms, err = l.termsOf(a)
	return err
}

// termsOf are the terms of one call.
func (l *Locker) termsOf(a *ask) (*acquire.Terms, error) {
	if a.ttl == 0 && a.minHold == 0 {
		return l.terms, nil
	}
	ttl := cmp.Or(a.ttl, l.terms.TTL)
	if t := l.other.Load(); t != nil && t.TTL == ttl && t.MinHold == a.minHold {
		return t, nil
	}
	cfg := l.cfg
	if cfg.TTL = ttl; l.marginFollows {
		cfg.Margin = 0
	}
	if err := cfg.complete(l.traits); err != nil {
		return nil, err
	}
	if a.minHold > 0 && l.traits.Sessions {
		return nil, fmt.Errorf("baton: store %s ties a lock to the process that took it, and cannot keep it taken for a MinHold: %w", l.traits.Store, ErrUnsupported)
	}
	if most := l.traits.MaxTTL; most > 0 && a.minHold > most {
		return nil, &ConfigError{"MinHold", fmt.Sprintf("is %v; store %s accepts at most %v", a.minHold, l.traits.Store, most)}
	}
	t := newTerms(cfg)
	t.MinHold = a.minHold
	l.other.Store(t)
	return t, nil
}

// enclosing returns the lease on key that ctx comes from, or nil.
func (l *Locker) enclosing(ctx context.Context, key string) *Lease {
	c, _ := ctx.Value(nestKey{}).(*leaseContext)
	for ; c != nil; c = c.outer {
		if c.lease.Key() == key && driver.SameStore(c.lease.keeper.locker.store, l.store) {
			return c.lease
		}
	}
	return nil
}

func (l *Locker) acquire(ctx context.Context, key string, a *ask, wait bool, o *observed) (*Lease, error) {
	var q *waitQueue // the caller is its front; nil for a TryLock while another goroutine is the front
	var k *keeper    // from the front before it, if any: a lock or a position
	if wait {
		var err error
		if q, k, err = l.enter(ctx, key, a, o); err != nil {
			return nil, err
		}
	} else {
		var held *HeldError
		if q, held = l.tryEnter(key); held != nil {
			return nil, held
		}
	}
	for {
		waits, requests := true, true
		if k == nil {
			k = l.newKeeper(key, a, q)
		} else {
			waits, requests = k.unissued()
		}
		if waits {
			if passed, err := l.obtain(ctx, k, q, requests, wait, o); err != nil {
				if !passed {
					l.failBehind(q)
					q.leave()
				}
				return nil, err
			}
		}
		if lease := k.issue(q.occupiedBy(a), a.part, ctx); lease != nil {
			o.local = lease.handedOver()
			if a.weight != driver.Whole {
				q.leave() // callers behind may hold together with this one
			}
			return lease, nil
		}
		k = nil // the grant was lost meanwhile, or this process did not run
	}
}

// obtain requests the lock from the store until it is held, for the front of q. If
// requests is false, it first waits for the outcome of the previous front's request.
// After an error the caller does not hold the lock; passed says that the next caller of q
// is now the front, with the position in the store's queue.
func (l *Locker) obtain(ctx context.Context, k *keeper, q *waitQueue, requests, wait bool, o *observed) (passed bool, err error) {
	for ; ; requests = true {
		if requests {
			sent := l.clock.Now()
			g, err := l.request(ctx, k, sent, wait)
			if err != nil {
				next := k.requestFailed(sent, blame(context.Background(), err), ctx.Err() == nil)
				switch {
				case next&acquire.StartAgain != 0:
					k.restart()
					continue
				case next&acquire.RetryRequest != 0 && wait && sleep(ctx, k.pause()) == nil:
					continue
				case ctx.Err() != nil && !acquire.Final(err) && q.passOn(k):
					passed = true
				default:
					l.giveUp(k)
				}
				if errors.Is(err, ErrHeld) || errors.Is(err, ErrQueueFull) {
					return passed, err // a *HeldError or *QueueFullError names the key itself
				}
				return passed, fail("lock", k.key(), explain(ctx, blame(ctx, err), k.saidLast(err)))
			}
			if k.answered(sent, g) {
				return false, nil
			}
			if g.Waiting {
				o.waiting(false, func() {
					l.giveUp(k)
					q.leave()
				})
			}
		}
		again, passed, err := l.await(ctx, k, q)
		if !again {
			return passed, err
		}
		k.restart()
	}
}

// request makes one attempt.
func (l *Locker) request(ctx context.Context, k *keeper, sent acquire.Moment, wait bool) (driver.Grant, error) {
	call := l.acquiring.Within(ctx, l.clock.At(sent), k.acq.Terms().Acquiring())
	defer call.Release()
	return l.store.Acquire(call, k.request(sent, wait))
}

// await waits until the lock is held. again says that the position is lost; passed is
// obtain's. The outcome comes by k.waiter, from a hint or from the store's answer to a
// renewal. A missing hint and a spurious one cost one more request each.
func (l *Locker) await(ctx context.Context, k *keeper, q *waitQueue) (again, passed bool, err error) {
	select {
	case o := <-k.waiter:
		if o.granted || o.err == nil {
			return !o.granted, false, nil
		}
		err = o.err
	case <-ctx.Done():
		if k.isHeld() {
			return false, false, nil // the grant came first
		}
		passed = q.passOn(k)
		err = l.timedOut(ctx, k.key())
		if !passed { // another goroutine may have come meanwhile, or the grant
			passed = q.takenOver(k)
		}
	}
	if !passed {
		l.giveUp(k)
	}
	return false, passed, fail("lock", k.key(), err)
}

// timedOut returns the reason for the end of ctx. If the deadline of ctx has passed and
// the store answers within giveUpWithin, the error also names the holder.
func (l *Locker) timedOut(ctx context.Context, key string) error {
	err := whyEnded(ctx)
	in, ok := driver.As[driver.Inspector](l.store)
	if !ok || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	call, cancel := context.WithTimeout(context.Background(), giveUpWithin)
	defer cancel()
	answer := make(chan driver.KeyInfo, 1)
	go func() {
		if info, err := in.Inspect(call, key); err == nil {
			answer <- info
		}
	}()
	select {
	case info := <-answer:
		if len(info.Holders) > 0 {
			h := info.Holders[0]
			return fmt.Errorf("%w: %w", err, &HeldError{Key: key, Owner: h.Owner, Age: max(0, h.Age), Remaining: h.Remaining, Waiting: len(info.Waiters), Foreign: h.Foreign})
		}
	case <-call.Done():
	}
	return err
}

// insist repeats ask until the store answers, or for as long as Lock with the terms
// would. unsure says that a request without an answer may have taken effect.
func (l *Locker) insist(ctx context.Context, t *acquire.Terms, ask func(ctx context.Context, sent acquire.Moment) error) (unsure bool, err error) {
	began := l.clock.Now()
	for try := 1; ; try++ {
		sent := l.clock.Now()
		call := l.acquiring.Within(ctx, l.clock.At(sent), t.Acquiring())
		err := ask(call, sent)
		call.Release()
		if err == nil {
			return false, nil
		}
		if errors.Is(err, ErrLost) { // even if the store answered an earlier try with another error
			return unsure, err
		}
		unsure = unsure || acquire.Unknown(err)
		past := l.clock.Now().Sub(began)
		if acquire.Final(err) || past > t.Patience() && try >= acquire.MinTries || sleep(ctx, t.Pause(past)) != nil {
			return unsure, err
		}
	}
}

// ownerOf is the owner that the store shows for a lock of a.
func (l *Locker) ownerOf(a *ask) string { return cmp.Or(a.owner, l.cfg.Owner) }

func (l *Locker) debug(ctx context.Context) bool {
	return l.cfg.Logger.Enabled(ctx, slog.LevelDebug)
}

func (l *Locker) logLock(key string, token int64) slog.Attr {
	return slog.Group("lock", "key", key, "token", token, "owner", l.cfg.Owner, "store", l.traits.Store)
}

// sleep pauses for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
