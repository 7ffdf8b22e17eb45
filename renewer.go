package baton

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
)

// maxSleep bounds how late the renewer notices that the machine was suspended.
const maxSleep = time.Second

// A renewer calls the owners of timers that have run out, in the order of their
// times, and sends their questions to the store in batches. It never waits for the
// store, so that a request that hangs does not delay a loss; between its runs it is
// a timer and no goroutine.
type renewer struct {
	clock clock
	send  func([]renewal) // called on a goroutine of its own

	mu      sync.Mutex
	heap    timerHeap
	running bool
	wakeup  *time.Timer
	armed   bool
	wakeAt  moment // when wakeup fires, if armed
}

// A timer is set for one owner. The renewer's mutex guards its fields, except for
// the owner, which never changes.
type timer struct {
	owner interface {
		due(now moment) (r renewal, ok bool)
	}
	at    moment
	place int // index in the heap plus 1; 0: it is not set
}

// set plans a call of t's owner at a moment and drops the earlier plan; zero means
// no call.
func (r *renewer) set(t *timer, at moment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case at == 0:
		if t.place > 0 {
			heap.Remove(&r.heap, t.place-1)
		}
		return
	case t.place > 0:
		t.at = at
		heap.Fix(&r.heap, t.place-1)
	default:
		t.at = at
		heap.Push(&r.heap, t)
	}
	// A wakeup that is too early stays: it costs one look at the heap.
	if !r.running && (!r.armed || at < r.wakeAt) {
		r.arm(at, r.clock.coarse())
	}
}

func (r *renewer) arm(at, now moment) {
	pause := min(max(at.sub(now), 0), maxSleep)
	r.armed, r.wakeAt = true, now.add(pause)
	if r.wakeup == nil {
		r.wakeup = time.AfterFunc(pause, r.run)
	} else {
		r.wakeup.Reset(pause)
	}
}

// run is called by wakeup.
func (r *renewer) run() {
	r.mu.Lock()
	if r.running { // the other run looks again before it ends
		r.mu.Unlock()
		return
	}
	r.running = true
	for {
		now := r.clock.now()
		var due []*timer
		for len(r.heap) > 0 && now >= r.heap[0].at {
			due = append(due, heap.Pop(&r.heap).(*timer))
		}
		if len(due) == 0 {
			r.running, r.armed = false, false
			if len(r.heap) > 0 {
				r.arm(r.heap[0].at, now)
			}
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		var batch []renewal
		for _, t := range due {
			if j, ok := t.owner.due(now); ok {
				batch = append(batch, j)
			}
		}
		if len(batch) > 0 {
			go r.send(batch)
		}
		r.mu.Lock()
	}
}

// timerHeap orders timers by their times.
type timerHeap []*timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h timerHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].place, h[j].place = i+1, j+1 }
func (h *timerHeap) Push(x any)        { t := x.(*timer); *h = append(*h, t); t.place = len(*h) }
func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.place = 0
	return t
}

// A question asks the store whether a claim stands.
type question struct {
	claim    driver.Claim
	phase    phase // when it was asked
	round    int
	deadline moment        // when the process would have stopped believing in the lease; zero for a position
	beside   bool          // the holder asks: what is asked in the background does not depend on it
	patience time.Duration // for the answer
}

// renewal is a question to the store, and the keeper that asks it.
type renewal struct {
	keeper *keeper
	question
}

// renew sends a batch of questions to the store, once.
func (l *Locker) renew(batch []renewal) {
	claims := make([]driver.Claim, len(batch))
	patience := batch[0].patience
	for i, r := range batch {
		claims[i] = r.claim
		patience = min(patience, r.patience)
	}
	sent := l.clock.now()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	answers := l.store.Renew(ctx, claims, l.terms.storeTTL())
	cancel()
	answered := l.clock.now()
	l.latency.saw(answered.sub(sent))

	for i, r := range batch {
		r.keeper.renewed(sent, r.question, answers[i])
	}
	l.renewed(batch, answers, sent, answered)
}
