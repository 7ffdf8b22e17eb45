package zkstore

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// queue joins a queue behind other contenders.
func queue(t *testing.T, s *Store, r driver.Request) {
	t.Helper()
	if g := acquire(t, s, r); !g.Waiting {
		t.Fatalf("it does not wait: %+v", g)
	}
}

// firstNumber is the lowest of the nodes' numbers.
func firstNumber(nodes []string) int32 {
	var all []int32
	for _, n := range nodes {
		c, _ := parse(n)
		all = append(all, c.seq)
	}
	return slices.Min(all)
}

func mustWait(t *testing.T, s *Store, r driver.Request) {
	t.Helper()
	if a := renew(t, s, r); a.State != driver.Waiting {
		t.Fatalf("%+v, want it waiting", a)
	}
}

// A claim that joins the queue right behind another claim of its process has not read
// which contenders are before that. So it must not take the end of that claim for its
// own grant, whatever that end is.
func TestBehindAClaimOfTheSameProcess(t *testing.T) {
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
			holder, before, behind := writer("k"), writer("k"), writer("k")
			hold(t, other, holder)
			queue(t, s, before)
			hints := watching(t, s, behind)
			queue(t, s, behind)
			end(t, s, before)
			mustWait(t, s, behind)
			release(t, other, holder)
			awaitHeld(t, s, behind, hints)
		})
	}
}

// Other processes may join the queue between two claims of one process.
func TestOthersBetween(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := longWaiting(openOn(t, "", server.Addr))
	other := longWaiting(openOn(t, s.root, server.Addr))
	for name, between := range map[string]driver.Request{"w": writer("w"), "r": reader("r")} {
		first, last := writer(name), writer(name)
		hold(t, s, first)
		theirs := watching(t, other, between)
		queue(t, other, between)
		hints := watching(t, s, last)
		queue(t, s, last)
		release(t, s, first)
		awaitHeld(t, other, between, theirs)
		mustWait(t, s, last)
		release(t, other, between)
		awaitHeld(t, s, last, hints)
	}
}

// Another client deletes a holder's nodes and their parent, and the numbers start
// again: another process has the numbers of the old holder, and the numbers of the next
// claim follow on them.
func TestNumbersBeginAgain(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := longWaiting(openOn(t, "", server.Addr))
	other := longWaiting(openOn(t, s.root, server.Addr))
	conn := plain(t, server.Addr)
	known(t, s, "k")
	known(t, s, "k") // by now it is asked no more
	old := writer("k")
	hold(t, s, old)
	oldNodes := queueIn(t, conn, s, "k")
	for _, n := range oldNodes {
		if err := conn.Delete(s.parent("k")+"/"+n, -1); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.Delete(s.parent("k"), -1); err != nil {
		t.Fatal(err)
	}
	holder := writer("k")
	for hold(t, other, holder); firstNumber(queueIn(t, conn, s, "k")) != firstNumber(oldNodes); hold(t, other, holder) {
		release(t, other, holder)
		holder = writer("k")
	}
	next := writer("k")
	hints := watching(t, s, next)
	queue(t, s, next)
	if got := firstNumber(s.find(next.Claim).nodes); got != firstNumber(oldNodes)+2 {
		t.Fatalf("number %d does not follow on those of %v", got, oldNodes)
	}
	mustWait(t, s, next)
	release(t, other, holder)
	awaitHeld(t, s, next, hints)
}

// A claim whose nodes vanish while it is unsure gets the next numbers, and is not the
// one before itself; nor before contenders that have seen its old nodes.
func TestNotBehindItself(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	proxy := faultproxy.New(t, server.Addr)
	s := longWaiting(openOn(t, "", proxy.Addr))
	other := longWaiting(openOn(t, s.root, server.Addr))
	known(t, s, "k")
	holder, r := writer("k"), writer("k")
	hold(t, other, holder)
	cut := proxy.CutAfterRequest(func(b []byte) bool { return bytes.Contains(b, []byte(s.parent("k")+"\x00")) }) // the listing
	if _, err := s.Acquire(t.Context(), r); !errors.Is(err, driver.ErrUnknown) {
		t.Fatalf("%v, want driver.ErrUnknown", err)
	}
	<-cut
	c := s.find(r.Claim)
	old := s.lastClaims[c.parent]
	if old.claim != c {
		t.Fatal("it is not the last of its line")
	}
	conn := plain(t, server.Addr)
	for _, n := range c.nodes {
		if err := conn.Delete(c.parent+"/"+n, -1); err != nil {
			t.Fatal(err)
		}
	}
	hints := watching(t, s, r)
	r.Retry = true
	if g, _ := insist(t, s, r); !g.Waiting {
		t.Fatal("two hold")
	}
	if got := firstNumber(c.nodes); got != old.seq+1 {
		t.Fatalf("number %d does not follow on %d", got, old.seq)
	}
	if _, ok := old.verdict(); ok {
		t.Error("who follows on the old nodes would wait for the new ones")
	}
	release(t, other, holder)
	awaitHeld(t, s, r, hints)
}

// A process hands its own lock over with one transaction for each grant, if the
// goroutines that come back join the queue meanwhile.
func TestReleaseTakesTheNextAlong(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t, "maxSessionTimeout=1200000")
	s := longWaiting(mustOpen(t, Server{Addrs: []string{server.Addr}, Session: 20 * time.Minute}, Config{Root: "/" + driver.NewID()}))
	holder, next, late := writer("k"), writer("k"), writer("k")
	hold(t, s, holder)
	hints := watching(t, s, next)
	queue(t, s, next)
	mustWait(t, s, next) // its watches are set
	got := counted(t, server, func() {
		gather(s)
		joined := make(chan error)
		go func() {
			g, err := s.Acquire(t.Context(), late)
			if err == nil && !g.Waiting {
				t.Errorf("it does not wait: %+v", g)
			}
			joined <- err
		}()
		queued(t, s, 1)
		released := make(chan error)
		go func() { released <- s.Release(t.Context(), holder.Claim) }()
		queued(t, s, 2)
		flush(s)
		for _, done := range []chan error{joined, released} {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		awaitHeld(t, s, next, hints)
	})
	if got.Commits != 1 || got.Requests > 2 {
		t.Errorf("%d transactions and %d requests, want 1, and one that sets a watch", got.Commits, got.Requests)
	}
}

// A claim that lingers goes soon although no other comes.
func TestLingerEnds(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := longWaiting(openOn(t, "", server.Addr))
	other := longWaiting(openOn(t, s.root, server.Addr))
	holder := writer("k")
	hold(t, other, holder)
	for range 3 {
		queue(t, s, writer("k"))
	}
	if n := len(queueIn(t, s.conn, s, "k")); n != 8 {
		t.Errorf("%d nodes of four writers", n)
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
