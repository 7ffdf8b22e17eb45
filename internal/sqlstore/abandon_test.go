package sqlstore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
)

func TestAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var times int
		found := 2
		a := NewAbandoned([]time.Duration{time.Second, time.Second, time.Second}, func(context.Context, driver.Claim) error {
			if times++; times < found {
				return driver.ErrLost
			}
			return nil
		})
		after := func(what string, wait time.Duration, want int, act func()) {
			t.Helper()
			times = 0
			act()
			time.Sleep(wait)
			synctest.Wait()
			if times != want {
				t.Errorf("%s: it was released %d times, want %d", what, times, want)
			}
		}
		released := func(id string) func() { return func() { a.Released(driver.Claim{Key: "k", ID: id}) } }
		after("no attempt was left", time.Hour, 0, released("a"))
		after("no release", remembered/2, 0, func() { a.Leave("a") })
		after("an attempt was left", time.Hour, 2, released("a"))
		after("it is forgotten by then", time.Hour, 0, released("a"))
		a.Leave("a")
		after("much later", 2*remembered, 0, func() {})
		after("too late", time.Hour, 0, released("a"))
		found = 9
		a.Leave("a")
		after("nothing is found", time.Hour, 3, released("a"))
		a.Leave("a")
		after("closing", 0, 1, func() {
			released("a")()
			a.Close(time.Second)
		})
		a.Leave("a")
		after("closed", time.Hour, 0, released("a"))
	})
}
