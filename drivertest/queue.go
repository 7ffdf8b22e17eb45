package drivertest

import (
	"fmt"
	"time"

	"github.com/batonhq/baton/driver"
)

var queueCases = []testCase{
	{
		name:  "first come, first served",
		why:   "waiters of all processes are granted in the order in which they got in line",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			var line []*seat
			for i := range 3 * handles {
				line = append(line, t.writer((i*2)%handles, "k").named(fmt.Sprintf("number %d", i+1)).join())
				if i > 0 && line[i].Ticket <= line[i-1].Ticket {
					t.Errorf("%s has ticket %d, the one before it %d", line[i].name, line[i].Ticket, line[i-1].Ticket)
				}
			}
			for i, s := range line {
				h.leave()
				s.awaitHeld(0, line[i+1:]...)
				s.above(h.grant.Token)
				h = s
			}
			h.leave()
			t.free("k")
		},
	},
	{
		name:  "nobody barges in after a release",
		why:   "a newcomer that is quicker than the one in line would starve it",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a := t.writer(1, "k").join()
			h.leave()
			t.writer(2, "k").refused()
			b := t.writer(2, "k").join()
			a.awaitHeld(0, b)
		},
	},
	{
		name:  "nobody barges in after an expiry",
		why:   "a lock that is free because its holder died belongs to the head of the queue, who may not have looked yet",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a := t.writer(1, "k").join()
			h.crashing().mustBe(driver.Held)
			end := time.Now().Add(h.ttl)
			t.throughout(h.ttl-driver.WaiterTTL/2, a) // if the TTL is longer than a position lives
			t.outlive(time.Until(end))
			t.writer(2, "k").refused()
			a.mustBe(driver.Held)
		},
	},
	{
		name:  "expiry while others wait",
		why:   "a holder that died hands over to nobody: those who wait must get on by themselves",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a, b := t.writer(1, "k").join(), t.writer(2, "k").join()
			h.crashing().mustBe(driver.Held)
			a.awaitHeld(h.ttl, b)
			a.above(h.grant.Token)
			h.mustBe(driver.Lost)
			h.gone()
			a.leave()
			b.awaitHeld(0)
		},
	},
	{
		name:  "a waiter that looks when it is asked to is granted in time",
		why:   "the store knows when the holder ends, and says by Grant.Again when looking is worth while",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a := t.writer(1, "k").join()
			start := time.Now()
			h.crashing().mustBe(driver.Held)
			a.renew() // it learns when to look again
			for a.state == driver.Waiting {
				again := a.grant.Again
				if again == 0 {
					again = driver.RefreshEvery
				}
				time.Sleep(max(again, time.Millisecond))
				a.renew()
			}
			if a.state != driver.Held {
				t.Fatalf("%s: %v, want held", a.name, a.state)
			}
			if waited := time.Since(start); waited > h.ttl+time.Second+t.slack {
				t.Errorf("granted %v after a holder with a TTL of %v died", waited, h.ttl)
			}
		},
	},
	{
		name:  "a grant from the queue lasts after its first renewal",
		why:   "the claim time is for those who died in line; whoever has answered holds like everybody",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a := t.writer(1, "k").join()
			h.leave()
			a.mustBe(driver.Held)
			if a.grant.TTL <= driver.ClaimTTL {
				t.Errorf("%s: confirmed for %v, want %v", a.name, a.grant.TTL, a.ttl)
			}
			b := t.writer(2, "k").join()
			t.throughout(driver.ClaimTTL+200*time.Millisecond, b)
			a.mustBe(driver.Held)
			a.leave()
			b.awaitHeld(0)
		},
	},
	{
		name:  "a place that is refreshed is kept",
		why:   "a wait may be long",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a, b := t.writer(1, "k").join(), t.writer(2, "k").join()
			t.throughout(2*driver.WaiterTTL, a, b)
			h.leave()
			a.awaitHeld(0, b)
			a.leave()
			b.awaitHeld(0)
		},
	},
	{
		name:  "a place that is not refreshed is lost",
		why:   "the queue must not fill with the dead; a process that was only slow gets in line again, at the end",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a, b := t.writer(1, "k").named("a").join().dies(), t.writer(2, "k").named("b").join()
			place := a.Ticket
			t.outlive(driver.WaiterTTL+300*time.Millisecond, b) // a store may use a coarse clock
			a.mustBe(driver.Lost)
			a.gone()
			a.forget().join()
			if a.Ticket <= place {
				t.Errorf("%s: the new ticket %d is not above the lost one, %d", a.name, a.Ticket, place)
			}
			h.leave()
			b.awaitHeld(0, a)
			b.leave()
			a.awaitHeld(0)
		},
	},
	{
		name:  "a crashed waiter costs at most 3 s",
		why:   "the lock is handed to it, or waits for it, for no longer than WaiterTTL and ClaimTTL together",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			t.writer(1, "k").join().dies()
			a := t.writer(2, "k").join()
			h.leave()
			a.awaitHeld(driver.WaiterTTL + driver.ClaimTTL)
			a.leave()
			t.free("k")
		},
	},
	{
		name:  "a row of crashed waiters costs at most 3 s",
		why:   "a machine that died may have had many places in line",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			for range 5 {
				t.writer(1, "k").join().dies()
			}
			a := t.writer(2, "k").join()
			h.leave()
			a.awaitHeld(driver.WaiterTTL + driver.ClaimTTL)
		},
	},
	{
		name:  "a crash with the lock handed over costs the claim time",
		why:   "a waiter may die just when the lock is handed to it",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a, b := t.writer(1, "k").join().dies(), t.writer(2, "k").join()
			h.leave()
			b.awaitHeld(driver.ClaimTTL)
			a.mustBe(driver.Lost)
			a.gone()
			b.above(h.grant.Token)
			b.mustBe(driver.Held)
		},
	},
	{
		name:  "a claim is never longer than the TTL asked for",
		why:   "whoever asks for a short TTL trusts its lock for no longer, and wants others to wait for no longer",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a, b := t.writer(1, "k").crashing().join(), t.writer(2, "k").join()
			h.leave()
			b.awaitHeld(min(a.ttl, driver.ClaimTTL))
			a.mustBe(driver.Lost)
		},
	},
	{
		name:  "a place can be given up",
		why:   "whoever stops waiting must not be handed the lock",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			var line []*seat
			for i := range 4 {
				line = append(line, t.writer(i%handles, "k").named(fmt.Sprintf("number %d", i+1)).join())
			}
			line[1].leave()          // from the middle
			line[0].leave()          // the head
			line[3].forget().leave() // the last, by its ID
			for _, i := range []int{0, 1, 3} {
				line[i].mustBe(driver.Lost)
				line[i].gone()
			}
			line[2].mustBe(driver.Waiting)
			h.leave()
			line[2].mustBe(driver.Held) // at once: no waiter is before it
			line[2].leave()
			t.free("k")
		},
	},
	{
		name:  "giving up a granted place hands over",
		why:   "the grant may already have been made when its owner stops waiting without knowing it",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a, b, c := t.writer(1, "k").join(), t.writer(2, "k").join(), t.writer(0, "k").join()
			h.leave()
			a.leave()          // with the ticket of the position
			b.forget().leave() // by its ID
			c.mustBe(driver.Held)
			a.mustBe(driver.Lost)
			b.mustBe(driver.Lost)
			c.leave()
			t.free("k")
		},
	},
	{
		name:  "the last to give up leaves a free lock",
		why:   "a queue that has become empty must not keep newcomers out",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a := t.writer(1, "k").join()
			h.leave()
			a.leave()
			t.free("k")

			h = t.writer(0, "k").hold()
			t.writer(1, "k").join().leave()
			h.leave()
			t.free("k")
		},
	},
}
