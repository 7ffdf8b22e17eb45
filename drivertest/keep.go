package drivertest

import (
	"context"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

// A Holder is a process that holds a lock.
type Holder struct {
	Locks driver.Locks
	Claim driver.Claim
	Sent  time.Time // of the request for the grant
	Until time.Time // end of the grant, as far as the process knows
}

// KeepAll makes every holder renew as a Locker does, independently, for the time within,
// and fails for each that loses its lock. It is for tests of stores whose servers hang;
// the cases of the contract break nothing.
func KeepAll(t T, all []Holder, ttl, within time.Duration) {
	t.Helper()
	end := bootclock.Now().Add(within)
	var work sync.WaitGroup
	for _, h := range all {
		work.Go(func() { h.keep(t, ttl, end) })
	}
	work.Wait()
}

func (h Holder) keep(t T, ttl time.Duration, end time.Time) {
	due := h.Sent.Add(ttl / 3)
	for due.Before(end) {
		<-time.After(due.Sub(bootclock.Now()))
		sent := bootclock.Now()
		left := h.Until.Sub(sent)
		if left <= 0 {
			t.Errorf("%s was lost: it could not be renewed in time", h.Claim.Key)
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), min(left/2, ttl/4))
		r := h.Locks.Renew(ctx, []driver.Claim{h.Claim}, ttl)[0]
		cancel()
		switch r.State {
		case driver.Held:
			h.Until, due = sent.Add(r.Grant.TTL), sent.Add(ttl/3)
		case driver.Unknown:
			now := bootclock.Now()
			due = now.Add(min(max(h.Until.Sub(now)/8, 5*time.Millisecond), 500*time.Millisecond))
		default:
			t.Errorf("%s is said to be %v", h.Claim.Key, r.State)
			return
		}
	}
}
