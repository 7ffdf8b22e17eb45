package bootclock

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

func TestSuspensionMovesTheClock(t *testing.T) {
	before := Now()
	Suspend(time.Hour)
	// What is added to the clock is known to some microseconds.
	if d := Now().Sub(before); d < time.Hour-time.Millisecond || d > time.Hour+time.Minute {
		t.Errorf("after an hour's suspension the clock moved by %v", d)
	}
}

func TestFakeTimeIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := Now()
		time.Sleep(24 * time.Hour) // fake
		if d := Now().Sub(before).Round(time.Second); d != 24*time.Hour {
			t.Errorf("a fake day lasted %v", d)
		}
	})
}

// The system is asked no more often than every staleAfter, unless a reading of the two
// clocks is interrupted.
func TestTheSystemIsRarelyAsked(t *testing.T) {
	asked := 0
	c := newClock(func() time.Duration { asked++; return suspended() })
	const readings = 100_000
	for range readings {
		now := time.Now()
		c.asleep(time.Duration(now.UnixNano()), now.Sub(started))
	}
	if asked > readings/10 {
		t.Errorf("the system was asked %d times for %d readings", asked, readings)
	}
}

// machine is a machine that is suspended, and whose wall clock is set.
type machine struct {
	mono, slept, set time.Duration // set is by how much the wall clock was set
	asked            int
	clock            *clock
}

func newMachine() *machine {
	m := &machine{slept: time.Minute}
	m.clock = newClock(func() time.Duration { m.asked++; return m.slept })
	return m
}

func (m *machine) wall() time.Duration { return m.mono + m.slept + m.set }

// asleep reads both clocks, with an interruption in between.
func (m *machine) asleep(interruption time.Duration) time.Duration {
	wall := m.wall()
	m.mono += interruption
	return m.clock.asleep(wall, m.mono)
}

// A suspension is seen at once, however short the time since the last look, and although
// the wall clock was set before it, or will be set back after it.
func TestSuspensionIsSeenAtOnce(t *testing.T) {
	for _, d := range []time.Duration{time.Millisecond, time.Second, 30 * 24 * time.Hour} {
		for _, set := range []time.Duration{0, time.Hour, -time.Hour, -d / 2, -d - time.Millisecond} {
			m := newMachine()
			m.asleep(0)
			m.mono += 10 * time.Microsecond
			m.slept += d
			m.set += set
			if got := m.asleep(0); got != d {
				t.Errorf("suspended for %v, clock set by %v: %v", d, set, got)
			}
		}
	}
}

// A clock that is set back by just the time suspended, before anybody looks, hides the
// suspension for staleAfter.
func TestClockSetBackDuringASuspension(t *testing.T) {
	m := newMachine()
	m.asleep(0)
	m.slept += time.Hour
	m.set -= time.Hour
	m.asleep(0) // hidden, or not
	m.mono += staleAfter + 1
	if got := m.asleep(0); got != time.Hour {
		t.Errorf("an hour's suspension: %v after %v", got, staleAfter)
	}
}

// The system's answer may be too high once. The clock does not go back for that.
func TestTheClockNeverGoesBack(t *testing.T) {
	m := newMachine()
	m.slept += time.Second
	m.asleep(0)
	m.slept -= time.Second
	m.mono += 2 * staleAfter
	if got := m.asleep(0); got != time.Second {
		t.Errorf("suspended for %v, after a second", got)
	}
}

// No suspension and no slewing: the system is asked once for a time of staleAfter, and
// once for a clock that is set.
func TestWhenTheSystemIsAsked(t *testing.T) {
	m := newMachine()
	m.asleep(0)
	for range 99 {
		m.mono += staleAfter / 100
		m.asleep(tolerance / 2)
		m.mono -= tolerance / 2
	}
	if m.asked != 2 { // by newClock, and by the first look
		t.Errorf("asked %d times within %v", m.asked, staleAfter)
	}
	m.set += time.Second
	m.asleep(0)
	m.asleep(0)
	if m.asked != 3 {
		t.Errorf("asked %d times after the clock was set", m.asked)
	}
}

// Whatever happens to a machine, the clock is never before the instant at which its
// reading began, but for tolerance, unless the wall clock was set within staleAfter.
func TestRandomMachines(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		upTo := func(d time.Duration) time.Duration {
			for range random.IntN(4) { // of all orders of magnitude
				d /= 100
			}
			return time.Duration(random.Int64N(int64(d) + 1))
		}
		m := newMachine()
		set := -2 * staleAfter // when the wall clock was last set
		var latest time.Duration
		for range 500 {
			switch m.mono += upTo(time.Second); random.IntN(3) {
			case 0:
				m.slept += upTo(time.Hour)
			case 1:
				m.set += upTo(time.Hour)
				m.set -= upTo(time.Hour)
				set = m.mono
			}
			began := m.mono + m.slept - time.Minute
			interruption := time.Duration(0)
			if random.IntN(4) == 0 {
				interruption = upTo(time.Second)
			}
			asleep := m.asleep(interruption)
			now := m.mono + asleep
			if late := began - tolerance - now; late > 0 && m.mono-set > staleAfter {
				t.Fatalf("seed %d: %v before the reading began", seed, late)
			}
			if asleep > m.slept-time.Minute || now < latest {
				t.Fatalf("seed %d: suspended for %v of %v, %v after %v", seed, asleep, m.slept-time.Minute, now, latest)
			}
			latest = now
		}
	}
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		Now()
	}
}
