package pgstore

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/batonhq/baton/driver"
)

// What the server answers says that nothing was done, unless the session ended
// with the answer. What came to nothing before it was sent was not done.
// Everything else may have been.
func TestFailures(t *testing.T) {
	t.Parallel()
	server := func(code, severity string) error {
		return &pgconn.PgError{Code: code, Severity: severity, Message: "m"}
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range []struct {
		what  string
		ctx   context.Context
		err   error
		wants []error
		not   error
	}{
		{"serialization", t.Context(), server("40001", "ERROR"), []error{driver.ErrUnavailable}, driver.ErrUnknown},
		{"deadlock", t.Context(), server("40P01", "ERROR"), []error{driver.ErrUnavailable}, driver.ErrUnknown},
		{"lock timeout", t.Context(), server("55P03", "ERROR"), []error{driver.ErrUnavailable}, driver.ErrUnknown},
		{"cancelled by an administrator", t.Context(), server("57014", "ERROR"), []error{driver.ErrUnavailable}, driver.ErrUnknown},
		{"disk full", t.Context(), server("53100", "ERROR"), []error{driver.ErrUnavailable}, driver.ErrUnknown},
		{"session ended", t.Context(), server("57P01", "FATAL"), []error{driver.ErrUnknown}, driver.ErrUnavailable},
		{"another process crashed", t.Context(), server("57P02", "FATAL"), []error{driver.ErrUnknown}, driver.ErrUnavailable},
		{"not to be had yet, while connecting", t.Context(), notSent{server("57P03", "FATAL")}, []error{driver.ErrUnavailable}, driver.ErrUnknown},
		{"too many connections, while connecting", t.Context(), notSent{server("53300", "FATAL")}, []error{driver.ErrUnavailable}, driver.ErrUnknown},
		{"connection failure", t.Context(), server("08006", "ERROR"), []error{driver.ErrUnknown}, driver.ErrUnavailable},
		{"whether it was committed is not known", t.Context(), server("40003", "ERROR"), []error{driver.ErrUnknown}, driver.ErrUnavailable},
		{"read-only", t.Context(), server("25006", "ERROR"), []error{driver.ErrUnavailable}, driver.ErrUnknown},
		{"no function", t.Context(), server("42883", "ERROR"), []error{driver.ErrUnavailable}, driver.ErrUnknown},
		{"cut", t.Context(), io.ErrUnexpectedEOF, []error{driver.ErrUnknown}, driver.ErrUnavailable},
		{"given up", ended, io.ErrUnexpectedEOF, []error{driver.ErrUnknown, context.Canceled}, driver.ErrUnavailable},
		{"given up before it was sent", ended, notSent{io.ErrUnexpectedEOF}, []error{context.Canceled}, driver.ErrUnknown},
	} {
		got := failure(c.ctx, c.err)
		for _, want := range c.wants {
			if !errors.Is(got, want) {
				t.Errorf("%s: %v, want %v", c.what, got, want)
			}
		}
		if errors.Is(got, c.not) {
			t.Errorf("%s: %v, must not be %v", c.what, got, c.not)
		}
	}
	if !errors.As(failure(t.Context(), server("42P01", "ERROR")), new(*SchemaError)) {
		t.Error("a missing table is no *SchemaError")
	}
}

// A server that cannot be reached is named once, on one line, however often it was tried.
func TestUnreachableIsSaidOnce(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), Server{Addrs: []string{closed}, Database: "db", User: "user"}, Config{})
	if !errors.Is(err, driver.ErrUnavailable) {
		t.Fatalf("open: %v", err)
	}
	if n := strings.Count(err.Error(), "connection refused"); n != 1 || strings.Contains(err.Error(), "\n") {
		t.Errorf("it is said %d times: %q", n, err)
	}
}
