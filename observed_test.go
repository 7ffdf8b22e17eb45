package baton_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/memstore"
)

// tally counts the calls of a Trace.
type tally struct{ waiting, acquired, failed atomic.Int64 }

func (n *tally) trace() *baton.Trace {
	return &baton.Trace{
		Waiting:  func(string, bool) { n.waiting.Add(1) },
		Acquired: func(string, int64, time.Duration) { n.acquired.Add(1) },
		Failed:   func(string, error) { n.failed.Add(1) },
	}
}

func (n *tally) want(t *testing.T, waiting, acquired, failed int) {
	t.Helper()
	got := fmt.Sprint(n.waiting.Load(), " waited, ", n.acquired.Load(), " acquired, ", n.failed.Load(), " failed")
	if want := fmt.Sprint(waiting, " waited, ", acquired, " acquired, ", failed, " failed"); got != want {
		t.Errorf("%s; want %s", got, want)
	}
}

// Every call that waits is reported once, though it waits in the local queue and
// then in the store's, and again after its position was lost; and each reported
// wait has one reported end.
func TestEveryWaitIsToldOnceAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		var n tally
		l, other := newLocker(t, store, baton.Config{Trace: n.trace()}), newLocker(t, store, baton.Config{})
		first := mustLock(t, other, "k")
		var wg sync.WaitGroup
		var acquired atomic.Int64
		for i := range 60 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Second)
				defer cancel()
				lease, err := l.Lock(ctx, "k")
				if err != nil {
					return
				}
				acquired.Add(1)
				behind := make(chan struct{}) // every front has to wait in the store, too
				go func() {
					defer close(behind)
					there := mustLock(t, other, "k")
					time.Sleep(time.Second)
					mustUnlock(t, there)
				}()
				time.Sleep(time.Second)
				mustUnlock(t, lease)
				<-behind
			})
		}
		time.Sleep(10500 * time.Millisecond)
		if n.waiting.Load() != 60 {
			t.Errorf("%d wait", n.waiting.Load())
		}
		mustUnlock(t, first)
		wg.Wait()
		if got := acquired.Load(); got < 5 || got > 50 {
			t.Errorf("%d acquired: the test is none", got)
		}
		n.want(t, 60, int(acquired.Load()), 60-int(acquired.Load()))
	})
}

// A call that asks for nothing is not reported; one that does not wait is, once.
func TestWhatIsToldWithoutWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		var n tally
		l, other := newLocker(t, store, baton.Config{Trace: n.trace()}), newLocker(t, store, baton.Config{})
		if _, err := l.Lock(t.Context(), ""); err == nil {
			t.Error("a lock without a name")
		}
		lease := mustLock(t, l, "k")
		if _, err := l.Lock(lease.Context(t.Context()), "k"); !errors.Is(err, baton.ErrNested) {
			t.Error(err)
		}
		mustUnlock(t, mustLockIn(t, lease.Context(t.Context()), l, baton.Reentrant()))
		n.want(t, 0, 1, 0)
		if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, baton.ErrHeld) {
			t.Error(err)
		}
		n.want(t, 0, 1, 1)
		mustUnlock(t, lease)
		there := mustLock(t, other, "b")
		if _, err := l.TryLockAll(t.Context(), []string{"a", "b"}); !errors.Is(err, baton.ErrHeld) {
			t.Error(err)
		}
		n.want(t, 0, 1, 3) // neither of the two
		mustUnlock(t, there)
		all, err := l.LockAll(t.Context(), []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		if err := all.Unlock(); err != nil {
			t.Error(err)
		}
		n.want(t, 0, 3, 3)
	})
}

func mustLockIn(t *testing.T, ctx context.Context, l *baton.Locker, opts ...baton.Option) *baton.Lease {
	t.Helper()
	lease, err := l.Lock(ctx, "k", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}
