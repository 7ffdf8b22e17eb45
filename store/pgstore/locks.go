package pgstore

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/sqlstore"
)

const (
	acquireSQL = `SELECT baton_acquire_1($1::bytea, $2::text, $3::text, $4::text, $5::bigint, $6::bigint, $7::bigint, $8::boolean, $9::boolean, $10::bigint)`

	// boundedSQL asks for a position only if fewer than MaxWaiting wait: the first call
	// has locked the key's row, so no other request comes in between. An answer with a
	// token is about an existing position of the claim. Grants of the first call are
	// durable, whatever the second one returns.
	boundedSQL = `SELECT first, more, coalesce(CASE WHEN split_part(first, E'\n', 3) <> '' THEN set_config('synchronous_commit', 'on', true) END, '')
		FROM (SELECT first, CASE WHEN first LIKE '3 %' AND (first NOT LIKE '3 0 %' OR split_part(split_part(first, E'\n', 1), ' ', 6)::bigint < $8::bigint)
			THEN baton_acquire_1($1::bytea, $2::text, $3::text, $4::text, $5::bigint, $6::bigint, $7::bigint, true, $9::boolean, $10::bigint) ELSE '' END AS more
			FROM (SELECT baton_acquire_1($1::bytea, $2::text, $3::text, $4::text, $5::bigint, $6::bigint, $7::bigint, false, $9::boolean, $10::bigint) AS first
				OFFSET 0) AS a OFFSET 0) AS b`

	releaseSQL   = `SELECT baton_release_1($1::bytea, $2::text, $3::bigint)`
	downgradeSQL = `SELECT state, token, granted FROM baton_downgrade_1($1::bytea, $2::text, $3::bigint, $4::bigint)`
	moveSQL      = `SELECT state, token FROM baton_move_1($1::bytea, $2::text, $3::bigint, $4::text, $5::text, $6::text, $7::bigint)`
	renameSQL    = `SELECT baton_rename_1($1::bytea, $2::text, $3::bigint, $4::text)`
	breakSQL     = `SELECT ended, broken, granted FROM baton_break_1($1::bytea, $2::text[])`
)

// Answers of the functions.
const (
	isLost = iota
	isHeld
	isWaiting
	isRefused
	isOtherwise // held with another capacity
)

// Acquire implements driver.Locks, in one round trip; in two if only the first answer
// shows that other claims want the key, too.
func (s *Store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := check.Request(r, traits); err != nil {
		return driver.Grant{}, err
	}
	s.sweep.used(r.Key)
	g, err := s.acquire(ctx, r)
	if errors.Is(err, driver.ErrUnknown) {
		s.left.Leave(r.ID)
	}
	return g, err
}

func (s *Store) acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	var text, before string // of the last call and, after two calls, of the first
	bounded := r.Queue && r.MaxWaiting > 0
	alone := func() error {
		args := []any{[]byte(r.Key), r.ID, r.Owner, s.hints.node, r.Weight, r.Capacity, r.TTL.Microseconds(), r.Queue, r.Retry, r.Ticket}
		if !bounded {
			return s.row(ctx, acquireSQL, args, &text)
		}
		args[7] = r.MaxWaiting
		err := s.row(ctx, boundedSQL, args, &before, &text, new(string))
		if text == "" {
			text, before = before, ""
		}
		return err
	}
	var err error
	if r.Exclusive() && !r.Retry && r.Ticket == 0 {
		o := &operation{claim: r.Claim, ttl: r.TTL, queue: r.Queue && !bounded}
		o.alone = func() error {
			token, err := s.acquireDirectly(ctx, r)
			if err != nil || token > 0 {
				o.grant = driver.Grant{Token: token, Ticket: token, TTL: r.TTL}
				return err
			}
			return alone()
		}
		err = s.batcher.do(ctx, o)
		if err == nil && text == "" {
			if o.grant.Waiting {
				s.hints.watchers.Waits(r.Key, r.ID, o.grant.Ticket)
			}
			return o.grant, nil
		}
	} else {
		err = alone()
	}
	if err != nil {
		return driver.Grant{}, err
	}
	s.batcher.hot.Set(r.Key, strings.Contains(text, "\n")) // there is another claim
	a := readAnswer(text)
	if granted := readAnswer(before).granted + a.granted; granted != "" {
		s.hints.tell(r.Key, granted, r.ID)
	}
	switch a.state {
	case isHeld:
		return driver.Grant{Token: a.token, Ticket: a.token, TTL: r.TTL}, nil
	case isWaiting:
		s.hints.watchers.Waits(r.Key, r.ID, a.token)
		return driver.Grant{Waiting: true, Ticket: a.token, TTL: driver.WaiterTTL, Again: a.again}, nil
	}
	return driver.Grant{}, a.refusal(r)
}

func (a answer) refusal(r driver.Request) error {
	if a.state == isOtherwise {
		return &driver.CapacityError{Key: r.Key, InUse: a.others, Asked: r.Capacity}
	}
	if r.Queue {
		return &driver.QueueFullError{Key: r.Key, Waiting: int(a.others)}
	}
	return &driver.HeldError{
		Key: r.Key, Owner: a.owner, Age: max(0, a.age), Remaining: max(0, a.remaining), Waiting: int(a.others),
	}
}

// answer is the answer of baton_acquire_1.
type answer struct {
	state, token          int64
	again, age, remaining time.Duration
	others                int64
	owner, granted        string
}

func readAnswer(text string) (a answer) {
	numbers, lines, _ := strings.Cut(text, "\n")
	a.owner, a.granted, _ = strings.Cut(lines, "\n")
	var n [6]int64
	for i, f := range strings.Fields(numbers) {
		n[i%len(n)] = number(f)
	}
	a.state, a.token, a.others = n[0], n[1], n[5]
	a.again, a.age, a.remaining = micros(n[2]), micros(n[3]), micros(n[4])
	return a
}

// Release implements driver.Locks, in one round trip, or two like Acquire. It grants the
// next waiters in the same commit.
func (s *Store) Release(ctx context.Context, c driver.Claim) error {
	if err := check.Claim(c); err != nil {
		return err
	}
	var text string
	err := s.batcher.do(ctx, &operation{claim: c, alone: func() error {
		if done, err := s.releaseDirectly(ctx, c); err != nil || done {
			return err
		}
		return s.row(ctx, releaseSQL, []any{[]byte(c.Key), c.ID, c.Ticket}, &text)
	}})
	if err == nil && text != "" {
		err = s.released(c, text)
	}
	s.left.Released(c)
	return err
}

// releaseAgain is Release when an attempt of the claim may have come later.
func (s *Store) releaseAgain(ctx context.Context, c driver.Claim) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var text string
	if err := s.askAnyway(ctx, s.pool, releaseSQL, []any{[]byte(c.Key), c.ID, c.Ticket}, oneRow(&text)); err != nil {
		return err
	}
	return s.released(c, text)
}

// released parses the answer of baton_release_1.
func (s *Store) released(c driver.Claim, text string) error {
	state, granted, contended := strings.Cut(text, "\n")
	s.batcher.hot.Set(c.Key, contended)
	if granted != "" {
		s.hints.tell(c.Key, granted, "")
	}
	if number(state) == isLost {
		return driver.ErrLost
	}
	return nil
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// grantOf is the hint about a grant from the queue.
func grantOf(token, ttl int64) driver.Hint {
	return sqlstore.Granted{Token: token, TTL: micros(sqlstore.ClaimTime(ttl))}.Hint()
}

func number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64) // 0 if it is no number
	return n
}
