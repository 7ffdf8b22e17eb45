package etcdstore

import (
	"context"
	"errors"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/bootclock"
)

// Release implements driver.Locks.
func (s *Store) Release(ctx context.Context, cl driver.Claim) error {
	if err := check.Claim(cl); err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	c := s.claimLocked(cl)
	if c == nil {
		s.mu.Unlock()
		return s.releaseUnknown(ctx, cl)
	}
	if under := c.item; under != nil { // a put after the removal would stay
		s.mu.Unlock()
		select {
		case <-under.Done():
			s.resolve(c, under)
		case <-ctx.Done():
			return failure(ctx, ctx.Err())
		}
		s.mu.Lock()
	}
	if !bootclock.Now().Before(c.deadline) && c.busy == 0 {
		wake := s.expireLocked(c)
		s.mu.Unlock()
		for _, f := range wake {
			f()
		}
		return s.releaseUnknown(ctx, cl) // another process may have renewed it
	}
	c.releasing = true
	it := c.release()
	s.mu.Unlock()

	err := s.do(ctx, it)
	s.mu.Lock()
	if err != nil {
		c.releasing = false
		s.mu.Unlock()
		return err
	}
	s.endLocked(c)
	s.forgetLocked(c)
	released := it.resp.Succeeded
	if !released {
		s.findLeftoversLocked() // already missing: the server may have been restored
	}
	alone := c.held || !c.maybeDuplicate
	s.mu.Unlock()
	if released && alone {
		return nil
	}
	// Another process may have put another name.
	if err := s.releaseUnknown(ctx, cl); !released || !errors.Is(err, driver.ErrLost) {
		return err
	}
	return nil
}

// releaseUnknown ends a claim that this process does not know. It removes all of its
// names.
func (s *Store) releaseUnknown(ctx context.Context, cl driver.Claim) error {
	k := &lock{key: cl.Key, dir: s.dir(cl.Key)}
	queue, err := s.list(ctx, k)
	if err != nil {
		return err
	}
	released := false
	for _, e := range queue {
		if e.foreign || e.ID != cl.ID || s.removesSoon(cl, e) {
			continue
		}
		it := &item{Item: batch.NewItem(), dir: k.dir, name: e.name, txn: &pb.TxnRequest{
			Compare: only(createRev(e.name, e.rev)),
			Success: ops(remove(e.name)),
		}}
		if err := s.do(ctx, it); err != nil {
			return err
		}
		released = released || it.resp.Succeeded
	}
	if !released {
		return driver.ErrLost
	}
	return nil
}

// removingLocked reports whether this process tries to remove the name. ours says that it
// will succeed: no other process has taken the name over.
func (s *Store) removingLocked(cl driver.Claim, e contender) (removing, ours bool) {
	k := s.keys[cl.Key]
	if k == nil {
		return false, false
	}
	for c := range k.all {
		if c.ended && c.name == e.name {
			removing = true
			ours = ours || slices.ContainsFunc(c.on, func(l *lease) bool { return l.id == e.lease })
		}
	}
	return removing, ours
}

// removesSoon reports whether this process is about to remove the name.
func (s *Store) removesSoon(cl driver.Claim, e contender) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	removing, ours := s.removingLocked(cl, e)
	return removing && ours
}
