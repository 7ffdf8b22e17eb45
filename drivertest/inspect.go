package drivertest

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
)

// inspect looks through another process's handle.
func (t *test) inspect(key string) driver.KeyInfo {
	t.Helper()
	info, err := ability[driver.Inspector](t.locks[2]).Inspect(t.ctx, key)
	if err != nil {
		t.Fatalf("inspect %q: %v", key, err)
	}
	if info.Key != key {
		t.Errorf("inspecting %q showed %q", key, info.Key)
	}
	t.noID(info)
	return info
}

func (t *test) breakKey(key string, ended int, grants ...string) {
	t.Helper()
	n, err := ability[driver.Inspector](t.locks[2]).Break(t.ctx, key, grants...)
	if err != nil || n != ended {
		t.Fatalf("break %q: %d ended, %v, want %d", grants, n, err, ended)
	}
}

// grantOf is the HolderInfo.Grant of what s holds, alone or beside holders with other
// owners.
func (t *test) grantOf(s *seat) string {
	t.Helper()
	info := t.inspect(s.Key)
	i := slices.IndexFunc(info.Holders, func(h driver.HolderInfo) bool { return h.Owner == s.Owner })
	if i < 0 || info.Holders[i].Grant == "" {
		t.Fatalf("%s is shown without a grant: %+v", s.name, info)
	}
	return info.Holders[i].Grant
}

// sameHolders asserts that info shows exactly these holders in this order.
func (t *test) sameHolders(info driver.KeyInfo, want ...*seat) {
	t.Helper()
	if len(info.Holders) != len(want) {
		t.Fatalf("%d holders of %q are shown, want %d: %+v", len(info.Holders), info.Key, len(want), info.Holders)
	}
	for i, s := range want {
		h := info.Holders[i]
		if h.Owner != s.Owner || h.Weight != s.Weight || h.Capacity != s.Capacity || h.Foreign {
			t.Errorf("holder %d is shown as %+v, want %s", i+1, h, s.name)
		}
		if h.Token != 0 && h.Token != s.grant.Token {
			t.Errorf("%s is shown with token %d, has %d", s.name, h.Token, s.grant.Token)
		}
		if h.Remaining <= 0 || h.Remaining > s.ttl {
			t.Errorf("%s is shown to last for another %v of %v", s.name, h.Remaining, s.ttl)
		}
		if h.Age > time.Minute {
			t.Errorf("%s is shown to hold for %v", s.name, h.Age)
		}
	}
}

func (t *test) sameWaiters(info driver.KeyInfo, want ...*seat) {
	t.Helper()
	if len(info.Waiters) != len(want) {
		t.Fatalf("%d waiters for %q are shown, want %d: %+v", len(info.Waiters), info.Key, len(want), info.Waiters)
	}
	for i, s := range want {
		w := info.Waiters[i]
		if w.Owner != s.Owner || w.Weight != s.Weight || w.Capacity != s.Capacity {
			t.Errorf("waiter %d is shown as %+v, want %s", i+1, w, s.name)
		}
		if w.Age > time.Minute {
			t.Errorf("%s is shown to wait for %v", s.name, w.Age)
		}
	}
}

var inspectCases = []testCase{
	{
		name:  "inspect shows holders and waiters in order",
		why:   "people want to see who holds what, and who is next",
		needs: []need{inspector, fifo},
		run: func(t *test) {
			t.sameHolders(t.inspect("k"))
			t.sameWaiters(t.inspect("k"))
			h := t.writer(0, "k").hold()
			t.sameHolders(t.inspect("k"), h)
			a, b, c := t.writer(1, "k").join(), t.writer(2, "k").join(), t.writer(0, "k").join()
			info := t.inspect("k")
			t.sameHolders(info, h)
			t.sameWaiters(info, a, b, c)
			b.leave()
			h.leave()
			a.mustBe(driver.Held)
			info = t.inspect("k")
			t.sameHolders(info, a)
			t.sameWaiters(info, c)
			c.leave()
			a.leave()
			info = t.inspect("k")
			t.sameHolders(info)
			t.sameWaiters(info)
		},
	},
	{
		name:  "inspect does not show the dead",
		why:   "what has ended is gone, whether or not the store has swept it",
		needs: []need{inspector},
		run: func(t *test) {
			a := t.writer(0, "k").crashing().hold()
			b := t.writer(0, "other").crashing().hold()
			t.outlive(b.ttl)
			t.sameHolders(t.inspect("k"))
			t.sameKeys("", nil)
			a.mustBe(driver.Lost)
		},
	},
	{
		name:  "inspect shows owners as they were given",
		why:   "programs publish by them where the leader of an election is found",
		needs: []need{inspector, fifo},
		run: func(t *test) {
			for _, owner := range []string{
				"http://[::1]:8080/a?b=c&d=%20#e",
				` {"addr":"10.0.0.1:80","zone":'a\b'}  `,
				"held ttl=1s baton/1 $1 \\0 ?|*",
				strings.Repeat("é世🏃", 14) + "\u0301",
			} {
				a, b := t.writer(0, "k"), t.writer(1, "k")
				a.Owner, b.Owner = owner, owner
				a.hold()
				b.join()
				info := t.inspect("k")
				t.sameHolders(info, a)
				t.sameWaiters(info, b)
				a.leave()
				b.awaitHeld(0)
				t.sameHolders(t.inspect("k"), b)
				b.leave()
			}
		},
	},
	{
		name:  "inspect shows readers and permits",
		why:   "each holder counts, with what it holds",
		needs: []need{inspector, shared, permits, fifo},
		run: func(t *test) {
			r1, r2 := t.reader(0, "r").hold(), t.reader(1, "r").hold()
			w, r3 := t.writer(2, "r").join(), t.reader(0, "r").join()
			info := t.inspect("r")
			t.sameHolders(info, r1, r2)
			t.sameWaiters(info, w, r3)
			p1, p2 := t.permits(0, "p", 3, 5).hold(), t.permits(1, "p", 2, 5).hold()
			p3 := t.permits(2, "p", 1, 5).join()
			info = t.inspect("p")
			t.sameHolders(info, p1, p2)
			t.sameWaiters(info, p3)
			t.sameKeys("", []string{"r", "p"})
		},
	},
	{
		name:  "inspect shows the reader that a writer became",
		why:   "people must see why readers get in",
		needs: []need{inspector, downgrader, shared},
		run: func(t *test) {
			w := t.writer(0, "k").hold()
			g := t.grantOf(w)
			w.downgrade()
			if now := t.grantOf(w); now != g {
				t.Errorf("the downgrade made another grant of %q: %q", g, now)
			}
			r := t.reader(1, "k").hold()
			t.sameHolders(t.inspect("k"), w, r)
		},
	},
	{
		name:  "list shows what is held or waited for",
		why:   "an operator finds the lock without knowing its name",
		needs: []need{inspector},
		run: func(t *test) {
			t.sameKeys("", nil)
			var seats []*seat
			for _, key := range []string{"a/1", "a/2", "a", "b/1"} {
				seats = append(seats, t.writer(0, key).hold())
			}
			if t.traits.FIFO {
				t.writer(1, "a/1").join()
			}
			t.sameKeys("", []string{"a/1", "a/2", "a", "b/1"})
			t.sameKeys("a/", []string{"a/1", "a/2"})
			t.sameKeys("c", nil)
			seats[1].leave()
			t.sameKeys("a/", []string{"a/1"})

			// The caller may end it early.
			for range ability[driver.Inspector](t.locks[0]).List(t.ctx, "") {
				break
			}
			t.free("a/2")
		},
	},
	{
		name:  "list shows many keys",
		why:   "it reads page by page, and none may fall between two pages",
		needs: []need{inspector},
		run: func(t *test) {
			var want []string
			for i := range 250 {
				key := "many/" + string(rune('a'+i%26)) + driver.NewID()
				t.writer(i%handles, key).hold()
				want = append(want, key)
			}
			t.sameKeys("many/", want)
			t.sameKeys("many/c", slices.DeleteFunc(want, func(k string) bool { return k[5] != 'c' }))
		},
	},
	{
		name:  "break takes the lock away",
		why:   "an operator must be able to end a lock whose holder does not; the holder learns it and cannot come back",
		needs: []need{inspector},
		run: func(t *test) {
			a := t.writer(0, "k").hold()
			t.breakKey("k", 1)
			a.mustBe(driver.Lost)
			b := t.writer(1, "k").hold()
			b.above(a.grant.Token)
			a.gone()
			a.mustBe(driver.Lost)
			b.mustBe(driver.Held)
			b.leave()
			t.breakKey("k", 0)
			t.free("k")
			t.breakKey("never held", 0)
		},
	},
	{
		name:  "break hands over to the next waiter",
		why:   "breaking must not break the queue",
		needs: []need{inspector, fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			a, b := t.writer(1, "k").join(), t.writer(2, "k").join()
			t.breakKey("k", 1)
			h.mustBe(driver.Lost)
			a.awaitHeld(0, b)
			a.above(h.grant.Token)
			h.gone()
			a.leave()
			b.awaitHeld(0)
		},
	},
	{
		name:  "break ends all holders",
		why:   "readers and permits are holders like any other",
		needs: []need{inspector, shared, permits, fifo},
		run: func(t *test) {
			var readers []*seat
			for i := range handles {
				readers = append(readers, t.reader(i, "r").hold())
			}
			w := t.writer(0, "r").join()
			t.breakKey("r", handles)
			for _, r := range readers {
				r.mustBe(driver.Lost)
			}
			w.mustBe(driver.Held)
			w.above(readers[handles-1].grant.Token)

			t.permits(0, "p", 1, 3).hold()
			t.permits(1, "p", 2, 3).hold()
			t.breakKey("p", 2)
			t.free("p")
		},
	},
	{
		name:  "break of one grant leaves the next alone",
		why:   "a person has agreed to end what was shown; the next grant of the same owner is another one",
		needs: []need{inspector},
		run: func(t *test) {
			var before []string
			for i := range 3 {
				a := t.writer(0, "k").hold()
				g := t.grantOf(a)
				if slices.Contains(before, g) {
					t.Fatalf("grant %d of one owner is shown as an earlier one", i+1)
				}
				a.mustBe(driver.Held) // what a renewal writes
				if again := t.grantOf(a); again != g {
					t.Errorf("renewal made another grant of %q: %q", g, again)
				}
				if len(before) > 0 {
					t.breakKey("k", 0, before...)
					a.mustBe(driver.Held)
				}
				before = append(before, g)
				a.leave()
			}
			a := t.writer(0, "k").hold()
			for _, none := range []string{"", "\x00", "\xff", "*", "%", "');", "a\nb", strings.Repeat("g", 5000)} { // such texts come from people and programs
				t.breakKey("k", 0, none)
			}
			a.mustBe(driver.Held)
			t.breakKey("k", 1, before[0], t.grantOf(a))
			a.mustBe(driver.Lost)
			t.free("k")
		},
	},
	{
		name:  "break of one grant leaves other holders",
		why:   "each holder beside others is a grant of its own",
		needs: []need{inspector, shared},
		run: func(t *test) {
			a, b := t.reader(0, "k").hold(), t.reader(1, "k").hold()
			t.breakKey("k", 1, t.grantOf(a))
			a.mustBe(driver.Lost)
			b.mustBe(driver.Held)
			t.sameHolders(t.inspect("k"), b)
			t.breakKey("k", 1, t.grantOf(b))
			t.free("k")
		},
	},
	{
		name:  "break of one grant hands over what it has ended",
		why:   "the waiters that now fit must not wait for the next request",
		needs: []need{inspector, shared, fifo},
		run: func(t *test) {
			h := t.writer(0, "k").hold()
			g := t.grantOf(h)
			a, b := t.writer(1, "k").join(), t.writer(2, "k").join()
			t.breakKey("k", 1, g)
			a.awaitHeld(0, b)
			t.breakKey("k", 0, g)
			t.held(a)
			t.waiting(b)
			a.leave()
			b.awaitHeld(0)
		},
	},
	{
		name:  "break of one grant racing with the next",
		why:   "whether it is the grant that was shown is decided where it ends: the holder may release just then",
		needs: []need{inspector},
		run: func(t *test) {
			for i := range t.rounds(30) {
				a, b := t.writer(0, "k").hold(), t.writer(0, "k")
				g := t.grantOf(a)
				queued := t.traits.FIFO && i%2 == 1
				if queued {
					b.join()
				}
				var wg sync.WaitGroup
				wg.Go(func() {
					if n, err := ability[driver.Inspector](t.locks[2]).Break(t.ctx, "k", g); err != nil || n > 1 {
						t.Errorf("round %d: break: %d ended, %v", i, n, err)
					}
				})
				if i%3 > 0 {
					time.Sleep(rand.N(time.Millisecond)) // the break may come at any moment
				}
				if err := a.release(); err != nil && !errors.Is(err, driver.ErrLost) {
					t.Errorf("round %d: release: %v", i, err)
				}
				if !queued {
					if err := b.acquire(false, false); err != nil {
						t.Errorf("round %d: acquire: %v, want it granted", i, err)
					}
				}
				wg.Wait()
				if t.Failed() {
					return
				}
				if queued {
					b.awaitHeld(0)
				}
				b.mustBe(driver.Held)
				b.leave()
			}
		},
	},
}
