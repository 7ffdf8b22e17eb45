package agent

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/batonhq/baton/internal/roles"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/rules"
)

// settleTimeout bounds the request to settle a reservation.
const settleTimeout = 5 * time.Second

// A reserved is a take with an estimated cost, until it is settled.
type reserved struct {
	keys    []string
	receipt ratelimit.Receipt
	made    bool
	asked   time.Time
}

// permitsAll reports whether the user may take by all rules of a request, and refuses the
// request if not.
func (s *session) permitsAll(r request) bool {
	for _, p := range append(r.Also, rules.Part{Key: r.Key, Cost: r.Cost}) {
		one := request{ID: r.ID, Key: p.Key}
		if !s.permits(one, roles.Limit) || p.Cost < 0 && !s.permits(one, roles.GiveBack) {
			return false
		}
	}
	return true
}

// take answers by the agent's rules. A refusal has taken nothing.
func (s *session) take(r request) answer {
	limiter := s.server.cfg.Limits
	if limiter == nil {
		return answer{Error: codeCannot, Message: "this agent has no rules: start it with --rules FILE"}
	}
	q := rules.Request{Rule: r.Rule, Key: r.Key, Tier: r.Tier, Cost: r.Cost, Also: r.Also}
	if r.has&fieldCost == 0 {
		q.Cost = 1
	}
	var d rules.Decision
	var err error
	if !r.Reserve {
		d, _, err = limiter.Take(s.ctx, q, false)
	} else if d, err = s.reserve(limiter, r, q); errors.Is(err, errReservations) {
		return answer{Error: codeBusy, Message: err.Error()}
	}
	if err != nil {
		return failure(err)
	}
	limit, remaining := min(d.Limit, maxID), min(d.Remaining, maxID)
	a := answer{OK: d.OK, Limit: &limit, Remaining: &remaining, WaitMS: ceil(d.Wait), ResetMS: ceil(d.ResetAfter)}
	for _, m := range d.Matches {
		if len(d.Matches) == 1 {
			break
		}
		one := each{Rule: m.Rule, OK: m.OK, Limit: maxID, Remaining: maxID}
		if k := m.Tightest(); k >= 0 {
			l := m.Limits[k]
			one.Limit, one.Remaining, one.ResetMS = min(l.Limit, maxID), min(l.Remaining, maxID), ceil(l.ResetAfter)
			if !l.OK && l.RetryAfter != ratelimit.Never {
				one.RetryMS = max(1, ceil(l.RetryAfter))
			}
		}
		a.Each = append(a.Each, one)
	}
	if !d.OK {
		a.Error, a.Message = codeLimited, "the limit is used up"
		if d.RetryAfter != ratelimit.Never {
			a.RetryMS = max(1, ceil(d.RetryAfter))
		} else {
			a.Message = "the limit never allows that much"
		}
	}
	return a
}

var errReservations = errors.New("this session has as many reservations as it may: settle them")

// reserve takes an estimate, which the session keeps until it is settled. The estimate is
// the cost if the session ends first.
func (s *session) reserve(limiter *rules.Limiter, r request, q rules.Request) (rules.Decision, error) {
	one := &reserved{keys: []string{q.Key}, asked: time.Now()}
	for _, p := range q.Also {
		one.keys = append(one.keys, p.Key)
	}
	s.mu.Lock()
	if len(s.takes) >= s.server.cfg.MaxLocks { // reservations that are too old to be settled count as consumed
		maps.DeleteFunc(s.takes, func(_ int64, old *reserved) bool { return time.Since(old.asked) > ratelimit.SettleWithin+settleTimeout })
	}
	full, known := len(s.takes) >= s.server.cfg.MaxLocks, s.takes[r.ID] != nil
	if !full && !known {
		if s.takes == nil {
			s.takes = make(map[int64]*reserved)
		}
		s.takes[r.ID] = one
	}
	s.mu.Unlock()
	switch {
	case known:
		return rules.Decision{}, &rules.RequestError{Reason: "its id is that of a reservation of this session"}
	case full:
		return rules.Decision{}, errReservations
	}
	d, receipt, err := limiter.Take(s.ctx, q, true)
	s.mu.Lock()
	defer s.mu.Unlock()
	if one.receipt, one.made = receipt, err == nil && d.OK; !one.made {
		delete(s.takes, r.ID)
	}
	return d, err
}

// settle replaces the estimate of a reservation by the real cost.
func (s *session) settle(r request) {
	s.mu.Lock()
	one := s.takes[r.Take]
	made := one != nil && one.made
	s.mu.Unlock()
	switch {
	case !made:
		s.refuse(r, codeBad, "this session has no reservation %d: it was settled before, or never made", r.Take)
		return
	case r.Cost < 0:
		s.refuse(r, codeBad, "a cost is not negative")
		return
	}
	for _, key := range one.keys {
		if check := (request{ID: r.ID, Key: key}); !s.permits(check, roles.Limit) {
			return
		}
	}
	s.ask(r, func(r request) answer {
		// The request does not end with the session: half a settlement would count as a
		// whole one.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), settleTimeout)
		defer cancel()
		err := s.server.cfg.Limits.Settle(ctx, one.receipt, r.Cost)
		if before := errors.Is(err, ratelimit.ErrSettled); err == nil || before || errors.Is(err, ratelimit.ErrLate) {
			s.mu.Lock()
			if s.takes[r.Take] == one { // not a new one with the same id
				delete(s.takes, r.Take)
			}
			s.mu.Unlock()
			if err == nil || before {
				return answer{OK: true, Before: before}
			}
			return answer{Error: codeLost, Message: err.Error()}
		}
		return failure(err)
	})
}

// ceil rounds up to milliseconds, so that no client comes too early.
func ceil(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > time.Duration(ms)*time.Millisecond {
		ms++
	}
	return ms
}
