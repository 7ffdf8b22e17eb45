package drivertest

import (
	"time"

	"github.com/batonhq/baton/driver"
)

// watchCases watch a hand-over. Of the other cases only one race does: the rest prove that
// polling by Renew is enough.
var watchCases = []testCase{
	{
		name:  "a hand-over is hinted",
		why:   "without hints each hand-over would cost a poll",
		needs: []need{fifo, watcher},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a := t.writer(1, "k")
			hints := a.watch()
			a.join()
			place := a.Ticket
			h.leave()
			grant, told := a.awaitHint(hints)
			a.mustBe(driver.Held)
			if told && (grant.Token < place || grant.Token != a.grant.Token || grant.TTL <= 0 || grant.TTL > driver.ClaimTTL) {
				t.Errorf("the hint says %+v, want token %d above ticket %d for at most %v", grant, a.grant.Token, place, driver.ClaimTTL)
			}
		},
	},
	{
		name:  "giving up a granted place is hinted",
		why:   "the next waiter is granted by whoever gives up; nobody else will tell it",
		needs: []need{fifo, watcher},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a, b := t.writer(1, "k").join(), t.writer(2, "k")
			hints := b.watch()
			b.join()
			h.leave()
			a.leave()
			b.awaitHint(hints)
			b.awaitHeld(0)
		},
	},
	{
		name:  "a downgrade is hinted",
		why:   "the readers that it lets in have no other way to know",
		needs: []need{fifo, shared, watcher, downgrader},
		run: func(t *test) {
			w, r := t.writer(0, "k").hold(), t.reader(1, "k")
			hints := r.watch()
			r.join()
			w.downgrade()
			r.awaitHint(hints)
			r.awaitHeld(0)
		},
	},
	{
		name:  "nobody is woken after the end of a watch",
		why:   "a hint for a claim that was forgotten goes nowhere and must do no harm",
		needs: []need{fifo, watcher},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			for range 20 { // several watches of one claim, which end in any order
				a := t.writer(1, "k")
				stop1 := ability[driver.Watcher](a.l()).Watch(a.Claim, func(driver.Hint) {})
				stop2 := ability[driver.Watcher](a.l()).Watch(a.Claim, func(driver.Hint) {})
				a.join()
				stop1()
				a.leave()
				stop2()
			}
			b := t.writer(2, "k")
			hints := b.watch()
			b.join()
			h.leave()
			b.awaitHint(hints)
			b.mustBe(driver.Held)
		},
	},
}

// watch starts a watch. It ends with the case.
func (s *seat) watch() <-chan driver.Hint {
	hints := make(chan driver.Hint, 16)
	stop := ability[driver.Watcher](s.l()).Watch(s.Claim, func(h driver.Hint) {
		select {
		case hints <- h:
		default: // the channel is full: spurious hints are legal
		}
	})
	s.t.Cleanup(stop)
	return hints
}

// awaitHint waits for a hint and adopts its grant. A hint without a grant may be
// spurious, so it renews.
func (s *seat) awaitHint(hints <-chan driver.Hint) (g driver.Grant, told bool) {
	s.t.Helper()
	deadline := time.After(driver.ClaimTTL/2 + s.t.slack)
	for {
		select {
		case h := <-hints:
			if h.Granted && h.Grant.Token >= s.Ticket { // else it is about an earlier position
				s.took(driver.Held, h.Grant)
				return h.Grant, true
			}
			if s.renew() == driver.Held {
				return driver.Grant{}, false
			}
		case <-deadline:
			s.t.Fatalf("%s: no hint", s.name)
		}
	}
}
