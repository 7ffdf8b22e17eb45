package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"iter"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/sqlstore"
)

// listPage is the number of keys in one read of List. A longer read transaction would
// keep the log from being cut while its caller is slow.
const listPage = 64

const (
	// ?1 the prefix, ?2 after which key, ?3 the end of the prefix, ?4 how many.
	listSQL = `SELECT k, ` + keyColumns + ` FROM baton_lock
		WHERE k >= ?1 AND k > ?2 AND (?3 IS NULL OR k < ?3) ORDER BY k LIMIT ?4`

	// ?1 the rows as JSON.
	grantedSQL = `SELECT c.k, c.id, c.seq, c.ttl FROM json_each(?1) AS j CROSS JOIN baton_claim AS c
		WHERE c.k = CAST(j.value ->> 2 AS BLOB) AND c.seq = j.value ->> 1 AND c.id = j.value ->> 0 AND c.held`
)

// Inspect implements driver.Inspector.
func (s *Store) Inspect(ctx context.Context, key string) (driver.KeyInfo, error) {
	if err := check.Key(key); err != nil {
		return driver.KeyInfo{}, err
	}
	info := driver.KeyInfo{Key: key}
	err := s.read(ctx, func(tx *sql.Tx) error {
		var k sqlstore.Key
		err := scanKey(tx.QueryRowContext(ctx, statements[stLockKey], []byte(key)), &k)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err == nil {
			info, err = s.info(ctx, tx, key, k)
		}
		return err
	})
	return info, err
}

// List implements driver.Inspector.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.KeyInfo, error] {
	return sqlstore.List(func(after string) (infos []driver.KeyInfo, last string, err error) {
		err = s.read(ctx, func(tx *sql.Tx) error {
			infos, last = nil, ""
			type row struct {
				key string
				sqlstore.Key
			}
			var page []row
			rows, err := tx.QueryContext(ctx, listSQL, []byte(prefix), []byte(after), sqlstore.PrefixEnd(prefix), listPage)
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				var r row
				var key []byte
				if err := rows.Scan(&key, &r.Last, &r.Busy, &r.ID, &r.Token, &r.Weight, &r.Owner, &r.Node, &r.Since, &r.Ends); err != nil {
					return err
				}
				r.key = string(key)
				page = append(page, r)
			}
			if err := rows.Err(); err != nil {
				return err
			}
			for _, r := range page {
				info, err := s.info(ctx, tx, r.key, r.Key)
				if err != nil {
					return err
				}
				infos = append(infos, info)
			}
			if len(page) == listPage {
				last = page[len(page)-1].key
			}
			return nil
		})
		return infos, last, err
	})
}

// Break implements driver.Inspector. It wakes the holders that watch.
func (s *Store) Break(ctx context.Context, key string, grants ...string) (ended int, err error) {
	if err := check.Key(key); err != nil {
		return 0, err
	}
	n := 0
	if err := s.do(ctx, func(t *tx) (failed error) {
		n, failed = sqlstore.Break(t, key, grants, &t.fx)
		return failed
	}); err != nil {
		return 0, err
	}
	return n, nil
}

// info reads the claims of a key whose row is k.
func (s *Store) info(ctx context.Context, tx *sql.Tx, key string, k sqlstore.Key) (driver.KeyInfo, error) {
	var claims []sqlstore.Claim
	if k.Busy {
		rows, err := tx.QueryContext(ctx, statements[stClaims], []byte(key), 0, -1)
		if err != nil {
			return driver.KeyInfo{}, err
		}
		defer rows.Close()
		for rows.Next() {
			var c sqlstore.Claim
			if err := scanClaim(rows, &c); err != nil {
				return driver.KeyInfo{}, err
			}
			claims = append(claims, c)
		}
		if err := rows.Err(); err != nil {
			return driver.KeyInfo{}, err
		}
	}
	return sqlstore.Info(key, k, claims, s.opts.clock()), nil
}

// read runs f on one snapshot of the database, concurrently with the writer.
func (s *Store) read(ctx context.Context, f func(*sql.Tx) error) error {
	s.mu.Lock()
	closed, broken := s.closed, s.broken
	s.mu.Unlock()
	if closed {
		return driver.ErrClosed
	}
	if broken != nil {
		return broken
	}
	tx, err := s.readers.BeginTx(ctx, nil)
	if err == nil {
		err = f(tx)
		tx.Rollback()
	}
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return s.failure(err, driver.ErrUnavailable)
	}
	return nil
}

// granted returns those of the positions that hold the lock now.
func (s *Store) granted(ctx context.Context, conn *sql.Conn, positions []sqlstore.Position) (all []sqlstore.Granted, err error) {
	if len(positions) == 0 {
		return nil, nil
	}
	rows, err := conn.QueryContext(ctx, grantedSQL, sqlstore.JSON(positions))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var key []byte
		var g sqlstore.Granted
		var ttl int64
		if err := rows.Scan(&key, &g.ID, &g.Token, &ttl); err != nil {
			return nil, err
		}
		g.Key, g.TTL = string(key), time.Duration(sqlstore.ClaimTime(ttl))*time.Microsecond
		all = append(all, g)
	}
	return all, rows.Err()
}
