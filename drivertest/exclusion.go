package drivertest

import (
	"errors"
	"time"

	"github.com/batonhq/baton/driver"
)

var exclusionCases = []testCase{
	{
		name: "exclusion",
		why:  "two processes must never hold the exclusive lock of one key together",
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			t.writer(1, "k").refused()
			t.writer(0, "k").refused() // from the same process as well
			t.writer(1, "other").hold()
			a.mustBe(driver.Held)
			a.leave()
			t.writer(1, "k").hold()
		},
	},
	{
		name: "a refusal tells who holds",
		why:  "people who are refused want to know by whom and for how long, and nobody may learn an ID",
		run: func(t *test) {
			start := time.Now()
			a := t.writer(0, "k").hold()
			held := t.writer(1, "k").refused()
			age := time.Since(start)
			if held.Owner != a.Owner {
				t.Errorf("owner %q, want %q", held.Owner, a.Owner)
			}
			if held.Remaining <= a.ttl-age-time.Second || held.Remaining > a.ttl {
				t.Errorf("%v remain of %v after %v", held.Remaining, a.ttl, age)
			}
			if held.Age > age+5*time.Millisecond {
				t.Errorf("age %v after %v", held.Age, age)
			}
			if held.Foreign {
				t.Errorf("Baton's own lock is called foreign")
			}
			if !t.traits.FIFO {
				return
			}
			t.writer(1, "k").join()
			t.writer(2, "k").join()
			if held := t.writer(1, "k").refused(); held.Waiting != 0 && held.Waiting != 2 {
				t.Errorf("%d waiting, want 2, or 0 for not known", held.Waiting)
			}
		},
	},
	{
		name: "expiry frees the lock",
		why:  "a crashed holder must not keep the lock for longer than its TTL",
		run: func(t *test) {
			a := t.writer(0, "k").crashing().hold()
			b := t.writer(1, "k")
			t.await("the dead holder's lock is free", a.ttl, func() bool { return b.acquire(false, false) == nil })
			a.mustBe(driver.Lost)
			b.mustBe(driver.Held)
		},
	},
	{
		name: "a grant stands for its whole TTL",
		why:  "the holder trusts the lock until shortly before the end that the store told",
		run: func(t *test) {
			sent := time.Now()
			a := t.writer(0, "k").crashing().hold()
			b := t.writer(1, "k")
			t.await("the dead holder's lock is free", a.ttl, func() bool { return b.acquire(false, false) == nil })
			// Clocks of whole milliseconds may round both ends.
			if stood := time.Since(sent); stood < a.grant.TTL-5*time.Millisecond {
				t.Errorf("granted for %v, and given to another after %v", a.grant.TTL, stood)
			}
		},
	},
	{
		name: "renewal prolongs",
		why:  "work that takes longer than the TTL keeps its lock by renewing it",
		run: func(t *test) {
			ttl := max(time.Second, t.short())
			a := t.writer(0, "k").lasting(ttl).hold()
			a.lasting(t.long()).mustBe(driver.Held)
			if a.grant.TTL <= ttl {
				t.Fatalf("renewed for %v, want %v", a.grant.TTL, a.ttl)
			}
			t.outlive(ttl)
			t.writer(1, "k").refused()
			a.mustBe(driver.Held)
		},
	},
	{
		name: "renewal can shorten",
		why:  "the TTL counts from the renewal: a holder that asks for less must not block others for longer",
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			a.crashing().mustBe(driver.Held)
			b := t.writer(1, "k")
			t.await("the dead holder's lock is free", a.ttl, func() bool { return b.acquire(false, false) == nil })
		},
	},
	{
		name: "renewing the dead does not revive",
		why:  "the store may have given the lock to others, and may be about to: what has ended stays ended",
		run: func(t *test) {
			a := t.writer(0, "k").crashing().hold()
			t.outlive(a.ttl)
			a.lasting(t.long()).mustBe(driver.Lost) // even if no process has looked since
			b := t.writer(1, "k").hold()
			a.mustBe(driver.Lost)
			b.mustBe(driver.Held)

			// The same after a release.
			b.leave()
			b.mustBe(driver.Lost)
			t.free("k")
		},
	},
	{
		name: "only the holder releases and renews",
		why:  "whoever does not know the ID must not be able to end or prolong what belongs to another",
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			thief := t.writer(1, "k")
			thief.Ticket = a.Ticket // tickets are public, IDs are not
			thief.gone()
			thief.mustBe(driver.Lost)
			if d, ok := driver.As[driver.Downgrader](thief.l()); ok {
				if _, err := d.Downgrade(t.ctx, thief.Claim, thief.ttl); !errors.Is(err, driver.ErrLost) {
					t.Errorf("a stranger's downgrade: %v, want driver.ErrLost", outcome(err))
				}
			}
			a.mustBe(driver.Held)
			t.writer(2, "k").refused()
		},
	},
	{
		name: "a stale release touches nobody",
		why:  "a holder that was paused for longer than its TTL releases late; the lock belongs to another by then",
		run: func(t *test) {
			a := t.writer(0, "k").crashing().hold()
			b := t.writer(1, "k")
			t.await("the dead holder's lock is free", a.ttl, func() bool { return b.acquire(false, false) == nil })
			a.gone()
			b.mustBe(driver.Held)
			t.writer(2, "k").refused()
			b.leave()
			b.gone() // the second release of one claim
			c := t.writer(2, "k").hold()
			b.gone()
			c.mustBe(driver.Held)
		},
	},
	{
		name: "one ID on two keys is two claims",
		why:  "a store that looks IDs up without their key would end or confuse the wrong one",
		run: func(t *test) {
			a, b := t.writer(0, "k1"), t.writer(0, "k2")
			b.ID = a.ID
			a.hold()
			b.hold()
			a.leave()
			b.mustBe(driver.Held)
			t.writer(1, "k2").refused()
			a.mustBe(driver.Lost)
		},
	},
}
