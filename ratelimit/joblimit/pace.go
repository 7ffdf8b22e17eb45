package joblimit

import (
	"math/rand/v2"
	"sync"
	"time"
)

// paces has the keys of this process whose jobs went back.
type paces struct {
	mu      sync.Mutex
	all     map[string]*pace
	sweep   int // the number of keys at which ended ones are removed
	jobs    int // in their workers, running or waiting
	waiting int // those of jobs that wait
}

// enter counts a job that is in its worker, until leave.
func (p *paces) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.jobs++
}

func (p *paces) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.jobs--
}

// A pace determines when jobs of a key that go back come again.
type pace struct {
	waiting bool          // a job waits in its worker
	gap     time.Duration // recent time from the end of one job to that of the next
	last    time.Time     // the end of the last one
	next    time.Time     // the earliest time for the next job that goes back
}

const (
	firstGap = 10 * time.Millisecond // before any job has run
	leastGap = time.Millisecond

	// eager is how much faster than they could run the jobs come again. With 1 a pace
	// that is too slow would stay: jobs that come seldom run seldom.
	eager = 0.75
)

func (p *paces) of(key string, now time.Time) *pace {
	if k := p.all[key]; k != nil {
		return k
	}
	if p.all == nil {
		p.all = map[string]*pace{}
	}
	if len(p.all) >= max(64, p.sweep) {
		for key, k := range p.all {
			if !k.waiting && now.After(k.next) {
				delete(p.all, key)
			}
		}
		p.sweep = 2 * len(p.all)
	}
	k := &pace{gap: firstGap, last: now}
	p.all[key] = k
	return k
}

// enterWait reports whether the caller is the one job of the key that may wait, and among
// the half of all jobs that may: workers stay free for other keys. If so, leaveWait must
// follow.
func (p *paces) enterWait(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.of(key, time.Now())
	if k.waiting || p.waiting >= max(1, p.jobs/2) {
		return false
	}
	k.waiting = true
	p.waiting++
	return true
}

func (p *paces) leaveWait(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of(key, time.Now()).waiting = false
	p.waiting--
}

// ran notes that a job has run. The time between two jobs counts only if jobs wanted to
// run.
func (p *paces) ran(key string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.all[key]
	if k == nil {
		return
	}
	if k.next.After(k.last) {
		k.gap += (now.Sub(k.last) - k.gap) / 8
		k.gap = max(k.gap, leastGap)
	}
	k.last = now
}

// back returns the time until a job comes again, at least after.
func (p *paces) back(key string, now time.Time, after, longest time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.of(key, now)
	gap := max(k.gap, min(now.Sub(k.last)/4, longest)) // the true gap is longer if no job ran since
	at := now.Add(after)
	if at.Before(k.next) {
		at = k.next
	}
	if at.Sub(now) > max(after, longest) { // too many: at random within that time
		return max(after, longest/2) + rand.N(longest/2+1)
	}
	k.next = at.Add(time.Duration(float64(gap) * eager))
	return at.Sub(now) + rand.N(gap)
}
