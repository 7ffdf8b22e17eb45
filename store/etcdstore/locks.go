package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/bootclock"
)

// attempts bounds how often a request that certainly had no effect is repeated: a lease
// had ended, or a leftover had the name.
const attempts = 4

// Acquire implements driver.Locks.
//
// A free lock takes one transaction: if the key has no names, it puts this claim's name
// on the lease for the TTL. Otherwise it puts the name into the queue, on the lease for
// waiters, and reads the earlier names. A request that may have been made before, perhaps
// by another process, reads the queue before it puts a name.
func (s *Store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := check.Request(r, traits); err != nil {
		return driver.Grant{}, err
	}
	if err := s.ready(ctx); err != nil {
		return driver.Grant{}, err
	}
	sent := bootclock.Now()
	if g, err, again := s.repeated(ctx, r); !again {
		return g, err
	}
	var err error
	for range attempts {
		var a attempt
		if a, err = s.attempt(ctx, r, sent); err == nil {
			return s.settle(ctx, r, sent, a)
		}
		if !errors.Is(err, errAgain) {
			return driver.Grant{}, err
		}
	}
	return driver.Grant{}, unavailable(err)
}

// errAgain says that a request had no effect for a passing reason.
var errAgain = errors.New("the lease or the name has just ended")

// repeated is Acquire for a claim that this process knows.
func (s *Store) repeated(ctx context.Context, r driver.Request) (g driver.Grant, err error, again bool) {
	if exists, err := s.known(ctx, r.Claim); err != nil || !exists {
		return g, err, err == nil
	}
	switch a := s.Renew(ctx, []driver.Claim{r.Claim}, r.TTL)[0]; a.State {
	case driver.Lost:
		return g, nil, true
	case driver.Unknown:
		return g, a.Err, false
	default:
		return a.Grant, nil, false
	}
}

// known reports whether this process has put a name for a claim that has not ended. It
// waits for the outcome of a request under way.
func (s *Store) known(ctx context.Context, cl driver.Claim) (bool, error) {
	s.mu.Lock()
	c := s.claimLocked(cl)
	if c == nil {
		s.mu.Unlock()
		return false, nil
	}
	under := c.item
	s.mu.Unlock()
	if under != nil { // it was sent, and may yet be answered
		select {
		case <-under.Done():
			s.resolve(c, under)
		case <-ctx.Done():
			return false, failure(ctx, ctx.Err())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.rev > 0, nil
}

// again reports whether the request may have been made before, by any process.
func again(r driver.Request) bool { return r.Retry || r.Ticket != 0 }

// An attempt is the server's answer to a request.
type attempt struct {
	claim    *claim
	queue    []contender // if it was not granted at once
	headOnly bool        // queue has only its head
	rev      int64       // when queue was read
	behind   bool        // it waits behind another contender, and queue was not read
}

func (s *Store) attempt(ctx context.Context, r driver.Request, sent time.Time) (a attempt, err error) {
	l, err := s.leaseFor(ctx, seconds(r.TTL))
	if err != nil {
		return a, err
	}
	s.mu.Lock()
	k := s.lockLocked(r.Key)
	c := k.claims[r.ID]
	if c == nil {
		c = s.addLocked(k, r.Claim)
	}
	a.claim = c
	c.ttl, c.sent, c.deadline = r.TTL, sent, sent.Add(effectiveTTL(r.TTL))
	s.freshLocked(l, time.Duration(l.seconds)*time.Second*3/4)
	waiterLease := l // for a name that may have to wait
	queues := r.Queue && r.MaxWaiting == 0 && !again(r)
	if w := s.leases[waiterSeconds]; queues && r.Exclusive() && w != nil && w.id != 0 && !w.dead && sent.Before(w.end) {
		waiterLease = w
		s.freshLocked(w, driver.WaiterTTL+driver.WaiterTTL/5)
	}
	c.lease, c.moving = waiterLease, true
	c.mayBeOn(l)
	c.mayBeOn(waiterLease)
	first, id, waiterLeaseID := queues && r.Exclusive(), l.id, waiterLease.id
	it := &item{Item: batch.NewItem(), dir: k.dir, name: c.name, puts: true, on: []*lease{l, waiterLease}, ttl: r.TTL, txn: &pb.TxnRequest{
		Compare: only(noNames(k.dir)),
		Success: ops(put(c.name, c.value, id)),
		Failure: ops(get(c.name), listing(k.dir)),
	}}
	if queues {
		it.txn.Failure[0] = nested(&pb.TxnRequest{
			Compare: only(createRev(c.name, 0)),
			Success: ops(put(c.name, c.value, waiterLeaseID)),
			Failure: ops(get(c.name)),
		})
	}
	if first {
		it.txn.Failure[1] = oldest(k.dir)
		if w, ok := k.lastLocked(c.name); ok {
			// While the contender w exists the queue need not be read, which the server
			// would do twice, name by name.
			it.txn = &pb.TxnRequest{
				Compare: only(createRev(w.name, w.rev)),
				Success: ops(nested(&pb.TxnRequest{
					Compare: only(createRev(c.name, 0)),
					Success: ops(put(c.name, c.value, waiterLeaseID)),
					Failure: ops(get(c.name), oldest(k.dir)),
				})),
				Failure: ops(nested(it.txn)),
			}
			it.wrapped = true
		}
	}
	c.item = it
	s.cleanByLocked(c.deadline)
	s.mu.Unlock()

	if err := s.do(ctx, it); err != nil {
		return a, s.notAcquired(ctx, c, it, err)
	}
	if !s.took(c, it) {
		return a, s.overtaken(ctx, c)
	}
	_, resp := it.answer()
	if it.wrapped && it.resp.Succeeded {
		resp = answerOf(resp.Responses[0])
		a.behind = resp.Succeeded
	}
	if !resp.Succeeded { // the key had names
		a.headOnly, a.rev = first, it.rev
		a.queue = contenders(k.dir, k.key, rangeOf(resp.Responses[1]).Kvs)
	}
	return a, nil
}

// took takes the answer to an acquire. It reports whether the claim is still valid.
func (s *Store) took(c *claim, it *item) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.item = nil
	other := s.answeredLocked(c, it)
	switch {
	case other != nil: // a leftover of this process has the name
		s.occupiedLocked(c, other)
		return false
	case c.ended && c.rev > 0: // its lease ended meanwhile
		s.sweepLocked(c)
		return false
	case c.ended:
		s.forgetLocked(c)
		return false
	case c.rev > 0 && c.lease == nil: // it is on an earlier lease
		c.moving = true
	}
	return true
}

// freshLocked keeps a lease alive that ends in less than d, without waiting for the
// answer.
func (s *Store) freshLocked(l *lease, d time.Duration) {
	if l.end.Sub(bootclock.Now()) < d {
		s.refreshLocked(l)
	}
}

// answeredLocked takes the answer to an acquire. It returns another process's or
// leftover's name in place of the claim's, if any.
func (s *Store) answeredLocked(c *claim, it *item) (other *mvccpb.KeyValue) {
	if it.hedged {
		c.unresolvedLocked(it)
	}
	classes := []*lease{s.leases[seconds(c.ttl)], s.leases[waiterSeconds]}
	on := func(id int64) {
		if l := s.leaseLocked(id); l != nil {
			c.mayBeOn(l)
		}
		c.lease, c.moving = nil, true
		for _, l := range classes {
			if l != nil && l.id == id {
				c.lease, c.moving = l, false
			}
		}
	}
	put := func(o *pb.RequestOp) {
		c.rev, c.mod = it.rev, it.rev
		on(o.GetRequestPut().Lease)
	}
	txn, resp := it.answer()
	branch := txn.Failure
	if resp.Succeeded {
		branch = txn.Success
	}
	asked, own := branch[0], rangeOf(resp.Responses[0])
	switch inner := asked.GetRequestTxn(); {
	case asked.GetRequestPut() != nil: // the key had no names
		put(asked)
		c.held, c.since = true, bootclock.Now()
		if len(c.lock.watches) > 0 && c.lock.mirror == nil {
			s.cleanByLocked(c.since.Add(mirrorAfter))
		}
		return nil
	case inner != nil:
		answer := answerOf(resp.Responses[0])
		if answer.Succeeded {
			put(inner.Success[0])
			return nil
		}
		own = rangeOf(answer.Responses[0])
	}
	if own == nil || len(own.Kvs) == 0 {
		return nil
	}
	kv := own.Kvs[0]
	e, _ := contenderOf(c.lock.dir, c.Key, kv)
	if e.ID != c.ID {
		return kv
	}
	c.isOwnedLocked(e.Owner)
	c.rev, c.mod = kv.CreateRevision, kv.ModRevision // of an earlier attempt
	on(kv.Lease)
	return nil
}

// notAcquired cleans up after an acquire without an answer, or with an error.
func (s *Store) notAcquired(ctx context.Context, c *claim, it *item, err error) error {
	if errors.Is(err, driver.ErrUnknown) {
		s.mu.Lock()
		defer s.mu.Unlock()
		c.maybeDuplicate = true
		it.abandoned, it.unresolved, c.unresolved = true, c.unresolved, bootclock.Now().Add(unresolvedTime)
		if !s.closed {
			s.work.Go(func() { s.resolve(c, it) })
		}
		return err
	}
	s.mu.Lock()
	c.item = nil
	if c.rev == 0 && !c.uncertain() {
		s.forgetLocked(c)
	}
	var asked []*leaseRequest
	if leaseGone(err) { // any of it.on
		for _, l := range it.on {
			if !l.dead {
				asked = append(asked, s.refreshLocked(l))
			}
		}
	}
	s.mu.Unlock()
	if !leaseGone(err) {
		return err
	}
	for _, a := range asked {
		if e := a.wait(ctx); e != nil && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return fmt.Errorf("%w: %w", errAgain, err)
}

// settle turns an attempt into an answer: held, waiting, or refused.
func (s *Store) settle(ctx context.Context, r driver.Request, sent time.Time, a attempt) (driver.Grant, error) {
	c := a.claim
	s.mu.Lock()
	if a.behind {
		s.mu.Unlock()
		return s.waiting(ctx, r, sent, c)
	}
	if c.held && a.queue == nil {
		moving := c.moving
		s.mu.Unlock()
		if moving { // its lease ended while the answer was under way
			return s.confirm(ctx, r)
		}
		return s.granted(ctx, sent, c, r.TTL), nil
	}
	own := c.rev
	s.mu.Unlock()

	queue := a.queue
	if a.headOnly && (len(queue) == 0 || queue[0].rev > own) { // the oldest name belongs to another key
		list, err := s.list(ctx, c.lock)
		if err != nil {
			return driver.Grant{}, err
		}
		queue = list
	}
	if err := notLock(r.Key, queue); err != nil {
		return driver.Grant{}, s.undo(ctx, c, err)
	}
	if i := find(queue, r.ID); own > 0 && i >= 0 && queue[i].rev < own { // another process was faster
		s.mu.Lock()
		c.maybeDuplicate = true
		s.mu.Unlock()
		return s.confirm(ctx, r)
	}
	if own == 0 && (r.Queue || again(r)) { // with a bound, or perhaps not for the first time
		return s.acquireKnowing(ctx, r, sent, a)
	}
	if own == 0 && len(queue) == 0 || own == 0 && fits(queue, r.Claim) {
		return s.acquireBeside(ctx, r, sent, c)
	}
	n := holders(queue)
	held := own > 0 && n > 0 && queue[n-1].rev >= own
	if held {
		s.mu.Lock()
		if !c.held {
			c.held, c.since = true, bootclock.Now()
		}
		if c.lease != nil && !c.moving && c.lease.seconds == seconds(r.TTL) {
			defer s.mu.Unlock()
			return c.grantLocked(sent, r.TTL), nil
		}
		s.mu.Unlock()
		return s.confirm(ctx, r)
	}
	if err := differs(r.Claim, queue); err != nil {
		return driver.Grant{}, s.undo(ctx, c, err)
	}
	if own == 0 || !r.Queue {
		err := s.heldError(ctx, r.Key, queue)
		return driver.Grant{}, s.undo(ctx, c, err)
	}
	return s.waiting(ctx, r, sent, c)
}

// granted is the answer for a claim without others before it.
func (s *Store) granted(ctx context.Context, sent time.Time, c *claim, ttl time.Duration) driver.Grant {
	s.mu.Lock()
	// A lease that was unused for a while is being kept alive.
	if under := c.lease.request; under != nil && c.lease.end.Sub(sent) < ttl/2 {
		s.mu.Unlock()
		_ = under.wait(ctx) // without the answer the grant is a short one
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	return c.grantLocked(sent, ttl)
}

// waiting is the answer for a claim that waits.
func (s *Store) waiting(ctx context.Context, r driver.Request, sent time.Time, c *claim) (driver.Grant, error) {
	s.mu.Lock()
	if c.lock.watchedLocked(c.ID) {
		s.mirrorLocked(c.lock)
	}
	l := c.lease
	if l != nil && !c.moving && l.seconds == waiterSeconds && l.end.Sub(sent) >= driver.WaiterTTL {
		defer s.mu.Unlock()
		return c.waitingLocked(sent), nil
	}
	s.mu.Unlock()
	return s.confirm(ctx, r)
}

// confirm renews a claim, so that it is on the right lease of this process.
func (s *Store) confirm(ctx context.Context, r driver.Request) (driver.Grant, error) {
	switch a := s.Renew(ctx, []driver.Claim{r.Claim}, r.TTL)[0]; {
	case a.State == driver.Lost:
		return driver.Grant{}, unavailable(errors.New("the position was lost at once"))
	case a.State == driver.Unknown && errors.Is(a.Err, driver.ErrUnavailable):
		return driver.Grant{}, fmt.Errorf("etcd: %w: %w", driver.ErrUnknown, a.Err) // the name exists
	case a.State == driver.Unknown:
		return driver.Grant{}, a.Err
	default:
		return a.Grant, nil
	}
}

// acquireBeside acquires beside holders that leave room, or beside names of other keys.
// The claim has no name in the queue yet.
func (s *Store) acquireBeside(ctx context.Context, r driver.Request, sent time.Time, c *claim) (driver.Grant, error) {
	l, err := s.leaseFor(ctx, seconds(r.TTL))
	if err != nil {
		return driver.Grant{}, s.undo(ctx, c, err)
	}
	s.mu.Lock()
	it := &item{Item: batch.NewItem(), dir: c.lock.dir, name: c.name, puts: true, on: []*lease{l}, ttl: r.TTL, txn: &pb.TxnRequest{
		Success: ops(nested(&pb.TxnRequest{
			Compare: only(createRev(c.name, 0)),
			Success: ops(put(c.name, c.value, l.id)),
			Failure: ops(get(c.name)),
		}), listing(c.lock.dir)),
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
	s.mu.Lock()
	c.item = nil
	other := s.answeredLocked(c, it)
	if other != nil {
		s.occupiedLocked(c, other)
		s.mu.Unlock()
		return driver.Grant{}, unavailable(errAgain)
	}
	queue := contenders(c.lock.dir, r.Key, rangeOf(it.resp.Responses[1]).Kvs)
	n := holders(queue)
	granted := n > 0 && queue[n-1].rev >= c.rev
	if c.ended || granted && c.lease == nil { // its lease ended meanwhile
		if !c.ended {
			s.endLocked(c)
		}
		s.sweepLocked(c)
		s.mu.Unlock()
		return driver.Grant{}, unavailable(errAgain)
	}
	if granted {
		defer s.mu.Unlock()
		c.held, c.since = true, bootclock.Now()
		return c.grantLocked(sent, r.TTL), nil
	}
	s.mu.Unlock()
	return driver.Grant{}, s.undo(ctx, c, s.heldError(ctx, r.Key, queue))
}

// undo ends a refused claim, and returns why.
func (s *Store) undo(ctx context.Context, c *claim, why error) error {
	s.mu.Lock()
	if c.rev == 0 && !c.uncertain() {
		s.forgetLocked(c)
		s.mu.Unlock()
		return why
	}
	c.releasing = true
	s.endLocked(c)
	it, exact := c.removal(), c.exact()
	s.mu.Unlock()
	err := s.do(ctx, it)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.removedLocked(exact, err); err != nil {
		s.sweepLocked(c)
	} else {
		s.forgetLocked(c)
	}
	return why
}

// grantLocked is the answer about a held claim.
func (c *claim) grantLocked(sent time.Time, ttl time.Duration) driver.Grant {
	c.ttl = ttl
	d := min(effectiveTTL(ttl), c.lease.end.Sub(sent))
	c.deadline = latest(sent.Add(d), c.keepUntil)
	return driver.Grant{Token: c.rev, Ticket: c.rev, TTL: d}
}

// waitingLocked is the answer about a waiting claim.
func (c *claim) waitingLocked(sent time.Time) driver.Grant {
	d := min(driver.WaiterTTL, c.lease.end.Sub(sent))
	c.sent, c.deadline = sent, sent.Add(d)
	return driver.Grant{Waiting: true, Ticket: c.rev, TTL: d}
}

// maxLooks bounds how often a request that decides by the queue reads it again, because
// other processes have put names since.
const maxLooks = 20

// errBusy says that the queue changed before each put.
var errBusy = errors.New("the queue changed each time that it was about to be joined")

// acquireKnowing decides about a claim without a name of this process, by the queue that
// the attempt has read: its request has a bound or may have been made before. It puts the
// name only if no other name was made since the reading. So the bound holds for
// concurrent requests, and a name of another process for the same claim is found.
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
			Compare: only(noNamesSince(c.lock.dir, a.rev)),
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
		exists := c.rev > 0
		s.mu.Unlock()
		if exists {
			return s.settle(ctx, r, sent, a)
		}
		if err := notLock(r.Key, a.queue); err != nil {
			return driver.Grant{}, s.undo(ctx, c, err)
		}
	}
	return driver.Grant{}, s.undo(ctx, c, unavailable(errBusy))
}
