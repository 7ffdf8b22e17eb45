package zkstore

import (
	"slices"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// queue joins a queue behind other contenders.
func queue(t *testing.T, s *Store, r driver.Request) {
	t.Helper()
	if g := acquire(t, s, r); !g.Waiting {
		t.Fatalf("it does not wait: %+v", g)
	}
}

func mustWait(t *testing.T, s *Store, r driver.Request) {
	t.Helper()
	if a := renew(t, s, r); a.State != driver.Waiting {
		t.Fatalf("%+v, want it waiting", a)
	}
}

// The end of the nearest contender is a grant only if that contender held the lock. A
// waiter that was behind two contenders waits for the other one, however the nearest ended.
func TestBehindAWaiterThatEnds(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	for name, end := range map[string]func(t *testing.T, s *Store, before driver.Request){
		"gives up": func(t *testing.T, s *Store, before driver.Request) { release(t, s, before) },
		"expires":  func(_ *testing.T, s *Store, before driver.Request) { <-s.find(before.Claim).expire() },
		"is deleted by another client": func(t *testing.T, s *Store, before driver.Request) {
			conn := plain(t, server.Addr)
			for _, n := range slices.Clone(s.find(before.Claim).nodes) {
				if err := conn.Delete(s.parent("k")+"/"+n, -1); err != nil && err != zk.ErrNoNode { // the store has seen it
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := longWaiting(openOn(t, "", server.Addr))
			other := longWaiting(openOn(t, s.root, server.Addr))
			last := longWaiting(openOn(t, s.root, server.Addr))
			holder, before, behind := writer("k"), writer("k"), writer("k")
			hold(t, other, holder)
			queue(t, s, before)
			hints := watching(t, last, behind)
			queue(t, last, behind)
			mustWait(t, last, behind) // its watches are set
			end(t, s, before)
			mustWait(t, last, behind)
			release(t, other, holder)
			awaitHeld(t, last, behind, hints)
		})
	}
}

// Permits: a waiter in the middle learns that it is at the head although the one before
// it did not go, but was granted.
func TestPermitsAreHandedOnWithoutPolling(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	first := longWaiting(openOn(t, "", server.Addr))
	stores := []*Store{first, longWaiting(openOn(t, first.root, server.Addr)), longWaiting(openOn(t, first.root, server.Addr))}
	type place struct {
		s     *Store
		r     driver.Request
		hints <-chan driver.Hint
	}
	join := func(i int, n int64) place {
		p := place{s: stores[i%3], r: permits("k", n, 4)}
		p.hints = watching(t, p.s, p.r)
		acquire(t, p.s, p.r)
		return p
	}
	a, b := join(0, 2), join(1, 2)
	x, y, z := join(2, 3), join(0, 1), join(1, 4)
	release(t, a.s, a.r) // 2 of 4 are left: x does not fit
	release(t, b.s, b.r) // x fits, and y beside it, which only x's grant tells
	awaitHeld(t, x.s, x.r, x.hints)
	awaitHeld(t, y.s, y.r, y.hints)
	release(t, y.s, y.r)
	release(t, x.s, x.r)
	awaitHeld(t, z.s, z.r, z.hints)
	release(t, z.s, z.r)
}
