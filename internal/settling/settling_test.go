package settling

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestMark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m Mark
		began := time.Now()
		expect := func(what string, got, want bool) {
			t.Helper()
			if got != want {
				t.Errorf("%s after %v: %v, want %v", what, time.Since(began), got, want)
			}
		}
		expect("recent", m.Recent(), false)
		expect("since the beginning", m.Since(began), false)
		expect("set", m.TrySet(), true)
		expect("set again", m.TrySet(), false)
		expect("recent", m.Recent(), true)
		time.Sleep(Time - 1)
		expect("set", m.TrySet(), false)
		expect("recent", m.Recent(), true)
		expect("since just now", m.Since(time.Now()), false)
		time.Sleep(time.Nanosecond)
		expect("set", m.TrySet(), true)
		expect("since just before", m.Since(time.Now().Add(-1)), true)
		time.Sleep(Time / 2)
		m.Set()
		time.Sleep(Time - 1)
		expect("recent", m.Recent(), true)
		time.Sleep(time.Nanosecond)
		expect("recent", m.Recent(), false)
		expect("set", m.TrySet(), true)
	})
}
