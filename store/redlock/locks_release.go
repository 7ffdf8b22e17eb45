package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// Release implements driver.Locks, on every node. It waits for all that usually answer,
// and for a majority at least. On a node that does not answer it ends the claim when the
// node answers again.
func (s *Store) Release(ctx context.Context, c driver.Claim) error {
	if err := check.Claim(c); err != nil {
		return err
	}
	if err := s.check(ctx); err != nil {
		return err
	}
	st := s.claim(c.Key, c.ID, true)
	defer s.put(st)
	st.mu.Lock()
	known, held := st.known, st.held || c.Ticket < 0
	st.known, st.gone, st.held, st.asked = true, true, false, c
	st.seq, st.head = -1, time.Time{}
	var ask set
	for i := range st.parts {
		l := &st.parts[i]
		if !known {
			l.has = maybe
		}
		if l.has != nothing || l.underWay {
			ask |= 1 << i
		}
	}
	rd := s.round(st, release, driver.Request{})
	rd.seq = s.sequencer(c.Key, 0)
	rd.answered = len(s.nodes) - ask.count() // the others have nothing
	rd.expect(ask, 0)
	// At once, in one critical section: the answer to a renewal in between would release
	// the lock by a request without a round, and this release would find it lost.
	t := task{round: rd, kind: release}
	var turns [maxNodes]turn
	for i := range s.nodes {
		if ask.has(i) {
			turns[i] = st.reserveLocked(i, t)
		}
	}
	st.mu.Unlock()
	for i := range s.nodes {
		if ask.has(i) {
			s.start(st, i, t, turns[i])
		}
	}
	if err := rd.wait(ctx); err != nil {
		return fmt.Errorf("redlock: %w: %w", driver.ErrUnknown, err)
	}
	ended, free := 0, len(s.nodes)-ask.count()
	var silent set
	var last error
	for i, a := range rd.snapshot() {
		switch {
		case !ask.has(i):
		case a.answered && a.err == nil:
			ended++
			free++
		case a.answered && errors.Is(a.err, driver.ErrLost):
			free++
		default:
			silent |= 1 << i
			if a.answered {
				last = a.err
			}
		}
	}
	switch {
	case free < s.quorum:
		if last == nil {
			last = errors.New("they did not answer in time")
		}
		// Nodes that were not reached also end the claim when they answer again, perhaps
		// before the caller repeats this release: it must not take that for a loss.
		return unknown(s.names(silent), last)
	case held && ended+silent.count() < s.quorum, ended == 0:
		return driver.ErrLost
	}
	return nil
}
