package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/lab/verify/deploy"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/ratelimit"
)

const (
	workers = 6
	// A name is used by this many operations, so some of them meet.
	sharers = 4
	// patience bounds one operation.
	patience = time.Minute
)

// A load uses a store like a program: names come and go, callers wait and give up, leases are renewed,
// stores are opened and closed.
type load struct {
	url     string
	stores  []driver.Store
	lockers []*baton.Locker
	limiter *ratelimit.Limiter // nil if the store has no limits
	runner  *once.Runner       // nil if the store keeps no records

	rate  float64 // operations per second
	ctx   context.Context
	end   context.CancelFunc
	work  sync.WaitGroup
	names atomic.Int64
	calm  atomic.Bool // no new names
	ops   atomic.Int64

	mu     sync.Mutex
	begun  time.Time
	failed int64
	lost   int64    // of these, leases that were lost, or locks held twice
	texts  []string // of the first failures of each kind
}

// errTwice must never happen.
var errTwice = errors.New("held twice")

// newLoad opens the store twice, like two programs. It opens a store in memory once, because only one
// program sees it.
func newLoad(url string, rate float64) (*load, error) {
	l := &load{url: url, rate: rate}
	l.ctx, l.end = context.WithCancel(context.Background())
	ctx, cancel := context.WithTimeout(l.ctx, patience)
	defer cancel()
	for range 2 {
		var store driver.Store
		if url == "memory:" && len(l.stores) == 1 {
			store = l.stores[0]
		} else {
			var err error
			if store, err = open.Store(ctx, url); err != nil {
				return nil, errors.Join(err, l.close())
			}
			l.stores = append(l.stores, store)
		}
		locks, err := baton.New(store, baton.Config{TTL: deploy.MaxTTL})
		if err != nil {
			return nil, errors.Join(err, l.close())
		}
		l.lockers = append(l.lockers, locks)
	}
	var err error
	if limits, ok := l.stores[0].(limits.Store); ok {
		if l.limiter, err = ratelimit.New(limits, ratelimit.TokenBucket(2, time.Second, 3)); err != nil {
			return nil, errors.Join(err, l.close())
		}
	}
	if _, ok := l.stores[0].(driver.Records); ok {
		cfg := once.Config{Keep: 2 * time.Second, Remember: 10 * time.Second, Lock: baton.Config{TTL: deploy.MaxTTL}}
		if l.runner, err = once.New(l.stores[0], cfg); err != nil {
			return nil, errors.Join(err, l.close())
		}
	}
	return l, nil
}

// close stops the work and closes the stores.
func (l *load) close() error {
	l.end()
	l.work.Wait()
	var errs []error
	for _, s := range l.stores {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

func (l *load) start() {
	l.mu.Lock()
	l.begun = time.Now()
	l.mu.Unlock()
	for w := range workers {
		l.work.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			period := time.Duration(float64(time.Second) * workers / l.rate)
			l.each(period, func(ctx context.Context) error { return l.one(ctx, rng) })
		})
	}
	l.work.Go(func() { l.each(deploy.MaxTTL*2, l.hold) })
	l.work.Go(func() { l.each(deploy.MaxTTL*2, l.reopen) })
}

// each calls f once in each period, and notes its errors.
func (l *load) each(period time.Duration, f func(context.Context) error) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(l.ctx, patience)
		err := f(ctx)
		cancel()
		l.ops.Add(1)
		if err != nil && l.ctx.Err() == nil {
			l.note(err)
		}
	}
}

// maxTexts bounds the recorded failures of each kind; the first ones say most.
const maxTexts = 3

// note counts a failure, and keeps its text.
func (l *load) note(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := l.failed - l.lost
	if errors.Is(err, baton.ErrLost) || errors.Is(err, errTwice) {
		seen = l.lost
		l.lost++
	}
	l.failed++
	if seen < maxTexts {
		l.texts = append(l.texts, fmt.Sprintf("after %v: %v", time.Since(l.begun).Round(time.Second), err))
	}
}

// slots is the number of Redis Cluster slots with names: each slot keeps one key for good.
const slots = 16

// name returns a name for a few operations, which is never used again.
func (l *load) name(of string) string {
	n := l.names.Add(1) / sharers
	if l.calm.Load() {
		n %= sharers
	}
	return fmt.Sprintf("%s/%d{%d}", of, n, n%slots)
}

// one does one operation.
func (l *load) one(ctx context.Context, rng *rand.Rand) error {
	locks, traits := l.lockers[rng.IntN(2)], l.stores[0].Traits()
	switch p := rng.IntN(100); {
	case p < 30:
		return l.use(locks.Lock(ctx, l.name("k")))
	case p < 45 && traits.Shared:
		return l.use(locks.Lock(ctx, l.name("k"), baton.Shared()))
	case p < 55 && traits.Permits:
		return l.use(locks.Lock(ctx, l.name("p"), baton.Permits(1+rng.IntN(3), 3)))
	case p < 65:
		lease, err := locks.TryLock(ctx, l.name("k"))
		if errors.Is(err, baton.ErrHeld) {
			return nil
		}
		return l.use(lease, err)
	case p < 72:
		all, err := locks.LockAll(ctx, []string{l.name("k"), l.name("a"), l.name("b")})
		if err != nil {
			return err
		}
		return all.Unlock()
	case p < 82:
		return l.giveUp(ctx, time.Duration(rng.IntN(20))*time.Millisecond)
	case p < 95 && l.limiter != nil:
		_, err := l.limiter.Allow(ctx, l.name("l"))
		return err
	case p >= 95 && l.runner != nil:
		key := l.name("o")
		if l.stores[0].Traits().Store == "zookeeper" {
			key = fmt.Sprint("o/", l.names.Load()%folders)
		}
		for range 2 { // the second time the record exists
			_, err := l.runner.Do(ctx, key, func(context.Context, once.Attempt) ([]byte, error) { return []byte("done"), nil })
			if err != nil {
				return err
			}
		}
		return nil
	default:
		return l.use(locks.Lock(ctx, l.name("k")))
	}
}

// use holds the lease briefly.
func (l *load) use(lease *baton.Lease, err error) error {
	if err != nil {
		return err
	}
	time.Sleep(rand.N(3 * time.Millisecond))
	return lease.Unlock()
}

// giveUp waits in the store's queue and gives up.
func (l *load) giveUp(ctx context.Context, after time.Duration) error {
	n := l.names.Add(1)
	key := fmt.Sprintf("g/%d{%d}", n, n%slots)
	if l.calm.Load() {
		key = "g"
	}
	lease, err := l.lockers[0].Lock(ctx, key)
	if err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, after)
	defer cancel()
	if second, err := l.lockers[1].Lock(short, key); err == nil {
		return errors.Join(fmt.Errorf("%s: %w", key, errTwice), second.Unlock(), lease.Unlock())
	} else if !errors.Is(err, context.DeadlineExceeded) {
		return errors.Join(err, lease.Unlock())
	}
	return lease.Unlock()
}

// hold holds a lease until it has been renewed several times.
func (l *load) hold(ctx context.Context) error {
	lease, err := l.lockers[0].Lock(ctx, l.name("h"))
	if err != nil {
		return err
	}
	select {
	case <-time.After(deploy.MaxTTL * 3 / 2):
	case <-ctx.Done():
	case <-lease.Done():
	}
	return lease.Unlock()
}

// reopen opens a store, locks a key, and closes the store.
func (l *load) reopen(ctx context.Context) error {
	store, err := open.Store(ctx, l.url)
	if err != nil {
		return err
	}
	locks, err := baton.New(store, baton.Config{TTL: deploy.MaxTTL})
	if err != nil {
		return errors.Join(err, store.Close())
	}
	return errors.Join(l.use(locks.Lock(ctx, l.name("k"))), store.Close())
}
