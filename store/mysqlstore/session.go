package mysqlstore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"strconv"
	"strings"
	"time"
)

// A statement is text without parameters: its keys and IDs are hexadecimal literals,
// which mean the same in every session.
type statement struct {
	text string
	read func(*sql.Rows) error // called for each row
}

func exec(text string) statement { return statement{text: text} }

// A session is a connection during a transaction.
type session struct {
	conn  *sql.Conn
	multi bool // several statements in one round trip
	open  bool // there may be a transaction
	left  bool // the program has left one open
	stall string
}

// rollbackWithin bounds the clean-up after a failure.
const rollbackWithin = time.Second

// session takes a connection. The error of its context comes before any effect.
func (s *Store) session(ctx context.Context) (*session, error) { return s.sessionOf(ctx, s.slow) }

func (s *Store) sessionOf(ctx context.Context, pool *sql.DB) (*session, error) {
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &session{conn: conn, multi: s.multi, stall: strconv.Itoa(s.opts.stall)}, nil
}

// beginning are the statements that begin a transaction. The isolation is that of the
// next transaction only.
func (c *session) beginning() []statement {
	return []statement{
		exec("SET @baton_wait=@@session.wait_timeout,@baton_rows=@@session.innodb_lock_wait_timeout," +
			"SESSION wait_timeout=" + c.stall + ",SESSION innodb_lock_wait_timeout=" + c.stall),
		exec("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"),
		exec("START TRANSACTION"),
	}
}

// With any completion_type, they begin no other transaction and leave the connection
// open.
const (
	toCommit   = "COMMIT AND NO CHAIN NO RELEASE"
	toRollBack = "ROLLBACK AND NO CHAIN NO RELEASE"
)

// restore restores the variables of the session.
const restore = "SET SESSION wait_timeout=@baton_wait,SESSION innodb_lock_wait_timeout=@baton_rows"

// run runs the statements until one fails, in one round trip if it can.
func (c *session) run(ctx context.Context, all ...statement) error {
	err := c.runAll(ctx, all)
	c.left = c.left || number(err) == erInTransaction
	return err
}

func (c *session) runAll(ctx context.Context, all []statement) error {
	c.open = true
	if !c.multi {
		for _, st := range all {
			if err := c.one(ctx, st); err != nil {
				return err
			}
		}
		return nil
	}
	texts := make([]string, len(all))
	for i, st := range all {
		texts[i] = st.text
	}
	rows, err := c.conn.QueryContext(ctx, strings.Join(texts, ";"))
	if err != nil {
		return err
	}
	defer rows.Close()
	first := true
	for _, st := range all {
		if st.read == nil {
			continue
		}
		if !first && !rows.NextResultSet() {
			return errors.Join(rows.Err(), errFewer)
		}
		first = false
		for rows.Next() {
			if err := st.read(rows); err != nil {
				return err
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
	}
	for rows.NextResultSet() { // those without rows
	}
	return rows.Err()
}

var errFewer = errors.New("the server answered fewer statements than were sent")

func (c *session) one(ctx context.Context, st statement) error {
	if st.read == nil {
		_, err := c.conn.ExecContext(ctx, st.text)
		return err
	}
	rows, err := c.conn.QueryContext(ctx, st.text)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := st.read(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// commit runs the rest of the transaction and commits it, in one round trip if it can.
// unsure says that it may have been committed in spite of the error.
func (c *session) commit(ctx context.Context, all ...statement) (unsure bool, err error) {
	committing := false
	if c.multi {
		// This row arrives after all earlier results, so an error after it is that of the
		// commit.
		all = append(all, statement{"SELECT 1", func(*sql.Rows) error {
			committing = true
			return nil
		}})
	} else {
		if err := c.run(ctx, all...); err != nil {
			return false, err
		}
		committing, all = true, nil
	}
	if err := c.run(ctx, append(all, exec(toCommit), exec(restore))...); err != nil {
		return mayBeDone(committing, err), err
	}
	c.done()
	return false, nil
}

// mayBeDone reports whether a request that ends with a commit, and failed with err, may
// have had an effect: it had reached the commit; or all was sent at once, and the error
// is not the server's.
func mayBeDone(committing bool, err error) bool {
	return committing || number(err) == 0 && !errors.Is(err, sqldriver.ErrBadConn)
}

// done notes that the transaction has ended and the session is as before.
func (c *session) done() { c.open = false }

// close returns the connection to the pool, and undoes a transaction that may be open. It
// closes the connection if that fails, or if the program has left a transaction open:
// that can no longer commit, and later users would rely on changes within it.
func (c *session) close() {
	if c.left {
		c.drop()
	} else if c.open {
		ctx, cancel := context.WithTimeout(context.Background(), rollbackWithin)
		err := c.run(ctx, exec(toRollBack), exec(restore))
		cancel()
		if err != nil {
			c.drop()
		}
	}
	c.conn.Close()
}

func (c *session) drop() { _ = c.conn.Raw(func(any) error { return sqldriver.ErrBadConn }) }
