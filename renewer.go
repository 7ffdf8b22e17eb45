package baton

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/acquire"
)

// maxSleep bounds how late the renewer notices that the machine was suspended.
const maxSleep = time.Second

// A renewer calls the owners of timers that have run out, in the order of their
// times, and sends their questions to the store in batches. It never waits for the
// store, so that a request that hangs does not delay a loss; between its runs it is
// a timer and no goroutine.
type renewer struct {
	clock acquire.Clock
	send  func([]renewal) // called on a goroutine of its own

	mu      sync.Mutex
	heap    timerHeap
	running bool
	wakeup  *time.Timer
	armed   bool
	wakeAt  acquire.Moment // when wakeup fires, if armed
}

// A timer is set for one owner. The renewer's mutex guards its fields, except for
// the owner, which never changes.
type timer struct {
	owner interface {
		due(now acquire.Moment) (r renewal, ok bool)
	}
	at    acquire.Moment
	place int // index in the heap plus 1; 0: it is not set
}

// set plans a call of t's owner at a moment and drops the earlier plan; zero means
// no call.
func (r *renewer) set(t *timer, at acquire.Moment) {
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
		r.arm(at, r.clock.Coarse())
	}
}

func (r *renewer) arm(at, now acquire.Moment) {
	pause := min(max(at.Sub(now), 0), maxSleep)
	r.armed, r.wakeAt = true, now.Add(pause)
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
		now := r.clock.Now()
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

// renewal is a question to the store, and the keeper that asks it.
type renewal struct {
	keeper *keeper
	acquire.Question
}

// renew sends questions to the store, once: those with the same TTL in one batch.
func (l *Locker) renew(batch []renewal) {
	for len(batch) > 0 {
		ttl := batch[0].TTL
		n := 0 // of the same TTL, which go first
		for i := range batch {
			if batch[i].TTL == ttl {
				batch[n], batch[i] = batch[i], batch[n]
				n++
			}
		}
		if n == len(batch) {
			l.renewBatch(batch, ttl)
			return
		}
		go l.renewBatch(batch[:n:n], ttl)
		batch = batch[n:]
	}
}

func (l *Locker) renewBatch(batch []renewal, ttl time.Duration) {
	claims := make([]driver.Claim, len(batch))
	patience := batch[0].Patience
	for i, r := range batch {
		claims[i] = r.Claim
		patience = min(patience, r.Patience)
	}
	sent := l.clock.Now()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	answers := l.store.Renew(ctx, claims, ttl)
	cancel()
	answered := l.clock.Now()
	l.latency.Saw(answered.Sub(sent))

	for i, r := range batch {
		r.keeper.renewed(sent, r.Question, answers[i])
	}
	l.renewed(batch, answers, sent, answered)
}
