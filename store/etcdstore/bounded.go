package etcdstore

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/batch"
)

// maxLooks bounds how often a request that decides by the queue looks at one into which
// others have put names since it looked before.
const maxLooks = 20

// errBusy says that others put names into a queue as fast as a request could look.
var errBusy = errors.New("the queue changed each time that it was about to be joined")

// acquireKnowing decides about a claim that has no name of this process yet, and whose
// request has a bound or may have been made before, by the queue that the attempt has
// read. It puts the name only if no other name was made since then. So the bound holds
// however many come at once, and a name that another process has put for the same claim is
// found.
func (s *Store) acquireKnowing(ctx context.Context, r driver.Request, sent time.Time, a attempt) (driver.Grant, error) {
	c := a.claim
	for range maxLooks {
		if find(a.queue, r.ID) >= 0 {
			return s.confirm(ctx, r)
		}
		lasts := seconds(r.TTL)
		if len(a.queue) > 0 && !fits(a.queue, r.Claim) {
			lasts = waiterSeconds
			err := differs(r.Claim, a.queue)
			switch n := len(a.queue) - holders(a.queue); {
			case err != nil:
			case !r.Queue:
				err = s.heldError(ctx, r.Key, a.queue)
			case r.MaxWaiting > 0 && n >= r.MaxWaiting:
				err = &driver.QueueFullError{Key: r.Key, Waiting: n}
			}
			if err != nil {
				return driver.Grant{}, s.undo(ctx, c, err)
			}
		}
		l, err := s.leaseFor(ctx, lasts)
		if err != nil {
			return driver.Grant{}, s.undo(ctx, c, err)
		}
		s.mu.Lock()
		it := &item{Item: batch.NewItem(), dir: c.lock.dir, name: c.name, puts: true, on: []*lease{l}, ttl: r.TTL, txn: &pb.TxnRequest{
			Compare: only(nobodySince(c.lock.dir, a.rev)),
			Success: ops(nested(&pb.TxnRequest{
				Compare: only(createRev(c.name, 0)),
				Success: ops(put(c.name, c.value, l.id)),
				Failure: ops(get(c.name)),
			}), listing(c.lock.dir)),
			Failure: ops(get(c.name), listing(c.lock.dir)),
		}}
		c.lease, c.moving, c.item = l, true, it
		c.mayBeOn(l)
		s.mu.Unlock()
		if err := s.do(ctx, it); err != nil {
			if err = s.notAcquired(ctx, c, it, err); errors.Is(err, errAgain) {
				err = unavailable(err)
			}
			return driver.Grant{}, err
		}
		if !s.took(c, it) {
			return driver.Grant{}, unavailable(errAgain)
		}
		a = attempt{claim: c, rev: it.rev, queue: contenders(c.lock.dir, r.Key, rangeOf(it.resp.Responses[1]).Kvs)}
		s.mu.Lock()
		stands := c.rev > 0
		s.mu.Unlock()
		if stands {
			return s.settle(ctx, r, sent, a)
		}
		if err := notLock(r.Key, a.queue); err != nil {
			return driver.Grant{}, s.undo(ctx, c, err)
		}
	}
	return driver.Grant{}, s.undo(ctx, c, unavailable(errBusy))
}
