package drivertest

import "github.com/batonhq/baton/driver"

const whyTokens = "whatever happens, a resource that has seen a token must be able to tell that a lower one is late"

// above asserts that s was granted after the grant with the token.
func (s *seat) above(token int64) {
	s.t.Helper()
	if s.t.traits.Fencing && s.grant.Token <= token {
		s.t.Fatalf("%s: granted with token %d after %d", s.name, s.grant.Token, token)
	}
}

var tokenCases = []testCase{
	{
		name:  "tokens rise through release",
		why:   whyTokens,
		needs: []need{fencing},
		run: func(t *test) {
			last := int64(0)
			for i := range 3 * handles {
				s := t.writer(i%handles, "k").hold()
				s.above(last)
				last = s.grant.Token
				s.mustBe(driver.Held) // a renewal does not change it
				s.leave()
			}
		},
	},
	{
		name:  "tokens rise through expiry",
		why:   whyTokens,
		needs: []need{fencing},
		run: func(t *test) {
			last := int64(0)
			for i := range 3 {
				s := t.writer(i, "k").crashing()
				t.await("the dead holder's lock is free", s.ttl, func() bool { return s.acquire(false, false) == nil })
				s.above(last)
				last = s.grant.Token
			}
		},
	},
	{
		name:  "tokens rise through deletion",
		why:   whyTokens + "; an operator's DEL or a sweep of idle keys must not start the count anew",
		needs: []need{fencing, deletion},
		run: func(t *test) {
			for i := range 20 { // advances a count that starts at a small number
				t.writer(i%handles, "k").hold().leave()
			}
			a := t.writer(0, "k").hold()
			t.h.Delete(t, "k", t.locks[1])
			b := t.writer(1, "k").hold()
			b.above(a.grant.Token)
			a.mustBe(driver.Lost)
			a.gone()
			b.leave()
			t.h.Delete(t, "k", t.locks[2])
			t.writer(2, "k").hold().above(b.grant.Token)
		},
	},
	{
		name:  "a deleted lock is lost",
		why:   "a holder whose lock was deleted must learn it, not bring it back beside the next holder",
		needs: []need{deletion},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			t.h.Delete(t, "k", t.locks[1])
			a.mustBe(driver.Lost)
			t.free("k")
		},
	},
	{
		name:  "tokens rise through reconnect",
		why:   whyTokens + "; a cut connection is no reason to lose the lock",
		needs: []need{fencing, reconnect},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			t.reconnect()
			a.mustBe(driver.Held)
			t.writer(1, "k").refused()
			a.leave()
			t.writer(1, "k").hold().above(a.grant.Token)
		},
	},
	{
		name:  "a position survives a reconnect",
		why:   "waiters keep their order, and are granted though the hint was lost with the connection",
		needs: []need{fifo, reconnect},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a, b := t.writer(1, "k").join(), t.writer(2, "k").join()
			t.waiting(a, b)
			t.reconnect()
			t.renew(a, b)
			if t.lapse() != "" && a.state == driver.Lost {
				t.Logf("not concluded: reconnecting took longer than a place lives")
				return
			}
			h.leave()
			a.awaitHeld(0, b)
		},
	},
	{
		name:  "tokens rise through restart",
		why:   whyTokens,
		needs: []need{fencing, restart},
		run: func(t *test) {
			for range 20 {
				t.writer(0, "k").hold().leave()
			}
			a := t.writer(0, "k").hold()
			t.h.Restart(t, t.locks)
			if a.renew() == driver.Held {
				a.leave()
			}
			b := t.writer(1, "k")
			t.await("the lock is free after the restart", 0, func() bool { return b.acquire(false, false) == nil })
			b.above(a.grant.Token)
		},
	},
	{
		name:  "a durable store remembers its grants",
		why:   "a holder goes on trusting its lock while the server restarts",
		needs: []need{durable, restart},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			t.h.Restart(t, t.locks)
			t.writer(1, "k").refused()
			a.mustBe(driver.Held)
			a.leave()
			t.free("k")
		},
	},
	{
		name:  "waiting works after a restart",
		why:   "a store that forgot must not remember half: a queue without the lock that it is for, or the reverse",
		needs: []need{fifo, restart},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			t.writer(1, "k").join().dies() // together with the server
			t.h.Restart(t, t.locks)
			if h.renew() == driver.Held {
				h.leave()
			}
			next := t.writer(2, "k")
			t.await("a newcomer gets in line and is granted", driver.WaiterTTL+driver.ClaimTTL, func() bool {
				if next.state == driver.Waiting {
					return next.renew() == driver.Held
				}
				return next.forget().acquire(true, false) == nil && next.state == driver.Held
			})
			last := t.writer(0, "k").join()
			next.leave()
			last.awaitHeld(0)
		},
	},
}
