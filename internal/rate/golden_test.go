package rate

import (
	"fmt"
	"testing"

	"github.com/batonhq/baton/driver"
)

const (
	ms  = 1000
	sec = 1000 * ms
)

// A step asks a cost so many times, and what is expected of the last answer.
type step struct {
	at    int64
	cost  int64
	times int // 0: once
	ok    bool
	left  int64
	wait  int64
	retry int64
	reset int64 // -1: not looked at
}

func sub(t *testing.T, limit, period, parts int64, strict bool) Algorithm {
	t.Helper()
	w, err := NewSliding(limit, period, parts, strict)
	return must(t, w, err)
}

func bucket(t *testing.T, tokens, period, burst int64) Algorithm {
	t.Helper()
	b, err := NewBucket(tokens, period, burst)
	return must(t, b, err)
}

func fixed(t *testing.T, limit, period int64) Algorithm {
	t.Helper()
	f, err := NewFixed(limit, period, 0)
	return must(t, f, err)
}

func log(t *testing.T, limit, period int64) Algorithm {
	t.Helper()
	l, err := NewLog(limit, period)
	return must(t, l, err)
}

func approx(t *testing.T, limit, period int64) Algorithm {
	t.Helper()
	a, err := NewApprox(limit, period)
	return must(t, a, err)
}

func queue(t *testing.T, tokens, period, size, ahead int64) Algorithm {
	t.Helper()
	q, err := NewQueue(tokens, period, size, ahead)
	return must(t, q, err)
}

func must(t *testing.T, a Algorithm, err error) Algorithm {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// The timelines that every implementation is held to, from an origin at which
// all windows begin.
func TestTimelines(t *testing.T) {
	const x = -1 // the reset does not matter
	for _, c := range []struct {
		name  string
		a     Algorithm
		steps []step
	}{
		// 100 in 60 s; 60 requests at 0:50 and 60 at 1:10.
		{"boundary, fixed window", fixed(t, 100, 60*sec), []step{
			{50 * sec, 1, 60, true, 40, 0, 0, 10 * sec},
			{70 * sec, 1, 60, true, 40, 0, 0, 50 * sec},
			{119 * sec, 1, 40, true, 0, 0, 0, 1 * sec},
			{119 * sec, 1, 20, false, 0, 0, 1 * sec, x},
			{120 * sec, 1, 60, true, 40, 0, 0, x},
		}},
		{"boundary, log", log(t, 100, 60*sec), []step{
			{50 * sec, 1, 60, true, 40, 0, 0, 60 * sec},
			{70 * sec, 1, 40, true, 0, 0, 0, 60 * sec},
			{70 * sec, 1, 20, false, 0, 0, 40 * sec, x},
			{109 * sec, 1, 1, false, 0, 0, 1 * sec, x},
			{110 * sec, 1, 60, true, 0, 0, 0, x},
		}},
		{"boundary, strict, 6 parts", sub(t, 100, 60*sec, 6, true), []step{
			{50 * sec, 1, 60, true, 40, 0, 0, 70 * sec},
			{70 * sec, 1, 40, true, 0, 0, 0, 70 * sec},
			{70 * sec, 1, 20, false, 0, 0, 50 * sec, x},
			{109 * sec, 1, 1, false, 0, 0, 11 * sec, x},
			{119 * sec, 1, 1, false, 0, 0, 1 * sec, x},
			{120 * sec, 1, 60, true, 0, 0, 0, x},
		}},
		{"boundary, strict, 60 parts", sub(t, 100, 60*sec, 60, true), []step{
			{50 * sec, 1, 60, true, 40, 0, 0, 61 * sec},
			{70 * sec, 1, 40, true, 0, 0, 0, 61 * sec},
			{70 * sec, 1, 20, false, 0, 0, 41 * sec, x},
			{110 * sec, 1, 1, false, 0, 0, 1 * sec, x},
			{111 * sec, 1, 60, true, 0, 0, 0, x},
		}},
		{"boundary, classic, 6 parts", sub(t, 100, 60*sec, 6, false), []step{
			{50 * sec, 1, 60, true, 40, 0, 0, 60 * sec},
			{70 * sec, 1, 40, true, 0, 0, 0, 60 * sec},
			{70 * sec, 1, 20, false, 0, 0, 40 * sec, x},
			{109 * sec, 1, 1, false, 0, 0, 1 * sec, x},
			{110 * sec, 1, 60, true, 0, 0, 0, x},
		}},
		{"boundary, two counters", approx(t, 100, 60*sec), []step{
			{50 * sec, 1, 60, true, 40, 0, 0, 70 * sec},
			{70 * sec, 1, 50, true, 0, 0, 0, 110 * sec},
			{70 * sec, 1, 10, false, 0, 0, 1 * sec, x},
			{71 * sec, 1, 1, true, 0, 0, 0, x},
			{71 * sec, 1, 1, false, 0, 0, 1 * sec, x},
			{90 * sec, 1, 19, true, 0, 0, 0, x},
			{90 * sec, 1, 1, false, 0, 0, 1 * sec, x},
		}},
		{"boundary, token bucket", bucket(t, 100, 60*sec, 100), []step{
			{50 * sec, 1, 60, true, 40, 0, 0, 36 * sec},
			{70 * sec, 1, 60, true, 13, 0, 0, 52 * sec},
		}},
		{"boundary, token bucket of 20", bucket(t, 100, 60*sec, 20), []step{
			{50 * sec, 1, 20, true, 0, 0, 0, 12 * sec},
			{50 * sec, 1, 40, false, 0, 0, 600 * ms, 12 * sec},
			{70 * sec, 1, 20, true, 0, 0, 0, 12 * sec},
			{70 * sec, 1, 1, false, 0, 0, 600 * ms, 12 * sec},
		}},
		{"edge, classic", sub(t, 100, 60*sec, 6, false), []step{
			{9999 * ms, 1, 100, true, 0, 0, 0, x},
			{60 * sec, 1, 100, true, 0, 0, 0, x},
		}},
		{"edge, strict", sub(t, 100, 60*sec, 6, true), []step{
			{9999 * ms, 1, 100, true, 0, 0, 0, x},
			{60 * sec, 1, 1, false, 0, 0, 10 * sec, x},
			{69999 * ms, 1, 1, false, 0, 0, 1 * ms, x},
			{70 * sec, 1, 100, true, 0, 0, 0, x},
		}},
		{"edge, two counters", approx(t, 100, 60*sec), []step{
			{59999 * ms, 1, 100, true, 0, 0, 0, x},
			{60 * sec, 1, 1, false, 0, 0, 600 * ms, x},
			{75 * sec, 1, 25, true, 0, 0, 0, x},
			{75 * sec, 1, 1, false, 0, 0, 600 * ms, x},
			{90 * sec, 1, 25, true, 0, 0, 0, x},
			{105 * sec, 1, 25, true, 0, 0, 0, x},
			{105 * sec, 1, 1, false, 0, 0, 600 * ms, x},
			{119998 * ms, 1, 24, true, 0, 0, 0, x},
			{119998 * ms, 1, 1, false, 0, 0, 2 * ms, x},
		}},
		{"token bucket", bucket(t, 5, sec, 10), []step{
			{0, 1, 1, true, 9, 0, 0, 200 * ms},
			{0, 9, 1, true, 0, 0, 0, 2 * sec},
			{0, 1, 1, false, 0, 0, 200 * ms, 2 * sec},
			{100 * ms, 1, 1, false, 0, 0, 100 * ms, 1900 * ms},
			{200 * ms, 1, 1, true, 0, 0, 0, 2 * sec},
			{200 * ms, 1, 1, false, 0, 0, 200 * ms, 2 * sec},
			{sec, 3, 1, true, 1, 0, 0, 1800 * ms},
			{sec, 5, 1, false, 1, 0, 800 * ms, 1800 * ms},
			{sec, 1, 1, true, 0, 0, 0, 2 * sec},
			{sec, 11, 1, false, 0, 0, driver.Never.Microseconds(), 2 * sec},
			{3200 * ms, 0, 1, true, 10, 0, 0, 0},
			{3200 * ms, 10, 1, true, 0, 0, 0, 2 * sec},
		}},
		{"a rate that does not divide", bucket(t, 3, sec, 3), []step{
			{0, 1, 1, true, 2, 0, 0, x},
			{0, 1, 1, true, 1, 0, 0, x},
			{0, 1, 1, true, 0, 0, 0, x},
			{0, 1, 1, false, 0, 0, 333_334, x},
			{333_333, 1, 1, false, 0, 0, 1, x},
			{333_334, 1, 1, true, 0, 0, 0, x},
			{666_666, 1, 1, false, 0, 0, 1, x},
			{666_667, 1, 1, true, 0, 0, 0, x},
			{1_000_000, 1, 1, true, 0, 0, 0, x},
			{1_000_001, 1, 1, false, 0, 0, 333_333, x},
		}},
		{"leaky bucket", queue(t, 10, sec, 20, 0), []step{
			{0, 1, 1, true, 19, 0, 0, x},
			{0, 1, 1, true, 18, 100 * ms, 0, x},
			{0, 1, 18, true, 0, 1900 * ms, 0, x},
			{0, 1, 5, false, 0, 0, 100 * ms, x},
			{50 * ms, 1, 1, false, 0, 0, 50 * ms, x},
			{100 * ms, 1, 1, true, 0, 1900 * ms, 0, x},
			{100 * ms, 1, 1, false, 0, 0, 100 * ms, x},
			{550 * ms, 1, 1, true, 3, 1550 * ms, 0, x},
			{1950 * ms, 1, 1, true, 16, 250 * ms, 0, x},
			{2 * sec, 1, 1, true, 16, 300 * ms, 0, x},
			{5 * sec, 1, 1, true, 19, 0, 0, x},
		}},
		{"leaky bucket, five ahead", queue(t, 10, sec, 20, 5), []step{
			{0, 1, 6, true, 14, 0, 0, x},
			{0, 1, 1, true, 13, 100 * ms, 0, x},
			{0, 1, 13, true, 0, 1400 * ms, 0, x},
		}},
		{"fresh, 10 in 1 s", bucket(t, 10, sec, 10), []step{{0, 1, 1, true, 9, 0, 0, x}}},
		{"fresh, 100 in 1 min", bucket(t, 100, 60*sec, 100), []step{{0, 1, 1, true, 99, 0, 0, x}}},
		{"fresh, 1000 in 1 h", bucket(t, 1000, 3600*sec, 1000), []step{{0, 1, 1, true, 999, 0, 0, x}}},
		{"fresh, 1000000 in 1 h", bucket(t, 1_000_000, 3600*sec, 1_000_000), []step{{0, 1, 1, true, 999_999, 0, 0, x}}},
		{"expiry", bucket(t, 10, sec, 19), []step{
			{0, 1, 19, true, 0, 0, 0, 1900 * ms},
			{sec, 1, 10, true, 0, 0, 0, x},
			{sec, 1, 1, false, 0, 0, 100 * ms, x},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s State
			for i, p := range c.steps {
				var d driver.Taken
				all := []State{s}
				for range max(p.times, 1) {
					d = decide([]Algorithm{c.a}, all, p.at, p.cost)
					if d.OK != p.ok {
						t.Fatalf("step %d, %+v: %+v of %v", i, p, d, all[0])
					}
				}
				s = all[0]
				st := c.a.Status(s, p.at)
				got := fmt.Sprint(st.Remaining, d.Wait.Microseconds(), d.Retry.Microseconds())
				if want := fmt.Sprint(p.left, p.wait, p.retry); got != want {
					t.Errorf("step %d, %+v: remaining, wait, retry are %s, want %s", i, p, got, want)
				}
				if p.reset >= 0 && st.Reset != p.reset {
					t.Errorf("step %d, %+v: reset %d", i, p, st.Reset)
				}
			}
		})
	}
}

// decide asks all limits for the same cost.
func decide(limits []Algorithm, states []State, now, cost int64) driver.Taken {
	r := &Request{Limits: limits}
	for range limits {
		r.Takes = append(r.Takes, driver.Take{Cost: cost})
	}
	d, _ := r.Decide(states, now)
	return d
}

// Two limits in one decision: what one refuses is not taken from the other.
func TestTwoLimits(t *testing.T) {
	f, err := NewFixed(8, 60*sec, 0)
	limits := []Algorithm{bucket(t, 5, sec, 5), must(t, f, err)}
	states := make([]State, 2)
	for i, p := range []struct {
		at, cost, a, b, retry int64
		refused               string
	}{
		{0, 5, 0, 3, 0, "[]"},
		{0, 1, 0, 3, 200 * ms, "[0]"},
		{sec, 4, 5, 3, 59 * sec, "[1]"},
		{sec, 3, 2, 0, 0, "[]"},
		{sec, 1, 2, 0, 59 * sec, "[1]"},
		{1200 * ms, 1, 3, 0, 58800 * ms, "[1]"},
	} {
		d := decide(limits, states, p.at, p.cost)
		var refused []int
		for i, l := range d.Limits {
			if !l.OK {
				refused = append(refused, i)
			}
		}
		a, b := limits[0].Status(states[0], p.at), limits[1].Status(states[1], p.at)
		if a.Remaining != p.a || b.Remaining != p.b || d.Retry.Microseconds() != p.retry || fmt.Sprint(refused) != p.refused || d.OK != (p.refused == "[]") {
			t.Errorf("step %d: %+v, remaining %d and %d", i, d, a.Remaining, b.Remaining)
		}
	}
}

// What is taken without asking is debt; what is given back never makes more
// than there was.
func TestDebtAndRefund(t *testing.T) {
	a := bucket(t, 10, sec, 10)
	s := a.Take(nil, 0, 10)
	s = a.Settle(s, 200*ms)
	if st := a.Status(s, 200*ms); st.Remaining != 2 {
		t.Errorf("%+v", st)
	}
	s = a.Charge(s, 200*ms, 6)
	if st := a.Status(s, 200*ms); st.Remaining != 0 || st.Reset != 1400*ms {
		t.Errorf("in debt: %+v", st)
	}
	s = a.Settle(s, 200*ms)
	if x := a.Ask(s, 200*ms, 1, 0); x.OK || x.Retry != 500*ms {
		t.Errorf("in debt: %+v", x)
	}
	s = a.Give(s, 200*ms, 6, 200*ms, 400*ms)
	if st := a.Status(s, 200*ms); st.Remaining != 2 {
		t.Errorf("refunded: %+v", st)
	}
	s = a.Give(s, 200*ms, 100, 0, 0)
	if st := a.Status(s, 200*ms); st.Remaining != 10 || st.Reset != 0 || len(s) != 0 {
		t.Errorf("refunded too much: %+v", st)
	}
}

// A reservation is taken at once, and settled with what it came to.
func TestReserveAndSettle(t *testing.T) {
	a := bucket(t, 1000, 60*sec, 1000)
	reserve := func() State { return a.Settle(a.Take(nil, 0, 800), 6*sec) }
	s := reserve()
	if st := a.Status(s, 6*sec); st.Remaining != 300 {
		t.Errorf("%+v", st)
	}
	s = a.Give(s, 6*sec, 500, 0, 0)
	if st := a.Status(s, 6*sec); st.Remaining != 800 || st.Reset != 12*sec {
		t.Errorf("less than reserved: %+v", st)
	}
	s = a.Charge(reserve(), 6*sec, 300)
	if st := a.Status(s, 6*sec); st.Remaining != 0 || a.Ask(s, 6*sec, 1, 0).Retry != 60*ms {
		t.Errorf("more than reserved: %+v %+v", st, a.Ask(s, 6*sec, 1, 0))
	}
}

// Limits that change keep what was consumed.
func TestLimitsChange(t *testing.T) {
	for _, c := range []struct {
		name                  string
		before, higher, lower Algorithm
	}{
		{"token bucket", bucket(t, 100, 60*sec, 100), bucket(t, 200, 60*sec, 200), bucket(t, 20, 60*sec, 20)},
		{"sliding window", sub(t, 100, 60*sec, 6, true), sub(t, 200, 60*sec, 6, true), sub(t, 20, 60*sec, 6, true)},
		{"sliding window of other parts", sub(t, 100, 60*sec, 6, true), sub(t, 200, 120*sec, 60, true), sub(t, 20, 30*sec, 3, false)},
		{"fixed window", fixed(t, 100, 60*sec), fixed(t, 200, 60*sec), fixed(t, 20, 30*sec)},
		{"log", log(t, 100, 60*sec), log(t, 200, 60*sec), log(t, 20, 30*sec)},
		{"two counters", approx(t, 100, 60*sec), approx(t, 200, 60*sec), approx(t, 20, 30*sec)},
	} {
		for _, to := range []struct {
			a    Algorithm
			left int64
		}{{c.higher, 140}, {c.lower, 0}} {
			s := c.before.Take(c.before.Take(nil, 0, 40), 0, 20)
			s = to.a.Settle(s, 0)
			if st := to.a.Status(s, 0); st.Remaining != to.left || to.left == 0 && st.Reset > 120*sec {
				t.Errorf("%s: 60 of 100 became %+v of %d", c.name, st, to.a.Capacity())
			}
		}
	}
}
