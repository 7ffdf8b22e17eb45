package redisstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
)

// unresolved repeats releases of claims for which a request may still be on its way: the
// release failed and the caller does not know whether the claim exists, or an earlier
// attempt was not answered. The server may execute a request whose connection was lost
// after the release. The claim that it makes would hold the lock for its whole TTL.
//
// A claim whose ID is used again is no longer released: see recall.
//
// It is no sqlstore.Abandoned: several attempts for one ID may be unresolved here, so the
// looks continue after one was found; and an ID may be used again.
type unresolved struct {
	known atomic.Int32 // number of IDs in the maps: usually 0

	mu         sync.Mutex
	unanswered map[string]bool     // an attempt for this ID was not answered
	watched    map[string]*cleanup // by ID, released claims
	closed     bool
	stop       context.CancelFunc
	ctx        context.Context
	wg         sync.WaitGroup
}

// cleanup is a claim that is released repeatedly.
type cleanup struct {
	turn  chan struct{} // held during a release, and to read over and lost
	over  bool
	lost  bool          // a release was not answered: the server may execute it later, too
	again chan struct{} // the caller released it once more: begin again with the first pause
}

// lookDelays are the pauses before and between the looks. Delayed packets usually come
// within a second, but TCP doubles its pauses.
var lookDelays = []time.Duration{200 * time.Millisecond, 2 * time.Second, 8 * time.Second, 20 * time.Second}

// maxUnresolved bounds the work and the memory when every request fails. The TTL ends the
// other claims.
const maxUnresolved = 1000

// attempted notes an attempt that ended with err. unsure says that an earlier one was not
// answered.
func (o *unresolved) attempted(id string, unsure bool, err error) {
	if unsure || err != nil && errors.Is(err, driver.ErrUnknown) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.unansweredLocked(id)
	}
}

func (o *unresolved) unansweredLocked(id string) {
	if o.unanswered == nil {
		o.unanswered = map[string]bool{}
	}
	for other := range o.unanswered {
		if len(o.unanswered) < maxUnresolved {
			break
		}
		delete(o.unanswered, other)
	}
	o.unanswered[id] = true
	o.countLocked()
}

func (o *unresolved) countLocked() { o.known.Store(int32(len(o.unanswered) + len(o.watched))) }

// released notes that the release of c ended with err. If a request for c may still be on
// its way, it calls end repeatedly.
func (o *unresolved) released(c driver.Claim, err error, end func(context.Context, driver.Claim) error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if unsure := err != nil && c.Ticket == 0; !unsure && !o.unanswered[c.ID] && o.watched[c.ID] == nil {
		return
	}
	if err == nil || errors.Is(err, driver.ErrLost) {
		delete(o.unanswered, c.ID)
	}
	c.Ticket = 0 // a later claim in the store has another ticket
	o.watchLocked(c, end)
	o.countLocked()
}

func (o *unresolved) watchLocked(c driver.Claim, end func(context.Context, driver.Claim) error) {
	if v := o.watched[c.ID]; v != nil {
		select {
		case v.again <- struct{}{}:
		default:
		}
		return
	}
	if o.closed || len(o.watched) >= maxUnresolved {
		return
	}
	if o.ctx == nil {
		o.ctx, o.stop = context.WithCancel(context.Background())
		o.watched = map[string]*cleanup{}
	}
	v := &cleanup{turn: make(chan struct{}, 1), again: make(chan struct{}, 1)}
	o.watched[c.ID] = v
	o.wg.Go(func() {
		for i := 0; i < len(lookDelays); i++ {
			restart, err := v.wait(o.ctx, lookDelays[i])
			if err != nil {
				break
			}
			if restart {
				i = -1
			} else if !v.look(o.ctx, c, end) {
				return
			}
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.watched[c.ID] == v {
			delete(o.watched, c.ID)
			o.countLocked()
		}
	})
}

// wait pauses for d, or until ctx ends. restart says that the pauses begin again.
func (v *cleanup) wait(ctx context.Context, d time.Duration) (restart bool, err error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-v.again:
		return true, nil
	case <-timer.C:
		return false, nil
	}
}

// look releases the claim. It returns false if that is over. It continues after a claim
// was found: several attempts may be unresolved.
func (v *cleanup) look(ctx context.Context, c driver.Claim, end func(context.Context, driver.Claim) error) bool {
	v.turn <- struct{}{}
	defer func() { <-v.turn }()
	if v.over {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if errors.Is(end(ctx, c), driver.ErrUnknown) {
		v.lost = true
	}
	return true
}

// recall is called before id, which may have been released, is used again. It stops the
// looks for id, or returns ErrLost if id must not be used.
func (o *unresolved) recall(ctx context.Context, id string) error {
	if o.known.Load() == 0 {
		return nil
	}
	o.mu.Lock()
	v := o.watched[id]
	o.mu.Unlock()
	if v == nil {
		return nil
	}
	select {
	case v.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-v.turn }()
	if v.lost {
		return driver.ErrLost
	}
	v.over = true
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.watched[id] == v {
		delete(o.watched, id)
	}
	o.unansweredLocked(id) // a request for it may still be on its way
	return nil
}

func (o *unresolved) close() {
	o.mu.Lock()
	o.closed = true
	if o.stop != nil {
		o.stop()
	}
	o.mu.Unlock()
	o.wg.Wait()
}
