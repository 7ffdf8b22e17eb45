package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/batonhq/baton"
)

// newestPrefix and a key are the key of another lock. Its holder is the newest waiter for
// the key with --newest.
const newestPrefix = "@newest/"

// awaitNewest waits for key until a newer waiter comes and breaks the lock of this one
// below newestPrefix. If the key is granted at that moment the store decides: if this
// waiter's Unlock came first, it has the key; if the break did, it gives the key back.
func awaitNewest(ctx context.Context, waiters, locks *baton.Locker, key string, ttl time.Duration, options []baton.Option) (*baton.Lease, error) {
	own, err := becomeNewest(ctx, waiters, newestPrefix+key, ttl)
	if err != nil {
		return nil, err
	}
	lease, err := locks.Lock(own.Context(ctx), key, options...)
	lost, broken := errors.AsType[*baton.LostError](own.Unlock())
	if !broken {
		return lease, err
	}
	if lease != nil {
		_ = lease.Unlock() // a lock that cannot be released ends with its TTL
	}
	if lost.Cause != baton.Gone {
		return nil, &exit{Code: exitNotAcquired, Err: fmt.Errorf("lock %q was not acquired: the store was out of reach, and a newer waiter may have come: %w", safe(key), lost)}
	}
	return nil, &exit{Code: exitNotAcquired, Err: fmt.Errorf("lock %q was not acquired: a newer waiter came", safe(key))}
}

// becomeNewest takes the lock of the newest waiter. While the store is out of reach it
// tries again for as long as Lock does.
func becomeNewest(ctx context.Context, locks *baton.Locker, key string, ttl time.Duration) (*baton.Lease, error) {
	for answered := time.Now(); ; {
		lease, err := tryNewest(ctx, locks, key)
		away := errors.Is(err, baton.ErrUnavailable) || errors.Is(err, baton.ErrUnknown)
		if lease != nil || err != nil && (!away || time.Since(answered) > max(ttl, 5*time.Second)) {
			return lease, err
		}
		pause := 500 * time.Millisecond
		if !away {
			answered, pause = time.Now(), 20*time.Millisecond
		}
		select { // several waiters may come at once, and on Redlock share the nodes
		case <-time.After(rand.N(pause)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// tryNewest takes the lock, or ends the grant of the waiter that holds it and returns
// neither a lease nor an error.
func tryNewest(ctx context.Context, locks *baton.Locker, key string) (*baton.Lease, error) {
	lease, err := locks.TryLock(ctx, key)
	if !errors.Is(err, baton.ErrHeld) {
		return lease, err
	}
	info, err := locks.Inspect(ctx, key)
	if err != nil {
		return nil, err
	}
	if len(info.Holders) > 0 {
		_, err = locks.Break(ctx, key, info.Grants()...)
	}
	return nil, err
}
