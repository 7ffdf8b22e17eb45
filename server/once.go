package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/roles"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/server/batonv1"
	"github.com/batonhq/baton/server/internal/handle"
)

// onceService answers the calls of batonv1.Once. An attempt is a lease on the lock that a
// once.Runner takes, and a record. So this service and Runners exclude each other.
type onceService struct{ *Server }

// recordTimeout bounds one request about a record.
const recordTimeout = 5 * time.Second

// Begin implements batonv1connect.OnceHandler.
func (s onceService) Begin(ctx context.Context, r *batonv1.BeginRequest) (*batonv1.BeginResponse, error) {
	received := present()
	c, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	if s.records == nil {
		return nil, fmt.Errorf("store %s keeps no records: %w", s.traits.Store, errors.ErrUnsupported)
	}
	if err := check.Prefixed(once.LockPrefix, r.Key, "an operation"); err != nil {
		return nil, err
	}
	if err := s.may(c, roles.Once, r.Key); err != nil {
		return nil, err
	}
	owner, err := s.ownerOf(c, r.Owner, r.Instance)
	if err != nil {
		return nil, err
	}
	claim := driver.Claim{Key: once.LockPrefix + r.Key, Owner: owner, Weight: driver.Whole, Capacity: driver.Whole}
	w, err := s.wish(c, claim, r.Op, r.TtlMs, r.WaitMs, r.Retry, received)
	if err != nil {
		return nil, err
	}
	rec, err := s.record(ctx, func(ctx context.Context) (driver.Record, error) { return s.records.FindRecord(ctx, r.Key) })
	switch {
	case err == nil && rec.Done:
		return replayed(rec), nil
	case err != nil && !errors.Is(err, driver.ErrNoRecord):
		return nil, err
	}
	l, err := s.obtain(ctx, w)
	switch {
	case errors.Is(err, errWaiting), errors.Is(err, errRefused):
		return &batonv1.BeginResponse{State: batonv1.BeginResponse_BUSY}, nil
	case err != nil:
		return nil, err
	}
	s.undo(ctx, c, w, l)
	if err := s.stillMay(c, roles.Once, r.Key); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		// A repetition may already have begun the attempt. A new one with a higher token
		// would supersede that, and no client would run it.
		return nil, errGone
	}
	a := driver.Attempt{Key: r.Key, Token: l.token(), Owner: claim.Owner}
	rec, err = s.record(ctx, func(ctx context.Context) (driver.Record, error) {
		return s.records.BeginAttempt(ctx, a, once.DefaultRemember)
	})
	switch {
	case err == nil && rec.Done: // by the attempt that this call waited for
		s.abandon(ctx, l.claim) // a finished operation needs no lock
		return replayed(rec), nil
	case err != nil:
		return nil, err
	}
	return &batonv1.BeginResponse{
		State: batonv1.BeginResponse_RUN, Token: l.token(), Attempts: rec.Attempts, RemainingMs: millis(l.remaining(received)),
		Handle: s.keys.Load().Seal(c.caller.Name(), handle.Handle{Claim: l.claim, Token: l.token(), TTL: w.ttl, Once: true}),
	}, nil
}

// record makes one request about a record. The request does not end with the client.
func (s *Server) record(ctx context.Context, request func(context.Context) (driver.Record, error)) (driver.Record, error) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	return request(call)
}

// replayed returns the answer about a finished operation.
func replayed(rec driver.Record) *batonv1.BeginResponse {
	res := &batonv1.BeginResponse{State: batonv1.BeginResponse_DONE, Attempts: rec.Attempts, Result: rec.Result}
	if rec.Failed {
		res.State = batonv1.BeginResponse_FAILED
	}
	return res
}

// Finish implements batonv1connect.OnceHandler. It can be repeated: the first outcome
// counts. It needs no role: the operation has run, and without an outcome would run again.
func (s onceService) Finish(ctx context.Context, r *batonv1.FinishRequest) (*batonv1.FinishResponse, error) {
	_, all, err := s.opened(ctx, r.Handle)
	switch {
	case err != nil:
		return nil, err
	case !all[0].Once || s.records == nil:
		return nil, bad("the handle is that of a lock, and of no operation")
	}
	h := all[0]
	keep := once.DefaultKeep
	if r.KeepSeconds > 0 {
		keep = time.Duration(r.KeepSeconds) * time.Second
	}
	a := driver.Attempt{Key: h.Claim.Key[len(once.LockPrefix):], Token: h.Token}
	_, err = s.record(ctx, func(ctx context.Context) (driver.Record, error) {
		return s.records.FinishAttempt(ctx, a, driver.Outcome{Failed: r.Failed, Result: r.Result}, keep)
	})
	if err != nil {
		return nil, err
	}
	// Waiting calls find the outcome. If the lease has ended, or the store does not
	// answer, they find it later.
	s.abandon(ctx, h.Claim)
	return &batonv1.FinishResponse{}, nil
}
