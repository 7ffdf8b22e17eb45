package drivertest

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
)

// A position lives for one and a half seconds, and a claim that a case lets expire for
// even less. A machine that pauses between two steps makes a right store look wrong. The
// test therefore records how long every seat was left alone, how long every request took,
// and how long the machine did nothing. If a case fails after a seat may have expired
// unexpectedly, or sooner than the case could look, the case is repeated on a fresh
// keyspace while no other case runs. Fake time has no pauses: there, a seat that expires
// unannounced is a mistake in the case.

// attempts is how often a case may fail because of a pause. Then it counts as failed.
const attempts = 6

// alone is locked by a case that is repeated, and read-locked by all others.
var alone sync.RWMutex

// atWork waits until a case may run. The caller calls free when the case has ended.
func atWork(repeated bool) (free func()) {
	if repeated {
		alone.Lock()
		return alone.Unlock
	}
	alone.RLock()
	return alone.RUnlock
}

// lapse is the first time that a seat was left alone for too long, or "".
func (t *test) lapse() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.seats {
		t.noteLapse(s)
	}
	return t.paused
}

// pauses returns what may have made the case fail.
func (t *test) pauses() (paused, slow string) {
	paused = t.lapse()
	t.mu.Lock()
	defer t.mu.Unlock()
	return paused, t.slow
}

func (t *test) noteLapse(s *seat) {
	alone := time.Since(s.confirmed)
	if s.life > 0 && alone > s.life-s.life/10 && t.paused == "" {
		t.paused = fmt.Sprintf("%s was left alone for %v", s.name, alone.Round(time.Millisecond))
	}
}

// sluggish is the longest time for a step without waiting on an idle machine: much less
// than the shortest TTL that a case waits for, and no more than a store of several
// servers waits for a late one.
const sluggish = 40 * time.Millisecond

// timed notes a step that should take no time and took some.
func (t *test) timed(what string, start time.Time) {
	d := time.Since(start)
	if d <= sluggish {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if note := fmt.Sprintf("%s took %v", what, d.Round(time.Millisecond)); d > time.Second {
		t.paused = cmp.Or(t.paused, note)
	} else {
		t.slow = cmp.Or(t.slow, note)
	}
}

// watchMachine notes, until the case ends, when the machine does nothing for a while.
func (t *test) watchMachine() {
	const every = 10 * time.Millisecond
	ctx := t.Context()
	go func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			start := time.Now()
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				t.timed("a tick of the clock", start)
			}
		}
	}()
}

// stands notes the state of the claim that a request found. sent is when the request was
// sent.
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

// dies announces that the case leaves the seat alone until it expires.
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
