package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/batonhq/baton/lab/measure"
)

// The phases of a contended measurement.
const (
	warming int32 = iota
	measuring
	stopped
)

// An arena is shared by the goroutines that compete for a lock: the phase of the
// measurement, and fields for the holder only. It has no pointers, so several processes can
// share its memory.
type arena struct {
	phase atomic.Int32
	_     [60]byte // all goroutines read the phase, only holders use the fields below

	inside     atomic.Int64 // the number of the goroutine in the critical section, from 1
	last       atomic.Int64 // the number of the previous one
	releasedAt atomic.Int64 // when the previous one began to release
	total      atomic.Int64 // incremented by a read and a write, which only a lock makes atomic
	broken     atomic.Int64 // how often two were inside
	_          [24]byte
}

const arenaSize = int(unsafe.Sizeof(arena{}))

// enter is the beginning of the critical section of me. It returns the number of the
// previous goroutine, 0 for none, and when that one began to release.
func (a *arena) enter(me int64) (last, releasedAt int64) {
	if !a.inside.CompareAndSwap(0, me) {
		a.broken.Add(1)
	}
	n := a.total.Load()
	last, releasedAt = a.last.Load(), a.releasedAt.Load()
	a.last.Store(me)
	a.total.Store(n + 1)
	return last, releasedAt
}

// leave is the end of the critical section.
func (a *arena) leave(me, now int64) {
	if !a.inside.CompareAndSwap(me, 0) {
		a.broken.Add(1)
	}
	a.releasedAt.Store(now)
}

// A tally has the counts of one process. All but Entered are of the measuring phase only.
type tally struct {
	Entered  int64   // in all phases
	Served   []int64 // acquisitions of each goroutine
	HandOffs int64   // acquisitions by another goroutine than the last holder
	Wait     measure.Histogram
	HandOff  measure.Histogram // from the beginning of the release to the return of the next acquisition
	Across   measure.Histogram // of these, the ones to another process
	Errors   int64
	Error    string // one of them
	Stuck    int64  // goroutines that still waited long after the others had stopped
}

func (t *tally) acquired() (n int64) {
	for _, s := range t.Served {
		n += s
	}
	return n
}

func (t *tally) merge(o tally) {
	t.Entered += o.Entered
	t.Served = append(t.Served, o.Served...)
	t.HandOffs += o.HandOffs
	t.Wait.Merge(&o.Wait)
	t.HandOff.Merge(&o.HandOff)
	t.Across.Merge(&o.Across)
	t.Errors += o.Errors
	t.Stuck += o.Stuck
	if o.Error != "" {
		t.Error = o.Error
	}
}

// processStride separates the numbers of the goroutines of two processes.
const processStride = 1 << 20

// fight lets n goroutines lock and unlock key in a closed loop, without a pause and with
// almost no work in the critical section, until the arena's phase is stopped. Each goroutine
// then gets the lock once more, unless ctx ends earlier. process is this process's number in
// the arena.
func fight(ctx context.Context, a *arena, r *room, process, n int, key string) tally {
	tallies := make([]tally, n)
	var wg sync.WaitGroup
	for i := range n {
		s := r.seat(i)
		wg.Go(func() { tallies[i] = fighter(ctx, a, s, int64(process*processStride+i+1), key) })
	}
	wg.Wait()
	var sum tally
	for _, t := range tallies {
		sum.merge(t)
	}
	return sum
}

// now is monotonic, but several times faster.
func now() int64 { return clockOffset + int64(time.Since(clockBase)) }

var clockBase, clockOffset = syncClocks()

// syncClocks finds the offset between Go's clock and the shared one, which run at the
// same speed.
func syncClocks() (base time.Time, offset int64) {
	base = time.Now()
	best := int64(1 << 62)
	for range 20 {
		a := int64(time.Since(base))
		m := monotonic()
		b := int64(time.Since(base))
		if b-a < best {
			best, offset = b-a, m-(a+b)/2
		}
	}
	return base, offset
}

func fighter(ctx context.Context, a *arena, s seat, me int64, key string) (t tally) {
	served := int64(0)
	failed := func(err error) (giveUp bool) {
		if ctx.Err() != nil && a.phase.Load() == stopped {
			t.Stuck++
			return true
		}
		t.Errors++
		t.Error = err.Error()
		return t.Errors > 100 || ctx.Err() != nil
	}
	for a.phase.Load() != stopped {
		asked := now()
		held, err := s.Lock(ctx, key)
		if err != nil {
			if failed(err) {
				break
			}
			continue
		}
		got := now()
		last, releasedAt := a.enter(me)
		t.Entered++
		phase := a.phase.Load()
		a.leave(me, now())
		if err := held.Unlock(); err != nil && failed(err) {
			break
		}
		if phase != measuring {
			continue
		}
		served++
		t.Wait.Add(time.Duration(got - asked))
		if last != me && last != 0 {
			t.HandOffs++
			t.HandOff.Add(time.Duration(got - releasedAt))
			if last/processStride != me/processStride {
				t.Across.Add(time.Duration(got - releasedAt))
			}
		}
	}
	t.Served = []int64{served}
	return t
}

// errNotExclusive is the worst error of a lock.
var errNotExclusive = errors.New("two were in the critical section at once")

// verdict returns an error if the lock failed.
func (a *arena) verdict(t tally) error {
	if n := a.broken.Load(); n > 0 {
		return fmt.Errorf("%w, %d times", errNotExclusive, n)
	}
	if n := a.total.Load(); n != t.Entered {
		return fmt.Errorf("%w: %d updates of a counter, %d were left", errNotExclusive, t.Entered, n)
	}
	if t.Errors > 0 {
		return fmt.Errorf("%d errors, for example: %s", t.Errors, t.Error)
	}
	return nil
}
