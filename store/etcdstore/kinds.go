package etcdstore

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/bootclock"
)

// Downgrade implements driver.Downgrader.
func (s *Store) Downgrade(ctx context.Context, cl driver.Claim, ttl time.Duration) (driver.Grant, error) {
	a := s.Renew(ctx, []driver.Claim{cl}, ttl)[0]
	if a.State == driver.Unknown {
		return driver.Grant{}, a.Err
	}
	s.mu.Lock()
	c := s.claimLocked(cl)
	if a.State != driver.Held || c == nil || c.Capacity != driver.Whole {
		s.mu.Unlock()
		return driver.Grant{}, driver.ErrLost
	}
	if c.Weight == 1 {
		s.mu.Unlock()
		return a.Grant, nil
	}
	reader := c.Claim
	reader.Weight = 1
	text := encode(reader)
	it := &item{Item: batch.NewItem(), dir: c.lock.dir, name: c.name, ttl: ttl, txn: &pb.TxnRequest{
		Compare: only(createRev(c.name, c.rev), modRev(c.name, c.mod)),
		Success: ops(put(c.name, text, c.lease.id)),
	}}
	c.downgrading = true
	s.mu.Unlock()
	err := s.do(ctx, it)
	s.mu.Lock()
	defer s.mu.Unlock()
	c.downgrading = false
	text = withOwner(text, c.Owner) // a Rename may have changed the owner
	switch {
	case errors.Is(err, driver.ErrUnknown):
		// The next renewal must write the name again to be sure: as a reader, because
		// other readers may hold beside it.
		c.value, c.moving = text, true
		return driver.Grant{}, err
	case err != nil:
		return driver.Grant{}, err
	case !it.resp.Succeeded:
		return driver.Grant{}, unavailable(errors.New("another process has changed the lock's name"))
	}
	c.mod, c.Weight, c.value = max(c.mod, it.rev), 1, text
	return a.Grant, nil
}

// Rename implements driver.Renamer. It reads the queue, and writes the name with another
// owner on the same lease, unless the name has changed since.
func (s *Store) Rename(ctx context.Context, cl driver.Claim, owner string) error {
	if err := check.Rename(cl, owner); err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	s.expire(cl)
	k := &lock{key: cl.Key, dir: s.dir(cl.Key)}
	for range attempts {
		queue, err := s.list(ctx, k)
		if err != nil {
			return err
		}
		i := find(queue, cl.ID)
		if i < 0 || i >= holders(queue) || s.removesSoon(cl, queue[i]) {
			return driver.ErrLost
		}
		e := queue[i]
		if e.Owner == owner {
			return nil
		}
		text := withOwner(e.value, owner)
		it := &item{Item: batch.NewItem(), dir: k.dir, name: e.name, txn: &pb.TxnRequest{
			Compare: only(createRev(e.name, e.rev), modRev(e.name, e.mod)),
			Success: ops(put(e.name, text, e.lease)),
		}}
		if err := s.do(ctx, it); err != nil {
			return err
		}
		if it.resp.Succeeded {
			s.mu.Lock()
			if c := s.claimLocked(cl); c != nil && c.rev == e.rev && c.mod < it.rev {
				c.mod = it.rev
				c.isOwnedLocked(owner)
			}
			s.mu.Unlock()
			return nil
		}
	}
	return unavailable(errors.New("the lock's name changes all the time"))
}

// expire ends a claim that this process has not renewed in time.
func (s *Store) expire(cl driver.Claim) {
	s.mu.Lock()
	c := s.claimLocked(cl)
	var wake []func()
	if c != nil && c.rev > 0 && c.busy == 0 && !bootclock.Now().Before(c.deadline) {
		wake = s.expireLocked(c)
	}
	s.mu.Unlock()
	for _, f := range wake {
		f()
	}
}

// seenLocked notes that a claim's name was read. It takes the owner together with the mod
// revision: a write of this process on the condition of that revision must not restore an
// older owner.
func (c *claim) seenLocked(kv *mvccpb.KeyValue) {
	if kv.ModRevision <= c.mod {
		return
	}
	c.mod = kv.ModRevision
	if e, ok := contenderOf(c.lock.dir, c.lock.key, kv); ok && !e.foreign && e.ID == c.ID {
		c.isOwnedLocked(e.Owner)
	}
}

// isOwnedLocked changes the owner in the value that this process writes for the claim.
func (c *claim) isOwnedLocked(owner string) {
	if c.Owner != owner {
		c.Owner, c.value = owner, withOwner(c.value, owner)
	}
}

// withOwner is a name's value with another owner.
func withOwner(text, owner string) string {
	var v value
	if json.Unmarshal([]byte(text), &v) != nil {
		return text // not Baton's
	}
	v.Owner = owner
	changed, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot fail
	}
	return string(changed)
}
