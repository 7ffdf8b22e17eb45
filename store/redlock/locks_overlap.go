package redlock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
)

// Only one request for a claim is under way on a node at a time, so that requests stay in
// order. With distant nodes several calls of Renew for one claim overlap. Calls that come
// during a renewal share the next one, which is sent after all of them have come, so that
// its answer is valid for each.

// errGivenUp is the answer to calls that share a renewal whose caller has given up.
var errGivenUp = fmt.Errorf("redlock: %w: it was to be renewed together with another request, which was given up", driver.ErrUnknown)

// renewal is a renewal of one claim, which several callers may share.
type renewal struct {
	claim driver.Claim
	ttl   time.Duration
	done  chan struct{} // closed when out is set
	out   driver.Renewal
}

// joinRenewal returns the renewal for this call. With joins another caller sends it: wait
// for it. Otherwise the caller sends it, after before if that is not nil.
func (st *claim) joinRenewal(c driver.Claim, ttl time.Duration) (r, before *renewal, joins bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch r = st.next; {
	case st.renewal == nil:
		st.renewal = &renewal{claim: c, ttl: ttl, done: make(chan struct{})}
		return st.renewal, nil, false
	case r == nil:
		st.next = &renewal{claim: c, ttl: ttl, done: make(chan struct{})}
		return st.next, st.renewal, false
	}
	return r, nil, true
}

// serves reports whether r also answers a request for c and ttl.
func (r *renewal) serves(c driver.Claim, ttl time.Duration) bool {
	return r.ttl == ttl && r.claim.Weight == c.Weight && r.claim.Capacity == c.Capacity
}

// end sets the answer and lets the next renewal begin.
func (r *renewal) end(st *claim, out driver.Renewal) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if r.out = out; st.renewal == r {
		st.renewal, st.next = st.next, nil
	} else {
		st.next = nil // it was given up before it began
	}
	close(r.done)
}

// renewCall is one claim of a call of Renew.
type renewCall struct {
	st      *claim
	claim   driver.Claim
	out     *driver.Renewal
	renewal *renewal
	before  *renewal
}

// Renew implements driver.Locks. It asks every node about its claims, with one call for
// holders and one for waiters. A majority must renew a lock. On nodes where the lock was
// lost or never granted Renew asks for it again, so that all answering nodes hold it. A
// lock that fewer than a majority hold is lost: another claim may have had it since.
func (s *Store) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	out := make([]driver.Renewal, len(claims))
	var now, later, others []renewCall
	for i, c := range claims {
		if err := s.mayRenew(ctx, c, ttl); err != nil {
			out[i].Err = err
			continue
		}
		p := renewCall{st: s.claim(c.Key, c.ID, true), claim: c, out: &out[i]}
		defer s.put(p.st)
		var joins bool
		p.renewal, p.before, joins = p.st.joinRenewal(c, ttl)
		switch {
		case joins:
			others = append(others, p)
		case p.before != nil:
			later = append(later, p)
		default:
			now = append(now, p)
		}
	}
	var waiting sync.WaitGroup
	if later != nil {
		waiting.Go(func() { s.renewLater(ctx, later, ttl) })
	}
	if others != nil {
		waiting.Go(func() { s.join(ctx, others, ttl) })
	}
	s.renewNow(ctx, now, ttl)
	waiting.Wait()
	return out
}

// renewNow renews claims whose earlier renewals have ended.
func (s *Store) renewNow(ctx context.Context, all []renewCall, ttl time.Duration) {
	s.renew(ctx, all, ttl)
	for _, p := range all {
		p.renewal.end(p.st, *p.out)
	}
}

// renewLater waits for the earlier renewals of these claims, then renews them.
func (s *Store) renewLater(ctx context.Context, all []renewCall, ttl time.Duration) {
	var ready []renewCall
	for _, p := range all {
		select {
		case <-p.before.done:
			ready = append(ready, p)
		case <-ctx.Done():
			p.out.Err = ctx.Err()
			p.renewal.end(p.st, driver.Renewal{Err: errGivenUp})
		}
	}
	s.renewNow(ctx, ready, ttl)
}

// join waits for claims that other callers renew. It then renews those itself whose
// request differs.
func (s *Store) join(ctx context.Context, all []renewCall, ttl time.Duration) {
	var apart []renewCall
	var claims []driver.Claim
	for _, p := range all {
		select {
		case <-p.renewal.done:
			if *p.out = p.renewal.out; !p.renewal.serves(p.claim, ttl) {
				apart, claims = append(apart, p), append(claims, p.claim)
			}
		case <-ctx.Done():
			p.out.Err = ctx.Err()
		}
	}
	if apart == nil {
		return
	}
	for i, r := range s.Renew(ctx, claims, ttl) {
		*apart[i].out = r
	}
}
