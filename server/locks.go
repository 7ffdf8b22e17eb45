package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/roles"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/server/batonv1"
	"github.com/batonhq/baton/server/internal/handle"
)

const (
	// The bounds of an op, which is drawn at random: two programs with the same op would
	// be one.
	minOp = 16
	maxOp = 256

	// minTTL is the shortest TTL for which renewals over a network are in time.
	minTTL = 100 * time.Millisecond

	// maxList is the largest number of keys in one List, and of grants in one Break.
	maxList = 1000

	// maxLists is the largest number of lists of one caller at a time: they cost the store
	// most.
	maxLists = 4

	// listTimeout bounds one list.
	listTimeout = 30 * time.Second

	// inspectTimeout bounds the search for the holder that a refused client is told. It is
	// waitingTimeout for a client with a position, which ages meanwhile.
	inspectTimeout = time.Second
	waitingTimeout = 200 * time.Millisecond

	// breakTimeout bounds one Break.
	breakTimeout = 10 * time.Second
)

// locksService answers the calls of batonv1.Locks.
type locksService struct{ *Server }

// Acquire implements batonv1connect.LocksHandler.
func (s locksService) Acquire(ctx context.Context, r *batonv1.AcquireRequest) (*batonv1.AcquireResponse, error) {
	received := present()
	c, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	if len(r.Keys) > 0 {
		return s.acquireAll(ctx, c, r, received)
	}
	claim, err := s.lockClaim(c, r.Key, r.Owner, r.Instance)
	if err != nil {
		return nil, err
	}
	if err := ofKind(&claim, r.Shared, r.Permits, r.Of); err != nil {
		return nil, err
	}
	if err := s.may(c, roles.Lock, r.Key); err != nil {
		return nil, err
	}
	w, err := s.wish(c, claim, r.Op, r.TtlMs, r.WaitMs, r.Retry, received)
	if err != nil {
		return nil, err
	}
	l, err := s.obtain(ctx, w)
	switch {
	case errors.Is(err, errWaiting):
		return s.refused(ctx, c, r.Key, batonv1.AcquireResponse_WAITING, waitingTimeout), nil
	case errors.Is(err, errRefused):
		return s.refused(ctx, c, r.Key, batonv1.AcquireResponse_REFUSED, inspectTimeout), nil
	case err != nil:
		return nil, err
	}
	s.undo(ctx, c, w, l)
	if err := s.stillMay(c, roles.Lock, r.Key); err != nil {
		return nil, err
	}
	return &batonv1.AcquireResponse{
		State: batonv1.AcquireResponse_HELD, Token: l.token(), RemainingMs: millis(l.remaining(received)),
		Handle: s.keys.Load().Seal(c.caller.Name(), handle.Handle{Claim: l.claim, Token: l.token(), TTL: w.ttl}),
	}, nil
}

// ofKind sets the kind of lock in an exclusive claim.
func ofKind(claim *driver.Claim, shared bool, permits, of uint32) error {
	switch {
	case shared && (permits > 0 || of > 0):
		return bad("a lock is shared or of permits, not both")
	case (permits > 0) != (of > 0) || permits > of:
		return bad("%d of %d permits: both are given, 2 of 10 for example", permits, of)
	case shared:
		claim.Weight = 1
	case permits > 0:
		claim.Weight, claim.Capacity = int64(permits), int64(of)
	}
	return nil
}

func checkOp(op string) error {
	if len(op) < minOp || len(op) > maxOp {
		return bad("the op has %d bytes, %d to %d are allowed: draw it at random, for each lock another one", len(op), minOp, maxOp)
	}
	return nil
}

// lockClaim returns the exclusive claim of a call for the lock of key.
func (s *Server) lockClaim(c *call, key, owner, instance string) (driver.Claim, error) {
	if err := check.Key(key); err != nil {
		return driver.Claim{}, err
	}
	if strings.HasPrefix(key, once.LockPrefix) {
		return driver.Claim{}, bad("below %s are the locks of operations: use Once, with the key %q", once.LockPrefix, strings.TrimPrefix(key, once.LockPrefix))
	}
	owner, err := s.ownerOf(c, owner, instance)
	return driver.Claim{Key: key, Owner: owner, Weight: driver.Whole, Capacity: driver.Whole}, err
}

// ownerOf returns the owner that the store shows: the caller's name, the owner that the
// client wants, and the tag of its instance.
func (s *Server) ownerOf(c *call, owner, instance string) (string, error) {
	switch name := c.caller.Name(); {
	case name == "" && owner == "":
		owner = "baton serve"
	case name == "":
	case owner == "":
		owner = name
	default:
		owner = callerMark(name) + owner
	}
	if len(instance) > maxInstance {
		return "", bad("the instance has %d bytes, at most %d are allowed", len(instance), maxInstance)
	}
	if instance != "" || withoutTag(owner) != owner { // an owner that looks tagged gets a tag: leads cuts off only that one
		owner += instanceMark + s.keys.Load().Tags(c.caller.Name(), instance)[0]
	}
	return owner, nil
}

// wish checks the parameters of every call that may wait for a lock.
func (s *Server) wish(c *call, claim driver.Claim, op string, ttlMs, waitMs uint32, retry bool, received moment) (wish, error) {
	ttl, err := s.ttl(ttlMs)
	if err != nil {
		return wish{}, err
	}
	if op != "" {
		if err := checkOp(op); err != nil {
			return wish{}, err
		}
	}
	wait := time.Duration(waitMs) * time.Millisecond
	switch {
	case op == "" && retry:
		return wish{}, bad("a call without an op cannot be a retry")
	case wait > s.cfg.MaxWait:
		return wish{}, bad("wait_ms is %d, at most %d are allowed: call with an op, and again while the answer is that you wait", waitMs, s.cfg.MaxWait.Milliseconds())
	}
	return wish{caller: c.caller.Name(), op: op, claim: claim, ttl: ttl, wait: wait, retry: retry, received: received}, nil
}

// ttl returns the TTL of a request.
func (s *Server) ttl(ms uint32) (time.Duration, error) {
	ttl := time.Duration(ms) * time.Millisecond
	switch {
	case ms == 0:
		return min(baton.DefaultTTLOf(s.traits), s.cfg.MaxTTL), nil
	case ttl < minTTL:
		return 0, bad("ttl_ms is %d, at least %d are needed: answers take a part of it", ms, minTTL.Milliseconds())
	case ttl > s.cfg.MaxTTL:
		return 0, bad("ttl_ms is %d, at most %d are allowed", ms, s.cfg.MaxTTL.Milliseconds())
	}
	return ttl, nil
}

// undo makes settle release a lease of a call that cannot be repeated.
func (s *Server) undo(ctx context.Context, c *call, w wish, l lease) {
	if w.op == "" {
		c.undo = append(c.undo, func() { s.abandon(ctx, l.claim) })
	}
}

// refused returns the answer without a lease. It names the holders, if the store answers
// within patience and the caller may list the key.
func (s *Server) refused(ctx context.Context, c *call, key string, state batonv1.AcquireResponse_State, patience time.Duration) *batonv1.AcquireResponse {
	call, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	res := &batonv1.AcquireResponse{State: state}
	if c.caller.May(roles.List, key) != nil {
		return res
	}
	if info, err := s.locks.Inspect(call, key); err == nil {
		res.Holders, res.Waiting = holders(info), uint32(len(info.Waiters))
	}
	return res
}

func holders(info driver.KeyInfo) []*batonv1.Holder {
	all := make([]*batonv1.Holder, len(info.Holders))
	for i, h := range info.Holders {
		all[i] = &batonv1.Holder{
			Owner: strings.ToValidUTF8(h.Owner, "�"), Token: h.Token, AgeMs: millis(h.Age), RemainingMs: millis(h.Remaining), Foreign: h.Foreign, Grant: h.Grant,
			Shared: h.Capacity == driver.Whole && h.Weight < driver.Whole,
		}
		if h.Capacity < driver.Whole {
			all[i].Permits, all[i].Of = uint32(h.Weight), uint32(h.Capacity)
		}
	}
	return all
}

// opened opens a handle of the caller. It does not check roles: see mayHave.
func (s *Server) opened(ctx context.Context, text string) (*call, []handle.Handle, error) {
	c, err := callOf(ctx)
	if err != nil {
		return nil, nil, err
	}
	all, err := s.keys.Load().OpenAll(c.caller.Name(), text)
	if err != nil { // the handle may be stolen
		s.cfg.Audit.Warn("a call was denied", "caller", c.caller.Name(), "remote", c.remote, "reason", err.Error())
	}
	return c, all, err
}

// mayHave checks that the roles still allow a lease. key is that of a lock, or of the lock
// of an operation.
func (s *Server) mayHave(c *call, key string) error {
	if of, operation := strings.CutPrefix(key, once.LockPrefix); operation {
		return s.may(c, roles.Once, of)
	}
	return s.may(c, roles.Lock, key)
}

// Renew implements batonv1connect.LocksHandler.
func (s locksService) Renew(ctx context.Context, r *batonv1.RenewRequest) (*batonv1.RenewResponse, error) {
	received := present()
	c, handles, err := s.opened(ctx, r.Handle)
	if err != nil {
		return nil, err
	}
	keys := make([]string, len(handles))
	for i, h := range handles {
		if err := s.mayHave(c, h.Claim.Key); err != nil {
			return nil, err
		}
		keys[i] = h.Claim.Key
	}
	all, err := s.renew(ctx, handles)
	if err != nil {
		return nil, err
	}
	res := &batonv1.RenewResponse{Handle: s.keys.Load().Again(c.caller.Name(), r.Handle)}
	if r.Asked {
		res.Asked = s.asked(ctx, keys)
	}
	res.RemainingMs = millis(remainingOf(all, received))
	return res, nil
}

// Release implements batonv1connect.LocksHandler. It needs no role: a caller whose role
// was taken away may still release.
func (s locksService) Release(ctx context.Context, r *batonv1.ReleaseRequest) (*batonv1.ReleaseResponse, error) {
	_, all, err := s.opened(ctx, r.Handle)
	if err != nil {
		return nil, err
	}
	h := all[0]
	if h.Once && s.records != nil { // best effort, as in once.Runner
		a := driver.Attempt{Key: h.Claim.Key[len(once.LockPrefix):], Token: h.Token}
		o := driver.Outcome{Retry: true, Result: []byte("the client has released it without an outcome")}
		_, _ = s.record(ctx, func(ctx context.Context) (driver.Record, error) {
			return s.records.FinishAttempt(ctx, a, o, once.DefaultRemember)
		})
	}
	for _, h := range all {
		err = errors.Join(err, s.release(ctx, h.Claim))
	}
	if err != nil {
		return nil, err
	}
	return &batonv1.ReleaseResponse{}, nil
}

// Cancel implements batonv1connect.LocksHandler.
func (s locksService) Cancel(ctx context.Context, r *batonv1.CancelRequest) (*batonv1.CancelResponse, error) {
	c, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkOp(r.Op); err != nil {
		return nil, err
	}
	keys := []string{r.Key}
	switch {
	case len(r.Keys) > check.MaxTogether, len(r.Keys) > 0 && (r.Key != "" || r.Once):
		return nil, bad("it names a key, or at most %d keys of locks", check.MaxTogether)
	case len(r.Keys) > 0:
		keys = r.Keys
	case r.Once:
		keys[0] = once.LockPrefix + r.Key
	}
	ttl, err := s.ttl(r.TtlMs)
	if err != nil {
		return nil, err
	}
	var claims []driver.Claim
	for _, key := range keys {
		if err := check.Key(key); err != nil {
			return nil, err
		}
		claim := driver.Claim{Key: key, Weight: driver.Whole, Capacity: driver.Whole}
		if err := ofKind(&claim, r.Shared, r.Permits, r.Of); err != nil {
			return nil, err
		}
		claims = append(claims, claim)
	}
	// The IDs contain the caller's name, so it ends only its own claims and needs no role.
	for _, claim := range claims {
		for _, claim.ID = range s.keys.Load().ClaimIDs(c.caller.Name(), r.Op, claim, ttl) {
			if err := s.release(ctx, claim); err != nil && !errors.Is(err, driver.ErrLost) {
				return nil, err
			}
		}
	}
	return &batonv1.CancelResponse{}, nil
}

// List implements batonv1connect.LocksHandler.
func (s locksService) List(ctx context.Context, r *batonv1.ListRequest) (*batonv1.ListResponse, error) {
	c, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	if r.Limit > maxList {
		return nil, bad("limit is %d, at most %d are shown", r.Limit, maxList)
	}
	if err := s.may(c, roles.List, r.Prefix); err != nil {
		return nil, err
	}
	name := c.caller.Name()
	if !s.lists.enter(name, maxLists) {
		return nil, &busyError{fmt.Sprintf("as many lists of this caller are under way as may, %d: call later", maxLists)}
	}
	defer s.lists.leave(name)
	call, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	most := maxList
	if r.Limit > 0 {
		most = int(r.Limit)
	}
	res := &batonv1.ListResponse{}
	for info, err := range s.locks.List(call, r.Prefix) {
		if err != nil {
			return nil, err
		}
		if len(res.Locks) == most {
			res.More = true
			break
		}
		res.Locks = append(res.Locks, &batonv1.Lock{
			Key: strings.ToValidUTF8(info.Key, "�"), Holders: holders(info), Waiting: uint32(len(info.Waiters)),
		})
	}
	slices.SortFunc(res.Locks, func(a, b *batonv1.Lock) int { return strings.Compare(a.Key, b.Key) })
	return res, nil
}

// Break implements batonv1connect.LocksHandler.
func (s locksService) Break(ctx context.Context, r *batonv1.BreakRequest) (*batonv1.BreakResponse, error) {
	c, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := check.Key(r.Key); err != nil {
		return nil, err
	}
	if len(r.Grants) > maxList {
		return nil, bad("%d grants, at most %d are allowed; none breaks all", len(r.Grants), maxList)
	}
	if len(r.Reason) > 1000 {
		return nil, bad("the reason has %d bytes, at most 1000 are allowed", len(r.Reason))
	}
	if err := s.may(c, roles.Break, r.Key); err != nil {
		return nil, err
	}
	log := s.cfg.Audit.With("caller", c.caller.Name(), "remote", c.remote, "key", driver.Printable(r.Key), "reason", driver.Printable(r.Reason))
	log.Info("a lock is to be broken") // the process may end before the next line
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), breakTimeout)
	defer cancel()
	n, err := s.locks.Break(call, r.Key, r.Grants...)
	if err != nil {
		log.Info("a lock may have been broken", "error", driver.Printable(err.Error()))
		return nil, err
	}
	log.Info("a lock was broken", "holders", n)
	return &batonv1.BreakResponse{Holders: uint32(n)}, nil
}
