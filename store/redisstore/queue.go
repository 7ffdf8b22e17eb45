package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// enter acquires by the script for claims of every kind.
func (s *Store) enter(ctx context.Context, n lockNames, r driver.Request) (driver.Grant, error) {
	if r.Retry && r.Ticket == 0 {
		// If the server executed the first attempt after this one, it could grant that
		// after it has refused this one.
		if err := s.batcher.await(ctx, r.ID); err != nil {
			return driver.Grant{}, err
		}
	}
	queue, look := "", ""
	if r.Queue {
		queue = "q"
		if r.MaxWaiting > 0 {
			queue += strconv.Itoa(r.MaxWaiting)
		}
		s.pushes.start()
		s.pushes.waits(r.ID, true) // before the request: a hint may come during it
	}
	if r.Retry || r.Ticket != 0 {
		look = "r"
	}
	call := wire.Call{Script: enterScript, Keys: n.full(), Acks: s.replicas.ask(r.TTL), Args: []string{
		r.ID, r.Owner, want(r.Claim), millis(r.TTL), millis(min(r.TTL, driver.ClaimTTL)), s.channel,
		queue, look, s.entry(r.Claim, r.TTL), tokenArg(r.Claim),
	}}
	answer, err := s.runCall(ctx, call)
	if a := list(answer); err == nil && len(a) > 0 && number(a[0]) == 1 {
		err = s.replicas.missing(call.Acks, r.Key)
	}
	s.unresolved.attempted(r.ID, r.Retry, err)
	if err != nil {
		return driver.Grant{}, err
	}
	a := list(answer)
	if len(a) < 2 {
		return driver.Grant{}, strange(enterScript, answer)
	}
	switch number(a[0]) {
	case 1:
		s.busy.Set(n.lock, false)
		s.clock.observe(number(a[1]))
		if r.Queue {
			s.pushes.waits(r.ID, false)
		}
		return grant(number(a[1]), r.TTL), nil
	case 2:
		s.busy.Set(n.lock, true)
		return s.waiting(a), nil
	}
	if err := s.refused(n, r, a); err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{}, strange(enterScript, answer)
}

// waiting parses {2, ticket, foreign, left ms}.
func (s *Store) waiting(a []any) driver.Grant {
	g := driver.Grant{Waiting: true, TTL: driver.WaiterTTL, Again: driver.RefreshEvery}
	if len(a) < 4 {
		return g
	}
	g.Ticket = number(a[1])
	if number(a[2]) == 1 || s.pushes.deaf() {
		// The holder does not hand over, or messages do not arrive. New waiters look
		// often, older ones less so.
		waited := time.Duration(s.clock.millis()-g.Ticket/1000) * time.Millisecond
		g.Again = min(max(waited/8, 10*time.Millisecond), 50*time.Millisecond)
	}
	if left := number(a[3]); left >= 0 {
		g.Again = min(g.Again, time.Duration(left+1)*time.Millisecond)
	}
	return g
}

// entry is the text of a claim's entry in the queue, as far as the claim and the TTL
// determine it. A script that does not find it searches for the ID.
func (s *Store) entry(c driver.Claim, ttl time.Duration) string {
	if c.Ticket <= 0 {
		return ""
	}
	return fmt.Sprintf("%016d\t%s\t%s\t%s\t%s\t%s", c.Ticket, c.ID, want(c), millis(min(ttl, driver.ClaimTTL)), s.channel, c.Owner)
}
