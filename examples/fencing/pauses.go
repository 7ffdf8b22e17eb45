package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/guard"
)

// counts are the stale writes that were tried, and how many were accepted.
type counts struct {
	Tried   int `json:"tried"`
	Without int `json:"acceptedWithoutGuard"`
	With    int `json:"acceptedWithGuard"`
}

// account is what the lock protects. It accepts every write, and counts the stale ones:
// those after a write of a later holder.
type account struct {
	mu    sync.Mutex
	last  int64
	stale int
}

func (a *account) write(token int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if token < a.last {
		a.stale++
	}
	a.last = max(a.last, token)
}

// atOnce is the number of accounts with pauses at the same time.
const atOnce = 64

// gate guards an account: guard.Gate.Do, in the example.
type gate func(ctx context.Context, resource string, p guard.Pass, write func() error) error

// induce makes n pauses, at many accounts at once.
func induce(ctx context.Context, store driver.Locks, n int) (counts, error) {
	return induceAt(ctx, store, n, new(guard.Gate).Do)
}

func induceAt(ctx context.Context, store driver.Locks, n int, g gate) (sum counts, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ttl := baton.DefaultTTL
	if longest := store.Traits().MaxTTL; longest > 0 {
		ttl = min(ttl, longest)
	}
	// Two programs that share the lock.
	var programs [2]*baton.Locker
	for i := range programs {
		if programs[i], err = baton.New(store, baton.Config{Owner: fmt.Sprint("program ", i), TTL: ttl}); err != nil {
			return sum, err
		}
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	for i := range min(atOnce, n) {
		all.Go(func() {
			c, err := pauses(ctx, store, programs, fmt.Sprint("examples/fencing/account/", i), share(n, min(atOnce, n), i), g)
			if err != nil {
				cancel(err) // the first error is the cause
			}
			mu.Lock()
			defer mu.Unlock()
			sum.Tried += c.Tried
			sum.Without += c.Without
			sum.With += c.With
		})
	}
	all.Wait()
	return sum, context.Cause(ctx)
}

// share is the i-th of of parts of n.
func share(n, of, i int) int { return n*(i+1)/of - n*i/of }

// pauses stops one holder after the other between its check of the lease and its second
// write. In each pause the lock is taken from the holder and granted to the next, who
// writes.
func pauses(ctx context.Context, store driver.Locks, programs [2]*baton.Locker, key string, n int, g gate) (c counts, err error) {
	var without, with account
	write := func(lease *baton.Lease) error {
		without.write(lease.Token())
		return g(ctx, key, guard.Of(lease), func() error {
			with.write(lease.Token())
			return nil
		})
	}
	hold := func(by *baton.Locker) (*baton.Lease, error) {
		lease, err := by.Lock(ctx, key)
		if err != nil {
			return nil, err
		}
		if err := write(lease); err != nil {
			return nil, errors.Join(fmt.Errorf("the present holder was refused: %w", err), lease.Unlock())
		}
		return lease, nil
	}
	holder, err := hold(programs[0])
	if err != nil {
		return c, err
	}
	for turn := 1; c.Tried < n; turn++ {
		claim, ended := holder.Claim() // its last check: the lease is valid, unless this machine is very busy
		if ended == nil {
			err = end(ctx, store, claim, turn)
		}
		var next *baton.Lease
		if err == nil {
			next, err = hold(programs[turn%2])
		}
		if err != nil {
			return c, errors.Join(err, holder.Unlock())
		}
		if ended == nil { // it resumes and writes
			c.Tried++
			if err := write(holder); err != nil && !errors.Is(err, guard.ErrStale) {
				return c, errors.Join(err, next.Unlock())
			}
		}
		_ = holder.Unlock() // it may learn only now that the lock is lost
		holder = next
	}
	c.Without, c.With = without.stale, with.stale
	return c, holder.Unlock()
}

// end ends the claim of a holder without its knowledge: every tenth time by force, as an
// operator does; otherwise the claim leaves the store at once, as if it had expired. If
// the answer was lost, end tries again.
func end(ctx context.Context, store driver.Locks, c driver.Claim, turn int) (err error) {
	for {
		if turn%10 == 0 {
			_, err = store.(driver.Inspector).Break(ctx, c.Key)
		} else if err = store.Release(ctx, c); errors.Is(err, driver.ErrLost) {
			err = nil
		}
		if ctx.Err() != nil || !errors.Is(err, driver.ErrUnknown) && !errors.Is(err, driver.ErrUnavailable) {
			return err
		}
		timer := time.NewTimer(10 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}
