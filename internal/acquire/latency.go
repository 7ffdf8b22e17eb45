package acquire

import (
	"sync/atomic"
	"time"
)

// Latency is how slow the store is: the longest time of the last requests, which shrinks
// with each faster request. With a fast store it costs one atomic load.
type Latency struct{ lately atomic.Int64 }

// notSlow is a time so short that no plan depends on it.
const notSlow = 50 * time.Millisecond

// Saw notes how long a request took, answered or not.
func (l *Latency) Saw(took time.Duration) {
	old := time.Duration(l.lately.Load())
	if took < notSlow && old == 0 {
		return
	}
	if took = max(took, old*3/4); took < notSlow {
		took = 0
	}
	l.lately.CompareAndSwap(int64(old), int64(took)) // if it fails, another request has just noted its time
}

// Last is 0 for a store that is not slow.
func (l *Latency) Last() time.Duration { return time.Duration(l.lately.Load()) }
