package bootclock

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSuspensionMovesTheClock(t *testing.T) {
	before, coarse := Now(), Coarse()
	Suspend(time.Hour)
	// What is added to the clock is known to some microseconds.
	if d := Now().Sub(before); d < time.Hour-time.Millisecond || d > time.Hour+time.Minute {
		t.Errorf("after an hour's suspension the clock moved by %v", d)
	}
	if d := Coarse().Sub(coarse); d < time.Hour-time.Millisecond {
		t.Errorf("once Now has seen the suspension, Coarse moved by %v only", d)
	}
}

func TestCoarseIsNeverLater(t *testing.T) {
	for range 1000 {
		if c, n := Coarse(), Now(); c.After(n) {
			t.Fatalf("Coarse %v is later than Now %v", c, n)
		}
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
