package drivertest

import (
	"fmt"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
)

func repeatCases() []limitCase {
	return []limitCase{
		{
			name: "a repeated request is taken once",
			why:  "a caller that got no answer asks again, and must not pay twice",
			run: func(t *limitTest) {
				for i, l := range fiveOfEach {
					r := limits.Request{
						Takes: []limits.Take{{Key: t.key(fmt.Sprint("k", i)), Limit: l, Cost: 2}, {Key: t.key(fmt.Sprint("l", i)), Limit: fiveOfEach[0], Cost: 1}},
						ID:    driver.NewID(), Keep: time.Hour,
					}
					first := t.take(r)
					if !first.OK || first.Repeated {
						t.Fatalf("%v: %+v", l.Algorithm, first)
					}
					for range 3 {
						d := t.take(r)
						if !d.OK || !d.Repeated || d.At != first.At || d.Wait > first.Wait || d.Limits[0].Remaining != 3 || d.Limits[1].Remaining != 4 {
							t.Errorf("%v, repeated: %+v, at first %+v", l.Algorithm, d, first)
						}
					}
					r.ID = driver.NewID()
					if d := t.take(r); !d.OK || d.Repeated || d.Limits[0].Remaining != 1 {
						t.Errorf("%v, another: %+v", l.Algorithm, d)
					}
					r.ID = driver.NewID()
					if d := t.take(r); d.OK || d.Repeated {
						t.Errorf("%v, a third: %+v", l.Algorithm, d)
					}
				}
			},
		},
		{
			name:  "a repeated request keeps its turn",
			why:   "who is told twice when his turn is must be told the same moment",
			timed: true,
			run: func(t *limitTest) {
				l := leakyBucket(1, time.Second, 5, 0)
				ask := func(id string, at time.Duration) limits.Taken {
					return t.take(limits.Request{Takes: []limits.Take{{Key: "k", Limit: l, Cost: 1}}, Now: origin + at.Microseconds(), ID: id, Keep: time.Minute})
				}
				a, b, c := driver.NewID(), driver.NewID(), driver.NewID()
				ask(a, 0)
				ask(b, 0)
				if d := ask(c, 0); d.Wait != 2*time.Second {
					t.Errorf("%+v", d)
				}
				if d := ask(c, 500*time.Millisecond); !d.Repeated || d.Wait != 1500*time.Millisecond || d.At != origin {
					t.Errorf("half a second later: %+v", d)
				}
				if d := ask(c, 5*time.Second); !d.Repeated || d.Wait != 0 {
					t.Errorf("after its turn: %+v", d)
				}
				if d := ask(b, 0); !d.Repeated || d.Wait != time.Second {
					t.Errorf("another: %+v", d)
				}
			},
		},
		{
			name: "repeated at the same time",
			why:  "the answer may be slow rather than lost, and both attempts be under way",
			run: func(t *limitTest) {
				for i, l := range fiveOfEach {
					id := driver.NewID()
					fresh := t.crowd(12, func(_ int, h limits.Store) (bool, error) {
						d, err := h.Take(t.ctx, limits.Request{
							Takes: []limits.Take{{Key: fmt.Sprint("k", i), Limit: l, Cost: 2}}, ID: id, Keep: time.Hour,
						})
						if err == nil && !d.OK {
							err = fmt.Errorf("refused: %+v", d)
						}
						return !d.Repeated, err
					})
					if left := t.look(fmt.Sprint("k", i), l, 0).Remaining; fresh != 1 || left != 3 {
						t.Errorf("%v: twelve attempts of one request were taken %d times, %d of 5 remain", l.Algorithm, fresh, left)
					}
				}
			},
		},
		{
			name:  "a refusal is not remembered",
			why:   "who was refused and asks again may be allowed meanwhile",
			timed: true,
			run: func(t *limitTest) {
				l := tokenBucket(1, time.Second, 1)
				ask := func(id string, at time.Duration) limits.Taken {
					return t.take(limits.Request{Takes: []limits.Take{{Key: "k", Limit: l, Cost: 1}}, Now: origin + at.Microseconds(), ID: id, Keep: time.Minute})
				}
				ask(driver.NewID(), 0)
				id := driver.NewID()
				if d := ask(id, 0); d.OK || d.Repeated {
					t.Errorf("%+v", d)
				}
				if d := ask(id, time.Second); !d.OK || d.Repeated {
					t.Errorf("a second later: %+v", d)
				}
				if d := ask(id, time.Second); !d.OK || !d.Repeated {
					t.Errorf("repeated: %+v", d)
				}
			},
		},
		{
			name: "a refused request may leave out a limit and keep its ID",
			why:  "a limiter leaves out a limit that is only tried and would refuse, and the answer may be lost then, too",
			run: func(t *limitTest) {
				for i, l := range fiveOfEach {
					tried, kept := limits.Take{Key: t.key(fmt.Sprint("k", i)), Limit: l, Cost: 6}, limits.Take{Key: t.key(fmt.Sprint("l", i)), Limit: l, Cost: 2}
					r := limits.Request{Takes: []limits.Take{tried, kept}, ID: driver.NewID(), Keep: time.Hour}
					if d := t.take(r); d.OK || d.Repeated || d.Limits[0].OK || !d.Limits[1].OK || d.Limits[1].Remaining != 5 {
						t.Errorf("%v: %+v", l.Algorithm, d)
					}
					r.Takes = []limits.Take{kept}
					for repeated := range 3 {
						if d := t.take(r); !d.OK || d.Repeated != (repeated > 0) || d.Limits[0].Remaining != 3 {
							t.Errorf("%v, without the limit that refused: %+v", l.Algorithm, d)
						}
					}
					if d := t.look(tried.Key, l, 0); d.Remaining != 5 {
						t.Errorf("%v, the limit that refused: %+v", l.Algorithm, d)
					}
				}
			},
		},
		{
			name: "an ID belongs to its key",
			why:  "two callers who happen upon one ID must not pay for each other",
			run: func(t *limitTest) {
				id := driver.NewID()
				for i := range 3 {
					d := t.take(limits.Request{Takes: []limits.Take{{Key: fmt.Sprint("k", i), Limit: fiveOfEach[0], Cost: 2}}, ID: id, Keep: time.Hour})
					if !d.OK || d.Repeated || d.Limits[0].Remaining != 3 {
						t.Errorf("%+v", d)
					}
				}
			},
		},
		{
			name:  "a debt is charged once",
			why:   "settling what a request cost is repeated like any other request",
			timed: true,
			run: func(t *limitTest) {
				l := tokenBucket(1, time.Second, 10)
				r := limits.Request{Takes: []limits.Take{{Key: "k", Limit: l, Cost: 12}}, Mode: limits.TakeAnyway, Now: origin, ID: driver.NewID(), Keep: time.Minute}
				first := t.take(r)
				if d := t.take(r); !d.OK || !d.Repeated || d.Limits[0].Reset != first.Limits[0].Reset || d.Limits[0].Reset != 12*time.Second {
					t.Errorf("%+v, at first %+v", d, first)
				}
			},
		},
		{
			name: "an ID is forgotten in time",
			why:  "a store that remembers every request for ever fills up; one that forgets too early charges twice",
			run: func(t *limitTest) {
				r := limits.Request{Takes: []limits.Take{{Key: "k", Limit: fiveOfEach[0], Cost: 1}}, ID: driver.NewID(), Keep: 2 * time.Second}
				sent := time.Now()
				t.take(r)
				if d := t.take(r); !d.Repeated && time.Since(sent) < 2*time.Second {
					t.Errorf("at once: %+v", d)
				}
				t.pass(2*time.Second + 10*time.Millisecond)
				if d := t.take(r); !d.OK || d.Repeated {
					t.Errorf("after its time: %+v", d)
				}
			},
		},
	}
}
