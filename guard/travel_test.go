package guard_test

import (
	"context"
	"errors"
	"testing"

	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/store/memstore"
)

// A lease that is attached in another process keeps its pass: the writes of the
// first process do not shut out the second. Those of the next lease do.
func TestPassTravels(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	here, there := program(store, "here"), program(store, "there")
	var m guard.Memory
	raise := func(p guard.Pass) error { return m.Raise(context.Background(), "r", p) }

	lease, err := here.Lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if err := raise(guard.Of(lease)); err != nil {
		t.Error(err)
	}
	handle, err := lease.Detach()
	if err != nil {
		t.Fatal(err)
	}
	attached, err := there.Attach(t.Context(), handle)
	if err != nil {
		t.Fatal(err)
	}
	if err := raise(guard.Of(attached)); err != nil {
		t.Errorf("attached: %v", err)
	}
	if err := attached.Unlock(); err != nil {
		t.Error(err)
	}
	next, err := here.Lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	defer next.Unlock()
	if err := raise(guard.Of(next)); err != nil {
		t.Errorf("the next: %v", err)
	}
	if err := raise(guard.Of(attached)); !errors.Is(err, guard.ErrStale) {
		t.Errorf("after the next: %v, want ErrStale", err)
	}
}
