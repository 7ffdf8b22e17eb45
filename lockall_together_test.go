package baton_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
)

// The store grants free locks in one act; they are then like any other.
func TestLockAllTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, try := range []bool{false, true} {
			store := newHooked()
			asked := 0
			store.onAll = func(ctx context.Context, r []driver.Request) ([]driver.Grant, error) {
				asked++
				return store.Store.AcquireAll(ctx, r)
			}
			l, other := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
			lock := l.LockAll
			if try {
				lock = l.TryLockAll
			}
			all, err := lock(t.Context(), abc)
			if err != nil || asked != 1 || store.acquires.Load() != 0 {
				t.Fatalf("%v, asked for all %d times, for one %d times", err, asked, store.acquires.Load())
			}
			next := make(chan *baton.Lease, 1)
			go func() { next <- mustLock(t, l, "b") }() // behind it in the local queue
			time.Sleep(time.Minute)
			if err := all.Err(); err != nil {
				t.Errorf("after a minute: %v", err)
			}
			for _, key := range abc {
				if _, err := other.TryLock(t.Context(), key); !errors.Is(err, baton.ErrHeld) {
					t.Errorf("%s: %v", key, err)
				}
				if _, err := l.TryLock(t.Context(), key); !errors.Is(err, baton.ErrHeld) {
					t.Errorf("%s, in the process: %v", key, err)
				}
			}
			if err := all.Unlock(); err != nil {
				t.Error(err)
			}
			lease := within(t, 10*time.Second, next)
			if lease.Token() <= all.Token("b") {
				t.Errorf("token %d after %d", lease.Token(), all.Token("b"))
			}
			mustUnlock(t, lease)
			wantFree(t, store, abc, l, other)
		}
	})
}

// The store's answer to the request for all, and what follows from it. In each case
// LockAll continues one by one, and nothing is left.
func TestLockAllNotTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type answer = func(ctx context.Context, r []driver.Request, all func() ([]driver.Grant, error)) ([]driver.Grant, error)
		for what, c := range map[string]struct {
			answer answer
			tried  error // the error of TryLockAll; nil: it succeeds
			lock   error // likewise
		}{
			"unsupported": {func(context.Context, []driver.Request, func() ([]driver.Grant, error)) ([]driver.Grant, error) {
				return nil, errors.ErrUnsupported
			}, nil, nil},
			"held": {func(_ context.Context, r []driver.Request, _ func() ([]driver.Grant, error)) ([]driver.Grant, error) {
				return nil, &driver.HeldError{Key: r[1].Key}
			}, baton.ErrHeld, nil},
			"out of reach": {func(context.Context, []driver.Request, func() ([]driver.Grant, error)) ([]driver.Grant, error) {
				return nil, driver.ErrUnavailable
			}, baton.ErrUnavailable, nil},
			"request lost": {func(context.Context, []driver.Request, func() ([]driver.Grant, error)) ([]driver.Grant, error) {
				return nil, driver.ErrUnknown
			}, baton.ErrUnknown, nil},
			"answer lost": {func(_ context.Context, _ []driver.Request, all func() ([]driver.Grant, error)) ([]driver.Grant, error) {
				_, _ = all()
				return nil, driver.ErrUnknown
			}, baton.ErrUnknown, nil},
			"silent": {func(ctx context.Context, _ []driver.Request, all func() ([]driver.Grant, error)) ([]driver.Grant, error) {
				_, _ = all()
				<-ctx.Done()
				return nil, ctx.Err()
			}, baton.ErrUnknown, nil},
			"too late": {func(_ context.Context, _ []driver.Request, all func() ([]driver.Grant, error)) ([]driver.Grant, error) {
				g, err := all()
				time.Sleep(20 * time.Second) // and no renewal comes
				return g, err
			}, nil, nil},
			"slow": {func(_ context.Context, _ []driver.Request, all func() ([]driver.Grant, error)) ([]driver.Grant, error) {
				g, err := all()
				time.Sleep(10 * time.Second) // most of the time is gone
				return g, err
			}, nil, nil},
			"refused for good": {func(_ context.Context, r []driver.Request, _ func() ([]driver.Grant, error)) ([]driver.Grant, error) {
				return nil, &driver.NotLockError{Key: r[0].Key}
			}, &driver.NotLockError{}, &driver.NotLockError{}},
		} {
			for _, try := range []bool{true, false} {
				store := newHooked()
				store.onAll = func(ctx context.Context, r []driver.Request) ([]driver.Grant, error) {
					return c.answer(ctx, r, func() ([]driver.Grant, error) { return store.Store.AcquireAll(ctx, r) })
				}
				l := newLocker(t, store, baton.Config{})
				lock, want := l.LockAll, c.lock
				if try {
					lock, want = l.TryLockAll, c.tried
				}
				all, err := lock(t.Context(), abc)
				_, notLock := errors.AsType[*baton.NotLockError](err)
				_, wantNotLock := want.(*driver.NotLockError)
				switch {
				case wantNotLock && notLock:
				case want == nil && err == nil:
					if err := all.Err(); err != nil {
						t.Errorf("%s, try %v: %v", what, try, err)
					}
					if err := all.Unlock(); err != nil {
						t.Errorf("%s, try %v: Unlock: %v", what, try, err)
					}
				case !errors.Is(err, want) || err == nil || isContextError(err):
					t.Errorf("%s, try %v: %v, want %v", what, try, err, want)
				}
				synctest.Wait()
				wantFree(t, store, abc, l)
			}
		}
	})
}

// The context ends while all are asked for at once, with effect.
func TestLockAllTogetherCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		store.onAll = func(call context.Context, r []driver.Request) ([]driver.Grant, error) {
			_, _ = store.Store.AcquireAll(call, r)
			cancel()
			return nil, call.Err()
		}
		if _, err := l.LockAll(ctx, abc); !errors.Is(err, context.Canceled) {
			t.Errorf("LockAll: %v", err)
		}
		synctest.Wait()
		wantFree(t, store, abc, l)
	})
}
