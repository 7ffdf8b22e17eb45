package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/bootclock"
)

// Acquire is one attempt. A free lock costs one request to each node of a
// majority, all at the same time, and mostly no more; it returns when they have
// granted.
func (s *Store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := check.Request(r, s.Traits()); err != nil {
		return driver.Grant{}, err
	}
	if err := s.check(ctx); err != nil {
		return driver.Grant{}, err
	}
	sent := bootclock.Coarse()
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

// try asks the nodes for the lock, and releases what it got if that is no majority.
func (s *Store) try(ctx context.Context, st *claim, r driver.Request, sent time.Time) (driver.Grant, error) {
	rd := s.round(st, acquire, r)
	rd.seq = s.sequencer(r.Key, 0)
	first := s.first(rd.seq)
	rd.askFirst(first, 0, s.everyone()&^first)
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

// behind reports whether the node with the queue has another claim before this one. A
// majority that was granted all the same would overtake the waiters. Holders of other
// programs do not know the queue, and do not count.
func (s *Store) behind(st *claim, a answer) bool {
	st.mu.Lock()
	held := st.held
	st.mu.Unlock()
	switch e, refused := errors.AsType[*driver.HeldError](a.err); {
	case held || !a.landed:
		return false
	case refused:
		return !e.Foreign
	case errors.Is(a.err, driver.ErrQueueFull):
		return true
	}
	return a.err == nil && a.grant.Waiting && (a.grant.Again == 0 || a.grant.Again > soon)
}

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

// enter asks for the lock, or for a position on one node.
func (s *Store) enter(ctx context.Context, st *claim, r driver.Request, sent time.Time) (driver.Grant, error) {
	busy := s.busy.Has(r.Key)
	for tried := set(0); ; {
		seq := s.sequencer(r.Key, tried)
		if seq < 0 {
			err := fmt.Errorf("redlock: %w: no server gave a position", driver.ErrUnavailable)
			return driver.Grant{}, s.fail(st, err)
		}
		s.watch(st, seq)
		rd := s.round(st, acquire, r)
		rd.seq = seq
		if busy {
			rd.ask(1<<seq, 1<<seq)
		} else {
			first := s.first(seq)
			rd.askFirst(first, 1<<seq, s.everyone()&^first)
		}
		if err := rd.wait(ctx); err != nil {
			return driver.Grant{}, s.fail(st, err)
		}
		answers := rd.snapshot()
		if s.holds(st, sent) && !s.behind(st, answers[seq]) {
			return s.won(ctx, st, r, sent)
		}
		if err := s.refusal(r.Key, answers); err != nil {
			return driver.Grant{}, s.fail(st, err)
		}
		if !busy && s.spoke(answers) < s.quorum {
			return driver.Grant{}, s.fail(st, s.verdict(r.Key, answers))
		}
		a := answers[seq]
		switch {
		case !a.landed || a.err != nil:
			tried |= 1 << seq
			busy = true // from here on ask for a position alone
			continue
		case a.grant.Waiting:
			if !busy {
				s.end(st, 1<<seq)
				s.busy.Set(r.Key, true)
			}
			return s.wait(st, seq, a.grant), nil
		}
		if busy {
			s.busy.Set(r.Key, false) // there was no other claim
		}
		return s.lead(ctx, st, r, sent, seq)
	}
}

// sequencer is the node that has the queue of key: the first that answers, in an order
// that the key decides. It is one of those that are asked first. It is -1 if all were
// tried.
func (s *Store) sequencer(key string, tried set) int {
	h := uint32(2166136261) // FNV: all processes must come to the same node
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	first := int(h % uint32(s.quorum))
	other := -1
	for i := range s.nodes {
		at := i
		if i < s.quorum {
			at = (first + i) % s.quorum
		}
		switch {
		case tried.has(at):
		case !s.nodes[at].down.Load():
			return at
		case other < 0:
			other = at
		}
	}
	return other
}

// first are the nodes to ask first: a majority with seq, of those that answer, the same
// for all keys so that their counters agree. The others are asked if that is not
// enough, and for a lock that is held for a while (see filler): a shorter lock costs
// them nothing.
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
		return s.everyone()
	}
	return x
}

// wait is the answer to a claim that has a position on node seq.
func (s *Store) wait(st *claim, seq int, g driver.Grant) driver.Grant {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.seq, st.ticket, st.head = seq, g.Ticket, time.Time{}
	g.TTL = min(g.TTL, driver.WaiterTTL)
	return g
}

// lead acts for the head of the queue on node seq. It asks all nodes that the claim
// does not hold yet for the lock, or else a position: the last holder has just released
// them or will.
func (s *Store) lead(ctx context.Context, st *claim, r driver.Request, sent time.Time, seq int) (driver.Grant, error) {
	for i := range s.nodes {
		s.watch(st, i)
	}
	r.MaxWaiting = 0 // it has its position, and the others are not for waiting
	mine := st.holds(sent)
	rd := s.round(st, acquire, r)
	rd.base = mine.count()
	rd.ask(s.everyone()&^mine, s.everyone())
	if err := rd.wait(ctx); err != nil {
		return driver.Grant{}, s.fail(st, err)
	}
	if s.holds(st, sent) {
		return s.won(ctx, st, r, sent)
	}
	answers := rd.snapshot()
	if err := s.refusal(r.Key, answers); err != nil {
		return driver.Grant{}, s.fail(st, err)
	}
	if s.spoke(answers)+rd.base < s.quorum {
		return driver.Grant{}, s.fail(st, s.verdict(r.Key, answers))
	}
	// If this process dies now, what it holds must not stand for long.
	for i := range s.nodes {
		st.mu.Lock()
		held := st.parts[i].has == lock
		st.mu.Unlock()
		if held {
			s.send(st, i, task{kind: renew, req: driver.Request{TTL: max(driver.ClaimTTL, minTTL)}, clips: true})
		}
	}
	g := driver.Grant{Waiting: true, TTL: driver.WaiterTTL, Again: 10*time.Millisecond + rand.N(20*time.Millisecond)}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.seq = seq
	if st.ticket == 0 {
		st.ticket = max(st.parts[seq].ticket, -st.parts[seq].ticket)
	}
	if st.head.IsZero() {
		st.head = bootclock.Now()
		st.yield = 200*time.Millisecond + rand.N(400*time.Millisecond)
	} else if bootclock.Now().Sub(st.head) > 100*time.Millisecond {
		g.Again = 50 * time.Millisecond // hints tell of most grants
	}
	g.Ticket = st.ticket
	return g, nil
}

// won makes the token of a majority's grant known to a majority, and ends the
// attempt if there is still time.
func (s *Store) won(ctx context.Context, st *claim, r driver.Request, sent time.Time) (driver.Grant, error) {
	st.mu.Lock()
	token := max(st.token, st.ticket)
	for i := range st.parts {
		if l := &st.parts[i]; l.has == lock {
			token = max(token, l.token)
		}
	}
	st.mu.Unlock()
	if err := s.raise(ctx, st, token, st.holds(sent)); err != nil {
		return driver.Grant{}, s.fail(st, err)
	}
	g := driver.Grant{Token: token, Ticket: -token, TTL: r.TTL - drift(r.TTL)}
	if bootclock.Now().Sub(sent) >= g.TTL {
		return driver.Grant{}, s.fail(st, fmt.Errorf("redlock: %w: a majority took longer than the TTL to grant", driver.ErrUnavailable))
	}
	st.mu.Lock()
	if st.holdsLocked(sent).count() < s.quorum { // a request that clips was sent meanwhile
		st.mu.Unlock()
		return driver.Grant{}, s.fail(st, fmt.Errorf("redlock: %w: a majority did not last", driver.ErrUnavailable))
	}
	defer st.mu.Unlock()
	st.held, st.token, st.ticket, st.seq = true, token, 0, -1
	st.head, st.called, st.hurry = time.Time{}, false, 0
	st.until = bootclock.Now().Add(r.TTL)
	s.fills.add(s, st, r)
	return g, nil
}

// raise brings the counters of a majority to token, of nodes of among alone: these have
// granted the claim, so they grant the next one later. Another node may have granted
// the next claim already, and would not be asked for a number again.
func (s *Store) raise(ctx context.Context, st *claim, token int64, among set) error {
	if s.reached(token, among) >= s.quorum {
		return nil
	}
	var low set
	for i, n := range s.nodes {
		if among.has(i) && n.seen.Load() < token && n.admits() {
			low |= 1 << i
		}
	}
	rd := s.round(st, raise, driver.Request{})
	rd.token, rd.among = token, among
	rd.ask(low, 0)
	if err := rd.wait(ctx); err != nil {
		return err
	}
	if n := s.reached(token, among); n < s.quorum {
		err := fmt.Errorf("redlock: %w: only %d of %d servers took note of the token", driver.ErrUnavailable, n, len(s.nodes))
		var silent set
		answers := rd.snapshot()
		for i, a := range answers {
			if among.has(i) && s.nodes[i].seen.Load() < token && (!a.landed || a.err != nil) {
				silent |= 1 << i
			}
		}
		return s.silence(err, silent, answers)
	}
	return nil
}

// spoke counts the nodes that answered, whatever they said.
func (s *Store) spoke(answers []answer) (n int) {
	for _, a := range answers {
		if a.landed && (a.err == nil || !unreachable(a.err)) {
			n++
		}
	}
	return n
}

// refusal is the error of an attempt that cannot succeed, whatever is released.
func (s *Store) refusal(key string, answers []answer) error {
	for _, a := range answers {
		if e, ok := errors.AsType[*driver.NotLockError](a.err); ok {
			return &driver.NotLockError{Key: key, Store: "redlock", Found: e.Found}
		}
		if a.err != nil && !unreachable(a.err) && !errors.Is(a.err, driver.ErrHeld) {
			return a.err
		}
	}
	return nil
}

// verdict is the error of an attempt that got no majority.
func (s *Store) verdict(key string, answers []answer) error {
	if err := s.refusal(key, answers); err != nil {
		return err
	}
	held := &driver.HeldError{Key: key}
	var refused, failed, pending, young, duplicates set
	for i, a := range answers {
		e, ok := errors.AsType[*driver.HeldError](a.err)
		switch {
		case ok:
			refused |= 1 << i
			held.Waiting = max(held.Waiting, e.Waiting)
			if held.Remaining == 0 || e.Remaining > held.Remaining && (held.Foreign || !e.Foreign) {
				held.Owner, held.Age, held.Remaining, held.Foreign = e.Owner, e.Age, e.Remaining, e.Foreign
			}
		case a.err == nil && a.landed && a.grant.Waiting:
			refused |= 1 << i
		case a.err == nil && a.landed:
			switch {
			case a.votes:
			case s.nodes[i].duplicate.Load() != nil:
				duplicates |= 1 << i
			default:
				young |= 1 << i
			}
		case a.landed:
			failed |= 1 << i
		default:
			pending |= 1 << i
		}
	}
	missing := failed | pending | young | duplicates
	if missing.count() <= len(s.nodes)-s.quorum && refused != 0 {
		return held
	}
	err := fmt.Errorf("redlock: %w: no majority", driver.ErrUnavailable)
	if young != 0 {
		err = s.tooYoung(young, pending, s.quorum-(len(s.nodes)-missing.count()))
	}
	if duplicates != 0 {
		err = fmt.Errorf("%w; without a vote: %s, which cannot be told from another", err, s.names(duplicates))
	}
	if young == 0 {
		failed |= pending // else the round did not wait for them
	}
	return s.silence(err, failed, answers)
}

// tooYoung is the error of an attempt that lacks that many votes for a majority, while
// some servers do not vote yet. It judges servers that the round did not wait for by
// their last answer.
func (s *Store) tooYoung(young, pending set, lack int) error {
	e := &YoungError{Longest: s.longest}
	var left []time.Duration
	for i, n := range s.nodes {
		ripe := n.ripe.Load()
		votes := ripe == nil || time.Until(*ripe) <= 0
		switch {
		case young.has(i):
			e.Nodes = append(e.Nodes, n.name)
			if !votes {
				left = append(left, time.Until(*ripe))
			}
		case !pending.has(i):
		case votes:
			lack--
		default:
			left = append(left, time.Until(*ripe))
		}
	}
	slices.Sort(e.Nodes)
	slices.Sort(left)
	if lack = max(lack, 1); lack <= len(left) {
		e.Left = left[lack-1]
	}
	return e
}

// silence adds to an error which servers did not answer, and why if that is known.
func (s *Store) silence(err error, silent set, answers []answer) error {
	if silent == 0 {
		return err
	}
	err = fmt.Errorf("%w; no answer from %s", err, s.names(silent))
	for _, a := range answers {
		if a.err != nil && unreachable(a.err) && !errors.Is(a.err, errLeftAlone) {
			return fmt.Errorf("%w (%w)", err, a.err)
		}
	}
	return err
}
