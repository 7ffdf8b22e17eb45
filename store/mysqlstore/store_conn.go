package mysqlstore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"net"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/batonhq/baton/internal/settling"
	"github.com/batonhq/baton/internal/sqlstore"
)

// The statements of the fast path use the client library's connections directly; the pool
// only keeps these. With a context that can end, the library would wake a goroutine of
// the connection for every statement, and again at its end.

type connector struct {
	sqldriver.Connector
	moved *settling.Mark
}

// dialed is the key of a context's variable for the connection that was dialed.
type dialed struct{}

func newConnector(m *mysql.Config, moved *settling.Mark) (*connector, error) {
	var d net.Dialer
	m.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := d.DialContext(ctx, network, addr)
		if at, ok := ctx.Value(dialed{}).(*net.Conn); ok && err == nil {
			*at = nc
		}
		return nc, err
	}
	c, err := mysql.NewConnector(m)
	if err != nil {
		return nil, err
	}
	return &connector{c, moved}, nil
}

func (c *connector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	var nc net.Conn
	began := time.Now()
	got, err := c.Connector.Connect(context.WithValue(ctx, dialed{}, &nc))
	if err != nil {
		return nil, err
	}
	return &conn{libraryConn: got.(libraryConn), net: nc, began: began, moved: c.moved}, nil
}

// libraryConn has the methods of a connection of the client library.
type libraryConn interface {
	sqldriver.Conn
	sqldriver.ConnBeginTx
	sqldriver.ConnPrepareContext
	sqldriver.ExecerContext
	sqldriver.QueryerContext
	sqldriver.NamedValueChecker
	sqldriver.Pinger
	sqldriver.SessionResetter
	sqldriver.Validator
}

// conn is such a connection. One goroutine uses it at a time.
type conn struct {
	libraryConn
	net   net.Conn
	fast  [len(fastTexts)]sqldriver.StmtExecContext // prepared at their first use
	spoil bool                                      // it must not be used again
	began time.Time                                 // when it was asked for
	moved *settling.Mark
}

// Close implements driver.Conn. It hides the library's error about a server that has
// gone.
func (c *conn) Close() error {
	_ = c.libraryConn.Close()
	return nil
}

func (c *conn) IsValid() bool {
	return !c.spoil && !c.moved.Since(c.began) && c.libraryConn.IsValid()
}

// ResetSession implements driver.SessionResetter: the pool closes a connection that it
// refuses.
func (c *conn) ResetSession(ctx context.Context) error {
	if !c.IsValid() {
		return sqldriver.ErrBadConn
	}
	return c.libraryConn.ResetSession(ctx)
}

// exec executes a statement of the fast path. If ctx ends, it waits a little longer for
// the answer: see sqlstore.Outlive.
func (c *conn) exec(ctx context.Context, st int, args []sqldriver.NamedValue) (res sqldriver.Result, err error) {
	if c.fast[st] == nil {
		p, err := c.PrepareContext(ctx, fastTexts[st])
		if err != nil {
			return nil, err
		}
		c.fast[st] = p.(sqldriver.StmtExecContext)
	}
	stop := sqlstore.AfterGrace(ctx, sqlstore.Grace, func() { _ = c.net.SetDeadline(time.Unix(1, 0)) }) // it may be closed
	res, err = c.fast[st].ExecContext(context.Background(), args)
	if !stop() {
		c.spoil = true
	}
	return res, err
}

// execOn executes a statement of the fast path on a connection of a connector's pool.
// sent says that the statement may have been sent.
func execOn(ctx context.Context, db *sql.DB, st int, args []any) (res sqldriver.Result, sent bool, err error) {
	got, err := db.Conn(ctx)
	if err != nil {
		return nil, false, err
	}
	named := make([]sqldriver.NamedValue, len(args))
	for i, a := range args {
		named[i] = sqldriver.NamedValue{Ordinal: i + 1, Value: a}
	}
	err = got.Raw(func(c any) error {
		res, err = c.(*conn).exec(ctx, st, named)
		return err
	})
	_ = got.Close() // only returns it to the pool
	return res, true, err
}
