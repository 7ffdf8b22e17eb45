package drivertest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

var together = method[driver.Together]("AcquireAll")

// acquireAll makes one attempt for all seats of one process.
func (t *test) acquireAll(retry bool, seats ...*seat) error {
	var r []driver.Request
	for _, s := range seats {
		r = append(r, s.request(false, retry))
	}
	sent := time.Now()
	grants, err := ability[driver.Together](seats[0].l()).AcquireAll(t.ctx, r)
	t.timed("acquiring several", sent)
	switch {
	case err != nil && t.lost(err):
		return t.acquireAll(true, seats...)
	case err != nil:
		return err
	case len(grants) != len(seats):
		t.Fatalf("%d requests were answered with %d grants", len(seats), len(grants))
	}
	for i, s := range seats {
		s.took(driver.Held, grants[i])
		s.stands(sent, driver.Held)
	}
	return nil
}

// writers are seats of one process for the exclusive locks of several keys.
func (t *test) writers(process int, keys ...string) (seats []*seat) {
	for _, key := range keys {
		seats = append(seats, t.writer(process, key))
	}
	return seats
}

// tagged begins the keys of these cases: a Redis Cluster keeps them in one slot.
const tagged = "{t}"

var togetherCases = []testCase{
	{
		name:  "several are granted at once",
		why:   "whoever needs several locks gets them in one act, each like any other",
		needs: []need{together},
		run: func(t *test) {
			before := t.writer(1, tagged+"b").hold()
			before.leave()
			all := t.writers(0, tagged+"c", tagged+"b", tagged+"a")
			if err := t.acquireAll(false, all...); err != nil {
				t.Fatalf("acquire several: %v", err)
			}
			all[1].above(before.grant.Token)
			t.held(all...)
			for _, s := range all {
				t.writer(1, s.Key).refused()
			}
			for _, s := range all {
				s.leave()
				t.free(s.Key)
			}
		},
	},
	{
		name:  "several or none",
		why:   "what a refused attempt leaves would be held by nobody, for its whole TTL",
		needs: []need{together, fifo},
		run: func(t *test) {
			keys := []string{tagged + "a", tagged + "b", tagged + "c"}
			for _, key := range keys {
				h := t.writer(1, key).hold()
				w := t.writer(2, key).join()
				all := t.writers(0, keys...)
				err := t.acquireAll(false, all...)
				held, ok := errors.AsType[*driver.HeldError](err)
				if !ok || held.Key != key {
					t.Fatalf("%s is held: %v, want a *driver.HeldError that names it", key, outcome(err))
				}
				t.noID(held)
				for _, other := range keys {
					if other != key {
						t.free(other)
					}
				}
				t.held(h)
				t.waiting(w)
				h.leave()
				w.awaitHeld(0)
				if err := t.acquireAll(false, t.writers(0, keys...)...); !errors.Is(err, driver.ErrHeld) {
					t.Errorf("%s was handed over: %v, want driver.ErrHeld", key, outcome(err))
				}
				w.leave()
				for _, s := range all {
					s.gone()
				}
			}
		},
	},
	{
		name:  "a repeated request for several finds itself",
		why:   "after a lost answer the process asks again, and must not be locked out by itself",
		needs: []need{together},
		run: func(t *test) {
			all := t.writers(0, tagged+"a", tagged+"b", tagged+"c")
			if err := t.acquireAll(false, all...); err != nil {
				t.Fatalf("acquire several: %v", err)
			}
			for _, forgets := range []bool{false, true} {
				for _, s := range all {
					if forgets {
						s.forget()
					}
				}
				if err := t.acquireAll(true, all...); err != nil {
					t.Fatalf("repeated: %v", err)
				}
			}
			t.held(all...)
			for _, s := range all {
				s.leave() // one release is enough
				t.free(s.Key)
			}
		},
	},
	{
		name:  "several whose answer was lost can be released",
		why:   "a process that gave up before the answer came cleans up with nothing but the IDs",
		needs: []need{together},
		run: func(t *test) {
			all := t.writers(0, tagged+"a", tagged+"b", tagged+"c")
			if err := t.acquireAll(false, all...); err != nil {
				t.Fatalf("acquire several: %v", err)
			}
			for _, s := range all {
				s.forget().leave()
				t.free(s.Key)
			}
		},
	},
	{
		name:  "several that expired are free",
		why:   "a process that crashed with several locks blocks nobody for longer than their TTL",
		needs: []need{together},
		run: func(t *test) {
			all := t.writers(0, tagged+"a", tagged+"b")
			for _, s := range all {
				s.crashing()
			}
			if err := t.acquireAll(false, all...); err != nil {
				t.Fatalf("acquire several: %v", err)
			}
			t.outlive(t.short())
			t.await("both are free", 0, func() bool {
				return t.acquireAll(false, t.writers(1, tagged+"b", tagged+"a")...) == nil
			})
		},
	},
	{
		name:  "several at once, wanted by many",
		why:   "of those who ask for the same keys in different orders one is served: nobody sees half of another's",
		needs: []need{together},
		run: func(t *test) {
			for round := range 10 {
				won := make(chan []*seat, 2*handles)
				for i := range 2 * handles {
					keys := []string{tagged + "a", tagged + "b"}
					if i%2 == 1 {
						slices.Reverse(keys)
					}
					all := t.writers(i%handles, keys...)
					go func() {
						var r []driver.Request
						for _, s := range all {
							r = append(r, s.request(false, false))
						}
						_, err := ability[driver.Together](all[0].l()).AcquireAll(t.ctx, r)
						if err != nil && !errors.Is(err, driver.ErrHeld) {
							t.Errorf("acquire several: %v", err)
						}
						if err != nil {
							all = nil
						}
						won <- all
					}()
				}
				served := 0
				var winner []*seat
				for range 2 * handles {
					if all := <-won; all != nil {
						winner = all
						served++
					}
				}
				if served != 1 {
					t.Fatalf("round %d: %d were served, want one", round, served)
				}
				t.held(winner...)
				for _, s := range winner {
					s.leave()
				}
			}
		},
	},
	{
		name:  "several do not overtake",
		why:   "who has waited longer comes first, also at the moment when a holder expires",
		needs: []need{together, fifo},
		run: func(t *test) {
			t.writer(1, tagged+"b").crashing().hold()
			w := t.writer(2, tagged+"b").join()
			renewed := time.Now()
			t.await("the waiter is granted", t.short()+driver.RefreshEvery, func() bool {
				if err := t.acquireAll(false, t.writers(0, tagged+"a", tagged+"b")...); !errors.Is(err, driver.ErrHeld) {
					t.Fatalf("beside a holder or a waiter: %v, want driver.ErrHeld", outcome(err))
				}
				if time.Since(renewed) > driver.RefreshEvery/2 {
					renewed = time.Now()
					w.renew()
				}
				return w.state == driver.Held
			})
			w.leave()
			t.free(tagged + "a")
			t.free(tagged + "b")
		},
	},
	{
		name:  "several pass by the dead in line",
		why:   "a process that died while it waited keeps nobody out",
		needs: []need{together, fifo},
		run: func(t *test) {
			t.writer(1, tagged+"b").crashing().hold()
			t.writer(2, tagged+"b").dies().join()
			all := t.writers(0, tagged+"a", tagged+"b")
			t.await("all are granted", t.short()+driver.WaiterTTL+driver.ClaimTTL, func() bool {
				return t.acquireAll(false, all...) == nil
			})
			t.held(all...)
		},
	},
	{
		name:  "a repeat for several that is refused leaves nothing",
		why:   "one of them was lost before the repeat: all or none, whichever attempt they are from",
		needs: []need{together},
		run: func(t *test) {
			for _, lost := range []int{0, 1, 2} {
				all := t.writers(0, tagged+"a", tagged+"b", tagged+"c")
				if err := t.acquireAll(false, all...); err != nil {
					t.Fatalf("acquire several: %v", err)
				}
				all[lost].leave()
				other := t.writer(1, all[lost].Key).hold()
				for _, s := range all {
					s.forget()
				}
				err := t.acquireAll(true, all...)
				if held, ok := errors.AsType[*driver.HeldError](err); !ok || held.Key != other.Key {
					t.Fatalf("repeated: %v, want a *driver.HeldError that names %s", outcome(err), other.Key)
				}
				other.leave()
				for _, s := range all {
					t.free(s.Key)
				}
			}
		},
	},
	{
		name:  "several with what is not a lock",
		why:   "others use the same server: all is refused, and their data stay",
		needs: []need{together, foreign},
		run: func(t *test) {
			t.h.Put(t, tagged+"theirs", t.locks[0])
			for _, keys := range [][]string{{"theirs", "a"}, {"a", "theirs", "b"}, {"a", "b", "theirs"}} {
				for i := range keys {
					keys[i] = tagged + keys[i]
				}
				err := t.acquireAll(false, t.writers(0, keys...)...)
				if e, ok := errors.AsType[*driver.NotLockError](err); !ok || e.Key != tagged+"theirs" {
					t.Fatalf("%q: %v, want a *driver.NotLockError that names theirs", keys, outcome(err))
				}
				t.free(tagged + "a")
				t.free(tagged + "b")
			}
		},
	},
	{
		name:  "several in a random history",
		why:   "what is granted in one act, or one by one, is what the rules of the kinds say, and the same for all",
		needs: []need{together},
		run: func(t *test) {
			for seed := range uint64(3) {
				t.togetherAtRandom(rand.New(rand.NewPCG(seed, 21)))
			}
		},
	},
	{
		name:  "bad requests for several are refused",
		why:   "before anything was done",
		needs: []need{together},
		run: func(t *test) {
			good := t.writer(0, tagged+"a").request(false, false)
			twice, queued, bad := t.writer(0, tagged+"a").request(false, false), t.writer(0, tagged+"b").request(true, false), t.writer(0, tagged+"b").request(false, false)
			bad.TTL = 0
			many := []driver.Request{}
			for i := range check.MaxTogether + 1 {
				many = append(many, t.writer(0, fmt.Sprint(tagged, "many ", i)).request(false, false))
			}
			m := ability[driver.Together](t.locks[0])
			for what, r := range map[string][]driver.Request{
				"none": nil, "a key twice": {good, twice}, "a position": {good, queued}, "no TTL": {good, bad}, "too many": many,
			} {
				_, err := m.AcquireAll(t.ctx, r)
				if _, ok := errors.AsType[*driver.RequestError](err); !ok {
					t.Errorf("%s: %v, want a *driver.RequestError", what, outcome(err))
				}
			}
			if _, err := m.AcquireAll(t.ctx, []driver.Request{good, {}}); err == nil {
				t.Errorf("an empty request was accepted")
			}
			t.free(tagged + "a")
			t.free(tagged + "b")
		},
	},
}

// togetherAtRandom runs a history without waiting and expiry, and compares each answer
// with the holders.
func (t *test) togetherAtRandom(random *rand.Rand) {
	kinds := [][2]int64{{driver.Whole, driver.Whole}}
	if t.traits.Shared {
		kinds = append(kinds, [2]int64{1, driver.Whole}, [2]int64{1, driver.Whole})
	}
	if t.traits.Permits {
		kinds = append(kinds, [2]int64{1, 3}, [2]int64{2, 3}, [2]int64{1, 2})
	}
	keys := []string{tagged + "a", tagged + "b", tagged + "c", tagged + "d"}
	holders := map[string][]*seat{}
	fits := func(s *seat) bool {
		sum := s.Weight
		for _, h := range holders[s.Key] {
			if h.Capacity != s.Capacity {
				return false
			}
			sum += h.Weight
		}
		return sum <= s.Capacity
	}
	var steps []string
	for range 60 {
		if n := random.IntN(len(keys)); random.IntN(5) < 2 && len(holders[keys[n]]) > 0 {
			all := holders[keys[n]]
			i := random.IntN(len(all))
			steps = append(steps, all[i].name+" leaves")
			all[i].leave()
			holders[keys[n]] = slices.Delete(all, i, i+1)
			continue
		}
		process, uniform := random.IntN(handles), random.IntN(2) == 0
		kind := kinds[random.IntN(len(kinds))]
		var all []*seat
		exclusive, fit := true, true
		for _, n := range random.Perm(len(keys))[:1+random.IntN(len(keys))] {
			if !uniform {
				kind = kinds[random.IntN(len(kinds))]
			}
			s := t.seat(process, keys[n], kind[0], kind[1])
			all = append(all, s)
			exclusive = exclusive && s.Exclusive()
			fit = fit && fits(s)
			steps = append(steps, s.name)
		}
		if len(all) == 1 && random.IntN(2) == 0 {
			steps[len(steps)-1] += ", alone"
			if err := all[0].acquire(false, false); (err == nil) != fit {
				t.Fatalf("after %q: %v", steps, outcome(err))
			}
		} else {
			err := t.acquireAll(false, all...)
			held, refused := errors.AsType[*driver.HeldError](err)
			other, mixed := errors.AsType[*driver.CapacityError](err)
			steps = append(steps, fmt.Sprint("all of these: ", outcome(err)))
			switch {
			case !exclusive && errors.Is(err, errors.ErrUnsupported):
				continue
			case (err == nil) != fit || err != nil && !refused && !mixed:
				t.Fatalf("after %q", steps)
			}
			for _, s := range all {
				if (refused && s.Key == held.Key || mixed && s.Key == other.Key) && fits(s) {
					t.Fatalf("%s is not in the way after %q", s.Key, steps)
				}
			}
		}
		if fit {
			for _, s := range all {
				holders[s.Key] = append(holders[s.Key], s)
			}
		}
	}
	for _, all := range holders {
		t.held(all...)
		for _, s := range all {
			s.leave()
		}
	}
	for _, key := range keys {
		t.free(key)
	}
}
