package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/bootclock"
)

// mayRenew is the reason why a claim cannot be renewed, or nil.
func (s *Store) mayRenew(ctx context.Context, c driver.Claim, ttl time.Duration) error {
	if err := errors.Join(check.Claim(c), check.TTL(c.Key, ttl, s.Traits())); err != nil {
		return err
	}
	return s.check(ctx)
}

func (s *Store) renew(ctx context.Context, all []renewCall, ttl time.Duration) {
	sent := bootclock.Now()
	var jobs []*renewing
	for _, p := range all {
		jobs = append(jobs, p.st.renewing(p.claim, ttl, p.out))
	}
	s.poll(ctx, jobs, ttl)
	var next sync.WaitGroup
	for _, j := range jobs {
		r := driver.Request{Claim: j.claim, TTL: ttl, Queue: true}
		if !j.waits {
			s.confirmed(ctx, j, r, sent)
			continue
		}
		next.Go(func() { s.advance(ctx, j, r) })
	}
	next.Wait()
}

type renewing struct {
	st    *claim
	claim driver.Claim
	out   *driver.Renewal
	known bool
	waits bool
	led   bool // a hint says that the position was granted: no need to ask
	seq   int

	mu       sync.Mutex
	answers  []driver.Renewal
	asked    set
	answered set
}

func (st *claim) renewing(c driver.Claim, ttl time.Duration, out *driver.Renewal) *renewing {
	st.mu.Lock()
	defer st.mu.Unlock()
	j := &renewing{st: st, claim: c, out: out, known: st.known, seq: st.seq, answers: make([]driver.Renewal, len(st.parts))}
	st.askLocked(c)
	st.until = bootclock.Now().Add(ttl + time.Minute)
	j.waits = st.known && !st.held && st.seq >= 0
	j.led = j.waits && st.called
	return j
}

// poll asks all nodes about all claims, and returns when each is decided.
func (s *Store) poll(ctx context.Context, jobs []*renewing, ttl time.Duration) {
	p := &polling{s: s, jobs: jobs, done: make(chan struct{}), began: time.Now()}
	var calls [][2][]*renewing // for each node, the holders and the waiters
	for i, n := range s.nodes {
		var call [2][]*renewing
		admits := sync.OnceValue(n.admits) // may let one request through, which must then be sent
		for _, j := range jobs {
			if j.led || !j.st.startRenewal(i, j.known, admits, j.task(ttl)) {
				continue
			}
			j.asked |= 1 << i
			if j.waits {
				call[1] = append(call[1], j)
			} else {
				call[0] = append(call[0], j)
			}
		}
		if call[0] != nil {
			p.pending++
		}
		if call[1] != nil {
			p.pending++
		}
		calls = append(calls, call)
	}
	if p.pending == 0 {
		return
	}
	for i, call := range calls {
		for _, js := range call {
			if js == nil {
				continue
			}
			s.workers.Go(func() { s.ask(p, i, js, js[0].ttl(ttl)) })
		}
	}
	select {
	case <-p.done:
	case <-ctx.Done():
	}
	p.mu.Lock()
	p.woken = true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
}

// ttl is how long a renewal of the claim lasts: a waiting claim must not hold a node's
// lock for long without a majority.
func (j *renewing) ttl(ttl time.Duration) time.Duration {
	if j.waits {
		return max(min(ttl, driver.ClaimTTL), minTTL)
	}
	return ttl
}

// task is this renewal as a request to one node.
func (j *renewing) task(ttl time.Duration) task {
	return task{kind: renew, req: driver.Request{TTL: j.ttl(ttl)}, shortens: j.waits}
}

// startRenewal reserves a part for a renewal, and reports whether to send it. If a
// request is under way there, a renewal follows it, but the caller does not wait for
// that. A part that is known to have nothing needs no renewal.
func (st *claim) startRenewal(i int, known bool, admits func() bool, later task) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	l := &st.parts[i]
	if l.underWay && l.next == nil {
		l.next = new(task)
		*l.next = later
	}
	if l.underWay || l.excluded || known && l.has == nothing || !admits() || later.shortens && !st.shortenLocked(i) {
		return false
	}
	l.underWay = true
	st.underWay++
	return true
}

// polling is a Renew that waits for nodes.
type polling struct {
	s     *Store
	jobs  []*renewing
	began time.Time
	done  chan struct{}

	mu       sync.Mutex
	pending  int
	answered int
	woken    bool
	timer    *time.Timer
}

func (s *Store) ask(p *polling, i int, js []*renewing, ttl time.Duration) {
	n := s.nodes[i]
	claims := make([]driver.Claim, len(js))
	for k, j := range js {
		j.st.mu.Lock()
		claims[k] = j.st.onLocked(i)
		j.st.mu.Unlock()
	}
	ctx := s.detach()
	began, sent := time.Now(), bootclock.Now()
	n.begin()
	var answers []driver.Renewal
	in, err := s.reach(ctx, n)
	if err == nil {
		answers = in.Renew(ctx, claims, ttl)
	}
	for k := range js {
		a := driver.Renewal{Err: err}
		if err == nil {
			a = answers[k]
		}
		if a.State == driver.Held {
			n.reached(a.Grant.Token)
		}
		j := js[k]
		told := renewed(a)
		if a.State == driver.Held && !j.waits {
			told.sent = sent
		}
		t, more := s.answered(j.st, i, j.task(ttl), told)
		j.mu.Lock() // only now: the next renewal must find the part idle
		j.answers[i] = a
		j.answered |= 1 << i
		j.mu.Unlock()
		if more {
			s.workers.Go(func() { s.serve(j.st, i, t) })
		}
	}
	n.underWay.Add(-1)
	if err == nil && len(answers) > 0 {
		err = answers[0].Err
	}
	s.account(n, err, time.Since(began))
	p.take()
}

func (p *polling) take() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending--
	p.answered++
	switch {
	case p.woken:
	case p.pending == 0 || p.decidedLocked():
		p.woken = true
		close(p.done)
	case p.timer == nil && p.answered >= p.s.quorum:
		// A node that hangs must not delay the others' answers.
		d := max(2*time.Since(p.began), 20*time.Millisecond)
		for _, n := range p.s.nodes {
			d = max(d, min(4*time.Duration(n.rtt.Load()), nodeTimeout/2))
		}
		p.timer = time.AfterFunc(d, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if !p.woken {
				p.woken = true
				close(p.done)
			}
		})
	}
}

// decidedLocked reports whether the missing answers do not matter.
func (p *polling) decidedLocked() bool {
	if p.answered < p.s.quorum {
		return false
	}
	for _, j := range p.jobs {
		j.mu.Lock()
		held := 0
		for _, a := range j.answers {
			if a.State == driver.Held {
				held++
			}
		}
		done := held >= p.s.quorum && !j.waits || j.answered == j.asked || j.waits && j.seq >= 0 && j.answered.has(j.seq)
		j.mu.Unlock()
		if !done {
			return false
		}
	}
	return true
}

// confirmed decides a held claim, or one that this process does not know, by the nodes'
// answers.
func (s *Store) confirmed(ctx context.Context, j *renewing, r driver.Request, sent time.Time) {
	st := j.st
	j.mu.Lock()
	var held set
	var lost, queued int
	var top int64
	waits := -1
	var last error
	for i, a := range j.answers {
		switch {
		case !j.asked.has(i):
			st.mu.Lock()
			if l := &st.parts[i]; l.excluded || j.known && l.has == nothing && !l.underWay {
				lost++
			}
			st.mu.Unlock()
		case !j.answered.has(i):
		case a.State == driver.Held:
			held |= 1 << i
			top = max(top, a.Grant.Token)
		case a.State == driver.Waiting:
			waits = i
			queued++
		case a.State == driver.Lost:
			lost++
		default:
			last = a.Err
		}
	}
	j.mu.Unlock()
	st.mu.Lock()
	holds, gone := st.held || j.claim.Ticket < 0, st.gone
	st.mu.Unlock()
	if holds { // a position on a node does not tell whether the claim holds
		waits, lost = -1, lost+queued
	}
	others := len(s.nodes) - held.count() - lost
	switch {
	case gone: // released meanwhile: no grant counts
		j.out.State = driver.Lost
	case held.count() >= s.quorum:
		st.mu.Lock()
		token := st.token
		if token == 0 {
			token = max(-j.claim.Ticket, 0)
		}
		st.mu.Unlock()
		if token == 0 { // the answer with the token was lost
			var err error
			if token, err = s.raise(ctx, st, top, held, true); err != nil {
				j.out.Err = err
				return
			}
		}
		st.mu.Lock()
		if st.gone { // released meanwhile
			st.mu.Unlock()
			j.out.State = driver.Lost
			return
		}
		st.known, st.held, st.token, st.seq = true, true, token, -1
		st.until = sent.Add(r.TTL)
		st.mu.Unlock()
		j.out.State = driver.Held
		j.out.Grant = driver.Grant{Token: token, Ticket: -token, TTL: r.TTL - drift(r.TTL)}
		s.repair(st, r)
	case waits >= 0 && lost == 0 || waits >= 0 && !j.known:
		st.mu.Lock()
		st.known = true
		st.mu.Unlock()
		j.out.State, j.out.Grant = driver.Waiting, s.wait(st, waits, j.answers[waits].Grant)
	case held.count()+others >= s.quorum:
		if last == nil {
			last = errors.New("they did not answer in time")
		}
		if errors.Is(last, driver.ErrUnknown) || !unreachable(last) {
			j.out.Err = fmt.Errorf("redlock: %w: %d of %d servers confirm the lock, and %d did not answer: %w", driver.ErrUnknown, held.count(), len(s.nodes), others, last)
		} else {
			j.out.Err = fmt.Errorf("redlock: %w: %d of %d servers confirm the lock, and %d did not answer: %w", driver.ErrUnavailable, held.count(), len(s.nodes), others, last)
		}
	default:
		// The grants of a few nodes are not released, but expire: until it learns of the
		// loss, the caller considers itself the holder.
		j.out.State = driver.Lost
	}
}

// repair asks for a lock that a majority has granted on the other nodes, and repeats a
// Rename on nodes that missed it.
func (s *Store) repair(st *claim, r driver.Request) {
	r.Queue = false
	for i := range s.nodes {
		st.mu.Lock()
		l := &st.parts[i]
		missing := st.held && !st.gone && !l.underWay && !l.excluded && l.has != lock
		if missing { // a later release comes after it
			l.underWay = true
			st.underWay++
		}
		missed := st.missedLocked(i)
		st.mu.Unlock()
		if missing {
			s.dispatch(st, i, task{kind: acquire, req: r})
		}
		if missed {
			s.nameAgain(st, i)
		}
	}
}
