package drivertest

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/badstores"
	"github.com/batonhq/baton/store/memstore"
)

// Two stores were written from the same contract: memstore over the state machine,
// and the plain one that the broken stores are made of. Whatever random processes
// do, both give the same answers, to the microsecond and the token.
func TestTwoStoresAgree(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(drawStep), 1, 50).Draw(r, "steps")
		var difference string
		synctest.Test(t, func(t *testing.T) { difference = disagree(t.Context(), steps) })
		if difference != "" {
			r.Fatal(difference)
		}
	})
}

// step is something that one process does after a pause.
type step struct {
	pause time.Duration
	verb  string
	claim driver.Claim
	ttl   time.Duration
	queue bool
}

func drawStep(r *rapid.T) step {
	const whole = driver.Whole
	id := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "a2", "b2"}).Draw(r, "ID")
	shape := rapid.SampledFrom([][2]int64{{whole, whole}, {1, whole}, {1, 3}, {2, 3}, {1, 2}}).Draw(r, "weight")
	return step{
		pause: rapid.SampledFrom([]time.Duration{0, time.Microsecond, 100 * time.Millisecond, time.Second, driver.WaiterTTL, time.Hour}).Draw(r, "pause"),
		verb:  rapid.SampledFrom([]string{"acquire", "acquire", "acquire", "renew", "release", "downgrade", "move", "break"}).Draw(r, "verb"),
		claim: driver.Claim{Key: "k", ID: id, Owner: id, Weight: shape[0], Capacity: shape[1]},
		ttl:   rapid.SampledFrom([]time.Duration{time.Millisecond, 300 * time.Millisecond, 2 * time.Second, time.Hour}).Draw(r, "ttl"),
		queue: rapid.Bool().Draw(r, "queue"),
	}
}

// disagree returns the first difference.
func disagree(ctx context.Context, steps []step) string {
	a, b := memstore.New(), badstores.New("")
	for i, s := range steps {
		time.Sleep(s.pause) // fake: the caller is in a bubble
		if x, y := s.do(ctx, a), s.do(ctx, b); x != y {
			return fmt.Sprintf("step %d, %+v:\nmemstore: %s\nplain:    %s", i, s, x, y)
		}
		x, _ := a.Inspect(ctx, "k")
		y, _ := b.Inspect(ctx, "k")
		if x, y := fmt.Sprintf("%+v", x), fmt.Sprintf("%+v", y); x != y {
			return fmt.Sprintf("after step %d, %+v:\nmemstore: %s\nplain:    %s", i, s, x, y)
		}
	}
	return ""
}

func (s step) do(ctx context.Context, store interface {
	driver.Locks
	driver.Downgrader
	driver.Mover
	driver.Inspector
},
) string {
	switch s.verb {
	case "acquire":
		g, err := store.Acquire(ctx, driver.Request{Claim: s.claim, TTL: s.ttl, Queue: s.queue})
		g.Again = 0 // a store may ask for an early look
		return fmt.Sprintf("%+v, %v", g, err)
	case "renew":
		a := store.Renew(ctx, []driver.Claim{s.claim}, s.ttl)[0]
		a.Grant.Again = 0
		return fmt.Sprintf("%+v", a)
	case "release":
		return fmt.Sprint(store.Release(ctx, s.claim))
	case "downgrade":
		g, err := store.Downgrade(ctx, s.claim, s.ttl)
		return fmt.Sprintf("%+v, %v", g, err)
	case "move":
		g, err := store.Move(ctx, s.claim, s.claim.ID+"2", s.claim.ID+"2", s.ttl)
		return fmt.Sprintf("%+v, %v", g, err)
	}
	n, err := store.Break(ctx, "k")
	return fmt.Sprintf("%d, %v", n, err)
}
