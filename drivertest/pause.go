package drivertest

import (
	"fmt"
	"time"

	"github.com/batonhq/baton/driver"
)

// A place in line lives for one and a half seconds, so a machine that pauses
// for longer between two steps of a case makes a right store look wrong. The
// test therefore keeps track of how long every seat was left alone. When a
// case fails after a seat may have died that the case did not mean to die, the
// whole case is repeated on a fresh keyspace. In fake time nothing pauses:
// there, a seat that dies unannounced is a mistake in the case.

// attempts is how often a case may fail for a pause before it has failed.
const attempts = 5

// lapse is the first pause that was too long, "" if there was none.
func (t *test) lapse() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.seats {
		t.noteLapse(s)
	}
	return t.paused
}

func (t *test) noteLapse(s *seat) {
	alone := time.Since(s.confirmed)
	if s.life > 0 && alone > s.life-s.life/10 && t.paused == "" {
		t.paused = fmt.Sprintf("%s was left alone for %v", s.name, alone.Round(time.Millisecond))
	}
}

// timed notes that a step which should take no time did.
func (t *test) timed(what string, start time.Time) {
	if d := time.Since(start); d > time.Second {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.paused == "" {
			t.paused = fmt.Sprintf("%s took %v", what, d.Round(time.Millisecond))
		}
	}
}

// stands notes what a request that was sent at that moment found.
func (s *seat) stands(sent time.Time, state driver.State) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.t.noteLapse(s)
	s.confirmed = sent
	switch {
	case s.mortal:
		s.life = 0
	case state == driver.Held:
		s.life = s.ttl
	case state == driver.Waiting:
		s.life = driver.WaiterTTL
	default:
		s.life = 0
	}
}

// dies announces that the case leaves the seat alone for longer than it
// lives.
func (s *seat) dies() *seat {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.t.noteLapse(s)
	s.life, s.mortal = 0, true
	return s
}

func (t *test) Errorf(format string, args ...any) {
	t.lapse()
	t.T.Errorf(format, args...)
}

func (t *test) Fatalf(format string, args ...any) {
	t.lapse()
	t.T.Fatalf(format, args...)
}
