package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

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
			rd.askFirst(first, 1<<seq, s.all()&^first)
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
		case !a.answered || a.err != nil:
			tried |= 1 << seq
			busy = true // from now on ask for a position alone
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

// sequencer is the node with the queue of key: the first that answers, in an order that
// the key decides, among those that are asked first. It is -1 if all were tried.
func (s *Store) sequencer(key string, tried set) int {
	h := uint32(2166136261) // FNV, because all processes must choose the same node
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

// behind reports whether the node with the queue has another claim before this one, so
// that a majority would overtake the waiters. Holders of other programs do not know the
// queue, and do not count.
func (s *Store) behind(st *claim, a answer) bool {
	st.mu.Lock()
	held := st.held
	st.mu.Unlock()
	switch e, refused := errors.AsType[*driver.HeldError](a.err); {
	case held || !a.answered:
		return false
	case refused:
		return !e.Foreign
	case errors.Is(a.err, driver.ErrQueueFull):
		return true
	}
	return a.err == nil && a.grant.Waiting && (a.grant.Again == 0 || a.grant.Again > soon)
}

// wait is the answer to a claim with a position on node seq.
func (s *Store) wait(st *claim, seq int, g driver.Grant) driver.Grant {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.seq, st.ticket, st.head = seq, g.Ticket, time.Time{}
	g.TTL = min(g.TTL, driver.WaiterTTL)
	return g
}

// lead acts for the head of the queue on node seq. It asks all nodes that the claim does
// not hold yet for the lock, or else a position: the last holder has just released them
// or will.
func (s *Store) lead(ctx context.Context, st *claim, r driver.Request, sent time.Time, seq int) (driver.Grant, error) {
	for i := range s.nodes {
		s.watch(st, i)
	}
	r.MaxWaiting = 0 // it has its position; the other nodes' queues are not for waiting
	mine := st.holds(sent)
	rd := s.round(st, acquire, r)
	rd.base = mine.count()
	rd.ask(s.all()&^mine, s.all())
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
	// After a crash of this process its grants must not last for long.
	for i := range s.nodes {
		st.mu.Lock()
		held := st.parts[i].has == lock
		st.mu.Unlock()
		if held {
			s.send(st, i, task{kind: renew, req: driver.Request{TTL: max(driver.ClaimTTL, minTTL)}, shortens: true})
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

// advance continues a waiting claim.
func (s *Store) advance(ctx context.Context, j *renewing, r driver.Request) {
	st := j.st
	sent := bootclock.Now()
	j.mu.Lock()
	a, answered := j.answers[j.seq], j.answered.has(j.seq)
	j.mu.Unlock()
	lead := j.led || answered && a.State == driver.Held
	switch {
	case lead:
	case answered && a.State == driver.Waiting:
		g := s.wait(st, j.seq, a.Grant)
		if s.hurried(st, g.Again) || st.overdue() {
			if won, err := s.probe(ctx, st, r, sent); err == nil {
				j.out.State, j.out.Grant = driver.Held, won
				return
			}
		}
		j.out.State, j.out.Grant = driver.Waiting, g
		return
	case answered && a.State == driver.Lost:
		s.end(st, 0)
		j.out.State = driver.Lost
		return
	default: // the node does not answer: take a position on another one
		g, err := s.enter(ctx, st, r, sent)
		s.stepped(j, g, err)
		return
	}
	st.mu.Lock()
	st.called = false
	stuck := !st.head.IsZero() && sent.Sub(st.head) > st.yield
	st.mu.Unlock()
	if stuck || s.hopeless(st) {
		// Another head may have the missing votes, and miss these.
		s.end(st, 0)
		j.out.State = driver.Lost
		return
	}
	g, err := s.lead(ctx, st, r, sent, j.seq)
	s.stepped(j, g, err)
}

func (s *Store) stepped(j *renewing, g driver.Grant, err error) {
	switch {
	case err == nil && g.Waiting:
		j.out.State, j.out.Grant = driver.Waiting, g
	case err == nil:
		j.out.State, j.out.Grant = driver.Held, g
	case unreachable(err):
		j.out.Err = err
	default:
		j.out.State = driver.Lost
	}
}

// hurried reports whether the node has asked twice in a row for a request soon.
func (s *Store) hurried(st *claim, again time.Duration) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if again == 0 || again > soon {
		st.hurry = 0
		return false
	}
	st.hurry++
	return st.hurry > 1
}

// overdue reports whether to check that more than the node with the queue has a holder: a
// holder may have released the other nodes and then died, or lost this one.
func (st *claim) overdue() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	now := bootclock.Now()
	due := !st.probed.IsZero() && now.After(st.probed)
	if due || st.probed.IsZero() {
		st.probed = now.Add(driver.WaiterTTL + driver.ClaimTTL + rand.N(time.Second)) // dead claims have expired by then
	}
	return due
}

// probe tries for a majority for a queued claim: a holder of another program does not
// hand over, and a holder may have only the node with the queue.
func (s *Store) probe(ctx context.Context, st *claim, r driver.Request, sent time.Time) (driver.Grant, error) {
	st.mu.Lock()
	seq := st.seq
	st.mu.Unlock()
	r.Queue = false
	rd := s.round(st, acquire, r)
	rd.ask(s.all()&^(1<<seq), 0)
	if err := rd.wait(ctx); err != nil {
		s.end(st, 1<<seq)
		return driver.Grant{}, err
	}
	if s.holds(st, sent) {
		return s.won(ctx, st, r, sent)
	}
	s.end(st, 1<<seq)
	return driver.Grant{}, driver.ErrHeld
}

// soon is the longest pause of a waiter that has to poll: behind a holder of another
// program, or a dead one.
const soon = 50 * time.Millisecond
