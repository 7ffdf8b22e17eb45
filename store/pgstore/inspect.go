package pgstore

import (
	"context"
	"iter"

	"github.com/jackc/pgx/v5"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/sqlstore"
)

// listPage is the number of keys in one read of List.
const listPage = 100

// infoSQL shows keys in one snapshot of the database. Times are microseconds from now, as
// for sqlstore.Info. OFFSET makes the server look up the claims key by key: a plan that
// joins the tables may read all claims.
const infoSQL = `WITH t AS MATERIALIZED (SELECT clock_timestamp() AS now),
	page AS MATERIALIZED (
		SELECT l.* FROM baton_lock l
		WHERE l.k >= $1::bytea AND l.k > $2::bytea AND l.k < $3::bytea ORDER BY l.k LIMIT $4::int
	)
	SELECT k, 0, id, owner, weight, 1099511627776, true, token,
		(extract(epoch FROM since - now) * 1000000)::bigint, (extract(epoch FROM ends - now) * 1000000)::bigint
	FROM page, t
	UNION ALL
	SELECT c.k, c.seq, c.id, c.owner, c.weight, c.capacity, c.held, c.seq,
		(extract(epoch FROM c.since - now) * 1000000)::bigint, (extract(epoch FROM c.ends - now) * 1000000)::bigint
	FROM t, page, LATERAL (SELECT * FROM baton_claim b WHERE b.k = page.k AND b.seq >= page.first OFFSET 0) AS c
	ORDER BY 1, 2`

// Inspect implements driver.Inspector.
func (s *Store) Inspect(ctx context.Context, key string) (driver.KeyInfo, error) {
	if err := check.Key(key); err != nil {
		return driver.KeyInfo{}, err
	}
	// The key plus a zero byte is the next text in order.
	infos, _, err := s.infos(ctx, []byte(key), []byte{}, []byte(key+"\x00"), 1)
	if err != nil {
		return driver.KeyInfo{}, err
	}
	if len(infos) == 0 {
		return driver.KeyInfo{Key: key}, nil
	}
	return infos[0], nil
}

// List implements driver.Inspector.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.KeyInfo, error] {
	return sqlstore.List(func(after string) (infos []driver.KeyInfo, last string, err error) {
		end := sqlstore.PrefixEnd(prefix)
		if end == nil {
			end = []byte{0xff} // above all UTF-8
		}
		return s.infos(ctx, []byte(prefix), []byte(after), end, listPage)
	})
}

// infos reads a page of keys, from from inclusive, after after, below end. last is the
// last key if there may be more.
func (s *Store) infos(ctx context.Context, from, after, end []byte, limit int) (infos []driver.KeyInfo, last string, err error) {
	err = s.ask(ctx, infoSQL, []any{from, after, end, int32(limit)}, func(rows pgx.Rows) error {
		infos, last = nil, ""
		var key string
		var lock sqlstore.Key
		var claims []sqlstore.Claim
		n := 0
		flush := func() {
			if n > 0 {
				infos = append(infos, sqlstore.Info(key, lock, claims, 0))
			}
			claims = nil
		}
		for rows.Next() {
			var k []byte
			var c sqlstore.Claim
			var token int64
			err := rows.Scan(&k, &c.Seq, &c.ID, &c.Owner, &c.Weight, &c.Capacity, &c.Held, &token, &c.Since, &c.Ends)
			if err != nil {
				return err
			}
			if c.Seq == 0 { // the row of the key comes first
				flush()
				n++
				key = string(k)
				lock = sqlstore.Key{ID: c.ID, Token: token, Weight: c.Weight, Owner: c.Owner, Since: c.Since, Ends: c.Ends}
				continue
			}
			claims = append(claims, c)
		}
		flush()
		if n == limit {
			last = key
		}
		return rows.Err()
	})
	return infos, last, err
}

// Break implements driver.Inspector. It waits for a transaction that depends on a lease
// by InTx.
func (s *Store) Break(ctx context.Context, key string, grants ...string) (ended int, err error) {
	if err := check.Key(key); err != nil {
		return 0, err
	}
	meant := make([]string, len(grants))
	for i, g := range grants {
		meant[i] = driver.Printable(g) // other text may be invalid in PostgreSQL, and is no claim's grant
	}
	var broken, granted string
	if err := s.row(ctx, breakSQL, []any{[]byte(key), meant}, &ended, &broken, &granted); err != nil {
		return 0, err
	}
	for _, f := range fields(broken) {
		s.hints.send(f[0], key, f[1], driver.Hint{})
	}
	if granted != "" {
		s.hints.tell(key, granted, "")
	}
	return ended, nil
}
