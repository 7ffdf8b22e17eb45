package verify

import (
	"testing"
	"time"

	"github.com/batonhq/baton/lab/verify/check"
	"github.com/batonhq/baton/lab/verify/history"
)

// An overloaded machine excuses only late calls. Promises that held on it were kept.
func TestOverloaded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		late    []int64       // when a call was, in seconds
		promise check.Promise // that is broken
		want    Verdict
	}{
		{"late, and busy then", []int64{22}, check.Lively, Invalid},
		{"late, and busy before", []int64{15}, check.Lively, Broken},
		{"late twice, and busy once", []int64{22, 28}, check.Lively, Broken},
		{"late, when nobody watched", []int64{40}, check.Lively, Broken},
		{"not exclusive, and busy", []int64{22}, check.Exclusive, Broken},
		{"held, and busy", nil, "", Held},
	} {
		var s stalls
		for at := int64(100); at <= 30_000; at += 100 { // milliseconds; those of three seconds are busy
			late := 10 * time.Millisecond
			if at > 20_000 && at <= 23_000 {
				late = 60 * time.Millisecond
			}
			s.see(at*int64(time.Millisecond), 100*time.Millisecond, late)
		}
		if b := s.busy(0, 30*int64(time.Second)); b < 0.14 || b > 0.16 {
			t.Errorf("busy %v in all, want 0.15", b)
		}
		r := Trial{Fault: "f01", Promises: map[check.Promise]bool{check.Exclusive: true, check.Fenced: true, check.Lively: true}}
		for _, at := range c.late {
			r.Promises[c.promise] = false
			r.Violations = append(r.Violations, check.Violation{Promise: c.promise, From: (at - 1) * int64(time.Second), To: at * int64(time.Second)})
		}
		r.excuse(&s)
		if r.decide("redis"); r.Verdict != c.want {
			t.Errorf("%s: %s, want %s", c.name, r.Verdict, c.want)
		}
	}
}

// A process that cannot run for a time measures it.
func TestBusyIsSeen(t *testing.T) {
	t.Parallel()
	var s stalls
	if s.busy(0, history.Now()) != 0 {
		t.Error("busy before anything was seen")
	}
	s.watch()
	for began := time.Now(); time.Since(began) < 20*tick; {
		time.Sleep(tick)
	}
	s.end()
	if b := s.busy(0, history.Now()); len(s.moments) == 0 || b < 0 || b >= 1 {
		t.Errorf("busy %v in %v", b, s.moments)
	}
}
