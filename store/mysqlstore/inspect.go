package mysqlstore

import (
	"context"
	"database/sql"
	"iter"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/sqlstore"
)

// listPage is the number of keys in one read of List.
const listPage = 100

// Inspect implements driver.Inspector.
func (s *Store) Inspect(ctx context.Context, key string) (driver.KeyInfo, error) {
	if err := check.Key(key); err != nil {
		return driver.KeyInfo{}, err
	}
	infos, _, err := s.infos(ctx, "k="+literal(key), 1)
	if err != nil || len(infos) == 0 {
		return driver.KeyInfo{Key: key}, err
	}
	return infos[0], nil
}

// List implements driver.Inspector.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.KeyInfo, error] {
	return sqlstore.List(func(after string) ([]driver.KeyInfo, string, error) {
		where := words("k>=", literal(prefix), " AND k>", literal(after), " AND (busy=1 OR id<>'' AND ends>UTC_TIMESTAMP(6))")
		if end := sqlstore.PrefixEnd(prefix); end != nil {
			where += " AND k<" + literal(string(end))
		}
		return s.infos(ctx, where, listPage)
	})
}

// Break implements driver.Inspector. It wakes watching holders of this process; holders
// of other processes notice at their next renewal.
func (s *Store) Break(ctx context.Context, key string, grants ...string) (ended int, err error) {
	if err := check.Key(key); err != nil {
		return 0, err
	}
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	n := 0
	if err := s.do(ctx, key, false, func(t *tx) (failed error) {
		n, failed = sqlstore.Break(t, key, grants, &t.fx)
		return failed
	}); err != nil {
		return 0, err
	}
	return n, nil
}

// infos reads keys and their claims in one snapshot. last is the last key if there may be
// more.
func (s *Store) infos(ctx context.Context, where string, limit int) (infos []driver.KeyInfo, last string, err error) {
	if err := s.ready(ctx); err != nil {
		return nil, "", err
	}
	for try := 1; try == 1 || undone(err) && try <= maxTries; try++ {
		infos, last, err = s.readInfos(ctx, where, limit)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, "", ctx.Err()
		}
		return nil, "", failure(err, false)
	}
	return infos, last, nil
}

func (s *Store) readInfos(ctx context.Context, where string, limit int) (infos []driver.KeyInfo, last string, err error) {
	ses, err := s.session(ctx)
	if err != nil {
		return nil, "", err
	}
	defer ses.close()

	type row struct {
		key string
		sqlstore.Key
	}
	var rows []row
	var busy list
	var now int64
	first := []statement{
		ses.beginning()[0],
		exec("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"),
		exec("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"),
		{"SELECT " + micros, func(r *sql.Rows) error { return r.Scan(&now) }},
		{
			words("SELECT k,", keyColumns, " FROM baton_lock WHERE ", where, " ORDER BY k LIMIT ", integer(int64(limit))),
			func(r *sql.Rows) error {
				var x row
				k := &x.Key
				if err := r.Scan(append([]any{&x.key}, keyFields(k)...)...); err != nil {
					return err
				}
				if rows = append(rows, x); k.Busy {
					busy.add(literal(x.key))
				}
				return nil
			},
		},
	}
	if err := ses.run(ctx, first...); err != nil {
		return nil, "", err
	}
	claims := make(map[string][]sqlstore.Claim)
	var second []statement
	if busy.text != nil {
		second = append(second, statement{
			words("SELECT k,", claimColumns, " FROM baton_claim WHERE k IN (", busy.String(), ") ORDER BY k,seq"),
			func(r *sql.Rows) error {
				var key string
				var c sqlstore.Claim
				err := r.Scan(append([]any{&key}, claimFields(&c)...)...)
				claims[key] = append(claims[key], c)
				return err
			},
		})
	}
	if err := ses.run(ctx, append(second, exec(toCommit), exec(restore))...); err != nil {
		return nil, "", err
	}
	ses.done()
	for _, x := range rows {
		infos = append(infos, sqlstore.Info(x.key, x.Key, claims[x.key], now))
	}
	if len(rows) == limit {
		last = rows[len(rows)-1].key
	}
	return infos, last, nil
}
