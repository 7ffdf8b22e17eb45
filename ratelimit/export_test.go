package ratelimit

import "fmt"

// LocalStates is how many keys FailLocal remembers.
func (l *Limiter) LocalStates() int {
	l.fall.mu.Lock()
	defer l.fall.mu.Unlock()
	return len(l.fall.states)
}

// Batches is for how many keys InBatches has a batch.
func (l *Limiter) Batches() int {
	l.batches.mu.Lock()
	defer l.batches.mu.Unlock()
	return len(l.batches.keys)
}

// LocalQueues is how many local queues there are.
func (l *Limiter) LocalQueues() int {
	l.queues.mu.Lock()
	defer l.queues.mu.Unlock()
	return len(l.queues.all)
}

// Unbalanced describes a local queue that does not have one turn, or one request
// under way, of the right cost for each waiter that was promised one; "" if there
// is none.
func (l *Limiter) Unbalanced() string {
	l.queues.mu.Lock()
	defer l.queues.mu.Unlock()
	for name, q := range l.queues.all {
		more := map[int64]int{}
		for e := q.promised.Front(); e != nil; e = e.Next() {
			more[e.Value.(*waiter).n]++
		}
		for n, surplus := range q.surplus {
			more[n] += surplus
		}
		for _, a := range q.asks {
			more[a.n]--
		}
		for _, t := range q.turns {
			more[t.n]--
		}
		for n, x := range more {
			if x != 0 {
				return fmt.Sprintf("%q: %d more are promised %d than there are turns", name, x, n)
			}
		}
	}
	return ""
}
