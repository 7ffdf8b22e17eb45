package rate

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// Turns that were promised keep the rate, even if a request gives its turn back before
// it came: no request is put in front of, or beside, one that was promised its turn.
func TestTurns(t *testing.T) {
	each(t, func(t *testing.T, r *rand.Rand, a Algorithm, n int) {
		b, ok := a.(*Bucket)
		if !ok {
			return
		}
		type turn struct{ at, wait, cost int64 }
		var s State
		var turns []turn
		given := 0
		now := int64(1_800_000_000_000_000)
		ahead := r.Int64N(20*b.of(b.Burst).us + 1)
		for range n {
			now += pause(r)
			s = settle(b, s, now)
			if i := len(turns) - 1 - r.IntN(4); i >= 0 && r.IntN(4) == 0 && turns[i].at+turns[i].wait > now {
				before := slices.Clone(s)
				if s = b.Give(s, now, turns[i].cost, turns[i].at, turns[i].wait); !slices.Equal(s, before) {
					given++
					turns = slices.Delete(turns, i, i+1)
				}
				continue
			}
			cost := int64(1)
			if !b.Queue {
				cost += r.Int64N(min(b.Burst, 3))
			}
			if x := b.Ask(s, now, cost, ahead); x.OK {
				if !b.Queue && x.Wait > ahead {
					t.Fatalf("a turn in %d µs, at most %d were allowed", x.Wait, ahead)
				}
				s = b.Take(s, now, cost)
				turns = append(turns, turn{now, x.Wait, cost})
			}
		}
		var h history
		for _, x := range turns {
			for range x.cost {
				h = append(h, x.at+x.wait)
			}
		}
		slices.Sort(h)
		burst := b.Burst
		if b.Queue {
			burst = b.Ahead + 1
		}
		for _, length := range []int64{1, b.Period, 10 * b.Period} {
			// A turn is rounded up to a microsecond, each to another fraction.
			if got, most := int64(h.most(length)), burst+length*b.Tokens/b.Period+1; got > most {
				t.Errorf("%d turns within %d µs, at most %d may be; %d were given back", got, length, most, given)
			}
		}
	})
}

// A turn in the middle is lost, the last one is taken back, and a bucket that promised
// no request anything takes back all.
func TestTurnsGivenBack(t *testing.T) {
	b, err := NewBucket(1, sec, 1)
	if err != nil {
		t.Fatal(err)
	}
	var s State
	var waits []int64
	for range 4 {
		s = settle(b, s, 0)
		x := b.Ask(s, 0, 1, 10*sec)
		if !x.OK {
			t.Fatalf("%+v", x)
		}
		waits = append(waits, x.Wait)
		s = b.Take(s, 0, 1)
	}
	if want := []int64{0, sec, 2 * sec, 3 * sec}; !slices.Equal(waits, want) {
		t.Fatalf("turns at %v, want %v", waits, want)
	}
	next := func() int64 { return b.Ask(s, 0, 1, 10*sec).Wait }
	if s = b.Give(s, 0, 1, 0, waits[1]); next() != 4*sec {
		t.Errorf("after one in the middle was given back, the next turn is at %d µs", next())
	}
	if s = b.Give(s, 0, 1, 0, waits[3]); next() != 3*sec {
		t.Errorf("after the last was given back, the next turn is at %d µs", next())
	}
	if x := b.Ask(s, 0, 1, sec); x.OK || x.Retry != 3*sec {
		t.Errorf("a turn that is too far ahead: %+v", x)
	}
}

// What a request does to states that it must not change.
func TestRequestsThatChangeNothing(t *testing.T) {
	limit := limits.Limit{Algorithm: limits.SlidingWindow, N: 5, Period: time.Minute, Parts: 60}
	run := func(mode limits.Mode, cost int64, states []State) (limits.Taken, bool) {
		t.Helper()
		r, err := NewRequest(limits.Request{Takes: []limits.Take{{Key: "k", Limit: limit, Cost: cost}}, Mode: mode, At: 1})
		if err != nil {
			t.Fatal(err)
		}
		return r.Decide(states, 1)
	}
	states := []State{nil}
	if d, changed := run(limits.TakeIfAllowed, 0, states); changed || !d.OK || d.Limits[0].Remaining != 5 || len(states[0]) != 0 {
		t.Errorf("a look: %+v, %v, %v", d, changed, states)
	}
	if d, changed := run(limits.TakeIfAllowed, 6, states); changed || d.OK || d.Retry != limits.Never {
		t.Errorf("above the capacity: %+v, %v", d, changed)
	}
	if d, changed := run(limits.TakeIfAllowed, 4, states); !changed || !d.OK || d.Limits[0].Remaining != 1 {
		t.Errorf("allowed: %+v, %v", d, changed)
	}
	before := slices.Clone(states[0])
	if d, changed := run(limits.TakeIfAllowed, 2, states); changed || d.OK || !slices.Equal(states[0], before) {
		t.Errorf("refused: %+v, %v, %v", d, changed, states)
	}
	if d, changed := run(limits.TakeAnyway, 3, states); !changed || !d.OK || d.Wait == 0 || d.Limits[0].Remaining != 0 {
		t.Errorf("anyway: %+v, %v, %v", d, changed, states)
	}
	if d, changed := run(limits.GiveBack, 3, states); !changed || d.Limits[0].Remaining != 1 {
		t.Errorf("given back: %+v, %v, %v", d, changed, states)
	}
	if d, changed := run(limits.Forget, 0, states); !changed || d.Limits[0].Remaining != 5 || len(states[0]) != 0 {
		t.Errorf("forgotten: %+v, %v, %v", d, changed, states)
	}
}

// A limit has no field that its algorithm does not know.
func TestLimitsAreUnderstood(t *testing.T) {
	const minute = time.Minute
	for _, l := range []limits.Limit{
		{Algorithm: limits.FixedWindow, N: 5, Period: minute, Offset: time.Hour},
		{Algorithm: limits.FixedWindow, N: 5, Windows: [4]int64{1, 2, 3, 4}},
		{Algorithm: limits.SlidingWindow, N: 5, Period: minute, Parts: 60},
		{Algorithm: limits.SlidingWindow, N: 5, Period: minute, Parts: 60, Classic: true},
		{Algorithm: limits.SlidingLog, N: 5, Period: minute},
		{Algorithm: limits.EstimatedWindow, N: 5, Period: minute},
		{Algorithm: limits.TokenBucket, N: 5, Period: minute, Burst: 5},
		{Algorithm: limits.LeakyBucket, N: 5, Period: minute, Burst: 5, Ahead: 2},
	} {
		if a, err := Of(l); err != nil || a.Capacity() != l.Capacity() {
			t.Errorf("%+v: %v, %v", l, a, err)
		}
		for name, wrong := range map[string]limits.Limit{
			"algorithm": {Algorithm: l.Algorithm + 99, N: l.N, Period: minute},
			"burst":     {Algorithm: limits.FixedWindow, N: 5, Period: minute, Burst: 5},
			"ahead":     {Algorithm: limits.TokenBucket, N: 5, Period: minute, Burst: 5, Ahead: 1},
			"parts":     {Algorithm: limits.SlidingLog, N: 5, Period: minute, Parts: 6},
			"classic":   {Algorithm: limits.SlidingLog, N: 5, Period: minute, Classic: true},
			"offset":    {Algorithm: limits.SlidingLog, N: 5, Period: minute, Offset: 6},
			"windows":   {Algorithm: limits.FixedWindow, N: 5, Period: minute, Windows: [4]int64{1, 2, 3, 4}},
			"fraction":  {Algorithm: limits.SlidingLog, N: 5, Period: minute + 1},
		} {
			if a, err := Of(wrong); err == nil || a != nil {
				t.Errorf("%s: %+v is accepted", name, wrong)
			}
		}
	}
}
