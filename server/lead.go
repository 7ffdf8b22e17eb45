package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/internal/lockfeed"
	"github.com/batonhq/baton/internal/roles"
	"github.com/batonhq/baton/server/batonv1"
)

// An election is the lock of the same name. The owner that the lock shows is the leader's
// value.

const (
	// leaderTimeout bounds one request to the store about an election.
	leaderTimeout = 5 * time.Second

	// maxStreams is the largest number of Observe streams of one caller.
	maxStreams = 100

	// recheckEvery is how often a stream authenticates and checks its caller again.
	recheckEvery = 5 * time.Second

	// endTimeout is how long a client may take to read the end of a stream.
	endTimeout = time.Second

	// maxInstance is the longest name of an instance, in bytes.
	maxInstance = 256
)

// Leader implements batonv1connect.LocksHandler.
func (s locksService) Leader(ctx context.Context, r *batonv1.LeaderRequest) (*batonv1.LeaderResponse, error) {
	c, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := check.Key(r.Key); err != nil {
		return nil, err
	}
	if err := s.may(c, roles.Lock, r.Key); err != nil {
		return nil, err
	}
	call, cancel := context.WithTimeout(ctx, leaderTimeout)
	defer cancel()
	t, err := election.Leader(call, s.locks, r.Key)
	if err != nil && !errors.Is(err, election.ErrNoLeader) {
		return nil, err
	}
	return s.leads(c, t), nil
}

func (s *Server) leads(c *call, t election.Term) *batonv1.LeaderResponse {
	value := withoutTag(t.Value)
	if c.caller.Name() != "" { // ownerOf has put the caller's name before the value
		if name, rest, ok := strings.Cut(value, "] "); ok && strings.HasPrefix(name, "[") && !strings.Contains(name, " ") {
			value = rest
		}
	}
	return &batonv1.LeaderResponse{Led: t.Led, Value: strings.ToValidUTF8(value, "�"), Token: t.Token, RemainingMs: millis(t.Remaining)}
}

// Observe implements batonv1connect.LocksHandler.
func (s locksService) Observe(ctx context.Context, r *batonv1.LeaderRequest, out *connect.ServerStream[batonv1.LeaderResponse]) error {
	return s.stream(ctx, &s.streams, maxStreams, roles.Lock, r.Key, func(ctx context.Context, c *call, send sender) error {
		if err := check.Key(r.Key); err != nil {
			return err
		}
		for t, err := range election.Observe(ctx, s.locks, r.Key) {
			if err != nil && (errors.As(err, new(*baton.KeyError)) || errors.Is(err, errors.ErrUnsupported)) {
				return err
			}
			if err != nil && ctx.Err() != nil {
				return nil // stream returns the reason
			}
			said := s.leads(c, t)
			if said.Unknown = err != nil; err != nil {
				s.cfg.Logger.Warn("the store has not answered", "store", s.traits.Store, "call", "Observe", "error", driver.Printable(err.Error()))
			}
			if err := send(func() error { return out.Send(said) }); err != nil {
				return err
			}
		}
		return nil
	})
}

// A sender sends a part of a stream by calling write. The error is errGone.
type sender func(write func() error) error

// stream runs f until f returns, the client has gone, the caller may not do what verb says
// any more, or the server stops. Then a client that does not read has endTimeout for the
// rest. of counts the caller's streams, at most most.
func (s *Server) stream(ctx context.Context, of *tally, most int, verb, key string, f func(context.Context, *call, sender) error) (err error) {
	defer func() {
		if err != nil {
			err = s.failure("a stream", err)
		}
	}()
	c, err := callOf(ctx)
	if err != nil {
		return err
	}
	c.clear()
	if err := s.may(c, verb, key); err != nil {
		return err
	}
	name := c.caller.Name()
	if !of.enter(name, most) {
		return &busyError{fmt.Sprintf("as many streams of this caller are open as may, %d: end one", most)}
	}
	defer of.leave(name)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var setting sync.Mutex
	deadline := func(within time.Duration) {
		setting.Lock()
		defer setting.Unlock()
		if ctx.Err() != nil {
			within = endTimeout
		}
		c.within(within)
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		defer deadline(0)
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.stopping:
				cancel(errStopping)
				return
			case <-time.After(recheckEvery):
			}
			who, err := c.again()
			if err == nil && who.Name() != name {
				err = errors.New("the caller has another name now: call again")
			}
			if err != nil {
				cancel(s.unknown(c, err))
				return
			}
			if err := s.may(&call{caller: who, remote: c.remote}, verb, key); err != nil {
				cancel(err)
				return
			}
		}
	}()
	err = f(ctx, c, func(write func() error) error {
		deadline(writeTimeout)
		defer deadline(0)
		if write() != nil {
			return errGone
		}
		return nil
	})
	cause := context.Cause(ctx)
	cancel(nil)
	<-watched
	switch {
	case err != nil:
		return err
	case errors.Is(cause, context.Canceled), errors.Is(cause, context.DeadlineExceeded):
		return errGone
	}
	return cause
}

// Proclaim implements batonv1connect.LocksHandler.
func (s locksService) Proclaim(ctx context.Context, r *batonv1.ProclaimRequest) (*batonv1.ProclaimResponse, error) {
	c, all, err := s.opened(ctx, r.Handle)
	if err != nil {
		return nil, err
	}
	names, can := driver.As[driver.Renamer](s.store)
	switch {
	case len(all) > 1 || all[0].Once:
		return nil, bad("the handle is that of no one lock")
	case !can:
		return nil, fmt.Errorf("store %s cannot change the owner that it shows: %w", s.traits.Store, errors.ErrUnsupported)
	}
	if err := s.mayHave(c, all[0].Claim.Key); err != nil {
		return nil, err
	}
	owner, err := s.ownerOf(c, r.Value, r.Instance)
	if err != nil {
		return nil, err
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaderTimeout)
	defer cancel()
	return &batonv1.ProclaimResponse{}, names.Rename(call, all[0].Claim, owner)
}

// callerMark begins the owner of each lease of a named caller. Its only blank is at its
// end; those in the name, as certificates may have, become "_". leads cuts the mark off.
// An owner that a library sets is cut, too, if it begins like a mark: brackets make that
// less likely than ": ", as in "http: ".
func callerMark(name string) string { return "[" + strings.ReplaceAll(name, " ", "_") + "] " }

const (
	instanceMark = " ~#" // begins the tag at the end of an owner
	instanceSize = 12    // the length of the tag
)

// withoutTag returns an owner without the tag of an instance.
func withoutTag(owner string) string {
	if i := strings.LastIndex(owner, instanceMark); i >= 0 && len(owner)-i == len(instanceMark)+instanceSize {
		return owner[:i]
	}
	return owner
}

// ReleaseAll implements batonv1connect.LocksHandler. It lists all locks below the prefix,
// but ends only leases of the caller, so it needs the verb of those leases, not List.
func (s locksService) ReleaseAll(ctx context.Context, r *batonv1.ReleaseAllRequest) (*batonv1.ReleaseAllResponse, error) {
	c, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	if r.Instance == "" || len(r.Instance) > maxInstance {
		return nil, bad("the instance has %d bytes, 1 to %d are allowed", len(r.Instance), maxInstance)
	}
	if err := s.mayHave(c, r.Prefix); err != nil {
		return nil, err
	}
	name := c.caller.Name()
	if !s.lists.enter(name, maxLists) {
		return nil, &busyError{fmt.Sprintf("as many lists of this caller are under way as may, %d: call later", maxLists)}
	}
	defer s.lists.leave(name)
	var tags []string
	for _, tag := range s.keys.Load().Tags(name, r.Instance) {
		tags = append(tags, instanceMark+tag)
	}
	// It does not end with the client, which may have given up on a long list.
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), listTimeout)
	defer cancel()
	res, seen := &batonv1.ReleaseAllResponse{}, 0
	for info, err := range s.locks.List(call, r.Prefix) {
		if seen++; err == nil && seen > lockfeed.MaxKeys {
			err = &lockfeed.TooManyError{Prefix: r.Prefix}
		}
		if err != nil {
			return nil, err
		}
		var grants []string
		for _, h := range info.Holders {
			for _, tag := range tags {
				own := name == "" || strings.HasPrefix(h.Owner, callerMark(name)) || h.Owner == name+tag // not an owner that merely ends with the tag
				if own && strings.HasSuffix(h.Owner, tag) && h.Grant != "" {
					grants = append(grants, h.Grant)
				}
			}
		}
		if len(grants) == 0 {
			continue
		}
		n, err := s.locks.Break(call, info.Key, grants...)
		s.cfg.Audit.Info("leases of an instance were released", "caller", name, "remote", c.remote, "key", driver.Printable(info.Key), "instance", driver.Printable(r.Instance), "holders", n)
		if err != nil {
			return nil, err
		}
		res.Holders += uint32(n)
	}
	return res, nil
}

// asked returns the reasons of the requests to release keys, as far as the store answers
// within inspectTimeout.
func (s *Server) asked(ctx context.Context, keys []string) (reasons []string) {
	call, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	for _, key := range keys {
		if len(baton.AskPrefix)+len(key) > check.MaxKey {
			continue
		}
		info, err := s.locks.Inspect(call, baton.AskPrefix+key)
		if err != nil {
			break
		}
		for _, h := range info.Holders {
			reasons = append(reasons, strings.ToValidUTF8(h.Owner, "�"))
		}
	}
	return reasons
}
