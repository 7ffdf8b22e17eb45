package pgstore

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

const togetherSQL = `SELECT refused, answers FROM baton_together_1($1::bytea[], $2::text[], $3::text[], $4::text, $5::bigint[], $6::bigint[], $7::bigint[], $8::boolean[], $9::bigint[])`

// AcquireAll implements driver.Together, for locks of any kind, by one statement in one
// transaction, and so one round trip and one commit.
func (s *Store) AcquireAll(ctx context.Context, r []driver.Request) ([]driver.Grant, error) {
	if err := check.Together(r, traits); err != nil {
		return nil, err
	}
	s.sweep.used(r[0].Key)
	// The server locks the rows in the order of the keys, in every request.
	order := make([]int, len(r))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return strings.Compare(r[i].Key, r[j].Key) })
	n := len(r)
	keys, ids, owners := make([][]byte, n), make([]string, n), make([]string, n)
	weights, capacities, ttls := make([]int64, n), make([]int64, n), make([]int64, n)
	retries, tickets := make([]bool, n), make([]int64, n)
	for at, i := range order {
		q := r[i]
		keys[at], ids[at], owners[at] = []byte(q.Key), q.ID, q.Owner
		weights[at], capacities[at], ttls[at] = q.Weight, q.Capacity, q.TTL.Microseconds()
		retries[at], tickets[at] = q.Retry, q.Ticket
	}
	var refused int
	var answers []string
	args := []any{keys, ids, owners, s.hints.node, weights, capacities, ttls, retries, tickets}
	if err := s.row(ctx, togetherSQL, args, &refused, &answers); err != nil {
		if errors.Is(err, driver.ErrUnknown) {
			for _, q := range r {
				s.left.Leave(q.ID)
			}
		}
		return nil, err
	}
	if refused > 0 {
		for at, text := range answers[min(n, len(answers)):] {
			if text != "" {
				_ = s.released(r[order[at]].Claim, text) // ErrLost is the expected result
			}
		}
		q := r[order[refused-1]]
		s.batcher.hot.Set(q.Key, true)
		return nil, readAnswer(answers[refused-1]).refusal(q)
	}
	grants := make([]driver.Grant, n)
	for at, i := range order {
		q, a := r[i], readAnswer(answers[at])
		s.batcher.hot.Set(q.Key, strings.Contains(answers[at], "\n"))
		if a.granted != "" {
			s.hints.tell(q.Key, a.granted, q.ID)
		}
		grants[i] = driver.Grant{Token: a.token, Ticket: a.token, TTL: q.TTL}
	}
	return grants, nil
}
