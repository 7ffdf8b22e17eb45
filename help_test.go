package baton_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

// hooked is a memory store. A test can count its calls, delay them, or cut them off
// before or after their effect.
type hooked struct {
	*memstore.Store
	acquires, renews, releases atomic.Int64

	mu          sync.Mutex
	onAcquire   func(ctx context.Context, r driver.Request) (driver.Grant, error)
	onRenew     func(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal
	onRelease   func(ctx context.Context, c driver.Claim) error
	onDowngrade func(ctx context.Context, c driver.Claim, ttl time.Duration) (driver.Grant, error)
	onMove      func(ctx context.Context, c driver.Claim, id, owner string, ttl time.Duration) (driver.Grant, error)
	onRename    func(ctx context.Context, c driver.Claim, owner string) error
	onAll       func(ctx context.Context, r []driver.Request) ([]driver.Grant, error)
	onWatch     func(c driver.Claim, wake func(driver.Hint)) (stop func())
}

func newHooked() *hooked { return &hooked{Store: memstore.New()} }

func (h *hooked) set(f func()) { h.mu.Lock(); defer h.mu.Unlock(); f() }

func (h *hooked) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	h.acquires.Add(1)
	h.mu.Lock()
	f := h.onAcquire
	h.mu.Unlock()
	if f != nil {
		return f(ctx, r)
	}
	return h.Store.Acquire(ctx, r)
}

func (h *hooked) Renew(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
	h.renews.Add(1)
	h.mu.Lock()
	f := h.onRenew
	h.mu.Unlock()
	if f != nil {
		return f(ctx, c, ttl)
	}
	return h.Store.Renew(ctx, c, ttl)
}

func (h *hooked) Release(ctx context.Context, c driver.Claim) error {
	h.releases.Add(1)
	h.mu.Lock()
	f := h.onRelease
	h.mu.Unlock()
	if f != nil {
		return f(ctx, c)
	}
	return h.Store.Release(ctx, c)
}

func (h *hooked) Downgrade(ctx context.Context, c driver.Claim, ttl time.Duration) (driver.Grant, error) {
	h.mu.Lock()
	f := h.onDowngrade
	h.mu.Unlock()
	if f != nil {
		return f(ctx, c, ttl)
	}
	return h.Store.Downgrade(ctx, c, ttl)
}

func (h *hooked) Move(ctx context.Context, c driver.Claim, id, owner string, ttl time.Duration) (driver.Grant, error) {
	h.mu.Lock()
	f := h.onMove
	h.mu.Unlock()
	if f != nil {
		return f(ctx, c, id, owner, ttl)
	}
	return h.Store.Move(ctx, c, id, owner, ttl)
}

func (h *hooked) Rename(ctx context.Context, c driver.Claim, owner string) error {
	h.mu.Lock()
	f := h.onRename
	h.mu.Unlock()
	if f != nil {
		return f(ctx, c, owner)
	}
	return h.Store.Rename(ctx, c, owner)
}

// AcquireAll is not supported unless a test sets it: most tests are about single
// attempts.
func (h *hooked) AcquireAll(ctx context.Context, r []driver.Request) ([]driver.Grant, error) {
	h.mu.Lock()
	f := h.onAll
	h.mu.Unlock()
	if f != nil {
		return f(ctx, r)
	}
	return nil, errors.ErrUnsupported
}

func (h *hooked) Watch(c driver.Claim, wake func(driver.Hint)) (stop func()) {
	h.mu.Lock()
	f := h.onWatch
	h.mu.Unlock()
	if f != nil {
		return f(c, wake)
	}
	return h.Store.Watch(c, wake)
}

// blackHole answers nothing: every renewal hangs until its context ends.
func blackHole(ctx context.Context, c []driver.Claim, _ time.Duration) []driver.Renewal {
	<-ctx.Done()
	answers := make([]driver.Renewal, len(c))
	for i := range answers {
		answers[i].Err = ctx.Err()
	}
	return answers
}

func newLocker(t testing.TB, store driver.Locks, cfg baton.Config) *baton.Locker {
	t.Helper()
	l, err := baton.New(store, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustLock(t testing.TB, l *baton.Locker, key string, opts ...baton.Option) *baton.Lease {
	t.Helper()
	lease, err := l.Lock(t.Context(), key, opts...)
	if err != nil {
		t.Fatalf("Lock(%q): %v", key, err)
	}
	return lease
}

func mustUnlock(t testing.TB, lease *baton.Lease) {
	t.Helper()
	if err := lease.Unlock(); err != nil {
		t.Fatalf("Unlock(%q): %v", lease.Key(), err)
	}
}

// lockSoon asks for a lock in the background and returns when the caller waits, in
// the local queue or the store's.
func lockSoon(t *testing.T, l *baton.Locker, opts ...baton.Option) <-chan *baton.Lease {
	t.Helper()
	got := make(chan *baton.Lease, 1)
	go func() { got <- mustLock(t, l, "k", opts...) }()
	synctest.Wait()
	return got
}

// within fails the test if no lease comes within d.
func within(t *testing.T, d time.Duration, got <-chan *baton.Lease) *baton.Lease {
	t.Helper()
	select {
	case lease := <-got:
		return lease
	case <-time.After(d):
		t.Fatalf("no lease within %v", d)
		return nil
	}
}

// hints lets a test give hints in place of the store.
func hints(store *hooked) (all func(driver.Hint)) {
	var mu sync.Mutex
	wakes := map[int]func(driver.Hint){}
	n := 0
	store.onWatch = func(_ driver.Claim, wake func(driver.Hint)) func() {
		mu.Lock()
		defer mu.Unlock()
		n++
		id := n
		wakes[id] = wake
		return func() { mu.Lock(); delete(wakes, id); mu.Unlock() }
	}
	return func(h driver.Hint) {
		mu.Lock()
		var now []func(driver.Hint)
		for _, w := range wakes {
			now = append(now, w)
		}
		mu.Unlock()
		for _, w := range now {
			w(h)
		}
	}
}

func unavailable(n int) []driver.Renewal {
	answers := make([]driver.Renewal, n)
	for i := range answers {
		answers[i].Err = driver.ErrUnavailable
	}
	return answers
}

// sleepFor is false when ctx has ended.
func sleepFor(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// parked are Events whose Waiting blocks a caller in the local queue, like a
// goroutine that does not run for a while.
func parked() (events *baton.Events, goOn chan struct{}) {
	goOn = make(chan struct{})
	return &baton.Events{Waiting: func(_ context.Context, e baton.LockEvent) {
		if e.Local {
			<-goOn
		}
	}}, goOn
}
