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

// A statement is text without parameters: keys and IDs are in it as
// hexadecimal literals, which no setting of a session reads differently.
type statement struct {
	text string
	read func(*sql.Rows) error // of a statement with rows, called for each
}

func exec(text string) statement { return statement{text: text} }

// A session is one connection while a transaction lasts.
type session struct {
	conn  *sql.Conn
	multi bool // several statements in one round trip
	open  bool // there may be a transaction
	left  bool // the program has left one open
	stall string
}

// rollbackWithin bounds the clean-up after a failure.
const rollbackWithin = time.Second

// session takes a connection. Its context's error has no effect.
func (s *Store) session(ctx context.Context) (*session, error) { return s.sessionOf(ctx, s.slow) }

func (s *Store) sessionOf(ctx context.Context, pool *sql.DB) (*session, error) {
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &session{conn: conn, multi: s.multi, stall: strconv.Itoa(s.opts.stall)}, nil
}

// beginning are the statements that begin a transaction. The isolation is
// that of the next transaction only, whatever the session's is.
func (c *session) beginning() []statement {
	return []statement{
		exec("SET @baton_wait=@@session.wait_timeout,@baton_rows=@@session.innodb_lock_wait_timeout," +
			"SESSION wait_timeout=" + c.stall + ",SESSION innodb_lock_wait_timeout=" + c.stall),
		exec("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"),
		exec("START TRANSACTION"),
	}
}

// Whatever completion_type says, they begin no other transaction and leave the
// connection open.
const (
	toCommit   = "COMMIT AND NO CHAIN NO RELEASE"
	toRollBack = "ROLLBACK AND NO CHAIN NO RELEASE"
)

// restore gives the session back as it was found.
const restore = "SET SESSION wait_timeout=@baton_wait,SESSION innodb_lock_wait_timeout=@baton_rows"

// run runs the statements, in one round trip if it can. The first that fails
// is the last that runs.
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
	for rows.NextResultSet() { // those that have no rows
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

// commit runs what is left of the transaction and commits it, in one round trip
// if it can. unsure says that it may have been committed in spite of the error.
func (c *session) commit(ctx context.Context, all ...statement) (unsure bool, err error) {
	committing := false
	if c.multi {
		// When this row arrives all before it was done, and an error is that of the
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

// mayBeDone reports whether a request that ends with a commit, and failed with
// err, may have been done all the same: it had come to the commit, or all was
// sent at once, and then an error that is not the server's says nothing.
func mayBeDone(committing bool, err error) bool {
	return committing || number(err) == 0 && !errors.Is(err, sqldriver.ErrBadConn)
}

// done says that the transaction has ended and the session is as it was.
func (c *session) done() { c.open = false }

// close returns the connection to the pool, and undoes a transaction that may be open.
// It closes a connection on which that is not certain, and one on which the program has
// left a transaction open: no code can commit that any more, and later users would take
// what they do on it for done.
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

// drop makes the pool close the connection.
func (c *session) drop() { _ = c.conn.Raw(func(any) error { return sqldriver.ErrBadConn }) }
