package badstores

import (
	"context"
	"errors"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// AcquireAll implements driver.Together.
func (s *Store) AcquireAll(ctx context.Context, r []driver.Request) ([]driver.Grant, error) {
	if err := errors.Join(check.Together(r, s.Traits()), ctx.Err()); err != nil {
		return nil, err
	}
	if s.bug != TogetherInTurn {
		s.together.Lock()
		defer s.together.Unlock()
	}
	grants := make([]driver.Grant, len(r))
	for i, q := range r {
		if s.bug == TogetherOnce && s.Renew(ctx, []driver.Claim{q.Claim}, q.TTL)[0].State == driver.Held {
			return nil, &driver.HeldError{Key: q.Key}
		}
		var err error
		if grants[i], err = s.Acquire(ctx, q); err == nil {
			s.others()
			continue
		}
		s.others()
		for n, other := range r {
			if s.bug != TogetherInPart && (n < i || s.bug != TogetherForgets) {
				_ = s.Release(ctx, other.Claim)
			}
		}
		if held, ok := errors.AsType[*driver.HeldError](err); ok && s.bug == TogetherMisnames {
			held.Key = r[0].Key
		}
		return nil, err
	}
	return grants, nil
}

// others lets other requests run meanwhile, if the bug is to grant several in turn.
func (s *Store) others() {
	if s.bug == TogetherInTurn {
		time.Sleep(time.Millisecond)
	}
}

// Move implements driver.Mover.
func (s *Store) Move(ctx context.Context, r driver.Claim, id, owner string, ttl time.Duration) (driver.Grant, error) {
	if err := errors.Join(check.Move(r, id, owner, ttl, s.Traits()), ctx.Err()); err != nil {
		return driver.Grant{}, err
	}
	l := s.enter(r.Key)
	defer s.leave()
	s.settle(l)
	c := l.find(id)
	if c == nil || s.bug == MovesOnce {
		c = l.find(r.ID)
	}
	if c == nil || !c.held && s.bug != MovesWaiters {
		return driver.Grant{}, driver.ErrLost
	}
	switch s.bug {
	case MovesACopy:
		twin := *c
		twin.Weight = 0
		l.claims = append([]*claim{&twin}, l.claims...)
	case MovesByRelease:
		l.remove(c)
		s.advance(l)
		l.claims = append([]*claim{c}, l.claims...)
	case MovesToken:
		c.token = s.next(l)
	}
	if c.ID != id && s.bug != MovesInSecret {
		c.Owner = owner
	}
	c.ID = id
	if s.bug != MovesForTheRest {
		s.confirm(c, ttl)
	}
	g := s.answer(l, c)
	if s.bug == MovesToldToken && r.Ticket != 0 {
		g.Token = r.Ticket
	}
	return g, nil
}

// Rename implements driver.Renamer.
func (s *Store) Rename(ctx context.Context, r driver.Claim, owner string) error {
	err := check.Rename(r, owner)
	if bad, ok := errors.AsType[*driver.RequestError](err); ok && bad.Field == "owner" && s.bug == RenamesHostile {
		err = nil
	}
	if err := errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	l := s.enter(r.Key)
	defer s.leave()
	s.settle(l)
	c := l.find(r.ID)
	if c != nil && s.bug == RenamesBack {
		s.mu.Unlock()
		time.Sleep(time.Millisecond) // in fake time: a release comes meanwhile
		s.mu.Lock()
		if l.find(r.ID) == nil {
			l.claims = append([]*claim{c}, l.claims...)
		}
	}
	if c == nil || !c.held && s.bug != RenamesWaiters {
		return driver.ErrLost
	}
	c.Owner = owner
	switch s.bug {
	case RenamesAll:
		for _, other := range l.claims {
			if other.held {
				other.Owner = owner
			}
		}
	case RenamesAndProlongs:
		s.confirm(c, c.ttl)
	case RenamesAndServes:
		l.remove(c)
		s.advance(l)
		l.claims = append([]*claim{c}, l.claims...)
	}
	return nil
}

// asks notes the Owner of a request that found its claim.
func (s *Store) asks(c *claim, owner string) {
	if s.bug == RenamesUntilRenewed {
		c.Owner = owner
	}
}
