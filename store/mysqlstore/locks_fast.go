package mysqlstore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/sqlstore"
)

// The fast path: one statement that changes one row, in a commit of its own, for keys
// without waiters and shared holders. The row has all that it needs. SET is evaluated
// from left to right, or, in one mode of MariaDB, all at once: no item reads a column
// that an item to its left writes.
const (
	// The answer's last insert ID is the token. Parameters: id, owner, TTL in
	// microseconds, key.
	fastAcquire = `UPDATE baton_lock SET
		token=LAST_INSERT_ID(GREATEST(last+1,` + micros + `)),
		last=GREATEST(last+1,` + micros + `),
		since=UTC_TIMESTAMP(6),
		id=?,owner=?,weight=1<<40,ends=UTC_TIMESTAMP(6)+INTERVAL ? MICROSECOND
		WHERE k=? AND busy=0 AND ends<=UTC_TIMESTAMP(6) AND ` + onward

	// For a repeated attempt: a holder that has not expired keeps its token, although the
	// counter rises, and its owner, which Rename may have changed. Parameters: id, id,
	// id, owner, id, TTL, key, id.
	fastRepeat = `UPDATE baton_lock SET
		token=LAST_INSERT_ID(IF(id=? AND ends>UTC_TIMESTAMP(6),token,GREATEST(last+1,` + micros + `))),
		last=GREATEST(last+1,` + micros + `),
		since=IF(id=? AND ends>UTC_TIMESTAMP(6),since,UTC_TIMESTAMP(6)),
		owner=IF(id=? AND ends>UTC_TIMESTAMP(6),owner,?),
		id=?,weight=1<<40,ends=UTC_TIMESTAMP(6)+INTERVAL ? MICROSECOND
		WHERE k=? AND busy=0 AND (id=? OR ends<=UTC_TIMESTAMP(6) AND ` + onward + `)`

	// For a new key. Parameters: key, id, owner, TTL.
	fastInsert = `INSERT IGNORE INTO baton_lock (k,last,busy,token,weight,id,owner,since,ends) VALUES
		(?,` + micros + `,0,LAST_INSERT_ID(` + micros + `),1<<40,?,?,UTC_TIMESTAMP(6),UTC_TIMESTAMP(6)+INTERVAL ? MICROSECOND)`

	// The same with a condition, which VALUES cannot have; it takes a third more of the
	// server's time.
	fastInsertIf = `INSERT IGNORE INTO baton_lock (k,last,busy,token,weight,id,owner,since,ends)
		SELECT ?,` + micros + `,0,LAST_INSERT_ID(` + micros + `),1<<40,?,?,UTC_TIMESTAMP(6),UTC_TIMESTAMP(6)+INTERVAL ? MICROSECOND FROM DUAL WHERE 1=1`

	// This end means that there is no holder, at any time of the clock. The texts stay: a
	// row that keeps its size is changed in place. Parameters: key, id.
	fastRelease = `UPDATE baton_lock SET ends=TIMESTAMP'1970-01-01 00:00:00'
		WHERE k=? AND id=? AND busy=0 AND ends>UTC_TIMESTAMP(6)`
)

// The indexes of the statements above.
const (
	toAcquire = iota
	toRepeat
	toInsert
	toRelease
)

var fastTexts = [...]string{fastAcquire, fastRepeat, fastInsert, fastRelease}

// fast are the statements on a pool of the program.
type fast [len(fastTexts)]*sql.Stmt

// prepare adds guard, a condition for any effect, to the statements.
func (f *fast) prepare(ctx context.Context, db *sql.DB, guard string) (err error) {
	for i, text := range fastTexts {
		if i == toInsert {
			text = fastInsertIf
		}
		if f[i], err = db.PrepareContext(ctx, text+" AND "+guard); err != nil {
			f.close()
			return err
		}
	}
	return nil
}

func (f *fast) close() {
	for _, st := range f {
		if st != nil {
			st.Close()
		}
	}
}

// fastAcquire grants the exclusive lock if its row allows it. Otherwise ok is false, and
// nothing was changed.
func (s *Store) fastAcquire(ctx context.Context, r driver.Request) (g driver.Grant, ok bool, err error) {
	ttl := r.TTL.Microseconds()
	st, args := toAcquire, []any{r.ID, r.Owner, ttl, r.Key}
	if r.Retry || r.Ticket != 0 {
		st, args = toRepeat, []any{r.ID, r.ID, r.ID, r.Owner, r.ID, ttl, r.Key, r.ID}
	}
	res, err := s.once(ctx, st, args...)
	if err == nil && !changed(res) {
		res, err = s.once(ctx, toInsert, r.Key, r.ID, r.Owner, ttl)
		if err == nil && changed(res) {
			s.inserted.Add(1)
		}
	}
	if err != nil || !changed(res) {
		return g, false, err
	}
	token, err := res.LastInsertId()
	return driver.Grant{Token: token, Ticket: token, TTL: r.TTL}, true, err
}

func (s *Store) fastRelease(ctx context.Context, c driver.Claim) (ok bool, err error) {
	res, err := s.once(ctx, toRelease, c.Key, c.ID)
	return err == nil && changed(res), err
}

// once executes a statement of the fast path, again if the server undid it, or was not
// reached.
func (s *Store) once(ctx context.Context, st int, args ...any) (sql.Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	do := func() (sql.Result, bool, error) { return execOn(ctx, s.single, st, args) }
	if !s.own {
		later, stop := sqlstore.Outlive(ctx, sqlstore.Grace)
		defer stop()
		do = func() (sql.Result, bool, error) {
			res, err := s.fast[st].ExecContext(later, args...)
			return res, true, err
		}
	}
	for try := 1; ; try++ {
		res, sent, err := do()
		switch {
		case err == nil:
			return res, nil
		case !sent && ctx.Err() != nil: // no connection was free until then
			return nil, ctx.Err()
		}
		if again := undone(err) || errors.Is(err, sqldriver.ErrBadConn); !again || try == maxTries {
			return nil, s.failed(ctx, err)
		}
	}
}

// failed makes the error of a single statement.
func (s *Store) failed(ctx context.Context, err error) error {
	if s.isClosed() {
		return driver.ErrClosed
	}
	if ctx.Err() != nil {
		return joinUnknown(ctx)
	}
	return s.failure(err, uncertain(err))
}

func changed(res sql.Result) bool {
	n, err := res.RowsAffected()
	return err == nil && n > 0
}
