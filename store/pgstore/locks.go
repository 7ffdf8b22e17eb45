package pgstore

import (
	"context"
	"strconv"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/sqlstore"
)

const (
	acquireSQL = `SELECT state, coalesce(token, 0), again, coalesce(granted, ''), coalesce(by_owner, ''),
		coalesce(age, 0), coalesce(remaining, 0), coalesce(others, 0)
		FROM baton_acquire_1($1::bytea, $2::text, $3::text, $4::text, $5::bigint, $6::bigint, $7::bigint, $8::boolean, $9::boolean, $10::bigint)`
	releaseSQL   = `SELECT state, granted FROM baton_release_1($1::bytea, $2::text, $3::bigint)`
	downgradeSQL = `SELECT state, token, granted FROM baton_downgrade_1($1::bytea, $2::text, $3::bigint, $4::bigint)`
	breakSQL     = `SELECT holders, broken, granted FROM baton_break_1($1::bytea)`
)

// What the functions answer.
const (
	isLost = iota
	isHeld
	isWaiting
	isRefused
	isOtherwise // held with another capacity
)

// Acquire implements driver.Locks, in one round trip, contended or not.
func (s *Store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := driver.CheckRequest(r, traits); err != nil {
		return driver.Grant{}, err
	}
	s.sweep.used()
	var state int
	var token, again, age, remaining, others int64
	var granted, owner string
	err := s.row(ctx, acquireSQL, []any{
		[]byte(r.Key), r.ID, r.Owner, s.hints.node, r.Weight, r.Capacity, r.TTL.Microseconds(), r.Queue, r.Retry, r.Ticket,
	}, &state, &token, &again, &granted, &owner, &age, &remaining, &others)
	if err != nil {
		return driver.Grant{}, err
	}
	if granted != "" {
		s.hints.tell(r.Key, granted, r.ID)
	}
	switch state {
	case isHeld:
		return driver.Grant{Token: token, Ticket: token, TTL: r.TTL}, nil
	case isWaiting:
		s.hints.watchers.Waits(r.Key, r.ID, token)
		return driver.Grant{Waiting: true, Ticket: token, TTL: driver.WaiterTTL, Again: micros(again)}, nil
	case isOtherwise:
		return driver.Grant{}, &driver.CapacityError{Key: r.Key, InUse: others, Asked: r.Capacity}
	}
	return driver.Grant{}, &driver.HeldError{
		Key: r.Key, Owner: owner, Age: max(0, micros(age)), Remaining: max(0, micros(remaining)), Waiting: int(others),
	}
}

// Release implements driver.Locks, in one round trip. If somebody waits, the
// next are granted in the same commit.
func (s *Store) Release(ctx context.Context, c driver.Claim) error {
	if err := driver.CheckClaim(c); err != nil {
		return err
	}
	var state int
	var granted string
	if err := s.row(ctx, releaseSQL, []any{[]byte(c.Key), c.ID, c.Ticket}, &state, &granted); err != nil {
		return err
	}
	if granted != "" {
		s.hints.tell(c.Key, granted, "")
	}
	if state == isLost {
		return driver.ErrLost
	}
	return nil
}

// Downgrade implements driver.Downgrader.
func (s *Store) Downgrade(ctx context.Context, c driver.Claim, ttl time.Duration) (driver.Grant, error) {
	if err := driver.CheckClaim(c); err != nil {
		return driver.Grant{}, err
	}
	if err := driver.CheckTTL(c.Key, ttl, traits); err != nil {
		return driver.Grant{}, err
	}
	var state int
	var token int64
	var granted string
	err := s.row(ctx, downgradeSQL, []any{[]byte(c.Key), c.ID, c.Ticket, ttl.Microseconds()}, &state, &token, &granted)
	if err != nil {
		return driver.Grant{}, err
	}
	if granted != "" {
		s.hints.tell(c.Key, granted, "")
	}
	if state == isLost {
		return driver.Grant{}, driver.ErrLost
	}
	return driver.Grant{Token: token, Ticket: token, TTL: ttl}, nil
}

// Break implements driver.Inspector. A transaction that depends on a lease by
// InTx comes to its end first: until then nobody is granted.
func (s *Store) Break(ctx context.Context, key string) (holders int, err error) {
	if err := driver.CheckKey(key); err != nil {
		return 0, err
	}
	var broken, granted string
	if err := s.row(ctx, breakSQL, []any{[]byte(key)}, &holders, &broken, &granted); err != nil {
		return 0, err
	}
	for _, f := range fields(broken) {
		s.hints.send(f[0], key, f[1], driver.Hint{})
	}
	if granted != "" {
		s.hints.tell(key, granted, "")
	}
	return holders, nil
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// grantOf is the hint to a waiter that was granted.
func grantOf(token, ttl int64) driver.Hint {
	return sqlstore.Granted{Token: token, TTL: micros(sqlstore.ClaimTime(ttl))}.Hint()
}

func number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64) // 0 if it is none
	return n
}
