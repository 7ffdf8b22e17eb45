package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/batonhq/baton/driver"
)

// SchemaError says that the store's tables and functions are missing, or older than
// SchemaVersion. It wraps driver.ErrUnavailable.
type SchemaError struct {
	Found int   // the older version, 0 if they are missing
	Err   error // the server's error, may be nil
}

func (e *SchemaError) Error() string {
	s := "postgres: Baton's tables are missing in this database and search path"
	if e.Found > 0 {
		s = fmt.Sprintf("postgres: Baton's tables are of version %d, this program needs %d", e.Found, SchemaVersion)
	}
	return s + ": run \"baton schema apply\" once, or call pgstore.Migrate"
}

// Unwrap makes errors.Is find driver.ErrUnavailable and the cause.
func (e *SchemaError) Unwrap() []error {
	if e.Err == nil {
		return []error{driver.ErrUnavailable}
	}
	return []error{driver.ErrUnavailable, e.Err}
}

// Finding implements driver.Refusal.
func (e *SchemaError) Finding() (driver.Finding, bool) {
	return driver.Finding{
		Name: "schema", Severity: driver.Unsafe, What: "no lock can be taken, and no limit asked: " + e.Error(), Mend: "baton schema apply",
	}, true
}

// SearchPathError says that a connection leads to another schema than required: a process
// in each schema could hold the lock.
type SearchPathError struct {
	Want  string // the schema of Config.Schema, or of the tables that the store found
	Found string // the schema of the connection
}

func (e *SearchPathError) Error() string {
	return fmt.Sprintf("postgres: a connection leads to the schema %q, not to %q: give all connections one search path (ALTER ROLE … SET search_path); a pooler may ignore the one that a program asks for", e.Found, e.Want)
}

// Finding implements driver.Refusal.
func (e *SearchPathError) Finding() (driver.Finding, bool) {
	return driver.Finding{
		Name: "search-path", Severity: driver.Unsafe,
		What: fmt.Sprintf("connections lead to different tables, in the schemas %q and %q: one lock has two holders", e.Want, e.Found),
		Mend: "ALTER ROLE … SET search_path",
	}, true
}

// StandbyError refuses a standby: it grants nothing, and its data are old.
type StandbyError struct{}

func (*StandbyError) Error() string {
	return "postgres: the server is a standby, which cannot grant locks: connect to its primary, or name all servers in the URL"
}

// Finding implements driver.Refusal.
func (*StandbyError) Finding() (driver.Finding, bool) { return standbyFound, true }

// EncodingError refuses a database whose encoding cannot hold every owner's name.
type EncodingError struct {
	Encoding string // of the database
}

func (e *EncodingError) Error() string {
	return fmt.Sprintf("postgres: the database keeps its texts in %s: create one with encoding UTF8", e.Encoding)
}

// Finding implements driver.Refusal.
func (e *EncodingError) Finding() (driver.Finding, bool) {
	return driver.Finding{
		Name: "encoding", Severity: driver.Unsafe,
		What: fmt.Sprintf("the database keeps its texts in %s, which cannot hold every owner's name", e.Encoding),
		Mend: "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
	}, true
}

// wrongIsolation is the error code of the functions when the isolation is not READ
// COMMITTED.
const wrongIsolation = "BT001"

// readOnly is the error code of a server that is a standby, or was made read-only. The
// address of the pool may lead to another server now. (A server that ends, 57P0x, ends
// its connections.)
const readOnly = "25006"

// notSent is an error from before the request was sent.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// Error has the error of each address once, on one line: pgx tries an address with TLS
// and without, with a line for each try.
func (e notSent) Error() string {
	var lines []string
	for line := range strings.SplitSeq(e.error.Error(), "\n") {
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

// withoutConfig removes the user and the database from an error: callers show the URL,
// which has or hides them.
func withoutConfig(err error) error {
	if e, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return notSent{e.Unwrap()}
	}
	if e, ok := errors.AsType[*pgconn.ParseConfigError](err); ok && e.Unwrap() != nil {
		return e.Unwrap()
	}
	return err
}

func isCode(err error, code string) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == code
}

// failure makes an error of the contract out of pgx's. Each request is one transaction,
// so an error as the answer means that nothing was done, unless the session ended with
// it: then the commit may have come first.
func failure(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, puddle.ErrClosedPool) {
		return driver.ErrClosed
	}
	err = withoutConfig(err)
	harmless := errors.As(err, new(notSent)) || pgconn.SafeToRetry(err)
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		err = driver.Answered(err, e.Message)
		switch e.Code {
		case "42P01", "42883", "3F000", "42703": // no such table, function, schema, column
			return &SchemaError{Err: err}
		case "28000", "28P01", "42501", "3D000": // wrong user, wrong password, missing right, no such database
			return fmt.Errorf("postgres: %w: %w", driver.ErrDenied, err)
		case readOnly:
			return fmt.Errorf("postgres: the server is a standby or read-only, connect to its primary: %w: %w", driver.ErrUnavailable, err)
		}
		harmless = harmless || e.Severity != "FATAL" && e.Severity != "PANIC" && e.Code[:2] != "08" && e.Code != "40003"
	}
	if c := ctx.Err(); c != nil && !errors.As(err, new(*pgconn.PgError)) {
		if harmless {
			return c
		}
		return errors.Join(driver.ErrUnknown, c)
	}
	if harmless {
		return fmt.Errorf("postgres: %w: %w", driver.ErrUnavailable, err)
	}
	return fmt.Errorf("postgres: %w: %w", driver.ErrUnknown, err)
}
