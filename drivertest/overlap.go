package drivertest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
)

var overlapCases = []testCase{
	{
		name:  "overlapping renewals of a place",
		why:   "who is far away confirms its place before the last answer has come: each is answered, the place is kept, and it leads to one grant",
		needs: []need{fifo},
		run: func(t *test) {
			for i := range t.rounds(10) {
				h := t.writer(i%handles, "k").named(fmt.Sprint("round ", i)).hold()
				a, b := t.writer((i+1)%handles, "k").join(), t.writer((i+2)%handles, "k").join()
				for _, r := range a.overlap(nil) {
					if r.State != driver.Waiting || r.Grant.Ticket != a.Ticket {
						t.Fatalf("%s: in its place with ticket %d: %v", a.name, a.Ticket, r)
					}
				}
				t.waiting(a, b)
				if i%3 == 2 {
					for _, r := range a.overlap(a.leave) {
						if r.State != driver.Waiting && r.State != driver.Lost || r.State == driver.Waiting && r.late {
							t.Fatalf("%s: gives up its place: %v", a.name, r)
						}
					}
					a.mustBe(driver.Lost)
					h.leave()
					b.mustBe(driver.Held) // at once: no waiter is before it
					b.leave()
					t.free("k")
					continue
				}
				var grants []overlapped
				for _, r := range a.overlap(h.leave) {
					switch {
					case r.State == driver.Held:
						grants = append(grants, r)
					case r.State != driver.Waiting || r.late:
						t.Fatalf("%s: is handed the lock: %v", a.name, r)
					}
				}
				a.mustBe(driver.Held)
				t.waiting(b)
				t.writer(i%handles, "k").refused()
				a.above(h.grant.Token)
				// Renewals from now on may repeat the ticket of the position, or no
				// ticket.
				for _, r := range append(grants, a.overlap(nil)...) {
					a.stillHolds(r)
				}
				a.leave()
				b.mustBe(driver.Held)
				b.above(a.grant.Token)
				b.leave()
				t.free("k")
			}
		},
	},
	{
		name: "overlapping renewals of a lock that is held",
		why:  "several renewals are under way where the store is far away: none takes another one's claim for lost, and none brings back what was released",
		run: func(t *test) {
			for i := range t.rounds(10) {
				a := t.writer(i%handles, "k").named(fmt.Sprint("round ", i)).hold()
				answers := a.overlap(nil)
				for _, r := range answers {
					a.stillHolds(r)
				}
				t.held(a)
				t.writer((i+1)%handles, "k").refused()
				racing := a.overlap(a.leave)
				for _, r := range racing {
					if r.State != driver.Lost && (r.State != driver.Held || r.late) {
						t.Fatalf("%s: is released: %v", a.name, r)
					}
				}
				a.mustBe(driver.Lost)
				b := t.writer((i+1)%handles, "k").hold()
				for _, r := range append(answers, racing...) {
					b.above(r.Grant.Token)
				}
				a.mustBe(driver.Lost)
				t.held(b)
				b.leave()
			}
		},
	},
}

// overlapped is the answer to one of several renewals.
type overlapped struct {
	driver.Renewal
	ticket int64 // in the renewal
	late   bool  // sent after the act was done, or after another renewal got its outcome
}

func (r overlapped) String() string {
	return fmt.Sprintf("a renewal with ticket %d, sent late: %v, is answered with %v, %+v, %v", r.ticket, r.late, r.State, r.Grant, r.Err)
}

// overlap renews the claim by several concurrent requests; act, if there is one, runs
// meanwhile. Some requests have older tickets, as if they were sent before the last
// answer arrived.
func (s *seat) overlap(act func()) []overlapped {
	const renewals, spread = 8, 3 * time.Millisecond
	s.t.Helper()
	all := make([]overlapped, renewals)
	before := s.state
	var over atomic.Bool
	var wg sync.WaitGroup
	for i := range all {
		c := s.Claim
		if i%4 == 3 {
			c.Ticket = 0 // sent before the answer to Acquire
		}
		wg.Go(func() {
			time.Sleep(rand.N(spread))
			r := &all[i]
			r.ticket, r.late = c.Ticket, over.Load()
			sent := time.Now()
			r.Renewal = s.l().Renew(s.t.ctx, []driver.Claim{c}, s.ttl)[0]
			s.t.timed(s.name+": renew", sent)
			if r.State != driver.Unknown && r.State != before {
				over.Store(true)
			}
		})
	}
	if act != nil {
		wg.Go(func() {
			time.Sleep(rand.N(spread))
			act()
			over.Store(true)
		})
	}
	wg.Wait()
	if s.t.Failed() {
		s.t.Fatalf("%s: after so many renewals at once: %v", s.name, all)
	}
	return all
}

// stillHolds asserts that an answer is about what s holds. A renewal without a ticket may
// be answered with a higher token.
func (s *seat) stillHolds(r overlapped) {
	s.t.Helper()
	if r.State != driver.Held || r.Grant.Token < s.grant.Token || r.Grant.Token > s.grant.Token && r.ticket != 0 || r.Grant.Ticket == 0 || r.Grant.TTL <= min(driver.ClaimTTL, s.ttl/2) {
		s.t.Fatalf("%s: holds with token %d: %v", s.name, s.grant.Token, r)
	}
}
