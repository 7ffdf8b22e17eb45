package drivertest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
)

// travelling is for claims that every process may ask for again, renew and release.
var travelling = trait("claims that other processes find: Traits.Sessions", func(t driver.Traits) bool { return !t.Sessions })

// at is the same claim in another process, which knows only what the first process asked
// for. The first process is silent from then on, unless the case continues with it.
func (s *seat) at(process int) *seat {
	s.dies()
	to := &seat{Claim: s.Claim, t: s.t, process: process, name: fmt.Sprintf("%s, from process %d", s.name, process), ttl: s.ttl, most: s.most}
	to.Ticket = 0
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.t.seats = append(s.t.seats, to)
	return to
}

// repeat repeats the request of another process, and must find the claim in the state
// want.
func (s *seat) repeat(queue bool, want driver.State) *seat {
	s.t.Helper()
	if err := s.acquire(queue, true); err != nil || s.state != want {
		s.t.Fatalf("%s: repeated (queue %v): %v, %v, want %v", s.name, queue, s.state, outcome(err), want)
	}
	return s
}

var repeatedCases = []testCase{
	{
		name:  "repeated from another process: a grant",
		why:   "a client whose answer was lost asks the next server of a row, which must not lock it out by itself",
		needs: []need{travelling},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			token := a.grant.Token
			for i, queue := range []bool{false, true} {
				b := a.at(1+i).repeat(queue, driver.Held)
				if b.grant.Token < token {
					t.Errorf("the token fell from %d to %d", token, b.grant.Token)
				}
				token = b.grant.Token
				t.writer(2-i, "k").refused()
				b.mustBe(driver.Held)
				a = b
			}
			a.leave()
			next := t.writer(0, "k").hold()
			next.above(token)
			next.leave()
			first := t.writer(0, "free").at(1) // the first request had no effect
			first.repeat(false, driver.Held).leave()
			t.free("free")
			t.free("k")
		},
	},
	{
		name:  "repeated from another process: readers and permits",
		why:   "each counts once, however many processes have asked for it",
		needs: []need{travelling, shared, permits},
		run: func(t *test) {
			r := t.reader(0, "r").hold().at(1).repeat(false, driver.Held)
			other := t.reader(2, "r").hold()
			r.leave()
			other.leave()
			t.free("r") // one release for each

			p := t.permits(0, "p", 2, 3).hold().at(1).repeat(false, driver.Held)
			one := t.permits(2, "p", 1, 3).hold()
			t.permits(2, "p", 1, 3).refused()
			one.at(0).repeat(true, driver.Held).leave()
			p.leave()
			t.free("p")
		},
	},
	{
		name:  "repeated from another process: a place",
		why:   "a client that waits in slices comes to another server each time, and must not go to the end of the queue each time",
		needs: []need{travelling, fifo},
		run: func(t *test) {
			h := t.writer(2, "k").hold()
			a := t.writer(0, "k").named("a").bounded(1).join()
			b := t.writer(2, "k").named("b").join()
			place := a.Ticket
			for i := range 4 {
				t.throughout(driver.WaiterTTL/3, b)
				if a = a.at((i+1)%2).repeat(true, driver.Waiting); a.Ticket != place {
					t.Errorf("%s: ticket %d became %d", a.name, place, a.Ticket)
				}
			}
			t.throughout(driver.WaiterTTL, a, b) // the last process alone keeps it
			h.leave()
			a.awaitHeld(0, b)
			a.above(h.grant.Token)
			a.leave()
			b.awaitHeld(0)
			b.leave()
			t.free("k")
		},
	},
	{
		name:  "repeated from another process: a grant from the queue",
		why:   "the lock may be handed over between two slices of a wait",
		needs: []need{travelling, fifo},
		run: func(t *test) {
			h := t.writer(2, "k").hold()
			a := t.writer(0, "k").join()
			h.leave()
			b := a.at(1).repeat(true, driver.Held)
			b.above(h.grant.Token)
			t.outlive(driver.ClaimTTL) // the short grant was extended to the whole TTL
			b.mustBe(driver.Held)
			b.leave()
			t.free("k")
		},
	},
	{
		name:  "repeated from another process: it outlives the first",
		why:   "the process that asked first may be dead, and nothing that ends with it may end the claim",
		needs: []need{travelling},
		run: func(t *test) {
			a := t.writer(0, "k").crashing().hold()
			b := a.at(1).lasting(t.long()).repeat(false, driver.Held)
			t.outlive(a.ttl)
			b.mustBe(driver.Held)
			t.writer(2, "k").refused()
			b.leave()
			t.free("k")
		},
	},
	{
		name:  "repeated from another process: renewed and released",
		why:   "each call about a claim may come to another server",
		needs: []need{travelling},
		run: func(t *test) {
			a := t.writer(0, "k").lasting(t.short()).dies().hold()
			b := a.at(1)
			b.ttl = t.short()
			b.mustBe(driver.Held)
			for end := time.Now().Add(2 * t.short()); time.Now().Before(end); time.Sleep(t.short() / 10) {
				b.mustBe(driver.Held)
			}
			b.dies()
			a.mustBe(driver.Held) // back in the first process, which knew nothing of it for longer than the TTL
			t.writer(2, "k").refused()
			c := b.at(2)
			c.mustBe(driver.Held)
			c.leave()
			a.mustBe(driver.Lost)
			b.gone()
			t.free("k")
			if !t.traits.FIFO {
				return
			}
			h := t.writer(2, "k").hold()
			w := t.writer(0, "k").join().at(1)
			w.mustBe(driver.Waiting)
			gone := t.writer(0, "k").named("gone").join().at(1)
			next := t.writer(2, "k").named("next").join()
			gone.leave()
			h.leave()
			w.awaitHeld(0, next)
			w.leave()
			next.awaitHeld(0)
			next.leave()
			t.free("k")
		},
	},
	{
		name:  "repeated from another process: a claim that comes back",
		why:   "a process that made a claim may have forgotten it when it comes back, and must not take it for a leftover of its own",
		needs: []need{travelling},
		run: func(t *test) {
			a := t.writer(0, "k").crashing().hold()
			b := a.at(1).lasting(t.long())
			b.mustBe(driver.Held)
			t.outlive(a.ttl) // the first process knew nothing of it for that long
			c := b.at(0)
			c.mustBe(driver.Held)
			for range 3 {
				t.writer(0, "k").refused()
				t.outlive(100 * time.Millisecond) // a process may clean up in the background
				c.mustBe(driver.Held)
				t.writer(2, "k").refused()
			}
			if t.traits.FIFO {
				next := t.writer(0, "k").join()
				t.throughout(100*time.Millisecond, next)
				c.mustBe(driver.Held)
				c.leave()
				next.awaitHeld(0)
				next.above(c.grant.Token)
				next.leave()
			} else {
				c.leave()
			}
			t.free("k")
		},
	},
	{
		name:  "repeated from another process: what has ended",
		why:   "a repetition that comes late, by another way, is a new request: it neither revives a lock nor takes a place that was given up",
		needs: []need{travelling, fifo},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			token := a.grant.Token
			a.leave()
			h := t.writer(2, "k").hold()
			place := t.writer(0, "k").named("place").join()
			before := t.writer(2, "k").named("before").join()
			place.leave()
			for _, s := range []*seat{a, place} {
				late := s.at(1)
				late.mustBe(driver.Lost)
				late.gone()
				switch err := late.acquire(true, true); {
				case errors.Is(err, driver.ErrLost): // the store remembers that it has ended
					continue
				case err != nil || late.state != driver.Waiting:
					t.Fatalf("%s: repeated: %v, %v, want a new position", late.name, late.state, outcome(err))
				case late.Ticket <= before.Ticket || late.Ticket <= token:
					t.Errorf("%s: has an old position, with ticket %d", late.name, late.Ticket)
				}
				late.leave()
			}
			h.mustBe(driver.Held)
			h.leave()
			before.awaitHeld(0)
			before.leave()
			t.free("k")
		},
	},
	{
		name:  "repeated from another process: at the same time",
		why:   "a client that has lost its patience asks the next server while the first is still at it: that is one claim",
		needs: []need{travelling, fifo},
		run: func(t *test) {
			both := func(a, b *seat, want driver.State) {
				t.Helper()
				var wg sync.WaitGroup
				for _, s := range []*seat{a, b} {
					wg.Go(func() {
						if err := s.acquire(true, true); err != nil || s.state != want {
							t.Errorf("%s: %v, %v, want %v", s.name, s.state, outcome(err), want)
						}
					})
				}
				wg.Wait()
			}
			for i := range t.rounds(12) {
				a := t.writer(i%handles, "k")
				b := a.at((i + 1) % handles)
				both(a, b, driver.Held)
				a.leave()
				b.gone()
				t.free("k")

				h := t.writer(i%handles, "k").hold()
				a = t.writer(i%handles, "k")
				b = a.at((i + 1) % handles)
				both(a, b, driver.Waiting)
				if a.Ticket != b.Ticket {
					t.Errorf("round %d: two positions, %d and %d", i, a.Ticket, b.Ticket)
				}
				h.leave()
				b.awaitHeld(0)
				b.leave()
				a.gone()
				t.free("k")
			}
		},
	},
	{
		name:  "repeated from another process: several",
		why:   "the same for locks that are granted together",
		needs: []need{travelling, together},
		run: func(t *test) {
			all := t.writers(0, tagged+"a", tagged+"b", tagged+"c")
			if err := t.acquireAll(false, all...); err != nil {
				t.Fatalf("acquire several: %v", err)
			}
			var again []*seat
			for _, s := range all {
				again = append(again, s.at(1))
			}
			if err := t.acquireAll(true, again...); err != nil {
				t.Fatalf("repeated: %v", err)
			}
			for i, s := range again {
				if s.grant.Token < all[i].grant.Token {
					t.Errorf("%s: the token fell from %d to %d", s.name, all[i].grant.Token, s.grant.Token)
				}
				t.writer(2, s.Key).refused()
			}
			t.held(again...)
			again[0].leave()
			h := t.writer(2, again[0].Key).hold()
			for _, s := range again {
				s.forget()
			}
			if err := t.acquireAll(true, again...); !errors.Is(err, driver.ErrHeld) {
				t.Fatalf("repeated when one of them has gone: %v, want driver.ErrHeld", outcome(err))
			}
			for _, s := range again {
				s.gone()
			}
			h.leave()
			for _, s := range again {
				t.free(s.Key)
			}
		},
	},
}
