package drivertest

import "github.com/batonhq/baton/driver"

var idempotentCases = []testCase{
	{
		name: "a repeated acquire finds its grant",
		why:  "after a lost answer the process asks again, and must not be locked out by itself",
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			token := a.grant.Token
			if err := a.acquire(false, false); err != nil || a.state != driver.Held {
				t.Fatalf("repeated by the holder: %v, %v", a.state, err)
			}
			for _, queue := range []bool{false, true} {
				if err := a.forget().acquire(queue, true); err != nil || a.state != driver.Held {
					t.Fatalf("repeated after a lost answer: %v, %v", a.state, err)
				}
				if a.grant.Token < token {
					t.Errorf("the token fell from %d to %d", token, a.grant.Token)
				}
				token = a.grant.Token
				t.writer(1, "k").refused()
			}
			a.mustBe(driver.Held)
			a.leave() // one release is enough, however often it was acquired
			a.mustBe(driver.Lost)
			t.writer(1, "k").hold().above(token)
		},
	},
	{
		name: "a lost grant can be released",
		why:  "a process that gave up before the answer came cleans up with nothing but the ID",
		run: func(t *test) {
			a := t.writer(0, "k").hold().forget()
			a.leave()
			a.gone()
			t.free("k")
		},
	},
	{
		name:  "a repeated acquire keeps one place",
		why:   "after a lost answer the process asks again; a second place would be granted to nobody",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a := t.writer(1, "k").named("a").join()
			b := t.writer(2, "k").named("b").join()
			ticket := a.Ticket
			for i := range 4 {
				retry := i < 2
				if retry {
					a.forget()
				}
				if err := a.acquire(true, retry); err != nil || a.state != driver.Waiting {
					t.Fatalf("repeated by a waiter (Retry %v): %v, %v", retry, a.state, err)
				}
				if a.Ticket != ticket {
					t.Errorf("repeated by a waiter (Retry %v): ticket %d became %d", retry, ticket, a.Ticket)
				}
			}
			h.leave()
			a.awaitHeld(0, b)
			a.leave()
			b.awaitHeld(0)
			a.mustBe(driver.Lost)
			a.gone()
			b.leave()
			t.free("k")
		},
	},
	{
		name:  "a repeated acquire finds a grant from the queue",
		why:   "the lock may be handed over while the answer \"waiting\" is lost",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a := t.writer(1, "k").join().forget()
			h.leave()
			if err := a.acquire(true, true); err != nil || a.state != driver.Held {
				t.Fatalf("repeated after the hand-over: %v, %v, want held", a.state, err)
			}
			a.above(h.grant.Token)
			// The short grant of the hand-over is extended to the whole TTL.
			t.outlive(driver.ClaimTTL)
			a.mustBe(driver.Held)
			a.leave()
			t.free("k")
		},
	},
	{
		name:  "a lost place can be given up",
		why:   "a process that gave up before the answer came cleans up with nothing but the ID; else the orphan costs a claim",
		needs: []need{fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a := t.writer(1, "k").join().forget()
			b := t.writer(2, "k").join()
			a.leave()
			a.gone()
			a.mustBe(driver.Lost)
			b.mustBe(driver.Waiting)
			h.leave()
			b.mustBe(driver.Held) // at once: no waiter is before it
		},
	},
	{
		name:  "a retry that finds nothing is a first attempt",
		why:   "the request, not only its answer, may have been lost",
		needs: []need{fifo},
		run: func(t *test) {
			a := t.writer(0, "k")
			if err := a.acquire(false, true); err != nil || a.state != driver.Held {
				t.Fatalf("a free lock: %v, %v", a.state, err)
			}
			b := t.writer(1, "k")
			if err := b.acquire(true, true); err != nil || b.state != driver.Waiting {
				t.Fatalf("a held lock: %v, %v", b.state, err)
			}
			a.leave()
			b.awaitHeld(0)
			b.leave()
			t.free("k")
		},
	},
}
