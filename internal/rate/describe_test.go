package rate

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// What is told without a limit is what the limit itself says: how much is out, and when
// all of it has come back.
func TestDescribeAgrees(t *testing.T) {
	each(t, func(t *testing.T, r *rand.Rand, a Algorithm, n int) {
		var s State
		now := int64(1_000_000)
		for range n {
			now += r.Int64N(200)
			before := slices.Clone(s)
			d, ok := Describe("k", s, now, 0)
			if !slices.Equal(before, s) {
				t.Errorf("%v became %v", before, s)
			}
			s, _ = a.Settle(s, now)
			st := a.Status(s, now)
			if len(before) > 0 {
				if ok != (st.Reset > 0) || d.Reset != micros(st.Reset) || max(a.Capacity()-d.Used, 0) != st.Remaining || ok && (d.Key != "k" || d.Used < 1) {
					t.Errorf("%v at %d: %+v, %v, and the limit says %+v", before, now, d, ok, st)
				}
				right := d.Kind == limits.Window && d.Of == 0
				switch a := a.(type) {
				case *Approx:
					right = d.Kind == limits.Estimate && d.Of == a.Limit && d.N == a.Limit && d.Period == micros(a.Period)
				case *Bucket:
					right = d.Kind == limits.Bucket && d.Of >= max(a.Burst, d.Used) && d.N == a.Tokens && d.Period == micros(a.Period)
				}
				if ok && !right {
					t.Errorf("%v at %d under %+v: %+v", before, now, a, d)
				}
			}
			cost := 1 + r.Int64N(a.Capacity())
			switch r.IntN(6) {
			case 0:
				s = a.Charge(s, now, cost)
			case 1:
				if len(s) > 0 {
					s = a.Give(s, now, cost, max(now-r.Int64N(500), 1), 0)
				}
			default:
				if a.Ask(s, now, cost, 100).OK {
					s = a.Take(s, now, cost)
				}
			}
			if len(s) == 0 {
				s = nil
			}
		}
	})
}

// What no program of this version writes is unknown, not fresh and no panic.
func TestDescribeUnknown(t *testing.T) {
	t.Parallel()
	const now, ends = 1000 * sec, 1010 * sec
	for _, s := range []State{
		nil,
		{0},
		{5, 1, 2},
		{99},
		{kindWindow},
		{kindWindow, 0, now + 1, 1},
		{kindWindow, lifeMark + 5, now + 1},
		{kindApprox, 0, 1, 1, 1, 1},
		{kindApprox, sec, exact, 1, 1, 1},
		{kindApprox, sec, 1000, 0, 1, 1},
		{kindBucket, now + 1, 0, 1, 0, 1},
		{kindBucket, now + 1, 1, 1, 1, 1},
		{kindBucket, now + 1, 0, 1, exact - 1, 1},
		{kindSeveral},
		{kindSeveral, 0},
		{kindSeveral, 3, 1},
		{kindSeveral, 2, 9, 9},
		{kindSeveral, 1, kindSeveral},
		{-1, 2},
		{kindBucket, 1},
	} {
		d, ok := Describe("k", s, now, ends)
		if want := (limits.State{Key: "k", Kind: limits.Unknown, Reset: 10 * time.Second}); !ok || d != want {
			t.Errorf("%v: %+v, %v", s, d, ok)
		}
		if d, ok := Describe("k", s, now, 0); !ok || d.Reset != 0 {
			t.Errorf("%v, of which the end is not known: %+v, %v", s, d, ok)
		}
		if d, ok := Describe("k", s, now, now); ok {
			t.Errorf("%v has ended: %+v", s, d)
		}
	}
}

// Of several kinds all that counts is told, and what has come back is not.
func TestDescribeSeveral(t *testing.T) {
	t.Parallel()
	const now = 1000 * sec
	window := State{kindWindow, lifeMark + 60*sec, now - 5, 3, now + 10*sec, 4, now + 20*sec, 1}
	bucket := State{kindBucket, now + 3*sec, 0, 1, sec, 10}
	estimate := State{kindApprox, 100 * sec, 10, 50, 8, 0}
	join := func(parts ...State) State {
		s := State{kindSeveral}
		for _, p := range parts {
			s = append(append(s, int64(len(p))), p...)
		}
		return s
	}
	over := State{kindBucket, now - 3*sec, 0, 1, sec, 10}
	for _, c := range []struct {
		s    State
		want limits.State
	}{
		{window, limits.State{Kind: limits.Window, Used: 5, Reset: 20 * time.Second}},
		{bucket, limits.State{Kind: limits.Bucket, Used: 3, Of: 10, N: 1, Period: time.Second, Reset: 3 * time.Second}},
		{estimate, limits.State{Kind: limits.Estimate, Used: 8, Of: 50, N: 50, Period: 100 * time.Second, Reset: 100 * time.Second}},
		{join(window, bucket), limits.State{Kind: limits.Several, Used: 8, Reset: 20 * time.Second}},
		{join(bucket, window, estimate), limits.State{Kind: limits.Several, Used: 16, Reset: 100 * time.Second}},
		{join(over, window), limits.State{Kind: limits.Window, Used: 5, Reset: 20 * time.Second}},
		{join(State{99, 1}, window), limits.State{Kind: limits.Window, Used: 5, Reset: 20 * time.Second}},
		{join(State{99, 1}, over), limits.State{Kind: limits.Unknown}},
		// A long window as Redis keeps it: the sum of all comes first.
		{State{kindWindow, lifeMark + 60*sec, 0, 9, now - 5, 3, now + 10*sec, 6}, limits.State{Kind: limits.Window, Used: 6, Reset: 10 * time.Second}},
		// A clock that was set back by a day.
		{State{kindWindow, lifeMark + 60*sec, now + 86400*sec, 7}, limits.State{Kind: limits.Window, Used: 7, Reset: time.Minute}},
		{State{kindBucket, now + 86400*sec, 0, 1, sec, 10}, limits.State{Kind: limits.Bucket, Used: 10, Of: 10, N: 1, Period: time.Second, Reset: 10 * time.Second}},
	} {
		c.want.Key = "k"
		if d, ok := Describe("k", c.s, now, 0); !ok || d != c.want {
			t.Errorf("%v: %+v, %v, want %+v", c.s, d, ok, c.want)
		}
	}
	for _, s := range []State{over, join(over, over), {kindWindow, lifeMark + sec, now, 1}, {kindApprox, 100 * sec, 8, 50, 8, 9}, {kindApprox, 100 * sec, 9, 50, 8, 0}} {
		if d, ok := Describe("k", s, now, 0); ok {
			t.Errorf("%v has come back: %+v", s, d)
		}
	}
}

// No numbers make it panic, or tell something that is negative.
func TestDescribeAnything(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	edges := []int64{0, 1, 2, 3, 4, 5, 6, 7, sec, 1000 * sec, lifeMark, lifeMark + sec, latest, exact - 1, exact / 2, -1, 1 << 62}
	for range 200_000 {
		s := make(State, r.IntN(14))
		for i := range s {
			if s[i] = edges[r.IntN(len(edges))]; i == 0 {
				s[i] = r.Int64N(6)
			}
		}
		now := []int64{1, 1000 * sec, latest}[r.IntN(3)]
		if d, ok := Describe("k", s, now, 0); ok && (d.Used < 0 || d.Of < 0 || d.Reset < 0 || (d.Used == 0) != (d.Kind == limits.Unknown)) {
			t.Fatalf("%v at %d: %+v", s, now, d)
		}
	}
}
