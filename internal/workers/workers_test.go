package workers

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func (p *Pool) kept() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle)
}

// Every function runs, whatever else runs and for how long, and no more goroutines stay
// than were asked for, none after the end.
func TestPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := New(ctx, 2)
		gate := make(chan struct{})
		var ran atomic.Int64
		for range 10 {
			p.Go(func() { <-gate; ran.Add(1) })
		}
		synctest.Wait()
		if ran.Load() != 0 || p.kept() != 0 {
			t.Errorf("%d ran and %d are idle, before the gate is open", ran.Load(), p.kept())
		}
		close(gate)
		synctest.Wait()
		if ran.Load() != 10 || p.kept() != 2 {
			t.Errorf("%d of 10 ran, %d of 2 are kept", ran.Load(), p.kept())
		}
		p.Go(func() { ran.Add(1) })
		synctest.Wait()
		if ran.Load() != 11 || p.kept() != 2 {
			t.Errorf("%d of 11 ran, %d of 2 are kept", ran.Load(), p.kept())
		}
		cancel()
		synctest.Wait()
		if p.kept() != 0 {
			t.Errorf("%d are kept after the end", p.kept())
		}
		p.Go(func() { ran.Add(1) })
		synctest.Wait() // and the bubble finds goroutines that stay
		if ran.Load() != 12 {
			t.Errorf("%d of 12 ran", ran.Load())
		}
	})
}

// Work that comes just when the end does is done.
func TestPoolEndsInTheMidst(t *testing.T) {
	t.Parallel()
	for range 2000 {
		ctx, cancel := context.WithCancel(t.Context())
		p := New(ctx, 2)
		var all sync.WaitGroup
		for range 4 {
			all.Add(1)
			p.Go(all.Done)
		}
		go cancel()
		for range 4 {
			all.Add(1)
			p.Go(all.Done)
		}
		all.Wait()
	}
}
