package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/quick"
)

// errSilent replaces the answer of a store that is not asked because it is known to fail.
var errSilent = fmt.Errorf("the store did not answer before: %w", ErrUnavailable)

// lookBy is look, but no longer than until due, unless that is zero.
func (o *overrides) lookBy(ctx context.Context, due time.Time) {
	if o != nil && !due.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, due)
		defer cancel()
	}
	o.look(ctx)
}

// decideBy is decide for a caller that needs the answer by due. Unless due is zero,
// another goroutine asks the store, and continues when the caller has its answer. The
// caller, and not that goroutine, decides in place of the store.
func (l *Limiter) decideBy(ctx context.Context, due time.Time, all []Limit, r limits.Request) (limits.Taken, Source, []int, error) {
	if due.IsZero() {
		return l.decide(ctx, all, r)
	}
	if err := ctx.Err(); err != nil {
		return limits.Taken{}, ByStore, nil, err
	}
	f := &l.fall
	asking, cancel := context.WithoutCancel(ctx), func() {}
	if f.by == ByStore { // no caller waits for a late answer
		asking, cancel = context.WithDeadline(ctx, due)
	}
	type answer struct {
		t    limits.Taken
		by   Source
		took []int
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		quick.Stack()
		defer cancel()
		t, by, took, err := decide(asking, all, r, func(ctx context.Context, r limits.Request) (limits.Taken, Source, error) {
			t, err := f.fromStore(ctx, l.store, r)
			if err != nil {
				return t, f.by, err
			}
			return t, ByStore, nil
		})
		answered <- answer{t, by, took, err}
	}()
	late := time.NewTimer(time.Until(due))
	defer late.Stop()
	failed := errors.Join(ErrUnknown, context.DeadlineExceeded)
	select {
	case a := <-answered:
		if a.err == nil || !fails(a.err) {
			return a.t, a.by, a.took, a.err
		}
		failed = a.err
	case <-late.C:
	case <-ctx.Done():
		return limits.Taken{}, ByStore, nil, errors.Join(ErrUnknown, ctx.Err())
	}
	return decide(ctx, all, r, func(_ context.Context, r limits.Request) (limits.Taken, Source, error) {
		if f.by == ByStore {
			return limits.Taken{}, ByStore, failed
		}
		return f.stand(r, 0)
	})
}

// fromStore asks the store, unless it is known to fail, and notes its answer.
func (f *fallback) fromStore(ctx context.Context, store limits.Store, r limits.Request) (limits.Taken, error) {
	if f.by == ByStore {
		return store.Take(ctx, r)
	}
	if ask, _ := f.ask(r.Takes[0].Key); !ask {
		return limits.Taken{}, errSilent
	}
	short, cancel := context.WithTimeout(ctx, f.after)
	defer cancel()
	t, err := store.Take(short, r)
	f.judge(ctx, r, err)
	return t, err
}
