package pgstore

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/sqlstore"
)

const (
	renewSQL = `SELECT numbers, states, tokens FROM baton_renew_1($1::bytea[], $2::text[], $3::bigint[], $4::bigint)`
	existSQL = `SELECT u.i FROM unnest($1::bytea[], $2::text[]) WITH ORDINALITY AS u (k, id, i)
		WHERE EXISTS (SELECT FROM baton_lock l WHERE l.k = u.k AND l.id = u.id)
		OR EXISTS (SELECT FROM baton_claim c WHERE c.k = u.k AND c.id = u.id)`
	findSQL = `SELECT state, token FROM baton_find_1($1::bytea, $2::text, $3::bigint, $4::bigint)`
	lookSQL = `SELECT states, agains, granted_keys, granted FROM baton_look_1($1::bytea[], $2::bigint[], $3::bigint)`
)

// Renew implements driver.Locks. One statement renews all held claims in one round trip,
// on connections for renewals only. Waiting claims cost two; the second notices dead
// holders. A claim that another transaction was just writing costs one of its own.
func (s *Store) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	return s.hints.watchers.Renew(ctx, claims, ttl, s.renewal, s.confirm)
}

// renewWith returns the send function of a sqlstore.Renewals.
func (s *Store) renewWith(pool *pgxpool.Pool) func(context.Context, []driver.Claim, time.Duration) []driver.Renewal {
	return func(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
		b := sqlstore.NewBatch(claims, ttl, traits)
		if b.Legal() {
			if err := s.renew(ctx, pool, b, ttl); err != nil {
				return b.Failed(driver.Renewal{Err: err})
			}
		}
		return b.Done()
	}
}

func (s *Store) renew(ctx context.Context, pool *pgxpool.Pool, b *sqlstore.Batch, ttl time.Duration) error {
	us := ttl.Microseconds()
	var waiting []sqlstore.Position
	answer := func(p sqlstore.Position, state int, token int64) {
		switch state {
		case isHeld:
			b.Held(p.ID, p.Key, token)
		case isWaiting:
			p.Seq = token
			b.Waiting(p.ID, p.Key, driver.Grant{Waiting: true, Ticket: token, TTL: driver.WaiterTTL})
			waiting = append(waiting, p)
		}
	}

	left := b.Left()
	var numbers, states []int32
	var tokens []int64
	keys, ids, seqs := columns(left)
	if err := s.askOf(ctx, pool, renewSQL, []any{keys, ids, seqs, us}, oneRow(&numbers, &states, &tokens)); err != nil {
		return err
	}
	for n, i := range numbers {
		answer(left[i-1], int(states[n]), tokens[n])
	}

	if left = b.Left(); len(left) > 0 {
		// They are lost, or were locked for a moment, or have another ticket.
		keys, ids, _ := columns(left)
		var there []int64
		err := s.askOf(ctx, pool, existSQL, []any{keys, ids}, func(rows pgx.Rows) (err error) {
			there, err = pgx.CollectRows(rows, pgx.RowTo[int64])
			return err
		})
		if err != nil {
			return err
		}
		for _, i := range there {
			p := left[i-1]
			var state int
			var token int64
			if err := s.askOf(ctx, pool, findSQL, []any{[]byte(p.Key), p.ID, p.Seq, us}, oneRow(&state, &token)); err != nil {
				b.Unknown(p.ID, p.Key, err)
				continue
			}
			answer(p, state, token)
		}
	}
	if len(waiting) > 0 {
		return s.look(ctx, b, waiting, us)
	}
	return nil
}

// look grants waiters of contended keys, and updates the answers about the positions,
// which the batch has just renewed.
func (s *Store) look(ctx context.Context, b *sqlstore.Batch, waiting []sqlstore.Position, us int64) error {
	slices.SortFunc(waiting, func(a, b sqlstore.Position) int { return strings.Compare(a.Key, b.Key) })
	keys, _, seqs := columns(waiting)
	var states []int32
	var agains []int64
	var grantedKeys [][]byte
	var granted []string
	if err := s.row(ctx, lookSQL, []any{keys, seqs, us}, &states, &agains, &grantedKeys, &granted); err != nil {
		return nil // they are renewed; the next look may succeed
	}
	for i, p := range waiting {
		if states[i] == isHeld {
			b.Held(p.ID, p.Key, p.Seq)
		} else if agains[i] > 0 {
			b.Waiting(p.ID, p.Key, driver.Grant{Waiting: true, Ticket: p.Seq, TTL: driver.WaiterTTL, Again: micros(agains[i])})
		}
	}
	for i, key := range grantedKeys {
		s.hints.tell(string(key), granted[i], "")
	}
	return nil
}

// warm makes a connection for renewals and prepares their statement, which takes several
// round trips: a grant may need a renewal within a second.
func (s *Store) warm(ctx context.Context) {
	_ = s.askOf(ctx, s.renewing, renewSQL, []any{[][]byte{}, []string{}, []int64{}, int64(0)}, func(rows pgx.Rows) error { return rows.Err() })
}

func columns(positions []sqlstore.Position) (keys [][]byte, ids []string, seqs []int64) {
	keys, ids, seqs = make([][]byte, len(positions)), make([]string, len(positions)), make([]int64, len(positions))
	for i, p := range positions {
		keys[i], ids[i], seqs[i] = []byte(p.Key), p.ID, p.Seq
	}
	return keys, ids, seqs
}
