package drivertest

import (
	"errors"
	"time"

	"github.com/batonhq/baton/driver"
)

var mover = method[driver.Mover]("Move")

// heir is the seat of another process, to which a case moves the claim of s.
func (s *seat) heir(process int) *seat {
	to := s.t.seat(process, s.Key, s.Weight, s.Capacity)
	to.ttl = s.ttl
	return to
}

// move moves the claim of s to another seat, as the process of that seat would.
func (s *seat) move(to *seat) error {
	sent := time.Now()
	g, err := ability[driver.Mover](to.l()).Move(s.t.ctx, s.Claim, to.ID, to.Owner, to.ttl)
	s.t.timed(to.name+": move", sent)
	if err != nil && s.t.lost(err) {
		return s.move(to)
	}
	if err == nil {
		if g.Waiting {
			s.t.Fatalf("%s: waits after the move", to.name)
		}
		if g.Token != s.grant.Token {
			s.t.Errorf("%s: the move changed the token from %d to %d", to.name, s.grant.Token, g.Token)
		}
		to.took(driver.Held, g)
		to.stands(sent, driver.Held)
		s.stands(sent, driver.Lost)
	}
	return err
}

// bequeath moves the claim of s to a new seat, and must succeed.
func (s *seat) bequeath(process int) *seat {
	s.t.Helper()
	to := s.heir(process)
	if err := s.move(to); err != nil {
		s.t.Fatalf("%s: move: %v", s.name, err)
	}
	return to
}

// unmoved tries to move a claim that does not hold, and must fail.
func (s *seat) unmoved(to *seat) {
	s.t.Helper()
	if err := s.move(to); !errors.Is(err, driver.ErrLost) {
		s.t.Errorf("%s: move: %v, want driver.ErrLost", s.name, outcome(err))
	}
}

var moveCases = []testCase{
	{
		name:  "a lock that is moved goes on",
		why:   "a lease changes its process; what the one before has still under way must change nothing",
		needs: []need{mover},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			b := a.bequeath(1)
			if err := a.release(); !errors.Is(err, driver.ErrLost) {
				t.Fatalf("released by the one before: %v, want driver.ErrLost", outcome(err))
			}
			a.mustBe(driver.Lost)
			b.mustBe(driver.Held)
			t.writer(2, "k").refused()
			c := b.bequeath(2) // and once more
			b.mustBe(driver.Lost)
			c.mustBe(driver.Held)
			c.leave()
			next := t.writer(0, "k").hold()
			next.above(c.grant.Token)
			next.leave()
			t.free("k")
		},
	},
	{
		name:  "a move sets the end",
		why:   "whoever leaves a lock taken for a while says for how long, whatever the TTL was before",
		needs: []need{mover},
		run: func(t *test) {
			ttl := max(time.Second, t.short())
			a := t.writer(0, "k").lasting(ttl).hold()
			b := a.heir(1).lasting(t.long())
			if err := a.move(b); err != nil {
				t.Fatalf("move: %v", err)
			}
			t.outlive(ttl)
			b.mustBe(driver.Held)
			c := b.heir(2).crashing()
			if err := b.move(c); err != nil {
				t.Fatalf("move: %v", err)
			}
			d := t.writer(0, "k")
			t.await("the lock is free", c.ttl, func() bool { return d.acquire(false, false) == nil })
			c.mustBe(driver.Lost)
			d.leave()
			t.free("k")
		},
	},
	{
		name:  "readers and permits can be moved",
		why:   "each of several holders may go on elsewhere, and the others must not notice",
		needs: []need{mover, shared, permits},
		run: func(t *test) {
			r1, r2 := t.reader(0, "r").hold(), t.reader(1, "r").hold()
			r3 := r1.bequeath(2)
			t.held(r2, r3)
			r1.mustBe(driver.Lost)
			t.writer(0, "r").refused()
			r2.leave()
			r3.mustBe(driver.Held)
			r3.leave()
			t.free("r")

			p1, p2 := t.permits(0, "p", 2, 5).hold(), t.permits(1, "p", 2, 5).hold()
			p3 := p1.bequeath(2)
			t.permits(0, "p", 2, 5).refused() // it counts once
			one := t.permits(0, "p", 1, 5).hold()
			t.held(p2, p3, one)
			p3.leave()
			two := t.permits(0, "p", 2, 5).hold()
			for _, s := range []*seat{p2, one, two} {
				s.leave()
			}
			t.free("p")
		},
	},
	{
		name:  "a downgraded lock can be moved",
		why:   "it is a reader that stands where writers do",
		needs: []need{mover, downgrader, shared},
		run: func(t *test) {
			w := t.writer(0, "k").hold()
			w.downgrade()
			r := w.bequeath(1)
			w.mustBe(driver.Lost)
			other := t.reader(2, "k").hold()
			t.held(r, other)
			t.writer(2, "k").refused()
			other.leave()
			r.leave()
			t.free("k")
		},
	},
	{
		name:  "a hand-over can be moved",
		why:   "stores keep what came out of the queue in another place than what was free",
		needs: []need{mover, fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a, next := t.writer(1, "k").join(), t.writer(0, "k").named("next").join()
			h.leave()
			a.awaitHeld(0, next)
			b := a.bequeath(2)
			t.waiting(next)
			a.mustBe(driver.Lost)
			t.outlive(driver.ClaimTTL, next)
			b.mustBe(driver.Held)
			b.leave()
			next.awaitHeld(0)
			next.leave()
			t.free("k")
		},
	},
	{
		name:  "a move lets nobody in",
		why:   "it is no release: those in line go on waiting, in their order",
		needs: []need{mover, fifo},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			first, second := t.writer(1, "k").named("first").join(), t.writer(2, "k").named("second").join()
			b := a.bequeath(2)
			t.waiting(first, second)
			b.leave()
			first.awaitHeld(0, second)
			first.leave()
			second.awaitHeld(0)
			second.leave()
			t.free("k")
		},
	},
	{
		name:  "a lock has one taker",
		why:   "two processes that take up the same lease would both believe that they hold the lock",
		needs: []need{mover},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			b, c := a.heir(1), a.heir(2)
			if err := a.move(b); err != nil {
				t.Fatalf("move: %v", err)
			}
			a.unmoved(c)
			b.mustBe(driver.Held)
			c.mustBe(driver.Lost)
			a.mustBe(driver.Lost)
			b.leave()
			t.free("k")
		},
	},
	{
		name:  "one of a crowd of takers",
		why:   "the same at the same time: whoever looks before it acts lets two of them in",
		needs: []need{mover},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			const takers = 12
			won := make(chan *seat, takers)
			failed := make(chan error, takers)
			for i := range takers {
				to := a.heir(i % handles)
				go func() {
					_, err := ability[driver.Mover](to.l()).Move(t.ctx, a.Claim, to.ID, to.Owner, to.ttl)
					if err == nil {
						won <- to
					}
					failed <- err
				}()
			}
			n := 0
			for range takers {
				switch err := <-failed; {
				case err == nil:
					n++
				case !errors.Is(err, driver.ErrLost):
					t.Errorf("move: %v, want driver.ErrLost", err)
				}
			}
			if n != 1 {
				t.Fatalf("%d takers, want one", n)
			}
			b := <-won
			b.mustBe(driver.Held)
			b.leave()
			t.free("k")
		},
	},
	{
		name:  "a repeated move finds itself",
		why:   "after a lost answer the process asks again, and must not be told that the lock is gone",
		needs: []need{mover},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			b := a.bequeath(1)
			for range 2 {
				if err := a.move(b); err != nil {
					t.Fatalf("repeated: %v", err)
				}
			}
			b.mustBe(driver.Held)
			t.writer(2, "k").refused()
			b.forget().leave() // one release ends it, even though the answers were lost
			b.mustBe(driver.Lost)
			b.unmoved(b)
			a.unmoved(b)
			t.free("k")
		},
	},
	{
		name:  "only a holder is moved",
		why:   "a claim that has ended, waits, or never was must not come to hold by the way",
		needs: []need{mover, fifo},
		run: func(t *test) {
			never := t.writer(0, "k")
			never.unmoved(never.heir(1))
			t.free("k")
			dead := t.writer(0, "k").crashing().hold()
			t.outlive(dead.ttl)
			dead.unmoved(dead.heir(1))
			h := t.writer(0, "k").hold()
			dead.unmoved(dead.heir(1))
			waiter := t.writer(1, "k").join()
			waiter.unmoved(waiter.heir(2))
			waiter.mustBe(driver.Waiting)
			h.mustBe(driver.Held)
			h.leave()
			waiter.awaitHeld(0)
			waiter.leave()
			t.free("k")
		},
	},
	{
		name:  "a move gives the time that it says",
		why:   "the new holder trusts its own TTL from now on, not that of the one before",
		needs: []need{mover},
		run: func(t *test) {
			a := t.writer(0, "long").lasting(t.short()).dies().hold()
			long := a.heir(1).lasting(t.long())
			if err := a.move(long); err != nil {
				t.Fatalf("move: %v", err)
			}
			b := t.writer(0, "short").hold()
			short := b.heir(1).crashing()
			if err := b.move(short); err != nil {
				t.Fatalf("move: %v", err)
			}
			t.outlive(t.short())
			long.mustBe(driver.Held)
			long.leave()
			t.free("long")
			t.await("the lock that was moved for a short time is free", 0, func() bool {
				return t.writer(2, "short").acquire(false, false) == nil
			})
		},
	},
	{
		name:  "an attempt that comes late is another grant",
		why:   "a request may be carried out when its claim has ended and the lock was given to another: the token of that time must not come back",
		needs: []need{mover, shared, fencing},
		run: func(t *test) {
			for _, a := range []*seat{t.writer(0, "w").crashing(), t.reader(0, "r").crashing()} {
				if err := a.acquire(false, true); err != nil { // the first attempt is still under way
					t.Fatalf("%s: acquire: %v", a.name, err)
				}
				t.outlive(a.ttl)
				b := t.writer(1, a.Key).hold()
				b.above(a.grant.Token)
				b.leave()

				late := a.at(2)
				if err := late.acquire(false, false); errors.Is(err, driver.ErrLost) {
					continue // the store knows that the claim has ended
				} else if err != nil {
					t.Fatalf("%s: acquire: %v", late.name, err)
				}
				late.dies().above(b.grant.Token)
				if r := a.l().Renew(t.ctx, []driver.Claim{a.Claim}, t.long())[0]; r.State != driver.Lost && r.Grant.Token != late.grant.Token {
					t.Errorf("%s: renewed: %v with token %d; the late attempt was granted %d, and %s before %d", a.name, r.State, r.Grant.Token, late.grant.Token, b.name, b.grant.Token)
				}
				c := a.heir(1)
				g, err := ability[driver.Mover](c.l()).Move(t.ctx, a.Claim, c.ID, c.Owner, t.long())
				switch {
				case errors.Is(err, driver.ErrLost):
					late.leave()
				case err != nil:
					t.Fatalf("%s: move: %v", a.name, err)
				case g.Token != late.grant.Token:
					t.Errorf("%s: moved with token %d; the late attempt was granted %d, and %s before %d", a.name, g.Token, late.grant.Token, b.name, b.grant.Token)
					fallthrough
				default:
					c.took(driver.Held, g)
					c.leave()
				}
				t.free(a.Key)
			}
		},
	},
	{
		name:  "a move shows its new owner",
		why:   "people who ask who holds the lock want to know the process that has it now",
		needs: []need{mover, inspector, shared},
		run: func(t *test) {
			for _, a := range []*seat{t.writer(0, "w").hold(), t.reader(0, "r").hold()} {
				b := a.bequeath(1)
				info, err := ability[driver.Inspector](b.l()).Inspect(t.ctx, a.Key)
				if err != nil || len(info.Holders) != 1 || info.Holders[0].Owner != b.Owner {
					t.Errorf("Inspect: %+v, %v, want one holder, %s", info, err, b.Owner)
				}
				t.noID(info)
				b.leave()
			}
		},
	},
	{
		name:  "bad moves are refused",
		why:   "before anything was changed",
		needs: []need{mover},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			m := ability[driver.Mover](a.l())
			id := t.newID()
			for _, err := range []error{
				moveError(m.Move(t.ctx, a.Claim, "", "owner", a.ttl)),
				moveError(m.Move(t.ctx, a.Claim, "no ID!", "owner", a.ttl)),
				moveError(m.Move(t.ctx, a.Claim, id, "line\nbreak", a.ttl)),
				moveError(m.Move(t.ctx, a.Claim, id, "owner", 0)),
				moveError(m.Move(t.ctx, driver.Claim{Key: "k"}, id, "owner", a.ttl)),
			} {
				if _, ok := errors.AsType[*driver.RequestError](err); !ok {
					t.Errorf("%v, want a *driver.RequestError", outcome(err))
				}
			}
			if _, err := m.Move(t.ctx, driver.Claim{Key: "", ID: id}, id, "owner", a.ttl); err == nil {
				t.Errorf("a key that is empty")
			}
			a.mustBe(driver.Held)
			a.leave()
			t.free("k")
		},
	},
}

func moveError(_ driver.Grant, err error) error { return err }
