package redlock

import (
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
)

// fillAfter is how long only the nodes that were asked first hold a lock: a shorter lock
// costs the others nothing.
const fillAfter = time.Millisecond

// filler asks the other nodes for locks that are held for longer, so that these survive
// the loss of a minority. Until then the others count as slow to answer.
type filler struct {
	mu      sync.Mutex
	waiting []filling // in order
	running bool
}

type filling struct {
	st  *claim
	r   driver.Request
	due time.Time
}

// add makes run ask the other nodes after fillAfter, if the lock is still held then. The
// claim's mutex is held.
func (f *filler) add(s *Store, st *claim, r driver.Request) {
	if len(st.parts) == st.locksLocked() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting = append(f.waiting, filling{st, r, time.Now().Add(fillAfter)})
	if !f.running {
		f.running = true
		time.AfterFunc(fillAfter, func() { f.run(s) })
	}
}

func (st *claim) locksLocked() (n int) {
	for i := range st.parts {
		if st.parts[i].has == lock {
			n++
		}
	}
	return n
}

// run asks for the due locks, and runs again when the next is due.
func (f *filler) run(s *Store) {
	f.mu.Lock()
	now, n := time.Now(), 0
	for n < len(f.waiting) && !now.Before(f.waiting[n].due) {
		n++
	}
	due := append([]filling(nil), f.waiting[:n]...)
	f.waiting = append(f.waiting[:0], f.waiting[n:]...)
	clear(f.waiting[len(f.waiting):cap(f.waiting)])
	if f.running = len(f.waiting) > 0 && s.root.Err() == nil; f.running {
		time.AfterFunc(f.waiting[0].due.Sub(now), func() { f.run(s) })
	}
	f.mu.Unlock()
	for _, d := range due {
		d.st.mu.Lock()
		held := d.st.held && !d.st.gone
		d.r.Claim = d.st.asked
		d.st.mu.Unlock()
		if held && s.root.Err() == nil {
			s.repair(d.st, d.r)
		}
	}
}

// first are the nodes to ask first: a majority with seq, of those that answer, the same
// for all keys so that their counters agree. See filler for the others.
func (s *Store) first(seq int) set {
	x := set(1) << seq
	for i, n := range s.nodes {
		if x.count() == s.quorum {
			return x
		}
		if !n.down.Load() {
			x |= 1 << i
		}
	}
	if x.count() < s.quorum {
		return s.all()
	}
	return x
}
