package badstores

import (
	"context"

	"github.com/batonhq/baton/driver"
)

// Depend begins a transaction that depends on what c holds, as InTx of the SQL
// stores has it: until end is called, nothing ends the claim or makes it less.
func (s *Store) Depend(c driver.Claim) (end func() error, err error) {
	var l *lock
	if s.bug == DependsOnTheDead {
		s.mu.Lock()
		l = s.keys[c.Key]
	} else {
		l, err = s.enterAfter(context.Background(), c.Key, c.ID)
	}
	defer s.leave()
	if err != nil || l == nil {
		return nil, driver.ErrLost
	}
	holder := l.find(c.ID)
	if holder == nil || !holder.held {
		return nil, driver.ErrLost
	}
	over := make(chan struct{})
	holder.transaction = over
	return func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		holder.transaction = nil
		close(over)
		return nil
	}, nil
}

// enterAfter is enter when no transaction depends on what the ID holds, or, without
// an ID, on what anybody holds. It is to be left even if it fails.
func (s *Store) enterAfter(ctx context.Context, key, id string) (*lock, error) {
	for {
		l := s.enter(key)
		var over chan struct{}
		for _, c := range l.claims {
			if c.transaction != nil && (id == "" || id == c.ID) {
				over = c.transaction
			}
		}
		if over == nil {
			return l, nil
		}
		s.leave()
		select {
		case <-over:
		case <-ctx.Done():
			s.mu.Lock()
			return nil, ctx.Err()
		}
	}
}

// enterTo is enterAfter, unless the bug is that it does not wait.
func (s *Store) enterTo(ctx context.Context, bug Bug, key, id string) (*lock, error) {
	if s.bug == bug {
		return s.enter(key), nil
	}
	return s.enterAfter(ctx, key, id)
}
