// Package scratch measures how long it takes to lock and unlock a key that no other program has.
package scratch

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
)

// cleanUpFor bounds what is done for a scratch key that may have been left.
const cleanUpFor = 3 * time.Second

// Key is a key that no other program has.
func Key() string { return "baton-scratch-" + strings.ToLower(rand.Text()[:16]) }

// Pairs is how long it takes to lock and unlock.
type Pairs struct {
	N            int
	P50, Slowest time.Duration
}

// Measure locks and unlocks a free key of its own n times, straight at the
// store, or until ctx ends. After an error it says what it measured before,
// and has given back what it held.
func Measure(ctx context.Context, store driver.Locks, n int) (Pairs, error) {
	traits := store.Traits()
	ttl := max(10*time.Second, traits.MinTTL)
	if traits.MaxTTL > 0 {
		ttl = min(ttl, traits.MaxTTL)
	}
	key := Key()
	var took []time.Duration
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
			took = append(took, time.Since(start))
		}
	}
	p := Pairs{N: len(took)}
	if p.N > 0 {
		slices.Sort(took)
		p.P50, p.Slowest = took[(p.N-1)/2], took[p.N-1]
	}
	return p, failed
}
