package sqlstore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
)

// Position is a position that this process watches.
type Position struct {
	Key, ID string
	Seq     int64
}

// Watchers is the register of the claims in this process that get hints. The zero
// Watchers is ready to use.
type Watchers struct {
	// Changed, if set, is called after every change of the number of watched claims, or
	// of those known to wait. It must not call back.
	Changed func(watching, waiting int)

	mu      sync.Mutex
	byID    map[string][]*watch
	waiting int
}

type watch struct {
	key  string
	wake func(driver.Hint)
	seq  int64 // of the position; 0 if not known to wait
}

// Watch registers wake for the claim until stop is called.
func (w *Watchers) Watch(c driver.Claim, wake func(driver.Hint)) (stop func()) {
	x := &watch{key: c.Key, wake: wake}
	w.mu.Lock()
	if w.byID == nil {
		w.byID = make(map[string][]*watch)
	}
	w.byID[c.ID] = append(w.byID[c.ID], x)
	w.changed()
	w.mu.Unlock()

	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		all := w.byID[c.ID]
		for i := range all {
			if all[i] == x {
				all = append(all[:i:i], all[i+1:]...)
				break
			}
		}
		if w.byID[c.ID] = all; len(all) == 0 {
			delete(w.byID, c.ID)
		}
		w.note(x, 0)
		w.changed()
	})
}

func (w *Watchers) changed() {
	if w.Changed != nil {
		w.Changed(len(w.byID), w.waiting)
	}
}

func (w *Watchers) note(x *watch, seq int64) {
	if x.seq != 0 {
		w.waiting--
	}
	if x.seq = seq; seq != 0 {
		w.waiting++
	}
}

// Waits notes that the claim was answered with a position, or, with 0, that it has none.
func (w *Watchers) Waits(key, id string, seq int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.byID[id] {
		if x.key == key && x.seq != seq {
			w.note(x, seq)
			w.changed()
		}
	}
}

// Renew renews the claims that are known to wait by waiting and the others by held,
// concurrently, and notes the results. Waiters ask often: with slow requests and few
// connections, a lease must not queue behind them.
func (w *Watchers) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration, held, waiting *Renewals) []driver.Renewal {
	by := [2]*Renewals{held, waiting}
	var of [2][]driver.Claim // those that may hold, those that wait
	var at [2][]int
	for i, wait := range w.waits(claims) {
		of[wait], at[wait] = append(of[wait], claims[i]), append(at[wait], i)
	}
	answers := make([]driver.Renewal, len(claims))
	part := func(wait int) {
		for n, a := range by[wait].Do(ctx, of[wait], ttl) {
			answers[at[wait][n]] = a
		}
	}
	switch {
	case len(of[1]) == 0:
		part(0)
	case len(of[0]) == 0:
		part(1)
	default:
		var other sync.WaitGroup
		other.Go(func() { part(1) })
		part(0)
		other.Wait()
	}
	w.Answered(claims, answers)
	return answers
}

// waits returns 1 for each claim that is known to wait, else 0.
func (w *Watchers) waits(claims []driver.Claim) []int {
	all := make([]int, len(claims))
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting == 0 {
		return all
	}
	for i, c := range claims {
		if slices.ContainsFunc(w.byID[c.ID], func(x *watch) bool { return x.key == c.Key && x.seq != 0 }) {
			all[i] = 1
		}
	}
	return all
}

// Answered notes the answers of a batch.
func (w *Watchers) Answered(claims []driver.Claim, answers []driver.Renewal) {
	w.mu.Lock()
	watched := len(w.byID) > 0
	w.mu.Unlock()
	if !watched {
		return
	}
	for i, c := range claims {
		switch r := answers[i]; r.State {
		case driver.Waiting:
			w.Waits(c.Key, c.ID, r.Grant.Ticket)
		case driver.Held, driver.Lost:
			w.Waits(c.Key, c.ID, 0)
		}
	}
}

// Deliver wakes the watchers of the claim and reports whether there are any.
func (w *Watchers) Deliver(key, id string, h driver.Hint) bool {
	w.mu.Lock()
	var wake []func(driver.Hint)
	for _, x := range w.byID[id] {
		if x.key != key {
			continue
		}
		if x.seq != 0 && h.Granted && h.Grant.Token >= x.seq {
			w.note(x, 0) // no need to poll for it
			w.changed()
		}
		wake = append(wake, x.wake)
	}
	w.mu.Unlock()
	for _, f := range wake {
		f(h)
	}
	return len(wake) > 0
}

func (w *Watchers) Nudge() {
	w.mu.Lock()
	var wake []func(driver.Hint)
	for _, all := range w.byID {
		for _, x := range all {
			wake = append(wake, x.wake)
		}
	}
	w.mu.Unlock()
	for _, f := range wake {
		f(driver.Hint{})
	}
}

// Positions lists the watched positions.
func (w *Watchers) Positions() []Position {
	w.mu.Lock()
	defer w.mu.Unlock()
	positions := make([]Position, 0, w.waiting)
	for id, all := range w.byID {
		for _, x := range all {
			if x.seq != 0 {
				positions = append(positions, Position{x.key, id, x.seq})
			}
		}
	}
	return positions
}
