package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/bootclock"
)

// Rename implements driver.Renamer. Every node that holds the claim shows another owner,
// and a majority must. A node that missed it is told again with the next renewal.
//
// Its requests do not count among those of which one at a time is under way on a node.
// They neither wait for a renewal nor delay one, because they do not change what this
// process knows of the claim.
// this process knows of the claim.
func (s *Store) Rename(ctx context.Context, c driver.Claim, owner string) error {
	if err := check.Rename(c, owner); err != nil {
		return err
	}
	if err := s.check(ctx); err != nil {
		return err
	}
	st := s.claim(c.Key, c.ID, true)
	defer s.put(st)
	st.mu.Lock()
	var ask set
	for i := range st.parts {
		if l := &st.parts[i]; !st.known || l.has != nothing || l.underWay {
			ask |= 1 << i
		}
	}
	if st.gone || st.known && !st.held && c.Ticket >= 0 || ask.count() < s.quorum {
		st.mu.Unlock()
		return driver.ErrLost
	}
	st.renamed, st.owner = true, owner
	st.asked.Owner = owner // from now on no node is asked for the lock under another owner
	for i := range st.parts {
		st.parts[i].named = false
	}
	st.mu.Unlock()
	rd := s.round(st, rename, driver.Request{})
	rd.expect(ask, 0)
	for i := range s.nodes {
		if ask.has(i) {
			s.workers.Go(func() { rd.take(i, answer{err: s.name(st, i, c, owner)}) })
		}
	}
	if err := rd.wait(ctx); err != nil {
		return fmt.Errorf("redlock: %w: %w", driver.ErrUnknown, err)
	}
	done, lost := 0, len(s.nodes)-ask.count()
	last := errors.New("they did not answer in time")
	for i, a := range rd.snapshot() {
		switch {
		case !ask.has(i):
		case a.answered && a.err == nil:
			done++
		case errors.Is(a.err, driver.ErrLost):
			lost++
		case a.answered:
			last = a.err
		}
	}
	switch {
	case done >= s.quorum:
		return nil
	case lost > len(s.nodes)-s.quorum:
		return driver.ErrLost
	}
	return unknown(fmt.Sprintf("%d of %d servers show the new owner", done, len(s.nodes)), last)
}

// name sets the owner of the claim c on one node.
func (s *Store) name(st *claim, i int, c driver.Claim, owner string) (err error) {
	n := s.nodes[i]
	if !n.admits() {
		return errLeftAlone
	}
	ctx := s.detach()
	began := time.Now()
	n.begin()
	defer func() {
		n.underWay.Add(-1)
		s.account(n, err, time.Since(began))
	}()
	in, err := s.reach(ctx, n)
	if err != nil {
		if !errors.Is(err, driver.ErrUnavailable) {
			err = fmt.Errorf("%w: %w", driver.ErrUnavailable, err) // nothing was sent
		}
		return err
	}
	st.mu.Lock()
	c.Ticket = st.parts[i].ticket
	st.mu.Unlock()
	err = in.Rename(ctx, c, owner)
	st.mu.Lock()
	defer st.mu.Unlock()
	st.parts[i].named = err == nil && st.owner == owner
	return err
}

// missedLocked reports whether a node holds the claim under an owner from before a
// Rename.
func (st *claim) missedLocked(i int) bool {
	l := &st.parts[i]
	return st.renamed && st.held && !st.gone && l.has == lock && !l.named
}

// nameAgain is name for a node that missed a Rename. It does not wait.
func (s *Store) nameAgain(st *claim, i int) {
	st.mu.Lock()
	c, owner := st.onLocked(i), st.owner
	st.mu.Unlock()
	s.workers.Go(func() { _ = s.name(st, i, c, owner) })
}

// Downgrade implements driver.Downgrader, on every node; a majority must succeed.
func (s *Store) Downgrade(ctx context.Context, c driver.Claim, ttl time.Duration) (driver.Grant, error) {
	if err := errors.Join(check.Claim(c), check.TTL(c.Key, ttl, s.Traits())); err != nil {
		return driver.Grant{}, err
	}
	if err := s.check(ctx); err != nil {
		return driver.Grant{}, err
	}
	sent := bootclock.Now()
	st := s.claim(c.Key, c.ID, true)
	defer s.put(st)
	st.mu.Lock()
	var ask set
	for i := range st.parts {
		// A position may have been granted meanwhile. Otherwise it is a writer's: it is
		// released, and requested again as a reader's.
		if l := &st.parts[i]; !l.excluded && (!st.known || l.has != nothing || l.underWay) {
			ask |= 1 << i
		}
	}
	known, token := st.known, st.token
	if token == 0 {
		token = max(-c.Ticket, 0)
	}
	if st.known && !st.held && token == 0 || ask.count() < s.quorum {
		st.mu.Unlock()
		return driver.Grant{}, driver.ErrLost
	}
	st.reads = true
	st.askLocked(c)
	st.mu.Unlock()
	rd := s.round(st, downgrade, driver.Request{TTL: ttl})
	rd.ask(ask, 0)
	if err := rd.wait(ctx); err != nil {
		return driver.Grant{}, fmt.Errorf("redlock: %w: %w", driver.ErrUnknown, err)
	}
	done, lost := set(0), len(s.nodes)-ask.count()
	last := errors.New("they did not answer in time")
	for i, a := range rd.snapshot() {
		switch {
		case !ask.has(i):
		case a.answered && a.err == nil:
			done |= 1 << i
			if !known {
				token = max(token, a.grant.Token)
			}
		case errors.Is(a.err, driver.ErrLost):
			lost++
		case a.answered:
			last = a.err
		}
	}
	switch {
	case done.count() >= s.quorum:
		among := s.all()
		if !known {
			among = done
		}
		token, err := s.raise(ctx, st, token, among, !known && c.Ticket >= 0)
		if err != nil {
			return driver.Grant{}, fmt.Errorf("redlock: %w: %w", driver.ErrUnknown, err)
		}
		st.mu.Lock()
		st.known, st.held, st.token = true, true, token
		st.until = sent.Add(ttl)
		st.mu.Unlock()
		return driver.Grant{Token: token, Ticket: -token, TTL: ttl - drift(ttl)}, nil
	case lost > len(s.nodes)-s.quorum:
		return driver.Grant{}, driver.ErrLost
	}
	return driver.Grant{}, unknown(fmt.Sprintf("%d of %d servers have downgraded", done.count(), len(s.nodes)), last)
}
