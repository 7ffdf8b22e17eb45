package badstores

import (
	"context"

	"github.com/batonhq/baton/driver"
)

// Depend begins a transaction that depends on what c holds, like InTx of the SQL stores:
// until end is called, nothing ends or reduces the claim.
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

// enterAfter is enter, after the transactions that depend on what the ID holds or,
// without an ID, on any holder. The caller must leave even after an error.
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

// enterTo is enterAfter. With the given bug it does not wait.
func (s *Store) enterTo(ctx context.Context, bug Bug, key, id string) (*lock, error) {
	if s.bug == bug {
		return s.enter(key), nil
	}
	return s.enterAfter(ctx, key, id)
}
