// Package scratch measures how long it takes to lock and unlock a key that no other
// program uses.
package scratch

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
)

// cleanUpFor bounds the removal of a scratch key.
const cleanUpFor = 3 * time.Second

// Key is a key that no other program uses.
func Key() string { return "baton-scratch-" + strings.ToLower(rand.Text()[:16]) }

// Pairs are the measured times to lock and unlock.
type Pairs struct {
	N            int
	P50, Slowest time.Duration
}

// Measure locks and unlocks an unused key n times, without a Locker, or until ctx ends.
// After an error it returns what it measured before, and has released what it held.
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
			// Its outcome may be unknown.
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpFor)
			_ = store.Release(undo, c) // otherwise it ends by itself
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
