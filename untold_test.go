package baton_test

import (
	"context"
	"errors"
	"testing"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/memstore"
)

// A lease and its contexts agree about its end, even if the goroutine that
// noticed it is stopped before it has ended the contexts.
func TestContextsKnowOfAnEndThatWasNotTold(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	defer store.Close()
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	outer, err := locks.Lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	ctx := outer.Context(t.Context())
	inner, err := locks.Lock(ctx, "k", baton.Reentrant())
	if err != nil {
		t.Fatal(err)
	}
	within := inner.Context(ctx)
	if err := outer.Unlock(); err != nil {
		t.Fatal(err)
	}
	if within.Err() != nil || ctx.Err() != nil {
		t.Errorf("%v, %v: the nested lease has not ended", within.Err(), ctx.Err())
	}
	tell := baton.LoseUntold(inner)
	for _, c := range []context.Context{ctx, within} {
		if inner.Err() == nil || c.Err() == nil || !errors.Is(context.Cause(c), baton.ErrLost) {
			t.Errorf("%v, %v, %v", inner.Err(), c.Err(), context.Cause(c))
		}
	}
	tell()
}
