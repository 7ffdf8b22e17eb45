package measure

import (
	"context"
	"crypto/rand"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
)

// cleanUpFor bounds what is done for a scratch key that may have been left.
const cleanUpFor = 3 * time.Second

// scratchName is a key that no other program has.
func scratchName() string { return "baton-scratch-" + strings.ToLower(rand.Text()[:16]) }

// Pairs is how long it takes to lock and unlock.
type Pairs struct {
	N            int
	P50, Slowest time.Duration
}

// Scratch locks and unlocks a free key of its own n times, straight at the
// store, or until ctx ends. After an error it says what it measured before,
// and has given back what it held.
func Scratch(ctx context.Context, store driver.Locks, n int) (Pairs, error) {
	traits := store.Traits()
	ttl := max(10*time.Second, traits.MinTTL)
	if traits.MaxTTL > 0 {
		ttl = min(ttl, traits.MaxTTL)
	}
	key := scratchName()
	var h Histogram
	var failed error
	for i := range n + 1 {
		c := driver.Claim{Key: key, ID: driver.NewID(), Owner: "baton doctor", Weight: driver.Whole, Capacity: driver.Whole}
		start := time.Now()
		g, err := store.Acquire(ctx, driver.Request{Claim: c, TTL: ttl})
		c.Ticket = g.Ticket
		if err == nil {
			err = store.Release(ctx, c)
		}
		if err != nil {
			// Its outcome is unknown at best.
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpFor)
			_ = store.Release(undo, c) // if not, it ends by itself
			cancel()
			failed = err
			break
		}
		if i > 0 { // the first one may have to connect, or to make tables
			h.Add(time.Since(start))
		}
	}
	p := Pairs{N: int(h.N)}
	if p.N > 0 {
		p.P50, p.Slowest = h.Quantile(0.50), h.Quantile(1)
	}
	return p, failed
}
