package guard_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/batonhq/baton/guard"
)

// refusals are what an observer was told of calls with one context.
type refusals struct {
	mu   sync.Mutex
	told []guard.RefusedEvent
}

type refusalsKey struct{}

// observed returns a context whose refused calls, and only these, are collected
// until the test ends: other tests run beside it.
func observed(t testing.TB, ctx context.Context) (context.Context, *refusals) {
	r := new(refusals)
	t.Cleanup(guard.Observe(guard.Events{Refused: func(ctx context.Context, e guard.RefusedEvent) {
		if ctx.Value(refusalsKey{}) == r {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.told = append(r.told, e)
		}
	}}))
	return context.WithValue(ctx, refusalsKey{}, r), r
}

func (r *refusals) take() []guard.RefusedEvent {
	r.mu.Lock()
	defer r.mu.Unlock()
	told := r.told
	r.told = nil
	return told
}

// told are Marks that compare each answer with what an observer is told.
type told struct {
	guard.Marks
	store    string
	t        *testing.T
	refusals *refusals
}

func (m told) Raise(ctx context.Context, resource string, p guard.Pass) error {
	err := m.Marks.Raise(ctx, resource, p)
	exactly(m.t, m.refusals, m.store, err)
	return err
}

// exactly fails unless what was told is err, once, or nothing if err is no refusal.
func exactly(t *testing.T, r *refusals, store string, err error) {
	t.Helper()
	stale, refused := errors.AsType[*guard.StaleError](err)
	switch all := r.take(); {
	case !refused && len(all) != 0:
		t.Errorf("%v, and an observer is told %+v", err, all)
	case refused && (len(all) != 1 || all[0] != guard.RefusedEvent{Store: store, Err: stale}):
		t.Errorf("%v, and an observer is told %+v, want that of store %q, once", err, all, store)
	}
}
