package sqlitestore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
)

var _ limits.Store = (*Store)(nil)

// limiter is the state of a Store for rate limits. Except for known, it belongs to the
// goroutine that serves the queue.
type limiter struct {
	known rate.Known

	booted  int64 // from the file, 0 if the transaction under way has not read it
	checked int64 // when booted was last compared with the wall clock, on the store's clock

	changed int // keys changed since the last step of the sweep
	after   []byte
}

const (
	// setBy is the least change of the wall clock that the limits follow. readWithin is
	// the longest time in which the clocks must be read to be comparable.
	setBy      = 1_000_000
	readWithin = 100_000

	// limitSweepGap is the number of changed keys between two steps of the sweep.
	limitSweepGap = 64
)

// Take implements limits.Store. Requests of this process that wait at the same time share
// a transaction and its commit. A take is on the disk before it is answered; a refusal or
// a look does not wait for the disk.
//
// Its clock counts suspension and follows the wall clock only if that is set by more than
// a second. What was taken before a reboot counts after it: no caller can take it twice.
// If the wall clock is earlier after a reboot, no caller waits for longer than the limit
// lasts.
func (s *Store) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	q, err := s.limits.known.NewRequest(r)
	if err != nil {
		return limits.Taken{}, err
	}
	var d limits.Taken
	var refused error
	err = s.do(ctx, func(t *tx) (failed error) {
		d, refused, failed = t.take(q)
		return failed
	})
	if err == nil {
		err = refused
	}
	if err != nil {
		return limits.Taken{}, err
	}
	return d, nil
}

func (t *tx) take(r *rate.Request) (d limits.Taken, refused, failed error) {
	clock, err := t.limitClock()
	if err != nil {
		return d, nil, err
	}
	states := make([]rate.State, len(r.Takes))
	for i, x := range r.Takes {
		var text string
		err := t.s.row(stLimit, []byte(x.Key), clock).Scan(&text)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return d, nil, err
		}
		states[i] = rate.Parse(text)
	}
	first := []byte(r.Takes[0].Key)
	var past *rate.Past
	if r.ID != "" {
		var p rate.Past
		switch err := t.s.row(stLimitID, first, r.ID, clock).Scan(&p.At, &p.Wait); {
		case err == nil:
			past = &p
		case !errors.Is(err, sql.ErrNoRows):
			return d, nil, err
		}
	}
	d, changed, refused := r.Answer(traits.Store, clock, states, past)
	if !changed {
		return d, refused, nil
	}
	t.s.limits.changed += len(r.Takes)
	if t.s.limits.after == nil {
		t.s.limits.after = []byte(r.Takes[0].Key) // sweeper begins in the same way
	}
	for i, x := range r.Takes {
		k := []byte(x.Key)
		if len(states[i]) == 0 {
			err = t.s.exec(stDropLimit, k)
		} else {
			err = t.s.exec(stSaveLimit, k, states[i].Text(), clock+r.Keep(d.Limits[i].Reset).Microseconds())
		}
		if err != nil {
			return d, nil, err
		}
	}
	if r.ID != "" && d.OK {
		err = t.s.exec(stSaveLimitID, first, r.ID, d.At, d.Wait.Microseconds(), clock+r.Keep(r.Request.Keep).Microseconds()+1)
	}
	return d, nil, err
}

// limitClock is the time of limits: the wall clock time of the machine's boot, which the
// file has for all processes, plus the store's clock. If the wall clock was set by more
// than setBy, the first transaction that notices corrects the file. The state machines
// tolerate a clock that jumps once, but not one that alternates between two times, so
// every transaction reads the file.
func (t *tx) limitClock() (int64, error) {
	l := &t.s.limits
	if l.booted == 0 {
		if err := t.s.row(stBooted).Scan(&l.booted); err != nil {
			return 0, err
		}
	}
	if t.now >= l.checked && t.now-l.checked < checkEvery {
		return l.booted + t.now, nil
	}
	before := t.s.opts.clock()
	booted := t.s.opts.wall() - before
	after := t.s.opts.clock()
	// Clocks that were not read together, because the process was stopped in between,
	// cannot be compared.
	if far := booted-l.booted > setBy || l.booted-booted > setBy; !far || after-before >= readWithin {
		l.checked = after
		return l.booted + t.now, nil
	}
	l.booted = booted
	l.checked = 0 // the next transaction compares again: this one may be undone
	return booted + t.now, t.s.exec(stSetBooted, booted)
}

// sweepLimits removes states that have no effect any more, and expired IDs, a few at a
// time, in the present transaction.
func (s *Store) sweepLimits() error {
	l := &s.limits
	if l.changed < limitSweepGap {
		return nil
	}
	page := 64 + 2*l.changed // faster than keys can be made
	l.changed = 0
	now, err := s.tx.limitClock()
	if err != nil {
		return err
	}
	err = inPages(&l.after, page, func(from []byte, n int) (upTo []byte, seen int, err error) {
		var old int
		if err = s.row(stSweepLimitPage, from, n, now).Scan(&upTo, &seen, &old); err == nil && old > 0 {
			err = s.exec(stSweepLimit, from, upTo, now)
		}
		return upTo, seen, err
	})
	if err != nil {
		return err
	}
	return s.exec(stSweepLimitID, now, page)
}
