package drivertest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
)

var renamer = method[driver.Renamer]("Rename")

// rename changes the owner that the store shows for s. The claim of the seat keeps the
// old owner, like requests that were sent before.
func (s *seat) rename(owner string) error {
	sent := time.Now()
	err := ability[driver.Renamer](s.l()).Rename(s.t.ctx, s.Claim, owner)
	s.t.timed(s.name+": rename", sent)
	if err != nil && s.t.lost(err) {
		return s.rename(owner)
	}
	return err
}

// renamed is rename that must succeed.
func (s *seat) renamed(owner string) {
	s.t.Helper()
	if err := s.rename(owner); err != nil {
		s.t.Fatalf("%s: rename: %v", s.name, err)
	}
}

// unrenamed is rename of what does not hold, which must fail.
func (s *seat) unrenamed() {
	s.t.Helper()
	if err := s.rename("nobody"); !errors.Is(err, driver.ErrLost) {
		s.t.Errorf("%s: rename: %v, want driver.ErrLost", s.name, outcome(err))
	}
}

// owners asserts which holders of key the store shows, in this order.
func (t *test) owners(key string, want ...string) {
	t.Helper()
	var got []string
	for _, h := range t.inspect(key).Holders {
		got = append(got, h.Owner)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("the holders of %q are shown as %q, want %q", key, got, want)
	}
}

var renameCases = []testCase{
	{
		name:  "a rename shows the new owner",
		why:   "programs publish in it what they learn while they hold the lock, such as the address of a leader",
		needs: []need{renamer, inspector},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			for _, owner := range []string{
				"later", "later", "http://[::1]:8080/a?b=c&d=%20#e", ` {"addr":"10.0.0.1:80","zone":'a\b'}  `,
				"held ttl=1s baton/1 $1 \\0 ?|*", strings.Repeat("é世🏃", 14) + "\u0301", strings.Repeat("x", 128), "", "z",
			} {
				a.renamed(owner)
				t.owners("k", owner)
				held := t.writer(1, "k").refused()
				if held.Owner != owner {
					t.Errorf("a refusal names %q, want %q", held.Owner, owner)
				}
			}
			for _, h := range t.inspect("k").Holders {
				if h.Weight != driver.Whole || h.Token != 0 && h.Token != a.grant.Token || h.Foreign {
					t.Errorf("renamed, the holder is shown as %+v", h)
				}
			}
			a.mustBe(driver.Held)
			a.leave()
			t.free("k")
		},
	},
	{
		name:  "later requests do not show the old owner again",
		why:   "a request that was sent before the rename, or that has a claim from before, must not undo it",
		needs: []need{renamer, inspector},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			a.renamed("new")
			a.mustBe(driver.Held) // the claim of its seat has the old owner
			t.owners("k", "new")
			if err := a.acquire(false, true); err != nil {
				t.Fatalf("%s: repeated: %v", a.name, err)
			}
			t.owners("k", "new")
			if err := a.forget().acquire(false, true); err != nil {
				t.Fatalf("%s: repeated, without a ticket: %v", a.name, err)
			}
			t.owners("k", "new")
			a.lasting(t.short()).mustBe(driver.Held)
			t.owners("k", "new")
			a.lasting(t.long()).mustBe(driver.Held)
			t.owners("k", "new")
			a.leave()
			a = t.writer(1, "k").hold() // the next holder has its own name
			t.owners("k", a.Owner)
			a.leave()
			t.free("k")
		},
	},
	{
		name:  "a downgrade keeps the new owner",
		why:   "stores write a lock in another way when it changes its kind",
		needs: []need{renamer, inspector, downgrader, shared},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			a.renamed("writer")
			a.downgrade()
			t.owners("k", "writer")
			a.renamed("reader")
			r := t.reader(1, "k").hold()
			a.mustBe(driver.Held)
			t.owners("k", "reader", r.Owner)
			r.leave()
			a.leave()
			t.free("k")
		},
	},
	{
		name:  "a lock that is moved keeps its new owner",
		why:   "the move that the store has executed already may be repeated later",
		needs: []need{renamer, inspector, mover},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			a.renamed("before")
			b := a.bequeath(1)
			t.owners("k", b.Owner)
			a.unrenamed()
			t.owners("k", b.Owner)
			b.renamed("after")
			if err := a.move(b); err != nil {
				t.Fatalf("%s: move, repeated: %v", a.name, err)
			}
			t.owners("k", "after")
			b.leave()
			t.free("k")
		},
	},
	{
		name:  "readers and permits can be renamed",
		why:   "each of several holders has an owner of its own",
		needs: []need{renamer, inspector, shared, permits},
		run: func(t *test) {
			r1, r2, r3 := t.reader(0, "r").hold(), t.reader(1, "r").hold(), t.reader(0, "r").hold()
			r2.renamed("second")
			t.owners("r", r1.Owner, "second", r3.Owner)
			r1.renamed("first")
			t.held(r1, r2, r3)
			t.owners("r", "first", "second", r3.Owner)
			r1.leave()
			t.owners("r", "second", r3.Owner)
			r2.leave()
			r3.leave()
			t.free("r")

			p1, p2 := t.permits(0, "p", 2, 5).hold(), t.permits(1, "p", 2, 5).hold()
			p2.renamed("second")
			t.held(p1, p2)
			t.owners("p", p1.Owner, "second")
			t.permits(2, "p", 2, 5).refused()
			one := t.permits(2, "p", 1, 5).hold()
			one.renamed("third")
			t.owners("p", p1.Owner, "second", "third")
			for _, s := range []*seat{p1, p2, one} {
				s.leave()
			}
			t.free("p")
		},
	},
	{
		name:  "readers can be renamed where there are no permits",
		why:   "a store may have the one without the other",
		needs: []need{renamer, inspector, shared},
		run: func(t *test) {
			r1, r2 := t.reader(0, "r").hold(), t.reader(1, "r").hold()
			r2.renamed("second")
			t.held(r1, r2)
			if info := t.inspect("r"); len(info.Holders) != 2 || !slices.ContainsFunc(info.Holders, func(h driver.HolderInfo) bool { return h.Owner == "second" }) ||
				!slices.ContainsFunc(info.Holders, func(h driver.HolderInfo) bool { return h.Owner == r1.Owner }) {
				t.Errorf("the readers are shown as %+v", info.Holders)
			}
			t.writer(2, "r").refused()
			r1.leave()
			r2.leave()
			t.free("r")
		},
	},
	{
		name:  "a hand-over can be renamed",
		why:   "stores keep what came out of the queue in another place than what was free, and its process may know it by its position alone",
		needs: []need{renamer, inspector, fifo},
		run: func(t *test) {
			for _, key := range []string{"unasked", "held"} {
				h := t.writer(0, key).hold()
				a, next := t.writer(1, key).join(), t.writer(2, key).named("next").join()
				h.leave()
				if key == "held" {
					a.awaitHeld(0, next)
				}
				t.await(a.name+" is renamed", 0, func() bool {
					err := a.rename("new")
					if err != nil && !errors.Is(err, driver.ErrLost) { // some stores grant it only when it is asked
						t.Fatalf("%s: rename: %v", a.name, err)
					}
					t.renew(next)
					if key == "unasked" && err != nil {
						t.renew(a)
					}
					return err == nil
				})
				t.owners(key, "new")
				a.mustBe(driver.Held)
				t.waiting(next)
				t.outlive(driver.ClaimTTL, next)
				a.mustBe(driver.Held)
				t.owners(key, "new")
				a.leave()
				next.awaitHeld(0)
				t.owners(key, next.Owner)
				next.leave()
				t.free(key)
			}
		},
	},
	{
		name:  "a rename disturbs no waiter",
		why:   "it is no release: those in the queue go on waiting, in their order",
		needs: []need{renamer, inspector, fifo},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			first, second := t.writer(1, "k").named("first").join(), t.writer(2, "k").named("second").join()
			for i := range 5 {
				a.renamed(fmt.Sprint("owner ", i))
				t.waiting(first, second)
			}
			info := t.inspect("k")
			t.sameWaiters(info, first, second)
			t.owners("k", "owner 4")
			a.leave()
			first.awaitHeld(0, second)
			t.owners("k", first.Owner)
			first.renamed("renamed")
			first.leave()
			second.awaitHeld(0)
			second.leave()
			t.free("k")
		},
	},
	{
		name:  "a rename after a hand-over or a downgrade disturbs no waiter",
		why:   "waiters may watch what it changes, and take that for a release",
		needs: []need{renamer, inspector, fifo, downgrader, shared},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a := t.writer(1, "k").join()
			w, r := t.writer(2, "k").named("next").join(), t.reader(0, "k").named("last").join()
			h.leave()
			a.awaitHeld(0, w, r)
			a.renamed("writer")
			t.throughout(200*time.Millisecond, w, r)
			t.owners("k", "writer")
			a.downgrade()
			a.renamed("reader")
			t.throughout(200*time.Millisecond, w, r)
			t.owners("k", "reader")
			a.mustBe(driver.Held)
			a.leave()
			w.awaitHeld(0, r)
			w.leave()
			r.awaitHeld(0)
			r.leave()
			t.free("k")
		},
	},
	{
		name:  "a rename does not prolong",
		why:   "a holder that calls it is not asked whether it believes in its lease",
		needs: []need{renamer},
		run: func(t *test) {
			a := t.writer(0, "k").crashing().hold()
			t.await("a lock that is renamed again and again has ended", a.ttl, func() bool {
				return errors.Is(a.rename("new"), driver.ErrLost)
			})
			a.mustBe(driver.Lost)
			t.free("k")
		},
	},
	{
		name:  "a rename does not shorten",
		why:   "the end of the lock stays as it is",
		needs: []need{renamer},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			a.renamed("new")
			t.outlive(max(t.short(), driver.WaiterTTL))
			t.writer(1, "k").refused()
			a.mustBe(driver.Held)
			a.leave()
			t.free("k")
		},
	},
	{
		name:  "only a holder is renamed",
		why:   "a claim that has ended, or never was, must not change what others hold",
		needs: []need{renamer, inspector},
		run: func(t *test) {
			never := t.writer(0, "k")
			never.unrenamed()
			t.free("k")
			dead := t.writer(0, "k").crashing().hold()
			t.outlive(dead.ttl)
			dead.unrenamed()
			t.owners("k")
			left := t.writer(1, "k").hold()
			left.leave()
			left.unrenamed()
			h := t.writer(0, "k").hold()
			stranger := t.writer(1, "k")
			stranger.Ticket = h.Ticket // the ticket is public
			for _, s := range []*seat{never, dead, left, stranger, t.writer(0, "k"), t.writer(0, "other")} {
				s.unrenamed()
			}
			t.owners("k", h.Owner)
			t.breakKey("k", 1)
			h.unrenamed()
			t.owners("k")
			t.free("k")
			t.free("other")
		},
	},
	{
		name:  "a waiter is not renamed",
		why:   "its owner is shown when it holds, and a rename of what it does not hold yet is refused",
		needs: []need{renamer, inspector, fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			w := t.writer(1, "k").join()
			w.unrenamed()
			info := t.inspect("k")
			t.sameHolders(info, h)
			t.sameWaiters(info, w)
			h.leave()
			w.awaitHeld(0)
			t.owners("k", w.Owner)
			w.leave()
			t.free("k")
		},
	},
	{
		name:  "a rename is not undone by renewals",
		why:   "several are under way where the store is far away, with claims from before, and some write to the store",
		needs: []need{renamer, inspector},
		run: func(t *test) {
			for i := range t.rounds(10) {
				a := t.writer(i%handles, "k").named(fmt.Sprint("round ", i)).hold()
				for _, r := range a.overlap(func() { a.renamed("new") }) {
					a.stillHolds(r)
				}
				a.mustBe(driver.Held)
				t.owners("k", "new")
				a.leave()
				t.free("k")
			}
		},
	},
	{
		name:  "a rename is not undone by the first renewals of a hand-over",
		why:   "stores write a claim when its process first says that it knows of the grant",
		needs: []need{renamer, inspector, fifo},
		run: func(t *test) {
			for i := range t.rounds(10) {
				h := t.writer(i%handles, "k").named(fmt.Sprint("round ", i)).hold()
				a := t.writer((i+1)%handles, "k").join()
				next := t.writer((i+2)%handles, "k").named("next").join()
				h.leave()
				a.overlap(func() {
					// Some stores grant only when they are asked.
					for errors.Is(a.rename("new"), driver.ErrLost) && t.ctx.Err() == nil {
						time.Sleep(time.Millisecond)
					}
				})
				a.mustBe(driver.Held)
				t.owners("k", "new")
				a.lasting(t.short()).mustBe(driver.Held)
				a.lasting(t.long()).mustBe(driver.Held)
				t.waiting(next)
				t.owners("k", "new")
				a.leave()
				next.awaitHeld(0)
				next.leave()
				t.free("k")
			}
		},
	},
	{
		name:  "a rename brings nothing back",
		why:   "one that is under way when the lock is released must not leave a holder behind",
		needs: []need{renamer, inspector},
		run: func(t *test) {
			for i := range t.rounds(10) {
				a := t.writer(i%handles, "k").named(fmt.Sprint("round ", i)).hold()
				b := t.writer((i+1)%handles, "k")
				var wg sync.WaitGroup
				for range 4 {
					c := a.Claim
					wg.Go(func() {
						time.Sleep(rand.N(3 * time.Millisecond))
						sent := time.Now()
						if err := ability[driver.Renamer](a.l()).Rename(t.ctx, c, "new"); err != nil && !errors.Is(err, driver.ErrLost) {
							t.Errorf("%s: rename: %v", a.name, err)
						}
						t.timed(a.name+": rename", sent)
					})
				}
				time.Sleep(rand.N(3 * time.Millisecond))
				a.leave()
				b.hold()
				wg.Wait()
				a.mustBe(driver.Lost)
				t.owners("k", b.Owner)
				b.leave()
				t.owners("k")
				t.free("k")
			}
		},
	},
	{
		name:  "bad renames are refused",
		why:   "before anything was changed: people see the owner on a terminal",
		needs: []need{renamer, inspector},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			r := ability[driver.Renamer](a.l())
			for _, owner := range []string{"line\nbreak", "\x1b[2J", "\u202egnp.exe", "a\x00b", "a\tb", "\xff\xfe", strings.Repeat("x", 129)} {
				err := r.Rename(t.ctx, a.Claim, owner)
				if bad, ok := errors.AsType[*driver.RequestError](err); !ok || bad.Field != "owner" {
					t.Errorf("owner %q: %v, want a *driver.RequestError", owner, outcome(err))
				}
			}
			for _, id := range []string{"", "no ID!"} {
				if _, ok := errors.AsType[*driver.RequestError](r.Rename(t.ctx, driver.Claim{Key: "k", ID: id}, "new")); !ok {
					t.Errorf("ID %q: want a *driver.RequestError", id)
				}
			}
			if _, ok := errors.AsType[*driver.KeyError](r.Rename(t.ctx, driver.Claim{ID: a.ID}, "new")); !ok {
				t.Errorf("an empty key: want a *driver.KeyError")
			}
			t.owners("k", a.Owner)
			a.mustBe(driver.Held)
			a.leave()
			t.free("k")
		},
	},
}
