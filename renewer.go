package baton

import (
	"container/heap"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/acquire"
)

// maxSleep bounds the delay until the renewer notices that the machine was suspended.
const maxSleep = time.Second

// A renewer calls the owners of timers that have run out, in the order of their times,
// and sends their questions to the store in batches. It never waits for the store, so a
// request that hangs does not delay the report of a loss. Between its runs it has a timer
// and no goroutine.
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

// An owner of a timer has a claim to renew.
type owner interface {
	// due is called when the timer has run out. It returns the question to send, if ok.
	due(now acquire.Moment) (q acquire.Question, ok bool)

	// renewed gets the store's answer to the question. It reports whether the answer
	// counts.
	renewed(sent acquire.Moment, q acquire.Question, r driver.Renewal) (counts bool)
}

// A renewal is a question to the store, and its owner.
type renewal struct {
	owner owner
	acquire.Question
}

// A timer belongs to one owner, which never changes. The renewer's mutex guards the other
// fields.
type timer struct {
	owner owner
	at    acquire.Moment
	place int // index in the heap plus 1; 0: not set
}

// set plans a call of t's owner at a moment and drops the earlier plan. Zero means no
// call.
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
		r.arm(at, r.clock.Now())
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
	if r.running { // that run looks again before it ends
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
			if q, ok := t.owner.due(now); ok {
				batch = append(batch, renewal{t.owner, q})
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
