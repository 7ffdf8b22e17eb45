package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redlock"
)

func claimOf(key string) driver.Claim {
	return driver.Claim{Key: key, ID: driver.NewID(), Owner: "test", Weight: driver.Whole, Capacity: driver.Whole}
}

func acquire(t *testing.T, l driver.Locks, c driver.Claim, ttl time.Duration) (driver.Claim, driver.Grant) {
	t.Helper()
	g, err := l.Acquire(t.Context(), driver.Request{Claim: c, TTL: ttl})
	if err != nil {
		t.Fatalf("acquire: %v", err)
	}
	time.Sleep(2 * time.Millisecond) // of fake time: until all servers were asked
	c.Ticket = g.Ticket
	return c, g
}

func renew(t *testing.T, l driver.Locks, c driver.Claim, ttl time.Duration) driver.Renewal {
	t.Helper()
	return l.Renew(t.Context(), []driver.Claim{c}, ttl)[0]
}

// votes counts the servers on which key is held.
func (s *servers) votes(key string) (n int) {
	for _, node := range s.list {
		if info, _ := node.store.Inspect(context.Background(), key); len(info.Holders) > 0 {
			n++
		}
	}
	return n
}

// A server that restarts has forgotten the lock. Two of five that do must not grant it,
// with one that never had it, to another claim.
func TestRestartedServersDoNotVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 5)
		locks := s.open(2)
		s.list[4].set(func() { s.list[4].cut = true })
		a, g := acquire(t, locks[0], claimOf("k"), time.Minute)
		synctest.Wait()
		if n := s.votes("k"); n != 4 {
			t.Fatalf("held on %d servers, want 4", n)
		}
		s.list[4].set(func() { s.list[4].cut = false })
		s.list[0].restart(0)
		s.list[1].restart(0)
		time.Sleep(2 * time.Second) // those that were left alone are asked again

		// Three servers have nothing under the key.
		_, err := locks[1].Acquire(t.Context(), driver.Request{Claim: claimOf("k"), TTL: time.Minute})
		if err == nil {
			t.Fatal("granted by servers that have forgotten the lock")
		}
		if r := renew(t, locks[0], a, time.Minute); r.State == driver.Held {
			t.Error("a minority confirms a lock")
		}
		synctest.Wait()
		time.Sleep(time.Minute + 3*time.Second)
		b, h := acquire(t, locks[1], claimOf("k"), time.Minute)
		if h.Token <= g.Token {
			t.Errorf("token %d after %d", h.Token, g.Token)
		}
		if err := locks[1].Release(t.Context(), b); err != nil {
			t.Error(err)
		}

		// All restart: nothing is granted until they vote again, and the error
		// says why.
		for _, node := range s.list {
			node.restart(0)
		}
		_, err = locks[0].Acquire(t.Context(), driver.Request{Claim: claimOf("k"), TTL: time.Minute})
		if !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "restarted") {
			t.Errorf("after all restarted: %v", err)
		}
		time.Sleep(time.Minute + time.Second)
		acquire(t, locks[0], claimOf("k"), time.Minute)
	})
}

// The lock survives the restart of two of five, and is put back on them.
func TestRestartedServersAreRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 5)
		locks := s.open(1)
		a, g := acquire(t, locks[0], claimOf("k"), 10*time.Second)
		synctest.Wait()
		s.list[1].restart(0)
		s.list[3].restart(0)
		r := renew(t, locks[0], a, 10*time.Second)
		if r.State != driver.Held || r.Grant.Token != g.Token {
			t.Fatalf("renewed by three of five: %+v", r)
		}
		synctest.Wait()
		renew(t, locks[0], a, 10*time.Second) // the first may have ended before it heard of all
		synctest.Wait()
		if n := s.votes("k"); n != 5 {
			t.Errorf("held on %d servers after the repair, want 5", n)
		}
		if err := locks[0].Release(t.Context(), a); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := s.votes("k"); n != 0 {
			t.Errorf("held on %d servers after the release", n)
		}
	})
}

// Servers that accept requests and never answer do not hold up an attempt.
func TestSilentServersDelayNobody(t *testing.T) {
	for mute := 1; mute <= 2; mute++ {
		t.Run(fmt.Sprint(mute), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServers(t, 5)
				locks := s.open(2)
				for i := range 20 { // they learn how fast the servers are
					c, _ := acquire(t, locks[i%2], claimOf("warm"), 10*time.Second)
					if err := locks[i%2].Release(t.Context(), c); err != nil {
						t.Fatal(err)
					}
				}
				for _, node := range s.list[:mute] {
					node.set(func() { node.mute = true })
				}
				last := int64(0)
				for i := range 30 {
					begin := time.Now()
					c, g := acquire(t, locks[i%2], claimOf(fmt.Sprint("k", i%3)), 10*time.Second)
					if err := locks[i%2].Release(t.Context(), c); err != nil {
						t.Fatalf("round %d: %v", i, err)
					}
					if d := time.Since(begin); d > 100*time.Millisecond {
						t.Errorf("round %d: a pair took %v", i, d)
					}
					if i%3 == 0 {
						if g.Token <= last {
							t.Errorf("token %d after %d", g.Token, last)
						}
						last = g.Token
					}
				}
			})
		})
	}
}

// A slow server is waited for when its vote is needed, and not otherwise.
func TestSlowServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the queue of "c" is on the third server
		s := newServers(t, 5)
		locks := s.open(1)
		for _, node := range s.list[:2] {
			node.set(func() { node.late = 80 * time.Millisecond })
		}
		begin := time.Now()
		c, _ := acquire(t, locks[0], claimOf("c"), 10*time.Second)
		if d := time.Since(begin); d >= 80*time.Millisecond {
			t.Errorf("three fast servers granted, and it took %v", d)
		}
		if err := locks[0].Release(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		s.list[2].set(func() { s.list[2].cut = true })
		c, _ = acquire(t, locks[0], claimOf("c"), 10*time.Second)
		if err := locks[0].Release(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if n := s.votes("c"); n != 0 {
			t.Errorf("late answers left the lock on %d servers", n)
		}
	})
}

// The answers of two servers are lost after they have granted. The lock is
// granted by the others, and released on all of them as soon as that is known.
func TestLostAnswersLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 5)
		locks := s.open(2)
		set := func(deaf bool, nodes ...*server) {
			for _, node := range nodes {
				node.set(func() { node.deaf = deaf })
			}
		}
		set(true, s.list[:2]...)
		c, _ := acquire(t, locks[0], claimOf("k"), time.Minute)
		if err := locks[0].Release(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		set(false, s.list[:2]...)
		acquire(t, locks[1], claimOf("other"), time.Minute)
		synctest.Wait()
		if n := s.votes("k"); n != 0 {
			t.Errorf("released, and held on %d servers", n)
		}

		// Of three: no claim is granted, and what they did is undone.
		set(true, s.list[:3]...)
		if _, err := locks[0].Acquire(t.Context(), driver.Request{Claim: claimOf("k"), TTL: time.Minute}); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("without a majority: %v, want ErrUnavailable", err)
		}
		set(false, s.list[:3]...)
		for range 10 {
			time.Sleep(time.Second)
			_, _ = locks[0].Acquire(t.Context(), driver.Request{Claim: claimOf("other"), TTL: time.Minute})
			synctest.Wait()
		}
		if n := s.votes("k"); n != 0 {
			t.Errorf("not granted, and held on %d servers", n)
		}
		acquire(t, locks[1], claimOf("k"), time.Minute)
	})
}

// An attempt that was ended is not made again under its ID: its release is repeated at
// some time, and would then take the lock from a holder that believes in it.
func TestEndedAttemptIsNotRepeated(t *testing.T) {
	for name, fault := range map[string]func(n *server, on bool){
		"answers lost": func(n *server, on bool) { n.deaf = on },
		"cut":          func(n *server, on bool) { n.cut = on },
		"silent":       func(n *server, on bool) { n.mute = on },
	} {
		for _, queue := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", queue ", queue), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newServers(t, 5)
					l := s.open(1)[0]
					set := func(on bool) {
						for _, node := range s.list {
							node.set(func() { fault(node, on) })
						}
					}
					r := driver.Request{Claim: claimOf("k"), TTL: time.Minute, Queue: queue}
					stop := l.(driver.Watcher).Watch(r.Claim, func(driver.Hint) {})
					defer stop()
					set(true)
					if _, err := l.Acquire(t.Context(), r); !unreachable(err) {
						t.Errorf("without an answer: %v", err)
					}
					set(false)
					r.Retry = true
					if _, err := l.Acquire(t.Context(), r); !errors.Is(err, driver.ErrLost) {
						t.Fatalf("repeated: %v, want ErrLost", err)
					}
					time.Sleep(3 * time.Second) // until they are asked again, and pending releases are sent
					acquire(t, l, claimOf("k"), time.Minute)
				})
			})
		}
	}
}

// A release that reached no server is repeated when the servers answer again. A caller
// that releases once more after that finds nothing, and must not take it for a loss.
func TestOwedReleaseIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 5)
		l := s.open(1)[0]
		c, _ := acquire(t, l, claimOf("k"), time.Minute)
		time.Sleep(time.Second) // until all hold
		s.cut(true, 0, 1, 2, 3, 4)
		if err := l.Release(t.Context(), c); !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("release that reached no server: %v, want ErrUnknown", err)
		}
		s.cut(false, 0, 1, 2, 3, 4)
		acquire(t, l, claimOf("other"), time.Minute) // they are heard of again
		synctest.Wait()
		if n := s.votes("k"); n != 0 {
			t.Errorf("%d servers still hold", n)
		}
		if err := l.Release(t.Context(), c); !errors.Is(err, driver.ErrLost) {
			t.Errorf("released once more: %v, want ErrLost", err)
		}
	})
}

// After one lost answer all callers ask a server, not one at a time.
func TestOneLostAnswerLeavesNobodyAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 5)
		l := s.open(1)[0]
		c, _ := acquire(t, l, claimOf("k"), time.Minute)
		time.Sleep(time.Second) // until all hold
		for _, n := range s.list {
			n.set(func() { n.lose = 1 })
		}
		if err := l.Release(t.Context(), c); !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("without an answer: %v", err)
		}
		for _, n := range s.list {
			n.set(func() { n.late = 50 * time.Millisecond })
		}
		var both sync.WaitGroup
		for _, key := range []string{"a", "b"} {
			both.Go(func() {
				if _, err := l.Acquire(t.Context(), driver.Request{Claim: claimOf(key), TTL: time.Minute}); err != nil {
					t.Errorf("%s: %v", key, err)
				}
			})
		}
		both.Wait()
	})
}

// A claim that is queued on one server has given up what it asked the others for. Where
// that was not answered its ID is not used again: see server.unreliable.
func TestUnansweredReleaseInLine(t *testing.T) {
	for lost := range 3 { // answers
		for i := range 3 { // the servers that are asked first
			synctest.Test(t, func(t *testing.T) {
				s := newServers(t, 5).unreliable()
				locks := s.open(2)
				first, _ := acquire(t, locks[0], claimOf("k"), time.Minute)
				time.Sleep(time.Second) // until all hold
				s.list[i].set(func() { s.list[i].lose, s.list[i].late = lost, 30*time.Millisecond })
				r := driver.Request{Claim: claimOf("k"), TTL: time.Minute, Queue: true}
				g, err := locks[1].Acquire(t.Context(), r)
				if err != nil || !g.Waiting {
					t.Fatalf("asked for a position: %+v, %v", g, err)
				}
				time.Sleep(100 * time.Millisecond)
				s.list[i].set(func() { s.list[i].late = 0 })
				if err := locks[0].Release(t.Context(), first); err != nil {
					t.Error(err)
				}
				for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
					r.Ticket = g.Ticket
					a := renew(t, locks[1], r.Claim, time.Minute)
					if a.State == driver.Held {
						return
					}
					if a.State != driver.Waiting || time.Now().After(deadline) {
						t.Fatalf("%d answers of server %d lost: %+v", lost, i, a)
					}
				}
			})
		}
	}
}

// A release that a majority did not hear has ended the claim on the others.
func TestReleaseOfAMinorityIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 3)
		locks := s.open(1)
		c, _ := acquire(t, locks[0], claimOf("k"), time.Minute)
		time.Sleep(time.Second) // until all hold
		for _, node := range s.list[:2] {
			node.set(func() { node.cut = true })
		}
		if err := locks[0].Release(t.Context(), c); !errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%v, want ErrUnknown, and not ErrUnavailable: one server has released it", err)
		}
	})
}

// A context that ends while the servers are silent leaves nothing behind once
// they answer.
func TestAbandonedAttemptIsCleanedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 5)
		locks := s.open(1)
		for _, node := range s.list {
			node.set(func() { node.late = 300 * time.Millisecond })
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := locks[0].Acquire(ctx, driver.Request{Claim: claimOf("k"), TTL: time.Minute})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if n := s.votes("k"); n < 3 {
			t.Errorf("%d servers have granted, want a majority", n)
		}
		time.Sleep(time.Second)
		if n := s.votes("k"); n != 0 {
			t.Errorf("abandoned, and held on %d servers", n)
		}
	})
}

// A renewal that is answered after the release has begun does not bring the
// lock back where it was missing.
func TestReleaseDuringARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 5)
		l := s.open(1)[0]
		set := func(f func(*server), nodes ...*server) {
			for _, node := range nodes {
				node.set(func() { f(node) })
			}
		}
		set(func(n *server) { n.cut = true }, s.list[3:]...)
		c, _ := acquire(t, l, claimOf("k"), time.Minute)
		set(func(n *server) { n.cut = false }, s.list[3:]...)
		time.Sleep(2 * time.Second) // until they are asked again
		set(func(n *server) { n.late = 50 * time.Millisecond }, s.list[:3]...)
		renewed := make(chan driver.Renewal, 1)
		go func() { renewed <- l.Renew(context.Background(), []driver.Claim{c}, time.Minute)[0] }()
		time.Sleep(10 * time.Millisecond)
		if err := l.Release(t.Context(), c); err != nil {
			t.Errorf("released: %v", err)
		}
		<-renewed
		time.Sleep(5 * time.Second)
		if n := s.votes("k"); n != 0 {
			t.Errorf("released, and held on %d servers", n)
		}
	})
}

// A lock that fewer than a majority still hold is lost. No other claim may be let in
// before its holder has heard of that, so it is left there until it is released.
func TestMinorityIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 5)
		l := s.open(1)[0]
		c, _ := acquire(t, l, claimOf("k"), time.Minute)
		synctest.Wait()
		for _, node := range s.list[:3] {
			_, _ = node.store.Break(t.Context(), "k")
		}
		if r := renew(t, l, c, time.Minute); r.State != driver.Lost {
			t.Errorf("held on two of five: %+v", r)
		}
		synctest.Wait()
		if n := s.votes("k"); n != 2 {
			t.Errorf("lost, and held on %d servers, want 2", n)
		}
		if err := l.Release(t.Context(), c); !errors.Is(err, driver.ErrLost) {
			t.Errorf("released: %v", err)
		}
		synctest.Wait()
		if n := s.votes("k"); n != 0 {
			t.Errorf("released, and held on %d servers", n)
		}
	})
}

// Renewals that a majority does not answer are unknown, not lost.
func TestRenewalWithoutAMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 5)
		l := s.open(1)[0]
		c, _ := acquire(t, l, claimOf("k"), 20*time.Second)
		synctest.Wait()
		for _, node := range s.list[:3] {
			node.set(func() { node.cut = true })
		}
		r := renew(t, l, c, 20*time.Second)
		if r.State != driver.Unknown || !unreachable(r.Err) {
			t.Errorf("with three of five cut off: %+v", r)
		}
		for _, node := range s.list[:3] {
			node.set(func() { node.cut = false })
		}
		time.Sleep(2 * time.Second)
		if r := renew(t, l, c, 20*time.Second); r.State != driver.Held {
			t.Errorf("healed: %+v", r)
		}
	})
}

func unreachable(err error) bool {
	return errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown)
}

// Many claims go on while servers come and go, and no two of them hold at a time.
func TestCrowdThroughFaults(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			if seed > 0 {
				testserver.Long(t)
			}
			synctest.Test(t, func(t *testing.T) { crowd(t, newServers(t, 5).unreliable(), seed) })
		})
	}
}

func crowd(t *testing.T, s *servers, seed uint64) {
	const processes, goroutines, ttl = 4, 16, 2 * time.Second
	random := rand.New(rand.NewPCG(seed, 7))
	var holder atomic.Pointer[baton.Lease]
	var last atomic.Int64
	var served [processes * goroutines]atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	stores := s.open(processes, redlock.Config{LongestTTL: 5 * time.Second})
	for p, store := range stores {
		locks, err := baton.New(store, baton.Config{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		for g := range goroutines {
			wg.Go(func() {
				for ctx.Err() == nil {
					lease, err := locks.Lock(ctx, "k")
					if err != nil {
						if ctx.Err() == nil && !unreachable(err) {
							t.Errorf("lock: %v", err)
						}
						continue
					}
					if other := holder.Swap(lease); other != nil && other.Err() == nil && lease.Err() == nil {
						t.Errorf("two consider themselves the holder, with tokens %d and %d", other.Token(), lease.Token())
					}
					if before := last.Swap(lease.Token()); before >= lease.Token() {
						t.Errorf("token %d after %d", lease.Token(), before)
					}
					time.Sleep(3 * time.Millisecond)
					holder.CompareAndSwap(lease, nil)
					if err := lease.Unlock(); err != nil && !unreachable(err) {
						t.Logf("unlock: %v", err)
					}
					served[p*goroutines+g].Add(1)
				}
			})
		}
	}
	for range 12 { // never more than two are in trouble
		bad := random.Perm(5)[:1+random.IntN(2)]
		fault := random.IntN(4)
		for _, i := range bad {
			node := s.list[i]
			switch fault {
			case 0:
				node.set(func() { node.cut = true })
			case 1:
				node.set(func() { node.mute = true })
			case 2:
				node.set(func() { node.deaf = true })
			case 3:
				node.restart(0)
			}
		}
		time.Sleep(time.Duration(1+random.IntN(5)) * time.Second)
		for _, i := range bad {
			node := s.list[i]
			node.set(func() { node.cut, node.mute, node.deaf = false, false, false })
		}
		time.Sleep(6 * time.Second) // until those that restarted vote
	}
	var before [len(served)]int64
	for i := range served {
		before[i] = served[i].Load()
	}
	time.Sleep(20 * time.Second)
	for i := range served {
		if served[i].Load() == before[i] {
			t.Errorf("waiter %d was not served for 20s after the last fault", i)
		}
	}
	cancel()
	wg.Wait()
}
