package mysqlstore

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"strconv"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/findings"
	"github.com/batonhq/baton/internal/settling"
)

// Server is the address of the database. Addr and Database are required.
type Server struct {
	Addr     string // host:port
	Database string
	User     string
	Password string // never shown
	TLS      *tls.Config

	// ConnectTimeout bounds each attempt to connect. Defaults to 5 s.
	ConnectTimeout time.Duration

	// Connections bounds the connections; fewer than 3 count as 3. All requests share
	// them, and they are made when they are needed: the more transactions commit at the
	// same time, the less each costs the disk. A quarter of them, at most 4, only renews
	// held locks, so that leases are kept even if all other connections are in use.
	// Defaults to 36.
	Connections int
}

const (
	defaultConnections = 36

	// idleFor is how long a connection may be unused: less than the shortest usual
	// wait_timeout.
	idleFor = 25 * time.Second
)

// Open connects to a database with connections of the Store's own, and makes missing
// tables. The context bounds Open only. The errors are those of New.
func Open(ctx context.Context, c Server) (*Store, error) { return open(ctx, c, standard) }

func open(ctx context.Context, c Server, opts options) (*Store, error) {
	if c.Addr == "" || c.Database == "" {
		return nil, errors.New("mysql: the address or the name of the database is missing")
	}
	n := c.Connections
	if n == 0 {
		n = defaultConnections
	}
	slow := max(1, n/6, min(2, n/2)) // for transactions
	apart := max(1, min(4, n/4))     // for renewals of held locks
	s := &Store{own: true, multi: true, remote: c.TLS == nil && !findings.Local(c.Addr), opts: opts}
	var err error
	if s.single, err = c.pool(&s.moved, max(1, n-slow-apart), false, opts.stall); err != nil {
		return nil, err
	}
	if s.slow, err = c.pool(&s.moved, slow, true, opts.stall); err != nil {
		return nil, err
	}
	if s.apart, err = c.pool(&s.moved, apart, true, opts.stall); err != nil {
		return nil, err
	}
	opened, err := build(ctx, s)
	if errors.Is(err, ErrSchema) {
		if e := Migrate(ctx, s.single); e != nil {
			err = e
		} else {
			opened, err = build(ctx, s)
		}
	}
	if err != nil {
		s.single.Close()
		s.slow.Close()
		s.apart.Close()
		return nil, err
	}
	return opened, nil
}

func (c Server) pool(moved *settling.Mark, size int, multi bool, stall int) (*sql.DB, error) {
	m := mysql.NewConfig()
	m.Net, m.Addr, m.DBName, m.User, m.Passwd, m.TLS = "tcp", c.Addr, c.Database, c.User, c.Password, c.TLS
	if m.Timeout = c.ConnectTimeout; m.Timeout == 0 {
		m.Timeout = 5 * time.Second
	}
	m.MultiStatements = multi
	m.Logger = log.New(io.Discard, "", 0) // a store does not log
	// Set on every connection, whatever the server's defaults.
	m.Params = map[string]string{
		"autocommit":               "1",
		"completion_type":          "0",
		"sql_mode":                 "'STRICT_ALL_TABLES'",
		"innodb_lock_wait_timeout": strconv.Itoa(stall),
	}
	connector, err := newConnector(m, moved)
	if err != nil {
		return nil, fmt.Errorf("mysql: %w: %w", driver.ErrUnavailable, err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	db.SetConnMaxIdleTime(idleFor)
	return db, nil
}
