package verify

import (
	"testing"
	"time"

	"github.com/batonhq/baton/verify/check"
)

// A machine that is overloaded excuses those who are late, and nothing else; what
// held on it has held.
func TestOverloaded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		waited  time.Duration
		promise check.Promise // that is broken
		want    Verdict
	}{
		{"late, and busy", 6 * time.Second, check.Lively, Invalid},
		{"late, and idle", 4 * time.Second, check.Lively, Broken},
		{"not exclusive, and busy", 6 * time.Second, check.Exclusive, Broken},
		{"held, and busy", 6 * time.Second, "", Held},
	} {
		s := stalls{waited: c.waited, watched: 10 * time.Second}
		r := Trial{Fault: "f01", Busy: s.busy(), Promises: map[check.Promise]bool{check.Exclusive: true, check.Fenced: true, check.Lively: true}}
		if c.promise != "" {
			r.Promises[c.promise] = false
			r.Violations = []check.Violation{{Promise: c.promise}}
		}
		r.excuse()
		if r.decide("redis"); r.Verdict != c.want {
			t.Errorf("%s: %s, want %s", c.name, r.Verdict, c.want)
		}
	}
}

// Who is kept from running sees it.
func TestBusyIsSeen(t *testing.T) {
	t.Parallel()
	var s stalls
	if s.busy() != 0 {
		t.Error("busy before anything was seen")
	}
	s.watch()
	for began := time.Now(); time.Since(began) < 20*tick; {
		time.Sleep(tick)
	}
	s.end()
	if b := s.busy(); s.watched < 10*tick || b < 0 || b >= 1 {
		t.Errorf("busy %v in %v", b, s.watched)
	}
}
