package drivertest

import (
	"errors"
	"fmt"

	"github.com/batonhq/baton/driver"
)

var fullCases = []testCase{
	{
		name:  "a store that is full keeps what it has",
		why:   "to renew, to wait on and to release must need no memory, no key and no page that only acquiring needs",
		needs: []need{filling, fifo, shared, permits, downgrader, mover},
		run: func(t *test) {
			w, queued := t.writer(0, "w").hold(), t.writer(1, "w").join()
			r, beside := t.reader(0, "r").hold(), t.reader(1, "r").hold()
			p := t.permits(1, "p", 2, 3).hold()
			d := t.writer(2, "d").hold()
			giveUp := t.writer(2, "w").join()
			empty := t.h.Fill(t, t.locks)
			var full error
			for n := range 500 { // a few may still fit
				s := t.writer(0, fmt.Sprint("new ", n))
				if full = s.acquire(false, false); full != nil {
					break
				}
				s.dies()
			}
			if !errors.Is(full, driver.ErrUnavailable) || errors.Is(full, driver.ErrUnknown) {
				t.Errorf("a new lock in a store that is full: %v, want driver.ErrUnavailable", outcome(full))
			}
			for range 50 {
				t.held(w, r, beside, p, d)
				t.waiting(queued, giveUp)
			}
			giveUp.leave()
			g, err := ability[driver.Downgrader](d.l()).Downgrade(t.ctx, d.Claim, d.ttl)
			if err != nil {
				t.Fatalf("%s: downgrade: %v", d.name, err)
			}
			d.Weight = 1
			d.took(driver.Held, g)
			r2 := r.bequeath(2)
			t.held(w, r2, beside, p, d)
			w.leave()
			queued.awaitHeld(0)
			for _, s := range []*seat{queued, r2, beside, p, d} {
				s.mustBe(driver.Held)
				s.leave()
			}
			empty()
			for _, key := range []string{"w", "r", "p", "d"} {
				t.free(key)
			}
		},
	},
}
