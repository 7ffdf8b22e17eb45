package drivertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
)

type test struct {
	T
	h      Harness
	ctx    context.Context
	locks  []driver.Locks // one handle for each process
	traits driver.Traits

	// slack is what a slow machine may add to an upper bound. Cases assert only upper
	// bounds that matter, and a claim that must last during a case has a TTL longer than
	// any pause.
	slack time.Duration

	cut int // answers that may still be lost because connections were cut

	mu     sync.Mutex
	seats  []*seat
	ids    map[string]bool // all drawn IDs; none may be shown
	paused string          // see lapse
	slow   string          // see timed
}

func (t *test) newID() string {
	id := driver.NewID()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ids[id] = true
	return id
}

// short is a TTL for which a case can wait.
func (t *test) short() time.Duration { return max(400*time.Millisecond, t.traits.MinTTL) }

// long is a TTL that does not end during a case.
func (t *test) long() time.Duration {
	if d := 50 * time.Second; t.traits.MaxTTL == 0 || d <= t.traits.MaxTTL {
		return d
	}
	return t.traits.MaxTTL
}

// await polls until ok is true, and fails the case if that takes longer than d plus
// slack.
func (t *test) await(what string, d time.Duration, ok func() bool) {
	t.Helper()
	start := time.Now()
	for pause := 5 * time.Millisecond; !ok(); pause = min(2*pause, 50*time.Millisecond) {
		round := time.Now()
		if waited := time.Since(start); waited > d+t.slack {
			t.Fatalf("%s: not within %v", what, waited.Round(time.Millisecond))
		}
		time.Sleep(pause)
		t.timed("a short sleep", round)
	}
}

// reconnect cuts the connections. From then on a few answers may be lost.
func (t *test) reconnect() {
	t.Helper()
	t.h.Reconnect(t, t.locks)
	t.cut = 10 * handles
}

// lost reports whether an answer was lost because a connection was cut, so that the
// caller asks again. If no connection was cut, err counts.
func (t *test) lost(err error) bool {
	if t.cut == 0 || !errors.Is(err, driver.ErrUnknown) && !errors.Is(err, driver.ErrUnavailable) {
		return false
	}
	t.cut--
	return true
}

// A seat is one claim as its process sees it: through one handle, with the last answer
// that it got.
type seat struct {
	driver.Claim
	t       *test
	process int
	name    string
	ttl     time.Duration
	most    int // Request.MaxWaiting
	state   driver.State
	grant   driver.Grant

	// See pause.go.
	confirmed time.Time     // sent time of the last request that found the claim standing
	life      time.Duration // how long the claim lasts from then; 0 if it may end
	mortal    bool
}

// l is the handle of the seat's process. A restart may replace it.
func (s *seat) l() driver.Locks { return s.t.locks[s.process] }

func (t *test) seat(process int, key string, weight, capacity int64) *seat {
	s := &seat{
		Claim:   driver.Claim{Key: key, ID: t.newID(), Owner: ownerOf(process), Weight: weight, Capacity: capacity},
		t:       t,
		process: process,
		name:    fmt.Sprintf("%s of process %d on %.40q", kindOf(weight, capacity), process, key),
		ttl:     t.long(),
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seats = append(t.seats, s)
	return s
}

func ownerOf(process int) string { return fmt.Sprintf("process %d", process) }

func kindOf(weight, capacity int64) string {
	switch {
	case weight == driver.Whole:
		return "writer"
	case capacity == driver.Whole:
		return "reader"
	}
	return fmt.Sprintf("%d of %d permits", weight, capacity)
}

func (t *test) writer(process int, key string) *seat {
	return t.seat(process, key, driver.Whole, driver.Whole)
}

func (t *test) reader(process int, key string) *seat {
	return t.seat(process, key, 1, driver.Whole)
}

func (t *test) permits(process int, key string, n, of int64) *seat {
	return t.seat(process, key, n, of)
}

// lasting sets a TTL instead of the long one.
func (s *seat) lasting(ttl time.Duration) *seat {
	s.ttl = ttl
	return s
}

// crashing gives the seat a short TTL; its process will not renew it.
func (s *seat) crashing() *seat { return s.lasting(s.t.short()).dies() }

// named gives the seat a name, for cases with several alike.
func (s *seat) named(name string) *seat {
	s.name = fmt.Sprintf("%s (%s)", name, s.name)
	return s
}

// forget makes the seat one whose process has got no answer so far.
func (s *seat) forget() *seat {
	s.state, s.grant, s.Ticket, s.mortal = driver.Unknown, driver.Grant{}, 0, false
	return s
}

// took notes an answer, and checks what is true of every answer.
func (s *seat) took(state driver.State, g driver.Grant) {
	s.state = state
	if state != driver.Held && state != driver.Waiting {
		return
	}
	if g.Waiting != (state == driver.Waiting) {
		s.t.Errorf("%s: answered as %v with Grant.Waiting = %v", s.name, state, g.Waiting)
	}
	if s.t.traits.Fencing && state == driver.Held {
		switch {
		case g.Token <= 0:
			s.t.Errorf("%s: granted with token %d, want a positive one", s.name, g.Token)
		case g.Token < s.Ticket:
			s.t.Errorf("%s: token %d is below its ticket %d", s.name, g.Token, s.Ticket)
		case g.Token < s.grant.Token:
			s.t.Errorf("%s: token fell from %d to %d", s.name, s.grant.Token, g.Token)
		}
	}
	if state == driver.Waiting && g.Token != 0 {
		s.t.Errorf("%s: a waiter has token %d, want 0", s.name, g.Token)
	}
	if g.Ticket == 0 {
		s.t.Errorf("%s: %v without a ticket", s.name, state)
	}
	if g.TTL <= 0 {
		s.t.Errorf("%s: %v with TTL %v", s.name, state, g.TTL)
	}
	if g.Again < 0 || g.Again > driver.RefreshEvery {
		s.t.Errorf("%s: asked to look again after %v, want at most %v", s.name, g.Again, driver.RefreshEvery)
	}
	s.grant = g
	s.Ticket = g.Ticket
}

func (s *seat) request(queue, retry bool) driver.Request {
	return driver.Request{Claim: s.Claim, TTL: s.ttl, Queue: queue, MaxWaiting: s.most, Retry: retry}
}

func (s *seat) acquire(queue, retry bool) error {
	waited := s.state == driver.Waiting
	sent := time.Now()
	g, err := s.l().Acquire(s.t.ctx, s.request(queue, retry))
	s.t.timed(s.name+": acquire", sent)
	switch {
	case err != nil && s.t.lost(err):
		return s.acquire(queue, true)
	case err != nil:
		s.state = driver.Unknown
	case g.Waiting:
		s.took(driver.Waiting, g)
		s.stands(sent, driver.Waiting)
		if !queue && !waited {
			s.t.Errorf("%s: got a position that it did not ask for", s.name)
		}
	default:
		s.took(driver.Held, g)
		s.stands(sent, driver.Held)
	}
	return err
}

// hold acquires, and must be granted at once.
func (s *seat) hold() *seat {
	s.t.Helper()
	if err := s.acquire(false, false); err != nil {
		s.t.Fatalf("%s: acquire: %v, want it granted", s.name, err)
	}
	return s
}

// refused acquires, and must be told who holds the lock.
func (s *seat) refused() *driver.HeldError {
	s.t.Helper()
	err := s.acquire(false, false)
	held, ok := errors.AsType[*driver.HeldError](err)
	if !ok {
		s.t.Fatalf("%s: acquire: %v, want a *driver.HeldError", s.name, outcome(err))
	}
	if held.Key != s.Key {
		s.t.Errorf("%s: the HeldError names key %q", s.name, held.Key)
	}
	if held.Age < 0 || held.Remaining < 0 || held.Waiting < 0 {
		s.t.Errorf("%s: a negative fact in %+v", s.name, held)
	}
	s.t.noID(held)
	return held
}

// outcome is err in words for a message.
func outcome(err error) any {
	if err == nil {
		return "no error"
	}
	return err
}

// join acquires with Queue, and must get a position.
func (s *seat) join() *seat {
	s.t.Helper()
	if err := s.acquire(true, false); err != nil {
		s.t.Fatalf("%s: acquire with a position: %v", s.name, err)
	}
	if s.state != driver.Waiting {
		s.t.Fatalf("%s: %v at once, want a position", s.name, s.state)
	}
	return s
}

func (s *seat) renew() driver.State {
	s.t.Helper()
	s.t.renew(s)
	return s.state
}

// renew renews the seats in one batch for each process and TTL.
func (t *test) renew(seats ...*seat) {
	t.Helper()
	for len(seats) > 0 {
		first := seats[0]
		var batch, rest []*seat
		var claims []driver.Claim
		for _, s := range seats {
			if s.process == first.process && s.ttl == first.ttl {
				batch, claims = append(batch, s), append(claims, s.Claim)
			} else {
				rest = append(rest, s)
			}
		}
		sent := time.Now()
		answers := first.l().Renew(t.ctx, claims, first.ttl)
		t.timed(first.name+": renew", sent)
		if len(answers) != len(claims) {
			t.Fatalf("renewing %d claims gave %d answers", len(claims), len(answers))
		}
		for i, s := range batch {
			a := answers[i]
			if a.State == driver.Unknown && t.lost(a.Err) {
				rest = append(rest, s)
				continue
			}
			if a.State == driver.Unknown {
				t.Logf("%s: renew: %v", s.name, a.Err)
			}
			if s.state == driver.Held && a.State == driver.Held && a.Grant.Token != s.grant.Token {
				t.Errorf("%s: renewing changed its token from %d to %d", s.name, s.grant.Token, a.Grant.Token)
			}
			s.took(a.State, a.Grant)
			s.stands(sent, a.State)
		}
		seats = rest
	}
}

// mustBe renews, and must find the given state.
func (s *seat) mustBe(want driver.State) {
	s.t.Helper()
	if got := s.renew(); got != want {
		s.t.Fatalf("%s: %v, want %v", s.name, got, want)
	}
}

// awaitHeld renews s and the others until s holds. The others must not be granted before.
func (s *seat) awaitHeld(within time.Duration, others ...*seat) {
	s.t.Helper()
	s.t.await(s.name+" is granted", within, func() bool {
		s.t.Helper()
		s.t.renew(append([]*seat{s}, others...)...)
		for _, o := range others {
			if o.state == driver.Held && s.state != driver.Held {
				s.t.Fatalf("%s was granted before %s", o.name, s.name)
			}
		}
		if s.state == driver.Lost {
			s.t.Fatalf("%s: lost its position", s.name)
		}
		return s.state == driver.Held
	})
}

// throughout renews the waiters for d, and asserts that none is granted or loses its
// position.
func (t *test) throughout(d time.Duration, waiters ...*seat) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		t.waiting(waiters...)
	}
}

// waiting asserts that all have a position.
func (t *test) waiting(waiters ...*seat) {
	t.Helper()
	t.renew(waiters...)
	for _, s := range waiters {
		if s.state != driver.Waiting {
			t.Fatalf("%s: %v, want its position", s.name, s.state)
		}
	}
}

// held asserts that all hold.
func (t *test) held(holders ...*seat) {
	t.Helper()
	t.renew(holders...)
	for _, s := range holders {
		if s.state != driver.Held {
			t.Fatalf("%s: %v, want held", s.name, s.state)
		}
	}
}

// outlive waits until a claim with this ttl, if it began now, has ended by the store's
// clock.
func (t *test) outlive(ttl time.Duration, waiters ...*seat) {
	t.Helper()
	t.throughout(ttl+50*time.Millisecond, waiters...)
}

func (s *seat) release() error {
	sent := time.Now()
	err := s.l().Release(s.t.ctx, s.Claim)
	s.t.timed(s.name+": release", sent)
	s.stands(sent, driver.Lost)
	if err != nil && s.t.lost(err) {
		if again := s.release(); !errors.Is(err, driver.ErrUnknown) || !errors.Is(again, driver.ErrLost) {
			return again
		}
		return nil // the release succeeded; only its answer was lost
	}
	return err
}

// leave releases a claim that must still stand.
func (s *seat) leave() {
	s.t.Helper()
	if err := s.release(); err != nil {
		s.t.Fatalf("%s: release: %v", s.name, err)
	}
	s.state = driver.Lost
}

// gone releases a claim that must have ended.
func (s *seat) gone() {
	s.t.Helper()
	if err := s.release(); !errors.Is(err, driver.ErrLost) {
		s.t.Errorf("%s: release: %v, want driver.ErrLost", s.name, outcome(err))
	}
}

// free asserts that the lock has no holder and no waiter: a newcomer is granted at once.
func (t *test) free(key string) {
	t.Helper()
	t.writer(0, key).hold().leave()
}
