package drivertest

import (
	"errors"
	"time"

	"github.com/batonhq/baton/driver"
)

var sharedCases = []testCase{
	{
		name:  "readers hold together, writers alone",
		why:   "this is what a read-write lock is",
		needs: []need{shared},
		run: func(t *test) {
			r1, r2, r3 := t.reader(0, "k").hold(), t.reader(1, "k").hold(), t.reader(0, "k").hold()
			t.writer(2, "k").refused()
			r2.leave()
			r1.leave()
			t.writer(2, "k").refused()
			r3.mustBe(driver.Held)
			r3.leave()
			w := t.writer(2, "k").hold()
			t.reader(0, "k").refused()
			w.leave()
			t.reader(0, "k").hold()
		},
	},
	{
		name:  "each reader has its own end",
		why:   "one that crashed must neither end the others nor be kept alive by them",
		needs: []need{shared},
		run: func(t *test) {
			dead := t.reader(0, "k").crashing().hold()
			alive := t.reader(1, "k").hold()
			t.outlive(dead.ttl)
			dead.mustBe(driver.Lost)
			dead.gone()
			alive.mustBe(driver.Held)
			t.writer(2, "k").refused()
			alive.leave()
			t.free("k")

			// The other way round: the last one ends first.
			alive = t.reader(1, "k").hold()
			dead = t.reader(0, "k").crashing().hold()
			t.outlive(dead.ttl)
			t.writer(2, "k").refused()
			alive.leave()
			t.free("k")
		},
	},
	{
		name:  "readers that crash leave a free lock",
		why:   "the lock must not be held by a count that nobody lowers",
		needs: []need{shared},
		run: func(t *test) {
			for i := range handles {
				t.reader(i, "k").crashing().hold()
			}
			w := t.writer(0, "k")
			t.await("the dead readers' lock is free", t.short(), func() bool { return w.acquire(false, false) == nil })
			t.reader(1, "k").refused()
		},
	},
	{
		name:  "a repeated acquire of a reader counts once",
		why:   "after a lost answer the process asks again; a second count would never be given back",
		needs: []need{shared},
		run: func(t *test) {
			r := t.reader(0, "k").hold()
			for range 3 {
				if err := r.forget().acquire(true, true); err != nil || r.state != driver.Held {
					t.Fatalf("repeated after a lost answer: %v, %v", r.state, err)
				}
			}
			r.leave()
			r.gone()
			t.free("k")
		},
	},
	{
		name:  "readers behind a waiting writer wait",
		why:   "if they overtook it, a stream of readers would starve it",
		needs: []need{shared, fifo},
		run: func(t *test) {
			r1 := t.reader(0, "k").hold()
			w := t.writer(1, "k").join()
			t.reader(2, "k").refused()
			r2 := t.reader(2, "k").join()
			r1.leave()
			w.awaitHeld(0, r2)
			w.leave()
			r2.awaitHeld(0)
		},
	},
	{
		name:  "readers and writers in strict order",
		why:   "each is granted when all before it have gone; only readers next to each other are granted together",
		needs: []need{shared, fifo},
		run: func(t *test) {
			w1 := t.writer(0, "k").named("w1").hold()
			r1 := t.reader(1, "k").named("r1").join()
			r2 := t.reader(2, "k").named("r2").join()
			w2 := t.writer(0, "k").named("w2").join()
			r3 := t.reader(1, "k").named("r3").join()
			w1.leave()
			t.held(r1, r2)
			t.waiting(w2, r3)
			r2.above(r1.grant.Token)
			r1.leave()
			t.held(r2)
			t.waiting(w2, r3)
			r2.leave()
			w2.awaitHeld(0, r3)
			w2.leave()
			r3.awaitHeld(0)
			r3.leave()
			t.free("k")
		},
	},
	{
		name:  "one who gives up does not let a writer pass a reader",
		why:   "the writer waits for the reader from then on: zkstore took the reader's first renewal for its end",
		needs: []need{fifo, shared},
		run: func(t *test) {
			first := t.writer(0, "k").hold()
			r, between, w := t.reader(0, "k").join(), t.writer(1, "k").join(), t.writer(0, "k").join()
			first.leave()
			between.leave()
			t.waiting(w)
			r.awaitHeld(0, w) // by the first renewal
			t.waiting(w)
			t.held(r)
			t.waiting(w)
			r.leave()
			w.awaitHeld(0)
			w.leave()
			t.free("k")
		},
	},
	{
		name:  "a writer that gives up lets the readers pass",
		why:   "nobody releases then: giving up a place must hand over as well",
		needs: []need{shared, fifo},
		run: func(t *test) {
			r1 := t.reader(0, "k").hold()
			w, r2, r3 := t.writer(1, "k").join(), t.reader(2, "k").join(), t.reader(0, "k").join()
			t.waiting(w, r2, r3)
			w.leave()
			t.held(r1, r2, r3)
		},
	},
	{
		name:  "a writer that crashed in line lets the readers pass",
		why:   "nobody gives up its place then: those behind it must get on by themselves",
		needs: []need{shared, fifo},
		run: func(t *test) {
			r1 := t.reader(0, "k").hold()
			t.writer(1, "k").join().dies()
			r2 := t.reader(2, "k").join()
			r2.awaitHeld(driver.WaiterTTL)
			r1.mustBe(driver.Held)
		},
	},
	{
		name:  "one reader's expiry does not admit a writer",
		why:   "the lock is free when the last of them has gone",
		needs: []need{shared, fifo},
		run: func(t *test) {
			r1 := t.reader(0, "k").hold()
			r2 := t.reader(1, "k").crashing().hold()
			w := t.writer(2, "k").join()
			t.throughout(r2.ttl+100*time.Millisecond, w)
			r1.leave()
			w.awaitHeld(0)
			r2.mustBe(driver.Lost)
		},
	},
}

var permitCases = []testCase{
	{
		name:  "permits up to the capacity",
		why:   "not one more, and not one less",
		needs: []need{permits},
		run: func(t *test) {
			a, b, c := t.permits(0, "k", 3, 10).hold(), t.permits(1, "k", 3, 10).hold(), t.permits(2, "k", 4, 10).hold()
			t.permits(0, "k", 1, 10).refused()
			b.leave()
			t.permits(0, "k", 4, 10).refused()
			d := t.permits(0, "k", 3, 10).hold()
			t.permits(1, "k", 1, 10).refused()
			for _, s := range []*seat{a, c, d} {
				s.mustBe(driver.Held)
				s.leave()
			}
			t.permits(1, "k", 10, 10).hold().leave()
			t.free("k")
		},
	},
	{
		name:  "each permit has its own end",
		why:   "one that crashed must give back its weight, and nobody else's",
		needs: []need{permits},
		run: func(t *test) {
			dead := t.permits(0, "k", 2, 3).crashing().hold()
			alive := t.permits(1, "k", 1, 3).hold()
			next := t.permits(2, "k", 2, 3)
			t.await("the dead permits are free", dead.ttl, func() bool { return next.acquire(false, false) == nil })
			alive.mustBe(driver.Held)
			dead.gone()
			t.permits(0, "k", 1, 3).refused()
		},
	},
	{
		name:  "a permit that comes back too late",
		why:   "who returns one that has expired must not free that of whoever has it now",
		needs: []need{permits},
		run: func(t *test) {
			a, b := t.permits(0, "k", 1, 3).hold(), t.permits(1, "k", 1, 3).hold()
			late := t.permits(2, "k", 1, 3).crashing().hold()
			b.leave()
			d, e := t.permits(2, "k", 1, 3).hold(), t.permits(1, "k", 1, 3)
			t.await("the permit that nobody renewed is free", late.ttl, func() bool { return e.acquire(false, false) == nil })
			late.gone()
			t.permits(0, "k", 1, 3).refused()
			for _, s := range []*seat{a, d, e} {
				s.mustBe(driver.Held)
				s.leave()
			}
			t.free("k")
		},
	},
	{
		name:  "permits are granted in order, together as far as they fit",
		why:   "a release may serve several, and may serve none",
		needs: []need{permits, fifo},
		run: func(t *test) {
			h := t.permits(0, "k", 4, 4).hold()
			a, b, c := t.permits(1, "k", 1, 4).join(), t.permits(2, "k", 3, 4).join(), t.permits(0, "k", 1, 4).join()
			h.leave()
			t.held(a, b)
			t.waiting(c)
			a.leave()
			c.awaitHeld(0)
			b.mustBe(driver.Held)
		},
	},
	{
		name:  "a big request is not starved by small ones",
		why:   "who fits must still not overtake who came first",
		needs: []need{permits, fifo},
		run: func(t *test) {
			a, b := t.permits(0, "k", 2, 4).hold(), t.permits(1, "k", 1, 4).hold()
			big := t.permits(2, "k", 4, 4).join()
			t.permits(0, "k", 1, 4).refused()
			small := t.permits(0, "k", 1, 4).join()
			a.leave()
			t.waiting(big, small)
			b.leave()
			big.awaitHeld(0, small)
			big.leave()
			small.awaitHeld(0)
		},
	},
	{
		name:  "another capacity is an error",
		why:   "programs that disagree about the capacity would together exceed it",
		needs: []need{permits},
		run: func(t *test) {
			a := t.permits(0, "k", 1, 3).hold()
			mismatch := func(s *seat, inUse, asked int64) {
				t.Helper()
				for _, queue := range []bool{false, true} {
					err := s.acquire(queue, false)
					e, ok := errors.AsType[*driver.CapacityError](err)
					if !ok {
						t.Fatalf("%s: acquire: %v, want a *driver.CapacityError", s.name, outcome(err))
					}
					if want := (driver.CapacityError{Key: "k", InUse: inUse, Asked: asked}); *e != want {
						t.Errorf("%s: %+v, want %+v", s.name, *e, want)
					}
				}
			}
			mismatch(t.permits(1, "k", 1, 4), 3, 4)
			mismatch(t.permits(0, "k", 1, 2), 3, 2)
			if t.traits.Shared {
				mismatch(t.reader(1, "k"), 3, driver.Whole)
			}
			b := t.permits(1, "k", 2, 3).hold() // no position is left
			a.leave()
			b.leave()
			c := t.permits(2, "k", 4, 4).hold() // an idle key has no capacity
			c.leave()
			if t.traits.Shared {
				r := t.reader(0, "k").hold()
				mismatch(t.permits(1, "k", 1, 4), driver.Whole, 4)
				r.leave()
			}
			t.free("k")
		},
	},
	{
		name:  "permits and the exclusive lock exclude each other",
		why:   "exclusive means all of it, whatever the capacity",
		needs: []need{permits, fifo},
		run: func(t *test) {
			a := t.permits(0, "k", 1, 3).hold()
			t.writer(1, "k").refused()
			w := t.writer(1, "k").join()
			t.permits(2, "k", 1, 3).refused() // the writer is before it
			a.leave()
			w.awaitHeld(0)
			t.permits(2, "k", 1, 3).refused()
			// While the writer holds, waiters of different capacities join the queue.
			// They are granted one after the other.
			b, c := t.permits(2, "k", 3, 3).join(), t.permits(0, "k", 1, 5).join()
			w.leave()
			b.awaitHeld(0, c)
			b.leave()
			c.awaitHeld(0)
			c.leave()
			t.free("k")
		},
	},
}

// downgrade makes the writer a reader, and asserts that its token stays.
func (s *seat) downgrade() {
	s.t.Helper()
	g, err := ability[driver.Downgrader](s.l()).Downgrade(s.t.ctx, s.Claim, s.ttl)
	if err != nil {
		s.t.Fatalf("%s: downgrade: %v", s.name, err)
	}
	if g.Waiting {
		s.t.Fatalf("%s: waits after its downgrade", s.name)
	}
	if g.Token != s.grant.Token {
		s.t.Errorf("%s: the downgrade changed its token from %d to %d", s.name, s.grant.Token, g.Token)
	}
	s.took(driver.Held, g)
	s.Weight = 1
}

func (s *seat) downgradeLost() {
	s.t.Helper()
	if _, err := ability[driver.Downgrader](s.l()).Downgrade(s.t.ctx, s.Claim, s.ttl); !errors.Is(err, driver.ErrLost) {
		s.t.Errorf("%s: downgrade: %v, want driver.ErrLost", s.name, outcome(err))
	}
}

var downgradeCases = []testCase{
	{
		name:  "downgrade lets readers in",
		why:   "a writer that has written wants others to read what it goes on reading",
		needs: []need{downgrader, shared},
		run: func(t *test) {
			w := t.writer(0, "k").hold()
			w.downgrade()
			t.writer(1, "k").refused()
			r := t.reader(1, "k").hold()
			r.above(w.grant.Token)
			w.mustBe(driver.Held)
			r.leave()
			t.writer(1, "k").refused()
			w.leave()
			w.gone()
			t.free("k")
		},
	},
	{
		name:  "downgrade leaves no gap",
		why:   "a writer that slips in between would change what the reader relies on",
		needs: []need{downgrader, shared, fifo},
		run: func(t *test) {
			w := t.writer(0, "k").named("w").hold()
			next := t.writer(1, "k").named("next").join()
			r := t.reader(2, "k").join()
			w.downgrade()
			t.waiting(next, r) // strict order: the reader is behind the writer
			w.mustBe(driver.Held)
			w.leave()
			next.awaitHeld(0, r)
			w.mustBe(driver.Lost)
		},
	},
	{
		name:  "downgrade grants the readers in line",
		why:   "nobody releases then: the downgrade itself must hand over to those who now fit",
		needs: []need{downgrader, shared, fifo},
		run: func(t *test) {
			w := t.writer(0, "k").hold()
			r1, r2, next := t.reader(1, "k").join(), t.reader(2, "k").join(), t.writer(1, "k").join()
			w.downgrade()
			t.held(r1, r2)
			t.waiting(next)
			r1.leave()
			r2.leave()
			t.waiting(next)
			w.leave()
			next.awaitHeld(0)
		},
	},
	{
		name:  "downgrade is idempotent",
		why:   "after a lost answer the process asks again, still as the writer that it was",
		needs: []need{downgrader, shared},
		run: func(t *test) {
			w := t.writer(0, "k").hold()
			w.downgrade()
			r := t.reader(1, "k").hold()
			w.Weight = driver.Whole
			w.downgrade()
			w.downgrade()
			t.held(w, r)
			w.leave()
			w.mustBe(driver.Lost)
			r.leave()
			t.free("k")
		},
	},
	{
		name:  "a renewal of the writer does not undo its downgrade",
		why:   "one that was sent before may come after it, and redlock asked for the writer again where the lock was missing",
		needs: []need{downgrader, shared},
		run: func(t *test) {
			w := t.writer(0, "k").hold()
			w.downgrade()
			w.Weight = driver.Whole
			w.mustBe(driver.Held)
			r := t.reader(1, "k").hold()
			w.mustBe(driver.Held)
			t.held(r)
			t.reader(2, "k").hold().leave()
			w.Weight = 1
			w.leave()
			t.writer(1, "k").refused()
			r.leave()
			t.free("k")
		},
	},
	{
		name:  "only a holder is downgraded",
		why:   "a claim that has ended or waits must not become a reader by the way",
		needs: []need{downgrader, shared, fifo},
		run: func(t *test) {
			dead := t.writer(0, "k").crashing().hold()
			t.outlive(dead.ttl)
			dead.downgradeLost()
			h := t.writer(1, "k").hold()
			dead.downgradeLost()
			t.writer(2, "k").downgradeLost() // it never acquired
			waiter := t.writer(2, "k").join()
			waiter.downgradeLost()
			t.reader(0, "k").refused()
			h.leave()
			waiter.awaitHeld(0)
			t.reader(0, "k").refused() // a grant is what was asked for
		},
	},
	{
		name:  "a downgraded lock expires and is renewed as before",
		why:   "the reader that the writer became may crash like any other",
		needs: []need{downgrader, shared},
		run: func(t *test) {
			w := t.writer(0, "k").hold()
			w.downgrade()
			w.crashing().mustBe(driver.Held)
			next := t.writer(1, "k")
			t.await("the dead reader's lock is free", w.ttl, func() bool { return next.acquire(false, false) == nil })
			w.mustBe(driver.Lost)
			next.above(w.grant.Token)
		},
	},
}
