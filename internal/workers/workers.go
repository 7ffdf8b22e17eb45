// Package workers keeps goroutines for callers that often need one briefly. A new
// goroutine begins with a small stack, which grows and is copied several times on the way
// through a client library; a goroutine that has done such work has a large one.
package workers

import (
	"context"
	"slices"
	"sync"
)

// A Pool runs functions on other goroutines, and keeps some of the idle ones. It is safe
// for concurrent use.
type Pool struct {
	ctx  context.Context
	keep int

	mu   sync.Mutex
	idle []chan func()
}

// New returns a Pool that keeps up to keep idle goroutines, until ctx ends.
func New(ctx context.Context, keep int) *Pool { return &Pool{ctx: ctx, keep: keep} }

// Go runs f on another goroutine at once, even after the end of ctx. It does not wait for
// f.
func (p *Pool) Go(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		p.idle[n-1] <- f // never blocks: there is room for one
		p.idle = p.idle[:n-1]
		return
	}
	go p.work(f)
}

func (p *Pool) work(f func()) {
	next := make(chan func(), 1)
	for f != nil {
		f()
		f = p.more(next)
	}
}

// more waits for the next function. It returns nil if there will be none.
func (p *Pool) more(next chan func()) func() {
	p.mu.Lock()
	if len(p.idle) == p.keep {
		p.mu.Unlock()
		return nil
	}
	p.idle = append(p.idle, next)
	p.mu.Unlock()
	select {
	case f := <-next:
		return f
	case <-p.ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.idle, next); i >= 0 {
		p.idle = slices.Delete(p.idle, i, i+1)
		return nil
	}
	return <-next // it arrived just now
}
