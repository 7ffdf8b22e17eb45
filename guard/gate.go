package guard

import (
	"context"
	"fmt"
	"sync"
)

// Gate guards this process's own writes to a resource that does not know tokens: a
// device, a file that others read, a service. Marks alone would not suffice: between the
// check and the write the process may pause, and a higher token be admitted. The Gate
// lets a write begin only when the admitted writes with lower tokens have ended.
//
// That holds for writes through one Gate. If several processes write, only the resource
// itself can check in the same step as it writes: send the pass to it. The zero Gate
// remembers in this process. A Gate must not be copied.
type Gate struct {
	// Marks keeps the marks. Defaults to a Memory, which a restart clears.
	Marks Marks

	memory Memory
	mu     sync.Mutex
	inside map[string][]*visit // all that have entered, admitted or not
}

type visit struct {
	token int64
	ended chan struct{}
}

// Do runs write if p is admitted. Writes of one pass may run at the same time; a write
// waits for those with lower tokens, for as long as ctx lasts. Its error is a
// *StaleError, that of the Marks, ctx's, or write's.
func (g *Gate) Do(ctx context.Context, resource string, p Pass, write func() error) error {
	if err := legal(resource, p); err != nil {
		return err
	}
	// Enter before Raise: then a write with a higher token, which looks for lower ones
	// after its own Raise, sees this write; or this write's Raise comes later and is
	// refused.
	me := g.enter(resource, p)
	defer g.leave(resource, me)
	var marks Marks = &g.memory
	if g.Marks != nil {
		marks = g.Marks
	}
	if err := marks.Raise(ctx, resource, p); err != nil {
		return err
	}
	for _, v := range g.below(resource, p) {
		select {
		case <-v.ended:
		case <-ctx.Done():
			return fmt.Errorf("guard: %q: an earlier write, with token %d, has not ended: %w", resource, v.token, context.Cause(ctx))
		}
	}
	return write()
}

func (g *Gate) enter(resource string, p Pass) *visit {
	v := &visit{token: p.Token, ended: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside == nil {
		g.inside = make(map[string][]*visit)
	}
	g.inside[resource] = append(g.inside[resource], v)
	return v
}

func (g *Gate) leave(resource string, v *visit) {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(v.ended)
	all := g.inside[resource]
	for i := range all {
		if all[i] == v {
			all[i] = all[len(all)-1]
			all[len(all)-1] = nil
			all = all[:len(all)-1]
			break
		}
	}
	if g.inside[resource] = all; len(all) == 0 {
		delete(g.inside, resource)
	}
}

func (g *Gate) below(resource string, p Pass) (lower []*visit) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, v := range g.inside[resource] {
		if v.token < p.Token {
			lower = append(lower, v)
		}
	}
	return lower
}
