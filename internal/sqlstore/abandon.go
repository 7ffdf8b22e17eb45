package sqlstore

import (
	"context"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
)

// Abandoned cleans up after attempts to acquire that were not answered.
//
// A server executes what it was sent, even if the caller has given up and the connection
// was closed. The clean-up after such an attempt uses another connection and may come
// first: it would find nothing, and the claim of the attempt would hold the lock for its
// whole TTL. So Abandoned remembers the IDs of attempts without an answer, and repeats
// their release. It only repeats releases that the caller asked for. The caller must not
// use such an ID again.
type Abandoned struct {
	pauses  []time.Duration
	release func(context.Context, driver.Claim) error
	ctx     context.Context
	cancel  context.CancelFunc
	quit    chan struct{} // closed by Close
	running sync.WaitGroup

	mu     sync.Mutex
	left   map[string]*time.Timer
	closed bool
}

const (
	// remembered is how long after the attempt its caller may release it.
	remembered = time.Minute

	// maxLeft bounds the work when every request fails. The TTL ends the other claims.
	maxLeft = 1000
)

// Repeats are the default pauses before a release is repeated.
var Repeats = []time.Duration{200 * time.Millisecond, time.Second, 5 * time.Second}

// NewAbandoned returns an Abandoned that calls release after each of the pauses, until
// release finds a claim.
func NewAbandoned(pauses []time.Duration, release func(context.Context, driver.Claim) error) *Abandoned {
	a := &Abandoned{pauses: pauses, release: release, quit: make(chan struct{}), left: make(map[string]*time.Timer)}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a
}

// Leave notes an attempt without an answer.
func (a *Abandoned) Leave(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || len(a.left) >= maxLeft || a.left[id] != nil {
		return
	}
	a.left[id] = time.AfterFunc(remembered, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.left, id)
	})
}

// Released is called after each release, with or without an error. If the claim had an
// attempt without an answer, it repeats the release for a while, in the background.
func (a *Abandoned) Released(c driver.Claim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	timer := a.left[c.ID]
	if timer == nil || a.closed {
		return
	}
	timer.Stop()
	delete(a.left, c.ID)
	a.running.Go(func() { a.releaseAgain(c) })
}

func (a *Abandoned) releaseAgain(c driver.Claim) {
	for _, d := range a.pauses {
		timer := time.NewTimer(d)
		closing := false
		select {
		case <-timer.C:
		case <-a.quit:
			closing = true
		}
		timer.Stop()
		if a.release(a.ctx, c) == nil || closing {
			return // found; there is only one
		}
	}
}

// Close makes the last repetition of the remaining releases at once, and waits for it, at
// most for patience.
func (a *Abandoned) Close(patience time.Duration) {
	a.mu.Lock()
	if !a.closed {
		a.closed = true
		close(a.quit)
		for _, timer := range a.left {
			timer.Stop()
		}
		clear(a.left)
	}
	a.mu.Unlock()
	timer := time.AfterFunc(patience, a.cancel)
	a.running.Wait()
	timer.Stop()
	a.cancel()
}
