package mysqlstore

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/batonhq/baton/driver"
)

// Numbers of the server's errors.
const (
	erChanged     = 1020
	erDuplicate   = 1062
	erNoRight     = 1142
	erNoTable     = 1146
	erNoColumn    = 1054
	erLockTimeout = 1205
	erDeadlock    = 1213

	erInTransaction = 1568

	erOption              = 1290 // an option of the server, such as read_only, forbids it
	erReadOnlyTransaction = 1792
	erReadOnly            = 1836
)

// harmless are the errors with which a server refuses or undoes a statement without
// effect. Other errors, such as a killed connection or a failed commit, may come after an
// effect. So may 3101, with which a member of a replication group undoes a commit: a
// member that leaves the group also reports it for commits of others.
var harmless = map[uint16]bool{
	1020: true, // the row has changed since the transaction's snapshot
	1021: true, // disk full
	1040: true, // too many connections
	1041: true, // out of memory
	1044: true, // access denied to the database
	1045: true, // access denied to the user
	1047: true, // a Galera node that is not part of the cluster
	1049: true, // unknown database
	1054: true, // unknown column
	1062: true, // duplicate key
	1064: true, // syntax
	1114: true, // table full
	1129: true, // host blocked
	1130: true, // host not allowed
	1142: true, // command denied
	1146: true, // no such table
	1203: true, // too many connections of this user
	1205: true, // waited too long for a row
	1206: true, // the table of locks is full
	1213: true, // deadlock
	1226: true, // a limit of this user
	1227: true, // a privilege is missing
	1290: true, // see erOption
	1364: true, // a column without default
	1366: true, // wrong value for a column
	1406: true, // value too long
	1461: true, // too many prepared statements
	1568: true, // a transaction was open before ours began
	1665: true, // not with this binlog_format
	1698: true, // access denied, no password
	1792: true, // the transaction is read-only
	1836: true, // the server is in read-only mode
	3100: true, // refused before the commit by a plugin
	4025: true, // a constraint
}

func number(err error) uint16 {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return e.Number
	}
	return 0
}

// uncertain reports whether a statement that failed with err may have had an effect.
func uncertain(err error) bool {
	if n := number(err); n != 0 {
		return !harmless[n]
	}
	if errors.Is(err, sqldriver.ErrBadConn) {
		return false // the client library returns it only before sending
	}
	e, ok := errors.AsType[*net.OpError](err)
	return !ok || e.Op != "dial"
}

func failure(err error, unsure bool) error {
	if errors.Is(err, driver.ErrClosed) || strings.HasSuffix(err.Error(), "sql: database is closed") { // the error has no variable
		return driver.ErrClosed
	}
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		err = driver.Answered(err, e.Message)
	}
	outcome := driver.ErrUnavailable
	if unsure {
		outcome = driver.ErrUnknown
	}
	switch {
	case !unsure && errors.Is(err, context.Canceled):
		return context.Canceled
	case !unsure && errors.Is(err, context.DeadlineExceeded):
		return context.DeadlineExceeded
	}
	if errors.Is(err, sqldriver.ErrBadConn) {
		return fmt.Errorf("mysql: %w: the connection ended: %w", outcome, err)
	}
	switch number(err) {
	case 1044, 1045, 1049, 1130, 1142, 1227, 1698: // see harmless
		return fmt.Errorf("mysql: %w: %w", driver.ErrDenied, err)
	case erNoTable, erNoColumn:
		return fmt.Errorf("mysql: %w: %w: %w", outcome, ErrSchema, err)
	case erLockTimeout:
		return fmt.Errorf("mysql: %w: a transaction holds the lock's row for too long: %w", outcome, err)
	}
	return fmt.Errorf("mysql: %w: %w", outcome, err)
}

// failure is the function failure. It also drops the connections to a server that only
// reads: after a failover the address may lead to the new primary.
func (s *Store) failure(err error, unsure bool) error {
	if n := number(err); n == erOption || n == erReadOnlyTransaction || n == erReadOnly {
		s.moved.TrySet()
	}
	return failure(err, unsure)
}

// ErrVersion says that the server is too old.
var ErrVersion = errors.New("the server is too old: MariaDB 10.6.0 or MySQL 8.0.1 is needed")

// refusal is the error about a server on which locks would not work.
type refusal struct {
	finding driver.Finding
	err     error
}

func (r *refusal) Error() string { return "mysql: " + r.err.Error() }

func (r *refusal) Unwrap() error { return r.err }

// Finding implements driver.Refusal.
func (r *refusal) Finding() (driver.Finding, bool) { return r.finding, true }
