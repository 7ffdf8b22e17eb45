package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton"
)

// The disk fills up while other callers go on to ask for locks on new keys: what is held is
// kept, and then released.
func TestFullDiskWithCallers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a file system of its own needs root")
	}
	t.Parallel()
	path := filepath.Join(smallDisk(t), "locks.db")
	ctx, cancel := context.WithCancel(t.Context())
	var leases []*baton.Lease
	var callers sync.WaitGroup
	defer callers.Wait()
	defer cancel()
	var lockers []*baton.Locker
	for p := range 4 {
		l, err := baton.New(openAt(t, path), baton.Config{TTL: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		lockers = append(lockers, l)
		for i := range 5 {
			lease, err := l.Lock(ctx, fmt.Sprintf("held/%d/%d", p, i))
			if err != nil {
				t.Fatal(err)
			}
			leases = append(leases, lease)
		}
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // until renewals have copied the log into the database
		if now, err := os.Stat(path); err != nil {
			t.Fatal(err)
		} else if now.Size() >= 10*4096 { // all its pages
			break
		}
		if time.Now().After(end) {
			t.Fatal("renewals have not copied the log into the database")
		}
	}
	empty := fill(t, filepath.Dir(path))
	var refused atomic.Int64
	for p, l := range lockers {
		for g := range 10 {
			callers.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					lease, err := l.TryLock(ctx, fmt.Sprintf("new/%d/%d/%d", p, g, i))
					if err == nil {
						err = lease.Unlock()
					}
					if errors.Is(err, baton.ErrUnavailable) {
						refused.Add(1)
					}
				}
			})
		}
	}
	held := ctx
	for _, lease := range leases {
		held = lease.Context(held) // ends with each
	}
	select {
	case <-held.Done():
		t.Fatal(context.Cause(held))
	case <-time.After(5 * time.Second):
	}
	cancel()
	callers.Wait()
	for _, lease := range leases {
		if err := lease.Unlock(); err != nil {
			t.Error(err)
		}
	}
	if refused.Load() == 0 {
		t.Error("the disk was not full")
	}
	empty()
	lease, err := lockers[0].TryLock(t.Context(), "after")
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Unlock(); err != nil {
		t.Error(err)
	}
}
