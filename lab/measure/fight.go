package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton"
)

// The phases of a measurement.
const (
	warmingUp = iota
	measuring
	over
)

// arena is shared by the goroutines of one measurement.
type arena struct {
	target string
	phase  atomic.Int32
	sites  []site

	once   sync.Once
	cancel context.CancelFunc
	failed error // the first error, which ends the measurement
}

// site is the critical section of one key. Only the goroutine inside changes its fields.
type site struct {
	key    string
	inside atomic.Pointer[baton.Lease]
	last   int   // the previous goroutine inside; -1 if there was none
	token  int64 // the token of that goroutine
}

// tally has the counts of one goroutine. Locks count for the rate if they end during the
// measurement, and for the times if they begin during it: among the locks that end, long
// ones would be missing.
type tally struct {
	served   atomic.Int64
	handOffs int64
	times    Histogram
	previous time.Duration
	changes  time.Duration // the sum of the differences from one time to the next
	steps    int64         // the number of these differences
	lost     int64
}

// measure lets n goroutines lock and unlock without a pause.
func (f *field) measure(parent context.Context, s Shape, n int, slice time.Duration) (Figures, error) {
	lockers, done, err := f.lockers(parent, s, n)
	defer done()
	if err != nil {
		return Figures{}, err
	}
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	a := &arena{target: f.Name, cancel: cancel, sites: make([]site, 1)}
	if s == Apart {
		a.sites = make([]site, n)
	}
	for i := range a.sites {
		a.sites[i].key, a.sites[i].last = f.key(s, i), -1
	}

	tallies := make([]*tally, n)
	var wg sync.WaitGroup
	for i := range n {
		tallies[i] = new(tally)
		wg.Go(func() { a.fight(ctx, lockers[i], &a.sites[i%len(a.sites)], i, tallies[i]) })
	}
	pause(ctx, slice/5)
	a.phase.Store(measuring)
	start := time.Now()
	pause(ctx, slice*4/5)
	// If many goroutines wait for a slow store, one round of all may take longer.
	for more := min(stretch*slice, 3*longest); more > 0 && ctx.Err() == nil && served(tallies) < int64(wantedEach*n); more -= shortest {
		pause(ctx, shortest)
	}
	a.phase.Store(over)
	took := time.Since(start)

	impatient := time.AfterFunc(f.patience, cancel)
	wg.Wait()
	if !impatient.Stop() && parent.Err() == nil && a.failed == nil {
		// Positions that were given up may stay in the queue for a while.
		f.spoilt++
		if served(tallies) == 0 {
			a.failed = f.silence(parent, lockers[0])
		}
	}
	if err := cmp.Or(a.failed, parent.Err()); err != nil {
		return Figures{}, err
	}
	return figures(s, tallies, took), nil
}

// silence returns the error of a measurement without any lock.
func (f *field) silence(ctx context.Context, l *baton.Locker) error {
	err := fmt.Errorf("not a single lock within %v", f.patience)
	lease, why := l.TryLock(ctx, f.key(Line, 0))
	if why != nil {
		return fmt.Errorf("%w: %w", err, why)
	}
	return errors.Join(err, lease.Unlock())
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// fight is the loop of one goroutine.
func (a *arena) fight(ctx context.Context, l *baton.Locker, at *site, me int, t *tally) {
	for {
		phase := a.phase.Load()
		if phase == over {
			return
		}
		start := time.Now()
		lease, err := l.Lock(ctx, at.key)
		if err != nil {
			if ctx.Err() == nil {
				a.fail(err)
			}
			return
		}
		handedOver, wrong := at.enter(me, lease)
		err = lease.Unlock()
		took := time.Since(start)
		switch {
		case wrong != "":
			a.fail(&ViolationError{Target: a.target, Key: at.key, What: wrong})
			return
		case errors.Is(err, baton.ErrLost):
			if a.phase.Load() == measuring {
				t.lost++
			}
			continue
		case err != nil:
			a.fail(err)
			return
		}
		if a.phase.Load() == measuring {
			t.served.Add(1)
			if handedOver {
				t.handOffs++
			}
		}
		if phase == measuring {
			t.add(took)
		}
	}
}

func served(all []*tally) (n int64) {
	for _, t := range all {
		n += t.served.Load()
	}
	return n
}

// enter is the critical section. It checks that a lease that has not ended excludes others
// and has a larger token.
func (at *site) enter(me int, lease *baton.Lease) (handedOver bool, wrong string) {
	if !at.inside.CompareAndSwap(nil, lease) {
		if other := at.inside.Load(); lease.Err() != nil || other != nil && other.Err() != nil {
			return false, "" // one of the leases was lost, and its holder knows it
		}
		return false, "two held it at the same time"
	}
	defer at.inside.Store(nil)
	if token := lease.Token(); token <= at.token && lease.Err() == nil {
		return false, fmt.Sprintf("token %d was given out after %d", token, at.token)
	} else if token > at.token {
		at.token = token
	}
	handedOver = at.last >= 0 && at.last != me
	at.last = me
	return handedOver, ""
}

func (a *arena) fail(err error) {
	a.once.Do(func() {
		a.failed = err
		a.phase.Store(over)
		a.cancel()
	})
}

func (t *tally) add(took time.Duration) {
	if t.times.N > 0 {
		t.changes += (took - t.previous).Abs()
		t.steps++
	}
	t.previous = took
	t.times.Add(took)
}
