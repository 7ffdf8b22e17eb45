package sqlitestore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
)

var _ limits.Store = (*Store)(nil)

// limiter is what a Store needs for rate limits. All but known belongs to the
// goroutine that serves the queue.
type limiter struct {
	known rate.Known

	booted  int64 // what the file says, 0 if the transaction under way has not read it
	checked int64 // when that was compared with the wall clock, on the store's clock

	changed int // keys, since the last step of the sweep
	after   []byte
}

const (
	// setBy is by how much the wall clock must have been set for the limits to
	// follow it, and readWithin how long it may take to read the clocks.
	setBy      = 1_000_000
	readWithin = 100_000

	// limitSweepGap is how many keys are changed between two steps of the sweep.
	limitSweepGap = 64
)

// Take implements limits.Store. Requests of this process that meet share a transaction,
// and one commit. What was taken is on the disk before it is answered; a request that
// is refused, or only looks, does not wait for the disk.
//
// Its clock goes on through suspension and follows the wall clock only when that is set
// by more than a second. What was taken before a reboot counts after it: no caller can
// take it twice, and if the wall clock comes back with an earlier time, no caller waits
// for longer than the limit lasts.
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
		t.s.limits.after = []byte(r.Takes[0].Key) // as sweeper does
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

// limitClock is the time by which limits count: what the wall clock said when the
// machine was booted, as it is in the file for all processes, and what has passed
// since on the store's clock. If the wall clock was set by more than setBy, the first
// transaction that sees it corrects the file. The state machines know what to do with a
// clock that jumps, but not with one that goes to and fro, so every transaction reads
// what the file says.
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
	// If the process was stopped in between, they cannot be compared.
	if far := booted-l.booted > setBy || l.booted-booted > setBy; !far || after-before >= readWithin {
		l.checked = after
		return l.booted + t.now, nil
	}
	l.booted = booted
	l.checked = 0 // compared again by the next one: this transaction may be undone
	return booted + t.now, t.s.exec(stSetBooted, booted)
}

// sweepLimits removes states that are as if their keys had never been used, and
// expired IDs, a few at a time, in the transaction that is under
// way.
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
