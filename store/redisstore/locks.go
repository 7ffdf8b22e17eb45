package redisstore

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// grant makes a Grant. The ticket of a position is the number that the server drew for
// it; the ticket of a grant is minus its token. So the ticket of a claim tells whether
// its process knows that it holds the lock, and then also the token.
func grant(token int64, ttl time.Duration) driver.Grant {
	return driver.Grant{Token: token, Ticket: -token, TTL: ttl}
}

func knownHeld(c driver.Claim) bool { return c.Ticket < 0 }

// tokenArg is the token of a claim that is known to be held, as an argument of scripts.
func tokenArg(c driver.Claim) string {
	if knownHeld(c) {
		return strconv.FormatInt(-c.Ticket, 10)
	}
	return ""
}

// value is the beginning of an exclusive lock's value on the server, which scripts
// compare.
func value(id string) string { return "b1:" + id + ":" }

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// Acquire implements driver.Locks. A free lock costs one command.
func (s *Store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := check.Request(r, traits); err != nil {
		return driver.Grant{}, err
	}
	n, err := s.names.of(r.Key)
	if err != nil {
		return driver.Grant{}, err
	}
	if err := s.unresolved.recall(ctx, r.ID); err != nil {
		return driver.Grant{}, err
	}
	r.TTL = r.TTL.Truncate(time.Millisecond)
	if r.Exclusive() && r.Ticket == 0 && !r.Retry && !s.busy.Has(n.lock) {
		answer, err := s.batcher.do(ctx, &operation{n: n, id: r.ID, acquire: true, key: r.Key, ttl: r.TTL, args: [3]string{value(r.ID), millis(r.TTL), ":" + r.Owner}})
		if err != nil {
			s.unresolved.attempted(r.ID, false, err)
			return driver.Grant{}, err
		}
		if token := number(answer); token > 0 {
			s.clock.observe(token)
			return grant(token, r.TTL), nil
		}
		s.busy.Set(n.lock, true)
	}
	return s.enter(ctx, n, r)
}

// refused parses a refusal, nil if a is none.
func (s *Store) refused(n lockNames, r driver.Request, a []any) error {
	if len(a) < 2 {
		return nil
	}
	switch number(a[0]) {
	case 3:
		s.busy.Set(n.lock, true)
		return s.heldError(r.Key, a)
	case 4:
		return &driver.CapacityError{Key: r.Key, InUse: capacityOf(text(a[1])), Asked: r.Capacity}
	case 5:
		return notLock(r.Key, text(a[1]))
	case 6:
		s.busy.Set(n.lock, true)
		return &driver.QueueFullError{Key: r.Key, Waiting: int(number(a[1]))}
	}
	return nil
}

// heldError parses {3, value, ttl ms, waiting, info}.
func (s *Store) heldError(key string, a []any) error {
	e := &driver.HeldError{Key: key}
	if len(a) < 5 {
		return e
	}
	if left := number(a[2]); left > 0 {
		e.Remaining = time.Duration(left) * time.Millisecond
	}
	e.Waiting = int(number(a[3]))
	h := holder(text(a[1]), text(a[4]), 1000*s.clock.millis())
	e.Owner, e.Foreign, e.Age = h.Owner, h.Foreign, max(h.Age, 0)
	return e
}

// holder parses the value of a lock, for people. For a shared lock info is about one of
// its holders.
func holder(value, info string, nowMicros int64) driver.HolderInfo {
	h := driver.HolderInfo{Age: -1, Weight: driver.Whole, Capacity: driver.Whole}
	since := ""
	switch {
	case strings.HasPrefix(value, "b1:~"):
		parts := strings.SplitN(info, "\t", 3)
		if len(parts) < 3 {
			return h
		}
		h.Weight, h.Capacity = parseWant(parts[0])
		since, h.Owner = parts[1], parts[2]
	case strings.HasPrefix(value, "b1:"):
		parts := strings.SplitN(value, ":", 4)
		if len(parts) < 4 {
			return h
		}
		since, h.Owner = parts[2], parts[3]
	default:
		h.Foreign = true
		return h
	}
	if h.Token = number(since); h.Token > 0 {
		h.Age = max(time.Duration(nowMicros-h.Token)*time.Microsecond, 0)
	}
	return h
}

// capacityOf parses the capacity in the value of a shared lock.
func capacityOf(value string) int64 {
	if s, ok := strings.CutPrefix(value, "b1:~permits/"); ok {
		n, _, _ := strings.Cut(s, ":")
		return number(n)
	}
	return driver.Whole
}

// Release implements driver.Locks. For an exclusive lock it costs one command, unless the
// lock is lost, or the next waiter is not exclusive or joined long ago.
func (s *Store) Release(ctx context.Context, c driver.Claim) error {
	if err := check.Claim(c); err != nil {
		return err
	}
	n, err := s.names.of(c.Key)
	if err != nil {
		return err
	}
	err = s.release(ctx, n, c)
	s.ended(n, c, err)
	return err
}

// ended notes the answer to the release of c.
func (s *Store) ended(n lockNames, c driver.Claim, err error) {
	if err != nil && c.Ticket == 0 || s.unresolved.known.Load() > 0 {
		s.unresolved.released(c, err, func(ctx context.Context, c driver.Claim) error { return s.leave(ctx, n, c, "") })
	}
}

func (s *Store) release(ctx context.Context, n lockNames, c driver.Claim) error {
	held := ""
	if knownHeld(c) {
		held = "h"
		if c.Exclusive() {
			answer, err := s.batcher.do(ctx, &operation{n: n, id: c.ID, args: [3]string{value(c.ID)}})
			if err != nil {
				return s.endAlone(ctx, n, c, err)
			}
			if number(answer) == 1 {
				return nil
			}
			// The next waiters need the other script; or c is lost, or was downgraded by
			// a request whose answer was lost.
		}
	}
	if err := s.batcher.await(ctx, c.ID); err != nil {
		return err
	}
	return s.leave(ctx, n, c, held)
}

// leave ends a claim of any kind. held is "h" if the claim is known to be held.
func (s *Store) leave(ctx context.Context, n lockNames, c driver.Claim, held string) error {
	answer, err := s.run(ctx, leaveScript, n.full(), []string{c.ID, held, s.entry(c, driver.ClaimTTL)})
	switch {
	case err != nil && held != "":
		return s.endAlone(ctx, n, c, err)
	case err != nil:
		return err
	case number(answer) == 0:
		return driver.ErrLost
	}
	return nil
}

// endAlone ends a held claim without granting to the waiters, who find the lock free
// later, if err says that the slot is being moved to another node of Cluster. Cluster
// then refuses scripts that name missing keys, and the queue may be missing.
func (s *Store) endAlone(ctx context.Context, n lockNames, c driver.Claim, err error) error {
	if refused, ok := errors.AsType[*wire.ServerError](err); !ok || refused.Code() != "TRYAGAIN" {
		return err
	}
	keys := []string{n.lock}
	if !c.Exclusive() {
		keys = append(keys, n.shared(), n.info())
	}
	answer, failed := s.run(ctx, endAloneScript, keys, []string{c.ID})
	switch {
	case failed != nil:
		return failed
	case number(answer) < 0:
		return err
	case number(answer) == 0:
		return driver.ErrLost
	}
	return nil
}
