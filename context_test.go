package baton_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/memstore"
)

// A long lease, such as a leader's, does not keep every context that was made of
// it.
func TestContextsThatNeverEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type name struct{}
		store := memstore.New()
		l := newLocker(t, store, baton.Config{})
		lease := mustLock(t, l, "k")
		outer := mustLock(t, l, "outer")
		var all, below []context.Context
		for i := range 1000 {
			parent := context.WithValue(outer.Context(context.WithValue(context.Background(), name{}, i)), name{}, i)
			if i%2 == 0 {
				parent = context.WithValue(context.Background(), name{}, i)
			}
			c := lease.Context(parent)
			child, cancel := context.WithCancel(c)
			defer cancel()
			if c.Value(name{}) != i || c.Err() != nil {
				t.Fatalf("context %d has the value %v and is %v", i, c.Value(name{}), c.Err())
			}
			if i%2 == 0 {
				all, below = append(all, c), append(below, child)
			}
		}
		if n := baton.Contexts(lease); n != 501 { // including those of outer, which ends
			t.Errorf("the lease keeps %d contexts of 1000", n)
		}
		if _, err := l.Lock(all[7], "k"); !errors.Is(err, baton.ErrNested) {
			t.Errorf("a nested lock: %v", err)
		}
		mustUnlock(t, outer)
		synctest.Wait()
		if n := baton.Contexts(lease); n != 1 {
			t.Errorf("the lease keeps %d contexts of 500", n)
		}
		if _, err := l.Break(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		<-lease.Done()
		for i := range all {
			<-all[i].Done()
			<-below[i].Done()
			if !errors.Is(context.Cause(all[i]), baton.ErrLost) || !errors.Is(context.Cause(below[i]), baton.ErrLost) {
				t.Fatalf("causes %v and %v", context.Cause(all[i]), context.Cause(below[i]))
			}
		}
		if late := lease.Context(context.Background()); late.Err() == nil || !errors.Is(context.Cause(late), baton.ErrLost) {
			t.Errorf("a context of a lease that has ended: %v", late.Err())
		}
		_ = lease.Unlock()

		lease = mustLock(t, l, "k")
		c := lease.Context(context.Background())
		mustUnlock(t, lease)
		if c.Err() == nil || context.Cause(c) != context.Canceled {
			t.Errorf("after Unlock: %v, %v", c.Err(), context.Cause(c))
		}
	})
}
