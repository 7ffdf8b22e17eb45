package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/batonhq/baton/driver"
)

// The first statements of baton_acquire_1 and baton_release_1, for keys that no other
// claim is known to want: by themselves they cost the server less. They have no effect if
// the isolation is not READ COMMITTED, and if the functions would have more to do.
const (
	directAcquireSQL = `INSERT INTO baton_lock AS l (k, last, first, busy, id, token, weight, owner, node, since, ends)
		SELECT $1::bytea, seed, seed, false, $2::text, seed, 1099511627776, $3::text, $4::text, now_, now_ + $5::bigint * interval '1 microsecond'
		FROM (SELECT clock_timestamp() AS now_, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS seed) AS q
		WHERE current_setting('transaction_isolation') = 'read committed'
		ON CONFLICT (k) DO UPDATE SET
			last = CASE WHEN l.id = excluded.id THEN l.last ELSE greatest(l.last + 1, excluded.last) END,
			token = CASE WHEN l.id = excluded.id THEN l.token ELSE greatest(l.last + 1, excluded.last) END,
			since = CASE WHEN l.id = excluded.id THEN l.since ELSE clock_timestamp() END,
			owner = CASE WHEN l.id = excluded.id THEN l.owner ELSE excluded.owner END,
			id = excluded.id, weight = excluded.weight, node = excluded.node,
			ends = clock_timestamp() + $5::bigint * interval '1 microsecond'
		WHERE NOT l.busy AND (l.id = '' OR l.id = excluded.id AND l.ends > clock_timestamp())
		RETURNING CASE WHEN current_setting('synchronous_commit') = 'off'
			AND set_config('synchronous_commit', 'on', true) = '' THEN 0 ELSE l.token END`

	// It skips a locked row, such as that of a lease on which a transaction depends.
	directReleaseSQL = `UPDATE baton_lock SET id = '', owner = '', node = '', ends = clock_timestamp()
		WHERE ctid = ANY (ARRAY (SELECT ctid FROM baton_lock WHERE k = $1::bytea AND id = $2::text AND NOT busy
			AND ends > clock_timestamp() AND current_setting('transaction_isolation') = 'read committed' FOR UPDATE SKIP LOCKED))
		AND set_config('synchronous_commit', 'off', true) = 'off'
		RETURNING true`
)

// acquireDirectly grants a new exclusive claim, if no other claim is in its way.
// Otherwise the token is 0, and nothing was changed.
func (s *Store) acquireDirectly(ctx context.Context, r driver.Request) (token int64, err error) {
	if !s.mayAskDirectly(r.Key) {
		return 0, nil
	}
	args := []any{[]byte(r.Key), r.ID, r.Owner, s.hints.node, r.TTL.Microseconds()}
	return token, s.ask(ctx, directAcquireSQL, args, rowOrNone(&token))
}

// releaseDirectly ends a held claim, if it has no waiters. Otherwise done is false.
func (s *Store) releaseDirectly(ctx context.Context, c driver.Claim) (done bool, err error) {
	if !s.mayAskDirectly(c.Key) {
		return false, nil
	}
	return done, s.ask(ctx, directReleaseSQL, []any{[]byte(c.Key), c.ID}, rowOrNone(&done))
}

func (s *Store) mayAskDirectly(key string) bool {
	return s.direct && !s.wrap.Load() && !s.batcher.hot.Has(key)
}

// rowOrNone reads at most one row.
func rowOrNone(dest any) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		if !rows.Next() {
			return rows.Err()
		}
		return rows.Scan(dest)
	}
}
