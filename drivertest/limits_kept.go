package drivertest

import (
	"fmt"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// keptCases are about what was consumed: it is not changed by other limits on the key,
// looks and refusals.
func keptCases() []limitCase {
	const ms, s = time.Millisecond, time.Second
	request := func(key string, l limits.Limit, cost int64) limits.Request {
		return limits.Request{Takes: []limits.Take{{Key: key, Limit: l, Cost: cost}}, Now: origin}
	}
	return []limitCase{
		{
			name:  "other limits give nothing back",
			why:   "a look, or a refusal, by a limit of another number, period or kind (a monitor, a command, the other half of a deployment) must not make room",
			timed: true,
			run: func(t *limitTest) {
				for i, c := range []struct{ limit, lower, shorter limits.Limit }{
					{fixedWindow(100, time.Hour), fixedWindow(20, time.Hour), fixedWindow(20, s)},
					{slidingWindow(100, time.Hour, 60, false), slidingWindow(20, time.Hour, 60, false), slidingWindow(20, s, 10, true)},
					{slidingWindow(100, time.Hour, 60, true), slidingWindow(20, time.Hour, 60, true), slidingLog(20, s)},
					{slidingLog(100, time.Hour), slidingLog(20, time.Hour), fixedWindow(20, s)},
					{estimated(100, time.Hour), estimated(20, time.Hour), estimated(20, s)},
					{tokenBucket(100, time.Hour, 100), tokenBucket(20, time.Hour, 20), tokenBucket(20, s, 20)},
					{leakyBucket(100, time.Hour, 100, 0), leakyBucket(20, time.Hour, 20, 0), tokenBucket(20, s, 20)},
				} {
					key := fmt.Sprint("k", i)
					allowed := int64(0)
					for range 8 {
						if t.take(request(key, c.limit, 25)).OK {
							allowed += 25
						}
						for _, other := range []limits.Limit{c.lower, c.shorter, fixedWindow(20, s), estimated(20, s), tokenBucket(20, s, 20)} {
							for _, cost := range []int64{0, 20} {
								if d := t.take(request(key, other, cost)); d.Limits[0].Remaining != 0 || d.OK != (cost == 0) {
									t.Errorf("%v of 100 was taken: %d under %+v is answered with %+v", allowed, cost, other, d)
								}
							}
						}
					}
					if left := t.look(key, c.limit, origin).Remaining; allowed != 100 || left != 0 {
						t.Errorf("%+v allowed %d, %d remain", c.limit, allowed, left)
					}
				}
			},
		},
		{
			name:  "one key, several kinds of limits",
			why:   "another way to count is no fresh start, and loses nothing of what was taken under the first",
			timed: true,
			run: func(t *limitTest) {
				all := []limits.Limit{fixedWindow(10, time.Hour), tokenBucket(10, 10*time.Hour, 10), estimated(10, time.Hour), estimated(10, 2*time.Hour), leakyBucket(10, 10*time.Hour, 10, 0)}
				for i, first := range all {
					for j, second := range all {
						if i == j {
							continue
						}
						key := fmt.Sprint("k", i, "-", j)
						t.take(request(key, first, 4))
						if d := t.take(request(key, second, 7)); d.OK || d.Limits[0].Remaining != 6 || d.Retry <= 0 {
							t.Errorf("4 of 10 under %+v, and 7 under %+v: %+v", first, second, d)
						}
						if d := t.take(request(key, second, 6)); !d.OK || d.Limits[0].Remaining != 0 {
							t.Errorf("4 of 10 under %+v, and 6 under %+v: %+v", first, second, d)
						}
						for _, l := range all {
							if d := t.take(request(key, l, 1)); d.OK || d.Limits[0].Remaining != 0 || d.Retry <= 0 || d.Limits[0].Reset < time.Hour {
								t.Errorf("10 of 10 under %+v and %+v, and 1 under %+v: %+v", first, second, l, d)
							}
						}
						// Nothing counts for longer than its own limit says.
						if x := t.look(key, fixedWindow(10, time.Hour), origin+20*time.Hour.Microseconds()); x.Remaining != 10 || x.Reset != 0 {
							t.Errorf("%+v and %+v, twenty hours later: %+v", first, second, x)
						}
						r := request(key, second, 0)
						r.Mode = limits.Forget
						t.take(r)
						if x := t.look(key, first, origin); x.Remaining != 10 {
							t.Errorf("%+v and %+v, forgotten: %+v", first, second, x)
						}
					}
				}
			},
		},
		{
			name:  "a lowered rate keeps promised turns",
			why:   "those who wait for a turn that they were promised are let in then, and whoever comes later comes after them",
			timed: true,
			run: func(t *limitTest) {
				for i, c := range []struct{ before, after limits.Limit }{
					{tokenBucket(10, s, 1), tokenBucket(9, s, 1)},
					{tokenBucket(10, s, 3), tokenBucket(10, s, 1)},
					{leakyBucket(10, s, 200, 0), leakyBucket(9, s, 200, 0)},
				} {
					ask := func(l limits.Limit) limits.Taken {
						r := request(fmt.Sprint("k", i), l, 1)
						r.MaxWait = time.Hour
						return t.take(r)
					}
					var last limits.Taken
					for range 40 {
						last = ask(c.before)
					}
					if d := ask(c.after); !d.OK || d.Wait < last.Wait+100*ms || d.Wait > last.Wait+s {
						t.Errorf("the last of %+v has its turn in %v, the next, of %+v, in %v", c.before, last.Wait, c.after, d.Wait)
					}
				}
			},
		},
		{
			name:  "what is taken anyway tells how long its debt lasts",
			why:   "whoever charges more than there is has to know when it will have come back",
			timed: true,
			run: func(t *limitTest) {
				for i, c := range []struct {
					limit limits.Limit
					wait  time.Duration
				}{
					{fixedWindow(10, time.Minute), time.Minute},
					{slidingWindow(10, time.Minute, 6, false), 70 * s},
					{slidingLog(10, time.Minute), time.Minute},
					{estimated(10, time.Minute), 80 * s}, // a third of it has gone by then
					{tokenBucket(10, s, 10), 500 * ms},
					{leakyBucket(10, s, 10, 0), 500 * ms},
				} {
					key := fmt.Sprint("k", i)
					r := request(key, c.limit, 15)
					r.Mode = limits.TakeAnyway
					if d := t.take(r); !d.OK || d.Wait != c.wait || d.Limits[0].Wait != c.wait {
						t.Errorf("15 of %+v: %+v, want a wait of %v", c.limit, d, c.wait)
					}
					if x := t.look(key, c.limit, origin+c.wait.Microseconds()); x.Next > time.Minute || x.Remaining < 0 {
						t.Errorf("15 of %+v, %v later: %+v", c.limit, c.wait, x)
					}
				}
			},
		},
	}
}
