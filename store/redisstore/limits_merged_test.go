package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// jamDecisions fills the store's calls, so that the decisions that come next have
// to wait. open lets them go and returns when they have ended.
func (l *lab) jamDecisions(s *Store) (g *gated, open func()) {
	l.Helper()
	l.taken(s, asking("warm", windows(5, time.Hour), 0)) // each call passes the gate once, if the server knows the script
	g = &gated{Client: s.client, arrived: make(chan wire.Call, 1000)}
	release := g.next()
	s.client = g
	var wg sync.WaitGroup
	for range idleCalls {
		wg.Go(func() {
			if _, err := s.Take(l.Context(), asking("warm", windows(5, time.Hour), 0)); err != nil {
				l.Errorf("jam: %v", err)
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

// Decisions that were made in one call are each what they would have been alone,
// one after the other.
func TestCombinedDecisions(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	hot, queue := tokens(1, 1000*time.Hour, 7), limits.Limit{Algorithm: limits.LeakyBucket, N: 1, Period: time.Hour, Burst: 4}
	l.taken(s, asking("hot", hot, 1))
	l.do("RPUSH", l.limit("list"), "x")
	odd := asking("odd", hot, 3)
	odd.Mode = limits.TakeAnyway
	for range 3 {
		l.taken(s, odd) // two tokens of debt
	}
	calendar := limits.Limit{Algorithm: limits.FixedWindow, N: 5, Windows: [4]int64{1e12, 2e12, 3e12, 4e12}}

	gate, open := l.jamDecisions(s)
	var wg sync.WaitGroup
	var waiting int
	start := func(r limits.Request, answered func(limits.Taken, error)) {
		t.Helper()
		wg.Go(func() { answered(s.Take(t.Context(), r)) })
		waiting++
		l.awaitIn(&s.decisions, waiting)
	}
	// The order of the decisions that wait is not promised, so they say the same, but
	// for those on one key.
	var mu sync.Mutex
	left := map[string]bool{}
	note := func(d limits.Taken, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			t.Errorf("%v", err)
			return
		}
		left[fmt.Sprint(d.OK, d.Limits[0].Remaining, d.Retry > 0)] = true
	}
	for range 5 { // 6 are there: 4, 2, 0, and no more
		start(asking("hot", hot, 2), note)
	}
	waits := map[time.Duration]bool{}
	for range 5 {
		start(asking("queue", queue, 1), func(d limits.Taken, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil || d.OK != d.Limits[0].OK {
				t.Errorf("queue: %+v, %v", d, err)
			}
			if d.OK {
				waits[d.Wait] = true
			}
		})
	}
	for range 2 {
		start(asking("list", hot, 1), func(_ limits.Taken, err error) {
			if e, ok := errors.AsType[*limits.Error](err); !ok || e.Key != "list" || !strings.Contains(err.Error(), l.limit("list")) {
				t.Errorf("another type: %v", err)
			}
		})
		start(asking("odd", hot, 1), func(d limits.Taken, err error) {
			if err != nil || d.OK || d.Limits[0].Remaining != 0 || d.Retry < 2999*time.Hour-time.Minute {
				t.Errorf("in debt: %+v, %v", d, err)
			}
		})
		start(asking("calendar", calendar, 1), func(_ limits.Taken, err error) {
			if _, ok := errors.AsType[*limits.ClockError](err); !ok {
				t.Errorf("outside of the calendar: %v", err)
			}
		})
		start(asking("look", hot, 0), func(d limits.Taken, err error) {
			if err != nil || !d.OK || d.Limits[0].Remaining != 7 {
				t.Errorf("a look: %+v, %v", d, err)
			}
		})
		start(asking("too much", hot, 8), func(d limits.Taken, err error) {
			if err != nil || d.OK || d.Retry != limits.Never {
				t.Errorf("more than there can be: %+v, %v", d, err)
			}
		})
	}
	start(asking("alone", limits.Limit{Algorithm: limits.EstimatedWindow, N: 5, Period: time.Hour}, 2), func(d limits.Taken, err error) {
		if err != nil || !d.OK || d.Limits[0].Remaining != 3 {
			t.Errorf("an estimate: %+v, %v", d, err)
		}
	})
	open()
	wg.Wait()
	if want := "map[false0true:true true0false:true true2false:true true4false:true]"; strings.ReplaceAll(fmt.Sprint(left), " ", "") != strings.ReplaceAll(want, " ", "") {
		t.Errorf("of one key they said %v, want %v", left, want)
	}
	if len(waits) != 4 {
		t.Errorf("the turns of a queue of four are %v", waits)
	}
	calls := 0
	for len(gate.arrived) > 0 {
		if c := <-gate.arrived; !c.Full {
			calls++
		}
	}
	if calls != 1 {
		t.Errorf("they were made in %d calls, want 1", calls)
	}
}

// Each caller has its own context, also in a merged call.
func TestCombinedDecisionsAndCancelled(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	limit := windows(10, 100_000*time.Hour)
	gate, open := l.jamDecisions(s)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := s.Take(ctx, asking("k", limit, 1)); !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("cancelled before it was sent: %v, want the context's error alone", err)
		}
	})
	l.awaitIn(&s.decisions, 1)
	cancel()
	wg.Wait()
	l.awaitIn(&s.decisions, 0)

	// These are sent together, and held up by a second gate.
	openSecond := gate.next()
	ctx, cancel = context.WithCancel(t.Context())
	var goes sync.WaitGroup
	goes.Go(func() {
		if _, err := s.Take(ctx, asking("k", limit, 2)); !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled on its way: %v, want driver.ErrUnknown and the context's error", err)
		}
	})
	l.awaitIn(&s.decisions, 1)
	for i := range 2 {
		wg.Go(func() {
			if d, err := s.Take(t.Context(), asking("k", limit, 2)); err != nil || !d.OK {
				t.Errorf("in the same call as one that was cancelled: %+v, %v", d, err)
			}
		})
		l.awaitIn(&s.decisions, i+2)
	}
	impatient, giveUp := context.WithCancel(t.Context())
	wg.Go(func() {
		if _, err := s.Take(impatient, asking("k", limit, 2)); !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("cancelled while others wait for the same: %v, want the context's error alone", err)
		}
	})
	l.awaitIn(&s.decisions, 4)
	giveUp()
	l.awaitIn(&s.decisions, 3)
	open()
	<-gate.arrived
	cancel()
	goes.Wait()
	openSecond()
	wg.Wait()
	if left := l.taken(s, asking("k", limit, 0)).Limits[0].Remaining; left != 4 {
		t.Errorf("%d of 10 remain, three requests took 2 each", left)
	}
}

// What the server refuses it refuses to all.
func TestCombinedDecisionsRefused(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	limit := windows(10, 100_000*time.Hour)
	_, open := l.jamDecisions(s)
	l.do("CONFIG", "SET", "min-replicas-to-write", "1")
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			if _, err := s.Take(t.Context(), asking(fmt.Sprint("k", i/2), limit, 2)); !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown) {
				t.Errorf("too few replicas: %v", err)
			}
		})
		l.awaitIn(&s.decisions, i+1)
	}
	open()
	wg.Wait()
	l.do("CONFIG", "SET", "min-replicas-to-write", "0")
	for i := range 3 {
		if left := l.taken(s, asking(fmt.Sprint("k", i), limit, 0)).Limits[0].Remaining; left != 10 {
			t.Errorf("%d of 10 remain", left)
		}
	}
}

// Many goroutines of two processes, on their own keys and all on one: nothing is
// mixed up, and nothing allowed that is not there.
func TestCombinedDecisionsUnderLoad(t *testing.T) {
	testserver.Long(t)
	l := newLab(t, 2)
	const goroutines, rounds, capacity = 64, 40, 1000
	var allowed atomic.Int64
	var wg sync.WaitGroup
	for i := range 2 * goroutines {
		wg.Go(func() {
			s := l.stores[i%2]
			own, hot := windows(rounds, 100_000*time.Hour), tokens(1, 100*time.Hour, capacity)
			for n := range rounds {
				d, err := s.Take(t.Context(), asking(fmt.Sprint("own", i), own, 1))
				if err != nil || !d.OK || d.Limits[0].Remaining != int64(rounds-n-1) {
					t.Errorf("goroutine %d, round %d: %+v, %v", i, n, d, err)
					return
				}
				if d, err = s.Take(t.Context(), asking("hot", hot, 1)); err != nil {
					t.Errorf("goroutine %d, round %d: %v", i, n, err)
					return
				}
				if d.OK {
					allowed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := allowed.Load(); n != capacity {
		t.Errorf("%d of %d were allowed", n, capacity)
	}
}
