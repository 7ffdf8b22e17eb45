package redlock

import (
	"context"
	"fmt"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/bootclock"
)

// Acquire implements driver.Locks. A free lock usually costs one request to each node of
// a majority, concurrently. Acquire returns when these have granted.
func (s *Store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := check.Request(r, s.Traits()); err != nil {
		return driver.Grant{}, err
	}
	if err := s.check(ctx); err != nil {
		return driver.Grant{}, err
	}
	sent := bootclock.Now()
	st := s.claim(r.Key, r.ID, true)
	defer s.put(st)
	if err := st.begin(r); err != nil {
		return driver.Grant{}, err
	}
	if r.Queue {
		return s.enter(ctx, st, r, sent)
	}
	return s.try(ctx, st, r, sent)
}

// try asks the nodes for the lock, and releases the grants if they are no majority.
func (s *Store) try(ctx context.Context, st *claim, r driver.Request, sent time.Time) (driver.Grant, error) {
	rd := s.round(st, acquire, r)
	rd.seq = s.sequencer(r.Key, 0)
	first := s.first(rd.seq)
	rd.askFirst(first, 0, s.all()&^first)
	if err := rd.wait(ctx); err != nil {
		return driver.Grant{}, s.fail(st, err)
	}
	answers := rd.snapshot()
	if s.holds(st, sent) && !s.behind(st, answers[rd.seq]) {
		return s.won(ctx, st, r, sent)
	}
	return driver.Grant{}, s.fail(st, s.verdict(r.Key, answers))
}

// holds reports whether a majority has granted in this call.
func (s *Store) holds(st *claim, sent time.Time) bool { return st.holds(sent).count() >= s.quorum }

// fail ends an attempt that failed. It leaves a lock that the claim holds already as it
// is, unless err says for certain that another claim has it.
func (s *Store) fail(st *claim, err error) error {
	st.mu.Lock()
	held := st.held
	st.mu.Unlock()
	if !held || !unreachable(err) {
		s.end(st, 0)
	}
	return err
}

// won makes the token of a majority's grant known to a majority, and ends the
// attempt if there is still time.
func (s *Store) won(ctx context.Context, st *claim, r driver.Request, sent time.Time) (driver.Grant, error) {
	st.mu.Lock()
	token, repeated := max(st.token, st.ticket), st.repeated
	for i := range st.parts {
		if l := &st.parts[i]; l.has == lock {
			token = max(token, l.token)
		}
	}
	st.mu.Unlock()
	token, err := s.raise(ctx, st, token, st.holds(sent), repeated)
	if err != nil {
		return driver.Grant{}, s.fail(st, err)
	}
	g := driver.Grant{Token: token, Ticket: -token, TTL: r.TTL - drift(r.TTL)}
	if bootclock.Now().Sub(sent) >= g.TTL {
		return driver.Grant{}, s.fail(st, fmt.Errorf("redlock: %w: a majority took longer than the TTL to grant", driver.ErrUnavailable))
	}
	st.mu.Lock()
	if st.holdsLocked(sent).count() < s.quorum { // a request that shortens it was sent meanwhile
		st.mu.Unlock()
		return driver.Grant{}, s.fail(st, fmt.Errorf("redlock: %w: a majority did not last", driver.ErrUnavailable))
	}
	defer st.mu.Unlock()
	st.held, st.repeated, st.token, st.ticket, st.seq = true, false, token, 0, -1
	st.head, st.called, st.hurry = time.Time{}, false, 0
	st.until = bootclock.Now().Add(r.TTL)
	s.fills.add(s, st, r)
	return g, nil
}

// raise brings the counters of a majority to token, only on nodes of among: these have
// granted the claim, so they grant the next one later. Another node may have granted the
// next claim already, and would not be asked for a number again.
//
// It returns the token of the grant. That is higher if another process may have been
// granted the claim before (repeated), by a majority that shares a node with this one,
// whose counter was raised to that grant's token.
func (s *Store) raise(ctx context.Context, st *claim, token int64, among set, repeated bool) (int64, error) {
	if !repeated && s.reached(token, among) >= s.quorum {
		return token, nil
	}
	var ask set
	for i, n := range s.nodes {
		if among.has(i) && (repeated || n.seen.Load() < token) && n.admits() {
			ask |= 1 << i
		}
	}
	rd := s.round(st, raise, driver.Request{})
	rd.token, rd.among, rd.all = token, among, repeated
	rd.ask(ask, 0)
	if err := rd.wait(ctx); err != nil {
		return 0, err
	}
	answers := rd.snapshot()
	n, highest := rd.raised(answers), token
	for _, a := range answers {
		highest = max(highest, a.grant.Token)
	}
	switch {
	case n < s.quorum:
		err := fmt.Errorf("redlock: %w: only %d of %d servers took note of the token", driver.ErrUnavailable, n, len(s.nodes))
		var silent set
		for i, a := range answers {
			if ask.has(i) && (!a.answered || a.err != nil) {
				silent |= 1 << i
			}
		}
		return 0, s.silence(err, silent, answers)
	case repeated:
		return s.raise(ctx, st, highest, among, false)
	}
	return token, nil
}

// spoke counts the nodes that answered.
func (s *Store) spoke(answers []answer) (n int) {
	for _, a := range answers {
		if a.answered && (a.err == nil || !unreachable(a.err)) {
			n++
		}
	}
	return n
}
