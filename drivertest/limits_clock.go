package drivertest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
)

// pass waits, in fake time if the case runs in a bubble.
func (t *limitTest) pass(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.ctx.Done():
		t.Fatalf("the case has not ended in time")
	}
}

func clockCases() []limitCase {
	return []limitCase{
		{
			name: "retry is neither early nor late",
			why:  "who comes back when told to must be let in, by the clock that decides",
			run: func(t *limitTest) {
				for i, l := range []limits.Limit{
					fixedWindow(2, 400*time.Millisecond), slidingWindow(2, 400*time.Millisecond, 4, false),
					slidingLog(2, 400*time.Millisecond), estimated(2, 400*time.Millisecond), tokenBucket(2, 400*time.Millisecond, 2),
				} {
					key := fmt.Sprint("k", i)
					d := t.one(key, l, 2)
					for n := 0; d.OK; n++ { // a slow machine takes so long that all come back
						if d = t.one(key, l, 2); n == 100 {
							t.Fatalf("%v: 2 in 400 ms allow 202 in a row", l.Algorithm)
						}
					}
					if d.Retry <= 0 || d.Retry > time.Second {
						t.Errorf("%v: %+v", l.Algorithm, d)
					}
					sent := time.Now()
					t.pass(d.Retry + 5*time.Millisecond) // clocks run at different speeds
					if again := t.one(key, l, 2); !again.OK {
						t.Errorf("%v: told to come back after %v, came after %v: %+v", l.Algorithm, d.Retry, time.Since(sent), again)
					}
				}
			},
		},
		{
			name: "one clock for all",
			why:  "what a limiter counts with the callers' clocks grows with the difference between them",
			run: func(t *limitTest) {
				var last int64
				for i := range 9 {
					d, err := t.all[i%len(t.all)].Take(t.ctx, limits.Request{Takes: []limits.Take{{Key: "k", Limit: fiveOfEach[0]}}})
					if err != nil {
						t.Fatalf("%v", err)
					}
					if d.At < last {
						t.Errorf("it was %d, and then %d", last, d.At)
					}
					last = d.At
				}
			},
		},
		{
			name: "a look is of one moment",
			why:  "what a look tells, and when that was, must fit what others take meanwhile: it has seen all that was answered before, and nothing that was decided later",
			run:  lookOfOneMoment,
		},
		{
			name:  "a clock that jumps",
			why:   "a clock that is set back must not give anything twice, nor lock anybody out for longer than the limit lasts; one that is set forward gives at most what it would have given later",
			timed: true,
			run: func(t *limitTest) {
				for i, l := range []limits.Limit{
					fixedWindow(4, time.Minute), slidingWindow(4, time.Minute, 6, false), slidingWindow(4, time.Minute, 6, true),
					slidingLog(4, time.Minute), estimated(4, time.Minute), tokenBucket(4, time.Minute, 4), leakyBucket(4, time.Minute, 4, 0),
				} {
					key := fmt.Sprint("k", i)
					ask := func(cost int64, at time.Duration) limits.Taken {
						return t.take(limits.Request{Takes: []limits.Take{{Key: key, Limit: l, Cost: cost}}, Now: origin + at.Microseconds()})
					}
					ask(4, 10*time.Second)
					if d := ask(1, 5*time.Second); d.OK || d.Retry > 2*time.Minute {
						t.Errorf("%v, five seconds back: %+v", l.Algorithm, d)
					}
					if d := ask(1, -time.Hour); d.OK {
						t.Errorf("%v, an hour back: %+v", l.Algorithm, d)
					}
					// The clock stays there. Within two windows all is well again.
					if d := ask(4, -time.Hour+2*time.Minute+time.Second); !d.OK {
						t.Errorf("%v, two windows later: %+v", l.Algorithm, d)
					}
					if d := ask(4, time.Hour); !d.OK {
						t.Errorf("%v, two hours ahead: %+v", l.Algorithm, d)
					}
					if d := ask(1, time.Hour); d.OK {
						t.Errorf("%v, a fifth: %+v", l.Algorithm, d)
					}
				}
			},
		},
		{
			name:  "windows of a calendar",
			why:   "a day is not always 24 hours long",
			timed: true,
			run: func(t *limitTest) {
				hour := time.Hour.Microseconds()
				l := limits.Limit{Algorithm: limits.FixedWindow, N: 5, Windows: [4]int64{origin, origin + 24*hour, origin + 47*hour, origin + 71*hour}}
				ask := func(at int64) (limits.Taken, error) {
					return t.next().Take(t.ctx, limits.Request{Takes: []limits.Take{{Key: "k", Limit: l, Cost: 5}}, Now: at})
				}
				for _, s := range []struct {
					at    int64
					ok    bool
					reset time.Duration
				}{
					{origin, true, 24 * time.Hour},
					{origin + 24*hour - 1, false, time.Microsecond},
					{origin + 24*hour, true, 23 * time.Hour},
					{origin + 46*hour, false, time.Hour},
					{origin + 47*hour, true, 24 * time.Hour},
				} {
					if d, err := ask(s.at); err != nil || d.OK != s.ok || d.Limits[0].Reset != s.reset {
						t.Errorf("at %d: %+v, %v, want %+v", s.at-origin, d, err, s)
					}
				}
				for at, ahead := range map[int64]time.Duration{origin - 1: -24*time.Hour - time.Microsecond, origin + 71*hour: 24 * time.Hour} {
					var clock *limits.ClockError
					if d, err := ask(at); !errors.As(err, &clock) || clock.Ahead != ahead {
						t.Errorf("at %d, which is in none of the windows: %+v, %v", at-origin, d, err)
					}
				}
			},
		},
		{
			name: "what has expired is removed",
			why:  "callers come and go, and a limiter that remembers each of them fills the store",
			kept: true,
			run: func(t *limitTest) {
				short := []limits.Limit{
					fixedWindow(5, 100*time.Millisecond), slidingWindow(5, 100*time.Millisecond, 4, false), slidingLog(5, 100*time.Millisecond),
					estimated(5, 100*time.Millisecond), tokenBucket(5, 100*time.Millisecond, 5), leakyBucket(5, 100*time.Millisecond, 5, 0),
				}
				for i := range 60 {
					t.take(limits.Request{
						Takes: []limits.Take{{Key: fmt.Sprint("k", i), Limit: short[i%len(short)], Cost: 3}},
						ID:    driver.NewID(), Keep: 100 * time.Millisecond,
					})
				}
				before := t.h.Kept(t, t.all[0])
				for n := 0; ; n++ { // the store may remove things only while it is used
					t.pass(20 * time.Millisecond)
					t.one(fmt.Sprint("other", n%2), short[4], 1)
					if kept := t.h.Kept(t, t.all[0]); kept <= 2 {
						return
					} else if n == 1500 {
						t.Fatalf("of %d things the store still keeps %d, half a minute after the last has expired", before, kept)
					}
				}
			},
		},
	}
}

// lookOfOneMoment lets some goroutines take while others look, or ask for more than they
// can get.
func lookOfOneMoment(t *limitTest) {
	const capacity, takers, each = 100_000, 6, 30
	limit := fixedWindow(capacity, 100_000*time.Hour)
	ask := func(l limits.Store, cost int64) (taken, at int64, err error) {
		d, err := l.Take(t.ctx, limits.Request{Takes: []limits.Take{{Key: "k", Limit: limit, Cost: cost}}})
		if err != nil {
			return 0, 0, err
		}
		return capacity - d.Limits[0].Remaining, d.At, nil
	}
	first, at, err := ask(t.all[0], 1)
	if err != nil {
		t.Fatalf("%v", err)
	}
	type look struct{ answered, begun, taken, at int64 } // answered before the look, begun after it
	var (
		begun, answered atomic.Int64
		working         atomic.Int64
		mu              sync.Mutex
		when            = map[int64]int64{first: at} // key: how many had been taken by then
		looks           []look
		looked          = make(chan struct{})
		sawOne          = sync.OnceFunc(func() { close(looked) })
	)
	begun.Store(1)
	answered.Store(1)
	working.Store(takers)
	t.crowd(2*takers, func(i int, l limits.Store) (bool, error) {
		if i < takers {
			defer working.Add(-1)
			for n := range each {
				if n == each/2 {
					<-looked // otherwise all would be taken before the first look
				}
				begun.Add(1)
				taken, at, err := ask(l, 1)
				if err != nil {
					return false, err
				}
				answered.Add(1)
				mu.Lock()
				when[taken] = at
				mu.Unlock()
			}
			return true, nil
		}
		defer sawOne() // even if it fails
		for n := 0; working.Load() > 0; n++ {
			k := look{answered: answered.Load()}
			var err error
			if k.taken, k.at, err = ask(l, int64(n%2*capacity)); err != nil {
				return false, err
			}
			k.begun = begun.Load()
			mu.Lock()
			looks = append(looks, k)
			mu.Unlock()
			sawOne()
		}
		return true, nil
	})
	for _, k := range looks {
		if k.taken < k.answered || k.taken > k.begun {
			t.Errorf("a look saw that %d had been taken, when at least %d and at most %d were", k.taken, k.answered, k.begun)
		}
		if at := when[k.taken]; k.at < at {
			t.Errorf("a look tells of a moment %d µs before that of the last decision that it has seen", at-k.at)
		}
	}
	if len(looks) == 0 {
		t.Errorf("nobody looked while others took")
	}
}
