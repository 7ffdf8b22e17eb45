package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// gated is a client whose calls wait at a gate.
type gated struct {
	wire.Client
	arrived chan wire.Call

	mu   sync.Mutex
	gate chan struct{} // closed: open
}

func (g *gated) Run(ctx context.Context, c wire.Call) (any, error) {
	g.mu.Lock()
	gate := g.gate
	g.mu.Unlock()
	select {
	case g.arrived <- c:
	default:
	}
	select {
	case <-gate:
	case <-ctx.Done():
		return nil, wire.NotSent(ctx.Err())
	}
	return g.Client.Run(ctx, c)
}

// next puts up another gate for the calls that come from now on.
func (g *gated) next() (open func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	gate := make(chan struct{})
	g.gate = gate
	return func() { close(gate) }
}

// jam fills the store's calls, so that what comes next has to wait. open lets
// them go and returns when they have ended.
func (l *lab) jam(s *Store) (g *gated, open func()) {
	l.Helper()
	s.batcher.far = true // so that it does not depend on how fast the server is
	// Each call passes the gate once, if the server knows the script.
	c, _ := take(l, s, claimOf("warm", "jam"), time.Minute, false)
	mustRelease(l, s, c)
	g = &gated{Client: s.client, arrived: make(chan wire.Call, 1000)}
	release := g.next()
	s.client = g
	var wg sync.WaitGroup
	for i := range idleCalls {
		wg.Go(func() {
			if _, err := s.Acquire(l.Context(), driver.Request{Claim: claimOf(fmt.Sprint("jam", i), "jam"), TTL: time.Minute}); err != nil {
				l.Errorf("jam %d: %v", i, err)
			}
		})
	}
	for range idleCalls {
		<-g.arrived
	}
	return g, func() {
		release()
		wg.Wait()
	}
}

func (l *lab) awaitWaiting(s *Store, n int) {
	l.Helper()
	l.awaitIn(&s.batcher, n)
}

func (l *lab) awaitIn(c *batcher, n int) {
	l.Helper()
	eventually(l, fmt.Sprint(n, " operations that wait"), 10*time.Second, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.wants == n
	})
}

// Each of the merged operations gets its own answer, in the order in which they came.
func TestCombinedAnswers(t *testing.T) {
	l := newLab(t, 2)
	s := l.stores[0]
	held, _ := take(t, l.stores[1], claimOf("held", "another process"), time.Minute, false)
	mine, _ := take(t, s, claimOf("mine", "a"), time.Minute, false)
	l.do("LPUSH", "not a lock", "x")
	l.do("SET", l.names("broken").queue(), "not a queue")
	broken, _ := take(t, l.stores[1], claimOf("broken's neighbour", "a"), time.Minute, false)
	broken.Key = "broken"
	l.do("RENAME", "broken's neighbour", "broken")

	gate, open := l.jam(s)
	var wg sync.WaitGroup
	start := func(n int, f func()) {
		wg.Go(f)
		l.awaitWaiting(s, n)
	}
	acquire := func(key string) error {
		_, err := s.Acquire(t.Context(), driver.Request{Claim: claimOf(key, "a"), TTL: time.Minute})
		return err
	}
	start(1, func() {
		if err := acquire("free"); err != nil {
			t.Errorf("a free lock: %v", err)
		}
	})
	start(2, func() {
		if err := acquire("held"); !isHeldBy(err, "another process") {
			t.Errorf("a lock that is held: %v", err)
		}
	})
	start(3, func() {
		if err := s.Release(t.Context(), mine); err != nil {
			t.Errorf("release: %v", err)
		}
	})
	start(4, func() {
		if err := acquire("mine"); err != nil {
			t.Errorf("a lock that was released in the same call: %v", err)
		}
	})
	start(5, func() {
		lost := held
		lost.ID = driver.NewID()
		if err := s.Release(t.Context(), lost); !errors.Is(err, driver.ErrLost) {
			t.Errorf("release of another's lock: %v", err)
		}
	})
	start(6, func() {
		if err := s.Release(t.Context(), broken); !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("release that fails half-way: %v", err)
		}
	})
	start(7, func() {
		if _, ok := errors.AsType[*driver.NotLockError](acquire("not a lock")); !ok {
			t.Error("what is no lock was acquired")
		}
	})
	open()
	wg.Wait()
	combined := 0
	for len(gate.arrived) > 0 {
		// Twice if the server did not know it.
		if c := <-gate.arrived; c.Script == combinedScript && !c.Full {
			combined++
		}
	}
	if combined != 1 {
		t.Errorf("they were sent in %d combined calls, want 1", combined)
	}
}

// A merged call keeps its order among the calls about each of its locks: a later call
// about one of them does not overtake it when it was abandoned, and it holds up no
// other.
func TestCombinedCallNamesItsLocks(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	mine, _ := take(t, s, claimOf("mine", "a"), time.Minute, false)
	gate, open := l.jam(s)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := s.Acquire(t.Context(), driver.Request{Claim: claimOf("free", "a"), TTL: time.Minute}); err != nil {
			t.Errorf("acquire: %v", err)
		}
	})
	l.awaitWaiting(s, 1)
	wg.Go(func() { mustRelease(t, s, mine) })
	l.awaitWaiting(s, 2)
	open()
	wg.Wait()
	for len(gate.arrived) > 0 {
		if c := <-gate.arrived; c.Script == combinedScript {
			if want := []string{"free", "mine"}; !slices.Equal(c.Locks, want) {
				t.Errorf("a call about %q says that it is about %q", want, c.Locks)
			}
			return
		}
	}
	t.Error("they were not combined")
}

func isHeldBy(err error, owner string) bool {
	held, ok := errors.AsType[*driver.HeldError](err)
	return ok && held.Owner == owner
}

// A caller that gives up while its operation waits has had no effect; one whose
// operation is on its way does not know, and can clean up.
func TestCombinedAndCancelled(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	gate, open := l.jam(s)

	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() {
		_, err := s.Acquire(ctx, driver.Request{Claim: claimOf("early", "a"), TTL: time.Minute})
		if !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("cancelled before it was sent: %v, want the context's error alone", err)
		}
	})
	l.awaitWaiting(s, 1)
	cancel()
	wg.Wait()
	l.awaitWaiting(s, 0)

	// These are sent, and held up by a second gate.
	openSecond := gate.next()
	late := []driver.Claim{claimOf("late1", "a"), claimOf("late2", "a")}
	ctx, cancel = context.WithCancel(t.Context())
	for i, c := range late {
		wg.Go(func() {
			_, err := s.Acquire(ctx, driver.Request{Claim: c, TTL: time.Minute})
			if !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled on its way: %v, want driver.ErrUnknown and the context's error", err)
			}
		})
		l.awaitWaiting(s, i+1)
	}
	open()
	<-gate.arrived
	cancel()
	wg.Wait()
	var clean sync.WaitGroup
	for _, c := range late { // does not overtake what it cleans up behind
		clean.Go(func() { mustRelease(t, s, c) })
	}
	openSecond()
	clean.Wait()
	for _, c := range late {
		if l.do("EXISTS", c.Key) != "0" {
			t.Errorf("%s is still held", c.Key)
		}
	}
	s.batcher.mu.Lock()
	defer s.batcher.mu.Unlock()
	if len(s.batcher.abandoned) != 0 {
		t.Error("an operation that has ended is still remembered")
	}
	if l.do("EXISTS", "early") != "0" {
		t.Error("what was cancelled before it was sent was granted")
	}
}

// Many goroutines, each on its key and all of them on one: nothing is mixed
// up.
func TestCombinedUnderLoad(t *testing.T) {
	testserver.Long(t)
	l := newLab(t, 1)
	s := l.stores[0]
	const goroutines, rounds = 64, 60
	var inside atomic.Int32
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			last := int64(0)
			for range rounds {
				c := claimOf(fmt.Sprint("own", i), fmt.Sprint(i))
				g, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute})
				if err != nil || g.Waiting || g.Token <= last {
					t.Errorf("goroutine %d: %+v, %v after token %d", i, g, err, last)
					return
				}
				last, c.Ticket = g.Token, g.Ticket

				shared := claimOf("shared", fmt.Sprint(i))
				g, err = s.Acquire(t.Context(), driver.Request{Claim: shared, TTL: time.Minute})
				if err == nil {
					if inside.Add(1) != 1 {
						t.Error("two holders")
					}
					shared.Ticket = g.Ticket
					inside.Add(-1)
					if err := s.Release(t.Context(), shared); err != nil {
						t.Errorf("release: %v", err)
					}
				}
				if err := s.Release(t.Context(), c); err != nil {
					t.Errorf("goroutine %d: release: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
}
