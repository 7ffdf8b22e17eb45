package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

type kind uint8

const (
	acquire kind = iota
	release
	renew
	downgrade
	rename // only for rounds
	raise
)

type task struct {
	round    *round // it waits for the answer; nil if no round does
	kind     kind
	queue    bool           // acquire: or a position
	req      driver.Request // acquire, renew: without a round
	shortens bool           // renew: it may leave a lock less time than an acquire would
}

// answer is the outcome of a task.
type answer struct {
	answered bool
	err      error
	grant    driver.Grant
	votes    bool
	sent     time.Time // when the request was sent, if the grant has the whole TTL
}

var (
	errSuperseded    = fmt.Errorf("redlock: %w: another request came after it", driver.ErrUnknown)
	errHeldMeanwhile = fmt.Errorf("redlock: %w: the lock was granted meanwhile", driver.ErrUnavailable)   // nothing was sent
	errEnded         = fmt.Errorf("redlock: %w: the claim was given up meanwhile", driver.ErrUnavailable) // likewise
	errLeftAlone     = fmt.Errorf("redlock: %w: it did not answer lately", driver.ErrUnavailable)
	errExcluded      = fmt.Errorf("redlock: %w: an earlier request was not answered", driver.ErrUnavailable)
)

// round is one request to several nodes. Its caller is woken when the outcome is decided.
// Later answers still update the claim.
type round struct {
	s     *Store
	st    *claim
	kind  kind
	req   driver.Request
	token int64
	among set  // raise: the relevant counters
	all   bool // raise: also counters that are known to be as high
	base  int  // earlier grants
	seq   int  // acquire, release: the node with the queue, whose answer is needed; or -1
	began time.Time

	mu       sync.Mutex
	answers  []answer
	asked    set
	spare    set // nodes to ask if those do not give a majority
	pending  int
	answered int
	woken    bool
	timer    *time.Timer
	armed    int // how often the timer was set: an old one may still fire
	done     chan struct{}
}

func (s *Store) round(st *claim, k kind, r driver.Request) *round {
	return &round{
		s: s, st: st, kind: k, req: r, seq: -1, began: time.Now(),
		answers: make([]answer, len(s.nodes)), done: make(chan struct{}, 1),
	}
}

// ask sends the request to the nodes of x; to those of queue with a position.
func (r *round) ask(x, queue set) { r.askFirst(x, queue, 0) }

// askFirst is ask, and also asks the nodes of spare if the others give no majority, or
// are late.
func (r *round) askFirst(x, queue, spare set) {
	r.expect(x, spare)
	r.send(x, queue)
}

func (r *round) expect(x, spare set) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked, r.spare, r.pending = x, spare, x.count()
	if r.pending < r.s.quorum && r.kind == acquire && r.base == 0 || r.pending == 0 {
		r.armLocked() // take sets the timer only at a majority, which may never come
	}
	if r.pending == 0 {
		r.wakeLocked()
	}
}

func (r *round) send(x, queue set) {
	for i := range r.s.nodes {
		if x.has(i) {
			t := task{round: r, kind: r.kind, queue: queue.has(i)}
			if r.kind == raise {
				r.s.workers.Go(func() { r.s.serve(r.st, i, t) })
			} else {
				r.s.send(r.st, i, t)
			}
		}
	}
}

func (r *round) wait(ctx context.Context) error {
	select {
	case <-r.done:
	default:
		select {
		case <-r.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (r *round) take(i int, a answer) {
	var more set
	r.mu.Lock()
	a.answered = true
	r.answers[i] = a
	r.pending--
	r.answered++
	switch {
	case r.woken:
	case r.pending == 0 && r.spare != 0 && !r.decidedLocked() && !r.refusedLocked():
		more = r.moreLocked()
	case r.pending == 0 || r.decidedLocked():
		r.wakeLocked()
	case r.spare == 0 && r.answered >= r.s.quorum || r.timer == nil && r.spare != 0:
		r.armLocked() // again, for the nodes that are missing now
	}
	r.mu.Unlock()
	r.send(more, 0)
}

// refusedLocked reports whether all asked nodes say that the lock is held.
func (r *round) refusedLocked() bool {
	for i := range r.answers {
		a := &r.answers[i]
		if r.asked.has(i) && !(a.answered && (errors.Is(a.err, driver.ErrHeld) || a.err == nil && a.grant.Waiting)) {
			return false
		}
	}
	return true
}

// moreLocked returns the spare nodes, to ask now. The earlier timer is not for them.
func (r *round) moreLocked() (more set) {
	more, r.spare = r.spare, 0
	r.asked |= more
	r.pending += more.count()
	if r.armed++; r.answered >= r.s.quorum {
		r.armLocked()
	}
	return more
}

func (r *round) wakeLocked() {
	r.woken = true
	if r.timer != nil {
		r.timer.Stop()
	}
	r.done <- struct{}{}
}

// armLocked limits the wait for the missing nodes when a majority has answered. The limit
// follows from the usual times of these nodes: the round waits for a slow node, and not
// for one that hangs. It waits longer while the outcome depends on them.
func (r *round) armLocked() {
	least := 5 * time.Millisecond
	switch {
	case r.spare != 0: // asking them costs little
		least = time.Millisecond
	case !r.certainLocked():
		least = 40 * time.Millisecond
	case r.kind == release:
		least = 2 * time.Millisecond
	}
	d := 2 * time.Since(r.began)
	for i, n := range r.s.nodes {
		if r.spare == 0 && r.asked.has(i) && !r.answers[i].answered {
			d = max(d, 4*time.Duration(n.rtt.Load()))
		}
	}
	if r.timer != nil {
		r.timer.Stop()
	}
	r.armed++
	armed := r.armed
	r.timer = time.AfterFunc(min(max(d, least), nodeTimeout/2), func() {
		var more set
		r.mu.Lock()
		switch {
		case r.woken, r.armed != armed:
		case r.spare != 0:
			more = r.moreLocked()
		default:
			r.wakeLocked()
		}
		r.mu.Unlock()
		r.send(more, 0)
	})
}

// counts reports whether an answer counts for a majority.
func (r *round) counts(a *answer) bool {
	return a.answered && a.err == nil && (r.kind != acquire || !a.grant.Waiting && a.votes)
}

// certainLocked reports whether the missing answers cannot change the result for the
// caller.
func (r *round) certainLocked() bool {
	yes, no := r.base, len(r.answers)-r.asked.count()-r.base
	for i := range r.answers {
		switch a := &r.answers[i]; {
		case !a.answered:
		case r.counts(a):
			yes++
		case r.kind == acquire || errors.Is(a.err, driver.ErrLost):
			no++
		}
	}
	if r.kind == release { // then the next claim finds a majority free, and the queue
		return yes+no >= r.s.quorum && (!r.asked.has(r.seq) || r.answers[r.seq].answered)
	}
	return yes >= r.s.quorum || no > len(r.answers)-r.s.quorum
}

// decidedLocked reports whether the missing answers do not matter.
func (r *round) decidedLocked() bool {
	yes, spoke, more := r.base, r.base, 0
	for i := range r.answers {
		a := &r.answers[i]
		if a.answered && a.err == nil && !a.grant.Waiting && (!a.votes || i == r.seq) {
			// The answer of a node that does not vote yet tells nothing about the others.
			// If the node with the queue grants, another one may hold the lock that is
			// being released.
			more = r.spare.count()
		}
		if r.counts(a) {
			yes++
		}
		if a.answered && (a.err == nil || !unreachable(a.err)) {
			spoke++
		}
	}
	switch r.kind {
	case acquire:
		return (yes >= r.s.quorum || yes+r.pending+more < r.s.quorum && spoke >= r.s.quorum) && (r.seq < 0 || r.answers[r.seq].answered)
	case raise:
		return r.raised(r.answers) >= r.s.quorum
	}
	return false // the next claim must find all nodes free, or open to readers
}

// raised counts the nodes whose counters are known to be high enough.
func (r *round) raised(answers []answer) (n int) {
	if !r.all {
		return r.s.reached(r.token, r.among)
	}
	for i, a := range answers {
		if r.among.has(i) && a.answered && a.err == nil {
			n++
		}
	}
	return n
}

// reached counts the nodes of among whose counters are at token or higher.
func (s *Store) reached(token int64, among set) (n int) {
	for i, node := range s.nodes {
		if among.has(i) && node.seen.Load() >= token {
			n++
		}
	}
	return n
}

func (r *round) snapshot() []answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]answer(nil), r.answers...)
}

// send asks a node, after the request under way there for the same claim.
func (s *Store) send(st *claim, i int, t task) {
	st.mu.Lock()
	turn := st.reserveLocked(i, t)
	st.mu.Unlock()
	s.start(st, i, t, turn)
}

// turn is when a reserved task is sent to its node.
type turn struct {
	now      bool  // no other request is under way there
	replaces *task // the earlier next task
}

// reserveLocked makes t the next task on a part, for the caller to start.
func (st *claim) reserveLocked(i int, t task) turn {
	l := &st.parts[i]
	l.leaves(t)
	if l.underWay {
		old := l.next
		l.next = &t
		return turn{replaces: old}
	}
	l.underWay = true
	st.underWay++
	return turn{now: true}
}

func (s *Store) start(st *claim, i int, t task, at turn) {
	switch {
	case at.now:
		s.dispatch(st, i, t)
	case at.replaces != nil && at.replaces.round != nil:
		at.replaces.round.take(i, answer{err: errSuperseded})
	}
}

// dispatch asks a node whose part is reserved.
func (s *Store) dispatch(st *claim, i int, t task) {
	if !s.nodes[i].admits() {
		next, more := s.answered(st, i, t, answer{err: errLeftAlone})
		if !more {
			return
		}
		t = next // it came meanwhile, and may be sent
	}
	s.workers.Go(func() { s.serve(st, i, t) })
}

// serve does a task, and then those that came for the same part meanwhile.
func (s *Store) serve(st *claim, i int, t task) {
	if t.kind == raise {
		t.round.take(i, s.perform(st, i, t))
		return
	}
	for more := true; more; {
		t, more = s.answered(st, i, t, s.perform(st, i, t))
	}
}

// answered notes the answer to a task. It returns the next task, if there is one.
func (s *Store) answered(st *claim, i int, t task, a answer) (next task, more bool) {
	st.mu.Lock()
	l := &st.parts[i]
	l.note(t, a)
	pending := t.kind == release && a.err != nil && l.has != nothing
	c := st.onLocked(i)
	switch {
	case l.next != nil:
		next, more = *l.next, true
		l.next = nil
	case t.kind == downgrade && errors.Is(a.err, driver.ErrLost) && l.has != nothing:
		next, more = task{kind: release}, true // the writer's position
	case st.gone && t.kind != release && l.has != nothing:
		next, more = task{kind: release}, true
	default:
		l.underWay = false
		st.underWay--
	}
	if more {
		l.leaves(next)
	}
	missed := t.kind == acquire && a.err == nil && st.missedLocked(i)
	idle := st.idleLocked()
	st.mu.Unlock()
	if missed { // it was asked before a Rename, which did not find it there
		s.nameAgain(st, i)
	}
	if pending && unreachable(a.err) {
		s.nodes[i].releaseLater(c, s.longest)
	}
	if t.round != nil {
		t.round.take(i, a)
	}
	if idle {
		s.forget(st)
	}
	if more && !s.nodes[i].admits() {
		return s.answered(st, i, next, answer{err: errLeftAlone})
	}
	return next, more
}

// note updates the part by an answer. The part is excluded after three answers: none to a
// release, which is repeated (see releaseLater); a release that found no trace of an
// unanswered request, which the node's store may repeat; none to a request that leaves a
// lock little time, which may do so to a later grant.
func (l *part) note(t task, a answer) {
	switch {
	case t.kind == release && a.err != nil && (!errors.Is(a.err, driver.ErrLost) || l.has == maybe),
		t.shortens && l.has == lock && a.err != nil && unreachable(a.err) && !errors.Is(a.err, driver.ErrUnavailable):
		l.excluded = true
	}
	switch {
	case t.kind == downgrade && errors.Is(a.err, driver.ErrLost) && (l.has == position || l.has == maybe):
		// It does not hold there, and may have a position.
	case a.err == nil && t.kind == release, errors.Is(a.err, driver.ErrLost):
		*l = part{underWay: l.underWay, next: l.next, excluded: l.excluded}
	case a.err == nil && a.grant.Waiting:
		l.has, l.ticket = position, a.grant.Ticket
	case a.err == nil:
		if t.kind == acquire {
			l.votes = a.votes
		}
		if !a.sent.IsZero() {
			l.sent = a.sent
		}
		l.has, l.ticket, l.token = lock, a.grant.Ticket, max(l.token, a.grant.Token)
	case errors.Is(a.err, driver.ErrUnavailable): // no effect
	case unreachable(a.err):
		if l.has == nothing {
			l.has = maybe
		}
	case t.kind == acquire: // refused
		l.has = nothing
	}
}

// leaves excludes a lock from all attempts from when its release may be under way. The
// time of the lock's request does not show that it is older if both fall within a tick of
// the clock.
func (l *part) leaves(t task) {
	if t.kind == release {
		l.sent = time.Time{}
	}
}

func (s *Store) perform(st *claim, i int, t task) (a answer) {
	st.mu.Lock()
	l := st.parts[i]
	superseded, ended := t.shortens && !st.shortenLocked(i), t.kind == acquire && st.gone
	st.mu.Unlock()
	switch {
	case superseded:
		return answer{err: errHeldMeanwhile}
	case ended: // it would only be released a moment later
		return answer{err: errEnded}
	case t.kind == acquire && l.excluded:
		return answer{err: errExcluded}
	case t.kind == release && l.has == nothing:
		return answer{err: driver.ErrLost}
	}
	n := s.nodes[i]
	ctx := s.detach()
	began := time.Now()
	n.begin()
	defer func() {
		n.underWay.Add(-1)
		s.account(n, a.err, time.Since(began))
	}()
	in, err := s.reach(ctx, n)
	if err != nil {
		if !errors.Is(err, driver.ErrUnavailable) {
			err = fmt.Errorf("%w: %w", driver.ErrUnavailable, err) // nothing was sent
		}
		return answer{err: err}
	}
	if t.kind == raise {
		a.grant.Token, a.err = in.Raise(ctx, st.key, t.round.token)
		n.reached(a.grant.Token)
		return a
	}

	st.mu.Lock()
	c := st.onLocked(i)
	unsure := st.parts[i].has == maybe
	st.mu.Unlock()
	switch t.kind {
	case acquire:
		req := t.req
		if t.round != nil {
			req = t.round.req
		}
		req.Claim = c
		req.Queue, req.Retry = t.queue, unsure
		sent := bootclock.Now()
		a.grant, a.err = in.Acquire(ctx, req)
		if a.err == nil && !a.grant.Waiting {
			n.reached(a.grant.Token) // before votes, which may find that the server has restarted
			a.votes = s.votes(ctx, n, in)
			a.sent = sent
		}
	case release:
		a.err = in.Release(ctx, c)
	case renew:
		a = renewed(in.Renew(ctx, []driver.Claim{c}, t.req.TTL)[0])
	case downgrade:
		a.grant, a.err = in.Downgrade(ctx, c, t.round.req.TTL)
	}
	return a
}

func (n *node) begin() {
	if n.underWay.Add(1) == maxUnderWay/2 {
		n.mu.Lock()
		n.answered = time.Now() // from now on check whether it answers at all
		n.mu.Unlock()
	}
}

// renewed makes an answer of a Renewal.
func renewed(r driver.Renewal) answer {
	switch r.State {
	case driver.Held, driver.Waiting:
		return answer{grant: r.Grant}
	case driver.Lost:
		return answer{err: driver.ErrLost}
	}
	if r.Err == nil {
		r.Err = driver.ErrUnknown
	}
	return answer{err: r.Err}
}
