package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
)

var raceCases = []testCase{
	{
		name: "a cancelled context has no effect",
		why:  "whoever has stopped waiting for an answer must not be left with a lock that it does not know of",
		run: func(t *test) {
			ended, cancel := context.WithCancel(t.ctx)
			cancel()
			a := t.writer(0, "k")
			for _, queue := range []bool{false, true} {
				if _, err := a.l().Acquire(ended, a.request(queue, false)); !errors.Is(err, context.Canceled) {
					t.Errorf("acquire: %v, want context.Canceled", outcome(err))
				}
			}
			t.free("k")
			a.mustBe(driver.Lost)

			b := t.writer(1, "k").hold()
			if got := b.l().Renew(ended, []driver.Claim{b.Claim}, b.ttl); len(got) != 1 || got[0].State == driver.Unknown && got[0].Err == nil {
				t.Errorf("renew: %+v, want one answer, with an error if unknown", got)
			} else if s := got[0].State; s != driver.Unknown && s != driver.Held {
				t.Errorf("renew: %v, but it is held", s)
			}
			b.mustBe(driver.Held)
			// A release may have no effect or succeed all the same; its error must say
			// which.
			err := b.l().Release(ended, b.Claim)
			state := b.renew()
			if err == nil && state != driver.Lost || errors.Is(err, driver.ErrUnavailable) && state != driver.Held {
				t.Errorf("release: %v, and then it is %v", err, state)
			}
			if state == driver.Held {
				b.leave()
			}
			t.free("k")
			if i, ok := driver.As[driver.Inspector](t.locks[0]); ok {
				if _, err := i.Inspect(ended, "k"); !errors.Is(err, context.Canceled) {
					t.Errorf("inspect: %v, want context.Canceled", err)
				}
				n := 0
				for _, err := range i.List(ended, "") {
					if n++; n > 1 || !errors.Is(err, context.Canceled) {
						t.Errorf("list yielded %d times: %v, want context.Canceled once", n, err)
					}
				}
			}
		},
	},
	{
		name: "cancel racing with acquire",
		why:  "the grant may be made just when the context ends; whoever then releases by the ID must leave nothing behind",
		run: func(t *test) {
			for i := range t.rounds(30) {
				a := t.writer(i%handles, "k")
				ctx, cancel := context.WithCancel(t.ctx)
				var wg sync.WaitGroup
				wg.Go(func() {
					if i%3 > 0 {
						time.Sleep(rand.N(time.Millisecond))
					}
					cancel()
				})
				g, err := a.l().Acquire(ctx, a.request(t.traits.FIFO, false))
				wg.Wait()
				if err == nil && g.Waiting {
					t.Errorf("round %d: waits for a lock that nobody holds", i)
				}
				if err := a.release(); err != nil && !errors.Is(err, driver.ErrLost) {
					t.Fatalf("round %d: release: %v", i, err)
				}
				t.free("k")
			}
		},
	},
	{
		name:  "giving up racing with the hand-over",
		why:   "the grant may be made just when its owner gives up: it must go to the next, not be lost",
		needs: []need{fifo},
		run: func(t *test) {
			for i := range t.rounds(20) {
				h := t.writer(i%handles, "k").hold()
				a, b := t.writer((i+1)%handles, "k").join(), t.writer((i+2)%handles, "k").join()
				if i%2 == 1 {
					a.forget()
				}
				var wg sync.WaitGroup
				wg.Go(h.leave)
				wg.Go(a.leave)
				wg.Wait()
				if t.Failed() {
					return
				}
				b.mustBe(driver.Held) // at once: no waiter is before it
				b.leave()
				t.free("k")
			}
		},
	},
	{
		name:  "release racing with the first renewal of a grant",
		why:   "who was told of his grant by a hint is renewed in the background while its work may be done already: the release must find the lock, and leave nothing behind",
		needs: []need{fifo, watcher},
		run: func(t *test) {
			for i := range t.rounds(30) {
				h := t.writer(i%handles, "k").hold()
				a := t.writer((i+1)%handles, "k")
				hints := a.watch()
				a.join()
				h.leave()
				if _, told := a.awaitHint(hints); !told { // awaitHint has renewed it already
					a.leave()
					continue
				}
				if err := a.releaseRenewed(i%3 > 0); err != nil {
					t.Fatalf("round %d: release: %v", i, err)
				}
				t.free("k")
			}
		},
	},
	{
		name: "release racing with a renewal",
		why:  "the watchdog renews while the work ends: a lock that stands until its release was not lost, and its owner must not be told so",
		run: func(t *test) {
			for i := range t.rounds(40) {
				a := t.writer(i%handles, fmt.Sprint("k", i)).hold()
				if err := a.releaseRenewed(i%2 > 0); err != nil {
					t.Fatalf("round %d: release: %v", i, err)
				}
				a.mustBe(driver.Lost)
			}
		},
	},
	{
		name:  "all give up at once",
		why:   "whatever the order in which places and grants are given up, a free lock remains",
		needs: []need{fifo},
		run: func(t *test) {
			for range t.rounds(10) {
				h := t.writer(0, "k").hold()
				line := []*seat{h}
				for i := range 2 * handles {
					line = append(line, t.writer(i%handles, "k").join())
				}
				var wg sync.WaitGroup
				for _, s := range line {
					wg.Go(s.leave)
				}
				wg.Wait()
				if t.Failed() {
					return
				}
				t.free("k")
			}
		},
	},
	{
		name:  "a crowd is served one at a time",
		why:   "the promise of the exclusive lock, under load from all processes, with tokens as witnesses",
		needs: []need{fifo},
		run: func(t *test) {
			var inside atomic.Int32
			var last atomic.Int64
			served := t.crowd(func(process, _ int) *seat { return t.writer(process, "k") }, func(s *seat) func() {
				if n := inside.Add(1); n != 1 {
					t.Errorf("%s: %d hold the lock", s.name, n)
				}
				if before := last.Swap(s.grant.Token); t.traits.Fencing && before >= s.grant.Token {
					t.Errorf("%s: granted with token %d after %d", s.name, s.grant.Token, before)
				}
				return func() { inside.Add(-1) }
			})
			t.Logf("%d were served", served)
			t.free("k")
		},
	},
	{
		name:  "a crowd of readers and writers",
		why:   "the promise of the read-write lock, under load from all processes",
		needs: []need{fifo, shared},
		run: func(t *test) {
			var readers, writers atomic.Int32
			t.crowd(func(process, n int) *seat {
				if n%3 == 0 {
					return t.writer(process, "k")
				}
				return t.reader(process, "k")
			}, func(s *seat) func() {
				mine := &readers
				if s.Exclusive() {
					mine = &writers
				}
				mine.Add(1)
				if w, r := writers.Load(), readers.Load(); w > 1 || w == 1 && r > 0 {
					t.Errorf("%s: %d writers and %d readers hold the lock", s.name, w, r)
				}
				return func() { mine.Add(-1) }
			})
			t.free("k")
		},
	},
	{
		name:  "a crowd shares permits",
		why:   "the promise of the semaphore, under load from all processes: none too many, and none lost in the end",
		needs: []need{fifo, permits},
		run: func(t *test) {
			var used atomic.Int64
			t.crowd(func(process, n int) *seat {
				return t.permits(process, "k", int64(n%3+1), 4)
			}, func(s *seat) func() {
				if n := used.Add(s.Weight); n > 4 {
					t.Errorf("%s: %d of 4 permits are held", s.name, n)
				}
				return func() { used.Add(-s.Weight) }
			})
			t.permits(0, "k", 4, 4).hold()
		},
	},
}

// releaseRenewed releases during a renewal of the claim, or soon after its beginning.
func (s *seat) releaseRenewed(soon bool) error {
	var wg sync.WaitGroup
	renewing := make(chan struct{})
	wg.Go(func() {
		close(renewing)
		s.l().Renew(s.t.ctx, []driver.Claim{s.Claim}, s.ttl) // the result does not matter
	})
	<-renewing
	if soon {
		time.Sleep(rand.N(time.Millisecond))
	}
	err := s.release()
	wg.Wait()
	return err
}

// rounds is how often to run a race: n times on real servers; more often in fake time,
// where a round takes microseconds.
func (t *test) rounds(n int) int {
	if t.h.FakeTime {
		return 50 * n
	}
	return n
}

// crowd lets three goroutines of each process join the queue repeatedly for a second, or
// until enough were served. It calls enter when a seat holds, and the result of enter
// before the seat releases. Some seats give up instead of waiting.
func (t *test) crowd(sit func(process, n int) *seat, enter func(*seat) (leave func())) (served int64) {
	const each, enough = 3, 200
	var total atomic.Int64
	start := time.Now()
	var wg sync.WaitGroup
	for i := range each * handles {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for n := 0; total.Load() < enough && (n == 0 || time.Since(start) < time.Second) && !t.Failed(); n++ {
				s := sit(i%handles, i/handles+n).named(fmt.Sprintf("number %d of goroutine %d", n, i))
				if s.stand(random.IntN(5) == 0) {
					leave := enter(s)
					if random.IntN(3) == 0 {
						time.Sleep(time.Duration(random.Int64N(int64(time.Millisecond))))
					}
					leave()
					s.leave()
					total.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if total.Load() == 0 {
		t.Errorf("nobody was served")
	}
	return total.Load()
}

// stand waits in the queue until s holds, or gives up and returns false. If a pause of
// the machine costs s its position, s joins again.
func (s *seat) stand(impatient bool) bool {
	for !s.t.Failed() {
		switch s.state {
		case driver.Held:
			return true
		case driver.Waiting:
			if impatient {
				if err := s.release(); err != nil && !errors.Is(err, driver.ErrLost) {
					s.t.Errorf("%s: giving up: %v", s.name, err)
				}
				return false
			}
			time.Sleep(2 * time.Millisecond)
			s.renew()
		default:
			s.forget().ID = s.t.newID()
			if err := s.acquire(true, false); err != nil {
				s.t.Errorf("%s: acquire: %v", s.name, err)
				return false
			}
		}
	}
	return false
}
