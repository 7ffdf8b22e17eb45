package batch

import (
	"context"
	"fmt"
	"time"

	"github.com/batonhq/baton/driver"
)

// flyHere sends one request on its caller's goroutine.
func (b *Batcher[R]) flyHere(ctx context.Context, r R, f *flight) error {
	it := r.item()
	defer func() {
		it.Finish()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.freeLocked(f)
		b.landLocked()
		b.launchLocked()
	}()
	send := b.config.Send
	if b.config.Begin != nil {
		if send != nil {
			send(ctx, []R{r})
			return nil
		}
		var err error
		if send, err = b.config.Begin(ctx); err != nil {
			return err
		}
	}
	later, stop := b.outlive(ctx)
	defer stop()
	send(later, []R{r})
	if ctx.Err() != nil && later.Err() != nil && !it.finished.Load() {
		return fmt.Errorf("%w: %w", driver.ErrUnknown, ctx.Err())
	}
	return nil
}

// outlive is the context of a send on its caller's goroutine. Usually it has no end, and
// costs no allocation.
func (b *Batcher[R]) outlive(ctx context.Context) (later context.Context, stop func()) {
	c := &b.config
	if ctx.Done() == nil && c.Context.Done() == nil && c.Timeout == 0 {
		return ctx, func() {}
	}
	later, cancel := b.within(context.WithoutCancel(ctx))
	unwatch := context.AfterFunc(ctx, func() { time.AfterFunc(c.Grace, cancel) })
	unclose := context.AfterFunc(c.Context, cancel)
	return later, func() { unwatch(); unclose(); cancel() }
}
