package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/leasemath"
	"github.com/batonhq/baton/server/internal/handle"
)

// A wish is what one call asks for.
type wish struct {
	caller, op string
	claim      driver.Claim // without an ID
	ttl, wait  time.Duration
	retry      bool   // not the first call with this op
	received   moment // when the call arrived, after the client sent it
}

// A moment is an instant by two clocks. bootclock includes the time of a suspend; on some
// systems it also includes forward steps of the wall clock, and runs ahead. The plain
// clock may leave out a suspend. What must end in time is dated by bootclock.
type moment struct{ boot, plain time.Time }

func present() moment { return moment{bootclock.Now(), time.Now()} }

// since returns the least time that can have passed since an earlier moment.
func (m moment) since(earlier moment) time.Duration {
	return min(m.boot.Sub(earlier.boot), m.plain.Sub(earlier.plain))
}

// A lease is a grant of the store.
type lease struct {
	claim driver.Claim
	grant driver.Grant
	sent  moment // when the granted request was sent
}

func (l lease) token() int64 { return l.grant.Token * leasemath.TokensPerGrant }

// remaining returns how long the lease lasts for the client, counted from when the client
// sent its request. received is later than that, so the client's lease ends before the
// store's.
func (l lease) remaining(received moment) time.Duration {
	return l.sent.since(received) + l.grant.TTL - leasemath.Margin(l.grant.TTL)
}

// late reports whether the answer took so long that less than half of the lease is left.
func (l lease) late(now time.Time) bool {
	return now.Sub(l.sent.boot) > (l.grant.TTL-leasemath.Margin(l.grant.TTL))/2
}

// millis rounds down: a lease must not end later for its client than for the store.
func millis(d time.Duration) uint32 {
	return uint32(min(max(d.Milliseconds(), 0), math.MaxUint32))
}

var (
	// errWaiting says that the wait is over, and that the client has a position.
	errWaiting = errors.New("the wait is over")

	// errRefused says that the lock is held, and that the client has no position.
	errRefused = errors.New("the lock is held")

	// errEnded says that the claim of an op has ended.
	errEnded = errors.New("what this op asked for has ended: it was released, cancelled, broken, or not asked for in time. Draw another op")

	// errGone says that the client has ended the call.
	errGone = errors.New("the call was ended by its client")

	errStopping = errors.New("this server is being stopped: call again, another one")
)

const (
	// pollAgain is how long a waiter waits for an answer before it asks again, without
	// giving up the earlier question: the store may be far away, and the position lives as
	// long as questions arrive.
	pollAgain = 700 * time.Millisecond

	// pollPatience is how long a waiter's question may take.
	pollPatience = driver.WaiterTTL + driver.ClaimTTL

	// maxInFlight is the largest number of unanswered questions about one position.
	maxInFlight = 5

	// minPause is the shortest time between two questions.
	minPause = 5 * time.Millisecond

	// confirmations is how many times a late grant is renewed.
	confirmations = 2
)

// attempting bounds one attempt at the store. A grant that takes longer would need a
// renewal before its use.
func attempting(ttl time.Duration) time.Duration {
	return min(max(ttl*2/5, 200*time.Millisecond), 10*time.Second)
}

// A waiter asks the store for what one call wants, until the store grants it, the wait is
// over or the client has gone. If the store answers, everything to release is released
// before obtain returns. Questions whose answers are no longer needed end by themselves.
type waiter struct {
	s     *Server
	w     wish
	until time.Time // by bootclock
	claim driver.Claim
	retry bool // an attempt with this ID may have taken effect
	known bool // the store may have the claim

	hints   chan struct{}
	unwatch func()
	last    error // the store's last error; nil after an answer
}

// obtain gets the lease that a call wants. The errors are errWaiting, errRefused,
// errEnded, errStopping, errGone, a *busyError, the store's, and those of package check.
// After any error the client has no lease. With an op the store may still have one, or a
// position; without an op the store keeps neither.
func (s *Server) obtain(ctx context.Context, w wish) (lease, error) {
	q := &waiter{s: s, w: w, claim: w.claim, retry: w.retry, until: w.received.boot.Add(w.wait), hints: make(chan struct{}, 1)}
	ids := s.keys.Load().ClaimIDs(w.caller, w.op, w.claim, w.ttl)
	if q.claim.ID = ids[0]; w.op == "" {
		q.claim.ID = driver.NewID()
	}
	if err := check.Request(driver.Request{Claim: q.claim, TTL: w.ttl}, s.traits); err != nil {
		return lease{}, err
	}
	if s.draining() {
		return lease{}, errStopping
	}
	if w.wait > 0 {
		if !s.waits.enter(w.caller, s.cfg.MaxWaits) {
			return lease{}, &busyError{fmt.Sprintf("as many calls of this caller wait as may, %d: call later", s.cfg.MaxWaits)}
		}
		defer s.waits.leave(w.caller)
	}
	defer q.stopWatching()
	secret, err := q.find(ctx, ids)
	if err != nil {
		return lease{}, err
	}
	if secret > 0 {
		q.claim.ID = ids[secret]
	}
	for {
		l, err := q.try(ctx)
		if err == nil {
			return l, nil
		}
		if errors.Is(err, driver.ErrLost) && w.op == "" && ctx.Err() == nil && !q.over() {
			q.claim.ID, q.claim.Ticket, q.retry, q.known = driver.NewID(), 0, false, false
			continue
		}
		if errors.Is(err, driver.ErrLost) {
			q.known = false
			if err = errEnded; w.op == "" {
				err = errRefused
			}
		}
		if errors.Is(err, errWaiting) {
			q.keep(ctx)
		}
		q.leave(ctx, err)
		return lease{}, err
	}
}

// find returns the number of the secret by whose ID the store has something from an
// earlier call with this op, or 0. While a secret is replaced, a server with another first
// secret may have answered that call.
func (q *waiter) find(ctx context.Context, ids []string) (secret int, err error) {
	for i := 1; q.w.retry && i < len(ids); i++ {
		claim := q.claim
		claim.ID = ids[i]
		switch _, r := q.renew(ctx, claim, attempting(q.w.ttl)); r.State {
		case driver.Held, driver.Waiting:
			return i, nil
		case driver.Unknown:
			return 0, r.Err
		}
	}
	return 0, nil
}

// keep renews the position before the client is told of it. It does not wait for the
// store's answer: if that is a grant, the client's next call finds it.
func (q *waiter) keep(ctx context.Context) {
	claim := q.claim
	q.s.begin()
	go func() {
		defer q.s.end()
		q.renew(ctx, claim, pollPatience)
	}()
}

// leave releases the claim of a call without an op. (With an op, a repetition may have
// been told of the claim already.) If the store has not answered, that is done in the
// background.
func (q *waiter) leave(ctx context.Context, err error) {
	switch {
	case q.w.op != "" || !q.known:
	case again(err):
		q.s.begin()
		go func() {
			defer q.s.end()
			q.s.abandon(ctx, q.claim)
		}()
	default:
		q.s.abandon(ctx, q.claim)
	}
}

func (q *waiter) over() bool { return !bootclock.Now().Before(q.until) }

// try gets the lease under one ID. driver.ErrLost says that this ID has ended.
func (q *waiter) try(ctx context.Context) (lease, error) {
	q.watch()
	for {
		l, err := q.request(ctx)
		switch {
		case err == nil && l.grant.Waiting:
			return q.await(ctx, l)
		case err == nil:
			return q.confirm(ctx, l)
		case errors.Is(err, driver.ErrHeld):
			return lease{}, errRefused
		case !again(err):
			return lease{}, err
		}
		q.last = err
		if err := q.pause(ctx); err != nil {
			return lease{}, err
		}
	}
}

// request makes one attempt to acquire. It does not end with the client: its result must
// become known.
func (q *waiter) request(ctx context.Context) (lease, error) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), attempting(q.w.ttl))
	defer cancel()
	l := lease{claim: q.claim, sent: present()}
	var err error
	l.grant, err = q.s.store.Acquire(call, driver.Request{Claim: q.claim, TTL: q.w.ttl, Queue: q.w.wait > 0, Retry: q.retry})
	switch {
	case err == nil:
		q.known = true
		q.claim.Ticket = l.grant.Ticket
		l.claim.Ticket = l.grant.Ticket
	case again(err) && !errors.Is(err, driver.ErrUnavailable):
		q.known, q.retry = true, true
	}
	return l, err
}

// renew renews the claim, and so learns its state.
func (q *waiter) renew(ctx context.Context, claim driver.Claim, patience time.Duration) (lease, driver.Renewal) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	l := lease{claim: claim, sent: present()}
	r := q.s.store.Renew(call, []driver.Claim{claim}, q.w.ttl)[0]
	if r.State == driver.Held || r.State == driver.Waiting {
		l.grant, l.claim.Ticket = r.Grant, r.Grant.Ticket
	}
	return l, r
}

// confirm renews a late grant, and gives the lease to the client.
func (q *waiter) confirm(ctx context.Context, l lease) (lease, error) {
	for range confirmations {
		if !l.late(bootclock.Now()) {
			break
		}
		next, r := q.renew(ctx, l.claim, attempting(q.w.ttl))
		switch r.State {
		case driver.Held:
			l = next
		case driver.Waiting: // the grant has ended meanwhile, and the claim is queued again
			return q.await(ctx, next)
		case driver.Lost:
			return lease{}, driver.ErrLost
		}
	}
	return q.give(ctx, l)
}

// give returns a lease, if the client is still there and enough of the lease remains.
func (q *waiter) give(ctx context.Context, l lease) (lease, error) {
	q.claim = l.claim
	switch {
	case ctx.Err() != nil:
		return lease{}, errGone
	case l.remaining(q.w.received) < time.Millisecond:
		return lease{}, fmt.Errorf("%w: its answers take too long for a lease of %v", driver.ErrUnavailable, q.w.ttl)
	}
	return l, nil
}

// answer is the answer to a question about a position.
type answer struct {
	lease   lease
	renewal driver.Renewal
}

// await waits in the store's queue. A hint is a reason to ask, even one with a grant: a
// grant that the store made on its own is short, and counts from an earlier answer.
func (q *waiter) await(ctx context.Context, position lease) (lease, error) {
	answers := make(chan answer, maxInFlight)
	asked, inFlight, hinted := position.sent.boot, 0, false
	due := asked.Add(pollEvery(position.grant))
	timer, over := time.NewTimer(0), time.NewTimer(q.until.Sub(bootclock.Now()))
	defer timer.Stop()
	defer over.Stop()
	for {
		timer.Reset(max(due.Sub(bootclock.Now()), 0))
		select {
		case <-timer.C:
			if asked = bootclock.Now(); inFlight < maxInFlight {
				inFlight++
				claim := q.claim
				go func() {
					l, r := q.renew(ctx, claim, pollPatience)
					answers <- answer{l, r}
				}()
			}
			due, hinted = asked.Add(pollAgain), false
		case a := <-answers:
			inFlight--
			switch q.last = nil; a.renewal.State {
			case driver.Held:
				return q.confirm(ctx, a.lease)
			case driver.Lost:
				return lease{}, driver.ErrLost
			case driver.Waiting:
				q.claim.Ticket = a.lease.claim.Ticket
				if !hinted { // else the answer may be older than the hint
					due = asked.Add(pollEvery(a.lease.grant))
				}
			default:
				q.last = a.renewal.Err
				due = bootclock.Now().Add(driver.RefreshEvery / 2)
			}
		case <-q.hints:
			due, hinted = asked.Add(minPause), true
		case <-over.C:
			return lease{}, q.unanswered()
		case <-ctx.Done():
			return lease{}, errGone
		case <-q.s.stopping:
			if q.w.op != "" {
				return lease{}, errWaiting
			}
			return lease{}, errStopping
		}
	}
}

// unanswered returns the error at the end of a wait.
func (q *waiter) unanswered() error {
	switch {
	case q.last != nil:
		return q.last
	case q.w.op != "":
		return errWaiting
	}
	return errRefused
}

// pause waits after a failed attempt. An error ends the call.
func (q *waiter) pause(ctx context.Context) error {
	left := q.until.Sub(bootclock.Now())
	if left <= 0 {
		return q.last
	}
	timer := time.NewTimer(min(left, driver.RefreshEvery/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		if q.over() {
			return q.last
		}
		return nil
	case <-ctx.Done():
		return errGone
	case <-q.s.stopping:
		return errStopping
	}
}

// pollEvery returns how often a waiter renews its position.
func pollEvery(g driver.Grant) time.Duration {
	if g.Again > 0 {
		return min(max(g.Again, minPause), driver.RefreshEvery)
	}
	return driver.RefreshEvery
}

// watch subscribes to hints about the claim, if the call waits.
func (q *waiter) watch() {
	q.stopWatching()
	if q.s.watcher == nil || q.w.wait == 0 {
		return
	}
	q.unwatch = q.s.watcher.Watch(q.claim, func(driver.Hint) {
		select {
		case q.hints <- struct{}{}:
		default:
		}
	})
}

func (q *waiter) stopWatching() {
	if q.unwatch != nil {
		q.unwatch()
		q.unwatch = nil
	}
}

// again reports whether another attempt may help. A context error is from the bound of one
// attempt.
func again(err error) bool {
	return errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// abandon releases a claim that no client will ask for. If a few attempts fail, the claim
// expires.
func (s *Server) abandon(ctx context.Context, c driver.Claim) {
	for range 3 {
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		err := s.store.Release(call, c)
		cancel()
		if err == nil || !again(err) {
			return
		}
	}
}

// renew renews the leases of a client, which have one TTL. The attempt does not end with
// the client: to interrupt it would cost a connection to the store.
func (s *Server) renew(ctx context.Context, handles []handle.Handle) ([]lease, error) {
	ttl, claims := handles[0].TTL, make([]driver.Claim, len(handles))
	for i, h := range handles {
		if err := check.TTL(h.Claim.Key, ttl, s.traits); err != nil {
			return nil, err
		}
		claims[i] = h.Claim
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), attempting(ttl))
	defer cancel()
	all, sent := make([]lease, len(claims)), present()
	var unknown error
	for i, r := range s.store.Renew(call, claims, ttl) {
		switch r.State {
		case driver.Held:
			all[i] = lease{claim: claims[i], grant: r.Grant, sent: sent}
		case driver.Unknown:
			unknown = r.Err
		default:
			return nil, driver.ErrLost
		}
	}
	return all, unknown
}

// release releases a claim: that of a handle, or of an op.
func (s *Server) release(ctx context.Context, c driver.Claim) error {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return s.store.Release(call, c)
}
