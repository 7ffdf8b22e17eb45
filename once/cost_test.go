package once

import (
	"context"
	"io"
	"log/slog"
	"testing"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

// Who is not told costs nothing: no allocation, no look at the clock.
func TestNobodyToldCostsNothing(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no events":     {},
		"no function":   {Events: &Events{}},
		"a deaf logger": {Lock: baton.Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}},
	} {
		r, err := New(memstore.New(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		a, rec := Attempt{Key: "k", Token: 1, Attempts: 1}, driver.Record{Key: "k", Token: 1, Attempts: 1, Done: true}
		o := observed{runner: r, ctx: t.Context(), key: "k"}
		if n := testing.AllocsPerRun(100, func() {
			o.asked()
			_, _ = o.replayed(rec)
			o.begins(a)
			o.ends(a, OperationEvent{Recorded: true}, nil)
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
		if !o.call.IsZero() || !o.attempt.IsZero() {
			t.Errorf("%s: it looked at the clock: %v, %v", name, o.call, o.attempt)
		}
	}
}

// What an event needs of the clock is not looked up for another one.
func TestClocks(t *testing.T) {
	f := func(context.Context, OperationEvent) {}
	for name, c := range map[string]struct {
		events        Events
		call, attempt bool
	}{
		"Began":      {Events{Began: f}, true, false},
		"Replayed":   {Events{Replayed: f}, true, false},
		"Finished":   {Events{Finished: f}, false, true},
		"Superseded": {Events{Superseded: f}, false, true},
	} {
		r, err := New(memstore.New(), Config{Events: &c.events})
		if err != nil {
			t.Fatal(err)
		}
		o := observed{runner: r, ctx: t.Context(), key: "k"}
		o.asked()
		o.begins(Attempt{Key: "k"})
		if o.call.IsZero() == c.call || o.attempt.IsZero() == c.attempt {
			t.Errorf("%s: looked at the clock: %v, %v", name, o.call, o.attempt)
		}
	}
}
