package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/bootclock"
)

// AcquireAll implements driver.Together by one transaction, for locks of any kind. It
// takes a second transaction to hold beside readers or permits that hold already. It
// returns errors.ErrUnsupported where the server's --max-txn-ops (128 by default) or
// --max-request-bytes are too small for that many locks.
func (s *Store) AcquireAll(ctx context.Context, r []driver.Request) ([]driver.Grant, error) {
	if err := check.Together(r, traits); err != nil {
		return nil, err
	}
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	a := &allRequest{store: s, sent: bootclock.Coarse(), parts: make([]part, len(r))}
	for i, q := range r {
		a.parts[i].r = q
	}
	err := errAgain
	for n := 0; n < attempts && errors.Is(err, errAgain); n++ {
		if err = a.confirm(ctx); err == nil {
			err = a.ask(ctx)
		}
	}
	if errors.Is(err, errAgain) {
		err = unavailable(err)
	}
	if errors.Is(err, driver.ErrUnavailable) && a.hasNames() {
		err = fmt.Errorf("etcd: %w: %w", driver.ErrUnknown, err)
	}
	if err != nil {
		return nil, err
	}
	grants := make([]driver.Grant, len(r))
	for i, p := range a.parts {
		grants[i] = p.grant
	}
	return grants, nil
}

// An allRequest is one call of AcquireAll.
type allRequest struct {
	store *Store
	sent  time.Time
	parts []part
}

// A part is one of its locks.
type part struct {
	r     driver.Request
	grant driver.Grant // if it is held

	// All names that were there at this revision let the claim in. 0: the names were
	// not read, so there must be none.
	seen int64

	claim *claim
	item  *item // its request
	found bool  // another process has put its name
}

// confirm renews the claims that earlier attempts acquired, in this process or in another
// one. ask asks for the others.
func (a *allRequest) confirm(ctx context.Context) error {
	byTTL := map[time.Duration][]*part{}
	for i := range a.parts {
		p := &a.parts[i]
		found := p.found
		p.grant, p.claim, p.item, p.found = driver.Grant{}, nil, nil, false
		exists, err := a.store.known(ctx, p.r.Claim)
		if err != nil {
			return err
		}
		if exists || found {
			byTTL[p.r.TTL] = append(byTTL[p.r.TTL], p)
		}
	}
	for ttl, parts := range byTTL {
		var claims []driver.Claim
		for _, p := range parts {
			claims = append(claims, p.r.Claim)
		}
		for i, answer := range a.store.Renew(ctx, claims, ttl) {
			switch answer.State {
			case driver.Held:
				parts[i].grant = answer.Grant
			case driver.Waiting: // its position is older than this call
				return a.giveUp(ctx, &driver.HeldError{Key: claims[i].Key})
			case driver.Unknown:
				return answer.Err
			}
		}
	}
	return nil
}

// ask asks for what is not held yet: the names of all, or none.
func (a *allRequest) ask(ctx context.Context) error {
	s := a.store
	var asked []*part
	leases := map[int64]*lease{}
	for i := range a.parts {
		if p := &a.parts[i]; p.grant.Token == 0 {
			asked = append(asked, p)
			leases[seconds(p.r.TTL)] = nil
		}
	}
	if len(asked) == 0 {
		return nil
	}
	for class := range leases {
		var err error
		if leases[class], err = s.leaseFor(ctx, class); err != nil {
			return err
		}
	}
	all := &item{Item: batch.NewItem(), txn: &pb.TxnRequest{}, puts: true, ttl: asked[0].r.TTL}
	s.mu.Lock()
	for _, p := range asked {
		all.ttl = min(all.ttl, p.r.TTL)
		s.askLocked(p, a.sent, leases[seconds(p.r.TTL)])
		all.txn.Compare = append(all.txn.Compare, noNamesSince(p.item.dir, p.seen))
		all.txn.Success = append(all.txn.Success, p.item.txn.Success[0])
		all.txn.Failure = append(all.txn.Failure, p.item.txn.Failure[1])
	}
	s.mu.Unlock()

	answered := make(chan struct{})
	go func() { // it is too large to share a transaction
		defer close(answered)
		s.sendAlone(all)
		for i, p := range asked {
			p.item.part(all, i)
		}
	}()
	var err error
	select {
	case <-answered:
		err = all.err
	case <-ctx.Done():
		err = failure(ctx, ctx.Err())
	}
	if err != nil {
		return a.notAsked(ctx, asked, err)
	}
	return a.settle(ctx, asked, all)
}

// askLocked makes up the request for one lock.
func (s *Store) askLocked(p *part, sent time.Time, l *lease) {
	k := s.lockLocked(p.r.Key)
	c := k.claims[p.r.ID]
	if c == nil {
		c = s.addLocked(k, p.r.Claim)
	}
	c.ttl, c.sent, c.deadline = p.r.TTL, sent, sent.Add(effectiveTTL(p.r.TTL))
	s.freshLocked(l, time.Duration(l.seconds)*time.Second*3/4)
	c.lease, c.moving = l, true
	c.mayBeOn(l)
	c.item = &item{Item: batch.NewItem(), dir: k.dir, name: c.name, on: []*lease{l}, txn: &pb.TxnRequest{
		Success: ops(put(c.name, c.value, l.id)),
		Failure: ops(get(c.name), listing(k.dir)),
	}}
	p.claim, p.item = c, c.item
	s.cleanByLocked(c.deadline)
}

// part takes its part of the answer to a request for several.
func (it *item) part(all *item, i int) {
	it.rev, it.err, it.hedged = all.rev, all.err, all.hedged
	if it.err == nil {
		it.resp = &pb.TxnResponse{Succeeded: all.resp.Succeeded, Responses: all.resp.Responses[i : i+1]}
	}
	if it.err == nil && !it.resp.Succeeded { // only the queue was asked for
		own := &pb.RangeResponse{}
		for _, kv := range rangeOf(all.resp.Responses[i]).Kvs {
			if string(kv.Key) == it.name {
				own.Kvs = append(own.Kvs, kv)
			}
		}
		it.resp.Responses = []*pb.ResponseOp{
			{Response: &pb.ResponseOp_ResponseRange{ResponseRange: own}},
			all.resp.Responses[i],
		}
	}
	it.Finish()
}

// notAsked cleans up after a request without an answer, or with an error.
func (a *allRequest) notAsked(ctx context.Context, asked []*part, err error) error {
	if errors.Is(err, rpctypes.ErrTooManyOps) || errors.Is(err, rpctypes.ErrRequestTooLarge) {
		err = fmt.Errorf("etcd: the server does not take a request for %d locks (%v): %w", len(asked), err, errors.ErrUnsupported)
	}
	var last error
	for _, p := range asked {
		last = a.store.notAcquired(ctx, p.claim, p.item, err)
	}
	return last
}

// settle turns what the server has answered into the answer of the call. errAgain says
// that claims have to be renewed, or asked for again.
func (a *allRequest) settle(ctx context.Context, asked []*part, all *item) error {
	s := a.store
	again, found := !all.resp.Succeeded, false
	var open []*part // those for which only others have names
	s.mu.Lock()
	for _, p := range asked {
		c := p.claim
		c.item = nil
		other := s.answeredLocked(c, p.item)
		switch {
		case other != nil: // a leftover of ours has the name
			s.occupiedLocked(c, other)
			s.reserveAllLocked(c.lock, contenders(p.item.dir, p.r.Key, rangeOf(p.item.resp.Responses[1]).Kvs))
		case c.ended && c.rev > 0: // ended meanwhile
			s.sweepLocked(c)
			again = true
		case c.ended:
			s.forgetLocked(c)
		case c.rev > 0: // from now on, or since an earlier attempt
			again = again || c.moving
		default:
			open = append(open, p)
		}
	}
	s.mu.Unlock()
	queues := make([][]contender, len(open))
	for i, p := range open {
		queues[i] = contenders(p.item.dir, p.r.Key, rangeOf(p.item.resp.Responses[1]).Kvs)
		p.found = find(queues[i], p.r.ID) >= 0
		found = found || p.found
	}
	if found { // a refusal would have to end them, too
		return errAgain
	}
	for i, p := range open {
		queue := queues[i]
		err := notLock(p.r.Key, queue)
		if err == nil && !fits(queue, p.r.Claim) {
			if err = differs(p.r.Claim, queue); err == nil {
				err = s.heldError(ctx, p.r.Key, queue)
			}
		}
		if err != nil {
			return a.giveUp(ctx, err)
		}
		p.seen = all.rev
	}
	if again {
		return errAgain
	}
	for _, p := range asked {
		p.grant = s.granted(ctx, a.sent, p.claim, p.r.TTL)
	}
	return nil
}

// hasNames reports whether this call, or an earlier attempt, has put names that are still
// there.
func (a *allRequest) hasNames() bool {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	for _, p := range a.parts {
		if c := a.store.claimLocked(p.r.Claim); c != nil && c.rev > 0 {
			return true
		}
	}
	return false
}

// giveUp ends all claims, also those of earlier attempts, and returns why.
func (a *allRequest) giveUp(ctx context.Context, why error) error {
	s := a.store
	var work sync.WaitGroup
	for _, p := range a.parts {
		s.mu.Lock()
		c := s.claimLocked(p.r.Claim)
		s.mu.Unlock()
		if c != nil {
			work.Go(func() { _ = s.undo(ctx, c, why) })
		}
	}
	work.Wait()
	return why
}
