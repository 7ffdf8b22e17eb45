package broken

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

// others lets others have their turn, if the store grants several in turn.
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
	c.ID = id
	if s.bug != MovesInSecret {
		c.Owner = owner
	}
	if s.bug != MovesForTheRest {
		s.confirm(c, ttl)
	}
	return s.answer(l, c), nil
}
