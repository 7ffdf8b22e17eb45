package pagestried

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/batontest"
	"github.com/batonhq/baton/driver"
)

// TestLeases has the times of the picture in docs/explanation/leases.md.
func TestLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := batontest.New(t)
		locks := lockerOn(t, store)
		start := time.Now()
		lease, err := locks.Lock(t.Context(), "report")
		if err != nil {
			t.Fatal(err)
		}
		work := lease.Context(t.Context())
		time.Sleep(6 * time.Second) // one renewal was answered
		renew := store.Fail(batontest.Renew, driver.ErrUnavailable)
		<-work.Done()
		if ended := time.Since(start).Round(time.Millisecond); ended != 17500*time.Millisecond || !errors.Is(context.Cause(work), baton.ErrLost) {
			t.Errorf("it ends after %v: %v", ended, context.Cause(work))
		}
		renew.Stop()
		next, err := lockerOn(t, store).Lock(t.Context(), "report")
		if err != nil {
			t.Fatal(err)
		}
		if granted := time.Since(start); granted.Round(100*time.Millisecond) != 19*time.Second {
			t.Errorf("the next one is granted after %v", granted)
		}
		if err := next.Unlock(); err != nil {
			t.Error(err)
		}
	})
}
