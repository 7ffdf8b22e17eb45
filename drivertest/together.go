package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/batonhq/baton/driver"
)

var together = method[driver.Together]("AcquireAll")

// acquireAll makes one attempt for all seats, which are of one process.
func (t *test) acquireAll(retry bool, seats ...*seat) error {
	var r []driver.Request
	for _, s := range seats {
		r = append(r, s.request(false, retry))
	}
	sent := time.Now()
	grants, err := seats[0].l().(driver.Together).AcquireAll(t.ctx, r)
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

// writers are those of one process on several keys.
func (t *test) writers(process int, keys ...string) (seats []*seat) {
	for _, key := range keys {
		seats = append(seats, t.writer(process, key))
	}
	return seats
}

var togetherCases = []testCase{
	{
		name:  "several are granted at once",
		why:   "whoever needs several locks gets them in one act, each like any other",
		needs: []need{together},
		run: func(t *test) {
			before := t.writer(1, "b").hold()
			before.leave()
			all := t.writers(0, "c", "b", "a")
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
			keys := []string{"a", "b", "c"}
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
			all := t.writers(0, "a", "b", "c")
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
				s.leave() // one release ends it
				t.free(s.Key)
			}
		},
	},
	{
		name:  "several whose answer was lost can be released",
		why:   "a process that gave up before the answer came cleans up with nothing but the IDs",
		needs: []need{together},
		run: func(t *test) {
			all := t.writers(0, "a", "b", "c")
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
			all := t.writers(0, "a", "b")
			for _, s := range all {
				s.crashing()
			}
			if err := t.acquireAll(false, all...); err != nil {
				t.Fatalf("acquire several: %v", err)
			}
			t.outlive(t.short())
			t.await("both are free", 0, func() bool {
				return t.acquireAll(false, t.writers(1, "b", "a")...) == nil
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
					keys := []string{"a", "b"}
					if i%2 == 1 {
						slices.Reverse(keys)
					}
					all := t.writers(i%handles, keys...)
					go func() {
						var r []driver.Request
						for _, s := range all {
							r = append(r, s.request(false, false))
						}
						_, err := all[0].l().(driver.Together).AcquireAll(t.ctx, r)
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
		name:  "bad requests for several are refused",
		why:   "before anything was done",
		needs: []need{together},
		run: func(t *test) {
			good := t.writer(0, "a").request(false, false)
			twice, queued, bad := t.writer(0, "a").request(false, false), t.writer(0, "b").request(true, false), t.writer(0, "b").request(false, false)
			bad.TTL = 0
			many := []driver.Request{}
			for i := range driver.MaxTogether + 1 {
				many = append(many, t.writer(0, fmt.Sprint("many ", i)).request(false, false))
			}
			m := t.locks[0].(driver.Together)
			for what, r := range map[string][]driver.Request{
				"none": nil, "a key twice": {good, twice}, "a place in line": {good, queued}, "no TTL": {good, bad}, "too many": many,
			} {
				_, err := m.AcquireAll(t.ctx, r)
				if _, ok := errors.AsType[*driver.RequestError](err); !ok {
					t.Errorf("%s: %v, want a *driver.RequestError", what, outcome(err))
				}
			}
			if _, err := m.AcquireAll(t.ctx, []driver.Request{good, {}}); err == nil {
				t.Errorf("an empty request was accepted")
			}
			t.free("a")
			t.free("b")
		},
	},
}
