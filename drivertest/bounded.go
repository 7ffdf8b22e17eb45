package drivertest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
)

var boundedCases = []testCase{
	{
		name:  "a full queue refuses who would wait",
		why:   "a caller that bounds the queue would rather hear at once that it is full than wait at its end",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a := t.writer(1, "k").named("a").bounded(1).join()
			b := t.writer(2, "k").named("b").bounded(1)
			if full := b.full(); full.Waiting != 1 {
				t.Errorf("%d wait, says %v", 1, full)
			}
			b.mustBe(driver.Lost) // the refusal left nothing
			b.gone()
			b.forget().bounded(2).join()
			c := t.writer(0, "k").named("c").join() // without a bound
			d := t.writer(1, "k").named("d").bounded(2)
			d.full()
			t.waiting(a, b, c)
			h.leave()
			a.awaitHeld(0, b, c)
			d.full()
			a.leave()
			b.awaitHeld(0, c)
			d.bounded(2).join()
			b.leave()
			c.awaitHeld(0, d)
			c.leave()
			d.awaitHeld(0)
			d.leave()
			t.free("k")
		},
	},
	{
		name:  "what is free is granted whatever the bound",
		why:   "a bound is about waiting, and nobody waits for what can be granted at once",
		needs: []need{fifo},
		run: func(t *test) {
			for i := range handles {
				a := t.writer(i, "k").bounded(1)
				if err := a.acquire(true, false); err != nil || a.state != driver.Held {
					t.Fatalf("%s: %v, %v, want it held at once", a.name, a.state, outcome(err))
				}
				a.leave()
			}
			h := t.writer(0, "k").hold()
			a := t.writer(1, "k").bounded(1)
			if err := a.acquire(false, false); !errors.Is(err, driver.ErrHeld) {
				t.Errorf("%s, which does not ask for a place: %v, want a *driver.HeldError", a.name, outcome(err))
			}
			h.leave()
			t.free("k")
		},
	},
	{
		name:  "readers come in whatever the bound",
		why:   "a reader beside readers does not wait, however many they are, and one behind a writer does",
		needs: []need{fifo, shared},
		run: func(t *test) {
			for i := range handles {
				a := t.reader(i, "k").bounded(1)
				if err := a.acquire(true, false); err != nil || a.state != driver.Held {
					t.Fatalf("%s: %v, %v, want it held at once", a.name, a.state, outcome(err))
				}
				defer a.leave()
			}
			w := t.writer(0, "k").bounded(1).join()
			t.reader(1, "k").bounded(1).full()
			t.writer(2, "k").bounded(1).full()
			r := t.reader(1, "k").bounded(2).join()
			w.leave()
			r.awaitHeld(0) // it fits beside the others
			r.leave()
		},
	},
	{
		name:  "a repeat keeps its place in a full queue",
		why:   "who asks again because an answer was lost is no newcomer",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a := t.writer(1, "k").named("a").bounded(1).join()
			place := a.Ticket
			for _, retry := range []bool{false, true} {
				if retry {
					a.forget()
				}
				if err := a.acquire(true, retry); err != nil || a.state != driver.Waiting {
					t.Fatalf("repeated, retry is %v: %v, %v, want its position", retry, a.state, outcome(err))
				}
				if a.Ticket != place {
					t.Errorf("repeated, retry is %v: the place has another ticket", retry)
				}
			}
			b := t.writer(2, "k").named("b").bounded(1)
			if err := b.acquire(true, true); !errors.Is(err, driver.ErrQueueFull) { // the repetition of a request that had no effect
				t.Errorf("%s: %v, want a *driver.QueueFullError", b.name, outcome(err))
			}
			b.mustBe(driver.Lost)
			h.leave()
			a.awaitHeld(0)
			a.leave()
			t.free("k")
		},
	},
	{
		name:  "the dead do not fill a queue",
		why:   "a machine that crashed with many waiters must not keep newcomers out for longer than their places last",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			for range 3 {
				t.writer(1, "k").join().dies()
			}
			a := t.writer(2, "k").named("a").bounded(1)
			t.outlive(driver.WaiterTTL + 300*time.Millisecond) // a store may use a coarse clock
			if err := a.acquire(true, false); err != nil || a.state != driver.Waiting {
				t.Fatalf("%s: %v, %v, want a position", a.name, a.state, outcome(err))
			}
			t.writer(1, "k").bounded(1).full()
			h.leave()
			a.awaitHeld(0)
			a.leave()
			t.free("k")
		},
	},
	{
		name:  "a bounded queue, wanted by many at once",
		why:   "two that look at the same time both see room for one; the bound holds all the same, and whoever was let in is served",
		needs: []need{fifo},
		run: func(t *test) {
			const most, each = 3, 5
			h := t.writer(0, "k").hold()
			stop := t.watchQueue("k", most)
			var many []*seat
			for i := range each * handles {
				s := t.writer(i%handles, "k")
				if t.traits.Shared && i/handles%2 == 1 {
					s = t.reader(i%handles, "k")
				}
				many = append(many, s.named(fmt.Sprintf("number %d", i+1)).bounded(most))
			}
			errs := make([]error, len(many))
			answered := make(chan struct{}) // closed when all are
			var asking, wg sync.WaitGroup
			asking.Add(len(many))
			for i, s := range many {
				wg.Go(func() {
					errs[i] = s.acquire(true, i%2 == 1)
					asking.Done()
					for errs[i] == nil { // the last one may come after the first one's place would have ended
						s.renew()
						select {
						case <-answered:
							return
						case <-time.After(100 * time.Millisecond):
						}
					}
				})
			}
			asking.Wait()
			close(answered)
			wg.Wait()
			var let []*seat
			for i, s := range many {
				switch {
				case errs[i] == nil:
					let = append(let, s)
				case !errors.Is(errs[i], driver.ErrQueueFull):
					t.Errorf("%s: %v, want a position or a *driver.QueueFullError", s.name, errs[i])
				}
			}
			if len(let) != most {
				t.Fatalf("%d of %d were let into a queue of at most %d", len(let), len(many), most)
			}
			t.waiting(let...)
			stop()
			h.leave()
			for len(let) > 0 {
				t.await("one more is served", 0, func() bool {
					t.renew(let...)
					var left []*seat
					for _, s := range let {
						if s.state == driver.Held {
							s.leave()
						} else {
							left = append(left, s)
						}
					}
					served := len(left) < len(let)
					let = left
					return served
				})
			}
			for i, s := range many {
				if errs[i] != nil {
					s.mustBe(driver.Lost)
				}
			}
			t.free("k")
		},
	},
	{
		name:  "a crowd at a bounded queue",
		why:   "places become free and are taken all the time: the bound holds, whoever was let in is served, and nothing is left",
		needs: []need{fifo},
		run: func(t *test) {
			const most, each = 2, 4
			stop := t.watchQueue("k", most)
			var inside, served atomic.Int32
			var wg sync.WaitGroup
			for i := range each * handles {
				wg.Go(func() {
					for range t.rounds(6) {
						s := t.writer(i%handles, "k").bounded(most)
						switch err := s.acquire(true, false); {
						case errors.Is(err, driver.ErrQueueFull):
							time.Sleep(time.Millisecond)
							continue
						case err != nil:
							t.Errorf("%s: %v", s.name, err)
							return
						case s.state == driver.Waiting:
							s.awaitHeld(20 * time.Second)
						}
						if n := inside.Add(1); n != 1 {
							t.Errorf("%d hold at once", n)
						}
						served.Add(1)
						inside.Add(-1)
						s.leave()
					}
				})
			}
			wg.Wait()
			stop()
			if served.Load() == 0 {
				t.Errorf("nobody was served")
			}
			t.free("k")
		},
	},
}

// bounded makes the seat ask for a place in a queue of n waiters at most.
func (s *seat) bounded(n int) *seat {
	s.most = n
	return s
}

// full acquires with Queue, and must be told that the queue is full.
func (s *seat) full() *driver.QueueFullError {
	s.t.Helper()
	err := s.acquire(true, false)
	full, ok := errors.AsType[*driver.QueueFullError](err)
	if !ok {
		s.t.Fatalf("%s: acquire: %v, want a *driver.QueueFullError", s.name, outcome(err))
	}
	if full.Key != s.Key || full.Waiting < s.most || full.Local {
		s.t.Errorf("%s: %+v, want key %q and at least %d in the store", s.name, full, s.Key, s.most)
	}
	return full
}

// watchQueue looks at the key until stop is called, and fails the case if more than most
// wait. It does nothing for a store that cannot be inspected.
func (t *test) watchQueue(key string, most int) (stop func()) {
	in, ok := t.locks[0].(driver.Inspector)
	if !ok {
		return func() {}
	}
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-ended:
				return
			case <-t.ctx.Done():
				return
			case <-time.After(time.Millisecond):
			}
			info, err := in.Inspect(t.ctx, key)
			if n := len(info.Waiters); err == nil && n > most {
				t.Errorf("%d wait in a queue of at most %d", n, most)
				return
			}
		}
	})
	return func() {
		close(ended)
		wg.Wait()
	}
}
