package server

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
	"github.com/batonhq/baton/internal/roles"
	"github.com/batonhq/baton/server/batonv1"
	"github.com/batonhq/baton/server/internal/handle"
)

// No store has a queue for several keys, so a call polls. The pause between two attempts
// grows from soonestTogether to latestTogether.
const (
	soonestTogether = 20 * time.Millisecond
	latestTogether  = 300 * time.Millisecond
)

// acquireAll is Acquire for several keys in one lease.
func (s locksService) acquireAll(ctx context.Context, c *call, r *batonv1.AcquireRequest, received moment) (*batonv1.AcquireResponse, error) {
	many, can := driver.As[driver.Together](s.store)
	keys := slices.Compact(slices.Sorted(slices.Values(r.Keys)))
	switch {
	case r.Key != "":
		return nil, bad("it names a key and keys: it is one of them")
	case r.Shared || r.Permits > 0 || r.Of > 0:
		return nil, bad("several keys in one lease are exclusive locks")
	case len(keys) > check.MaxTogether:
		return nil, bad("%d keys, at most %d are locked together", len(keys), check.MaxTogether)
	case !can:
		return nil, fmt.Errorf("store %s locks no keys together: %w", s.traits.Store, errors.ErrUnsupported)
	}
	claims := make([]driver.Claim, len(keys))
	for i, key := range keys {
		var err error
		if claims[i], err = s.lockClaim(c, key, r.Owner, r.Instance); err != nil {
			return nil, err
		}
		if err := s.may(c, roles.Lock, key); err != nil {
			return nil, err
		}
	}
	w, err := s.wish(c, claims[0], r.Op, r.TtlMs, r.WaitMs, r.Retry, received)
	if err != nil {
		return nil, err
	}
	all, err := s.obtainAll(ctx, many, w, claims)
	held := new(driver.HeldError)
	switch {
	case errors.As(err, &held) && w.op != "" && w.wait > 0:
		return s.refused(ctx, c, held.Key, batonv1.AcquireResponse_WAITING, waitingTimeout), nil
	case errors.As(err, &held):
		return s.refused(ctx, c, held.Key, batonv1.AcquireResponse_REFUSED, inspectTimeout), nil
	case err != nil:
		return nil, err
	}
	res := &batonv1.AcquireResponse{State: batonv1.AcquireResponse_HELD, Tokens: make(map[string]int64, len(all))}
	handles := make([]handle.Handle, len(all))
	for i, l := range all {
		s.undo(ctx, c, w, l)
		res.Tokens[l.claim.Key] = l.token()
		handles[i] = handle.Handle{Claim: l.claim, Token: l.token(), TTL: w.ttl}
	}
	for _, key := range keys {
		if err := s.stillMay(c, roles.Lock, key); err != nil {
			return nil, err
		}
	}
	res.RemainingMs = millis(remainingOf(all, received))
	res.Handle = s.keys.Load().SealAll(c.caller.Name(), handles)
	return res, nil
}

// remainingOf returns how long the client has all leases.
func remainingOf(all []lease, received moment) time.Duration {
	least := all[0].remaining(received)
	for _, l := range all[1:] {
		least = min(least, l.remaining(received))
	}
	return least
}

// obtainAll gets all of several leases, or none. It has no position, and polls until the
// wait is over. The errors are a *driver.HeldError and those of obtain, without errWaiting
// and errRefused.
func (s *Server) obtainAll(ctx context.Context, many driver.Together, w wish, claims []driver.Claim) ([]lease, error) {
	until := w.received.boot.Add(w.wait)
	requests := make([]driver.Request, len(claims))
	keys, secret := s.keys.Load(), 0
	draw := func(retry bool) {
		for i, claim := range claims {
			if claim.ID = driver.NewID(); w.op != "" {
				claim.ID = keys.ClaimIDs(w.caller, w.op, claim, w.ttl)[secret]
			}
			requests[i] = driver.Request{Claim: claim, TTL: w.ttl, Retry: retry}
		}
	}
	draw(w.retry)
	if err := check.Together(requests, s.traits); err != nil {
		return nil, err
	}
	if s.draining() {
		return nil, errStopping
	}
	if w.wait > 0 {
		if !s.waits.enter(w.caller, s.cfg.MaxWaits) {
			return nil, &busyError{fmt.Sprintf("as many calls of this caller wait as may, %d: call later", s.cfg.MaxWaits)}
		}
		defer s.waits.leave(w.caller)
	}
	q := waiter{s: s, w: w, claim: claims[0]}
	secret, err := q.find(ctx, keys.ClaimIDs(w.caller, w.op, q.claim, w.ttl))
	if err != nil {
		return nil, err
	}
	if secret > 0 {
		draw(w.retry)
	}
	known := false // the store may have granted the claims
	fail := func(err error) ([]lease, error) {
		if known && w.op == "" {
			for _, r := range requests {
				s.abandon(ctx, r.Claim)
			}
		}
		return nil, err
	}
	for pause := soonestTogether; ; pause = min(2*pause, latestTogether) {
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), attempting(w.ttl))
		sent := present()
		grants, err := many.AcquireAll(call, requests)
		cancel()
		switch {
		case err == nil:
			known = true
			all := make([]lease, len(grants))
			for i, g := range grants {
				requests[i].Ticket = g.Ticket
				all[i] = lease{claim: requests[i].Claim, grant: g, sent: sent}
			}
			if all, err = s.confirmAll(ctx, w, all); err == nil {
				return all, nil
			}
			return fail(err)
		case errors.Is(err, driver.ErrHeld):
			known = false
		case errors.Is(err, driver.ErrLost) && w.op != "":
			return fail(errEnded)
		case errors.Is(err, driver.ErrLost):
			draw(false)
		case !again(err):
			return fail(err)
		case !errors.Is(err, driver.ErrUnavailable):
			known = true
			for i := range requests {
				requests[i].Retry = true
			}
		}
		left := until.Sub(bootclock.Now())
		if left <= 0 {
			return fail(err)
		}
		timer := time.NewTimer(min(left, pause/2+rand.N(pause)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fail(errGone)
		case <-s.stopping:
			timer.Stop()
			return fail(errStopping)
		}
	}
}

// confirmAll renews late grants, once. It returns the leases if the client is still there
// and enough of them remains.
func (s *Server) confirmAll(ctx context.Context, w wish, all []lease) ([]lease, error) {
	if slices.ContainsFunc(all, func(l lease) bool { return l.late(bootclock.Now()) }) {
		handles := make([]handle.Handle, len(all))
		for i, l := range all {
			handles[i] = handle.Handle{Claim: l.claim, TTL: w.ttl}
		}
		var err error
		if all, err = s.renew(ctx, handles); errors.Is(err, driver.ErrLost) {
			return nil, errEnded
		} else if err != nil {
			return nil, err
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, errGone
	case remainingOf(all, w.received) < time.Millisecond:
		return nil, fmt.Errorf("%w: its answers take too long for a lease of %v", driver.ErrUnavailable, w.ttl)
	}
	return all, nil
}
