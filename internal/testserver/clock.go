package testserver

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// A Clock is the wall clock of some servers: the machine's plus an offset. It does not
// affect how they measure elapsed time.
type Clock struct {
	t    TB
	file string
	env  []string
}

// NewClock returns a clock without an offset. It needs libfaketime.
func NewClock(t TB) *Clock {
	t.Helper()
	lib := find(t, "libfaketime", "libfaketime", func() (string, error) {
		if lib := faketime(); lib != "" {
			return lib, nil
		}
		return "", ErrNotInstalled
	})
	dir := freshDir(t)
	// PostgreSQL does not run as root, and must read it.
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatalf("make a clock: %v", err)
	}
	return newClock(t, lib, filepath.Join(dir, "offset"))
}

func newClock(t TB, lib, file string) *Clock {
	t.Helper()
	root, err := rootDir()
	if err == nil {
		err = os.Chmod(root.path, 0o711) // for PostgreSQL
	}
	if err != nil {
		t.Fatalf("make a clock: %v", err)
	}
	c := &Clock{t: t, file: file}
	c.env = []string{
		// With another malloc than libc's the library deadlocks.
		"LD_PRELOAD=" + lib + ":libc.so.6", "FAKETIME_TIMESTAMP_FILE=" + c.file, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "NO_FAKE_STAT=1",
	}
	c.Set(0)
	return c
}

// Set sets the clock of all its servers at once.
func (c *Clock) Set(offset time.Duration) {
	c.t.Helper()
	if err := c.set(offset); err != nil {
		c.t.Fatalf("set a clock: %v", err)
	}
}

func (c *Clock) set(offset time.Duration) error {
	next := c.file + ".next"
	if err := os.WriteFile(next, fmt.Appendf(nil, "%+.6f\n", offset.Seconds()), 0o644); err != nil {
		return err
	}
	return os.Rename(next, c.file)
}

// Redis starts a Redis with this clock.
func (c *Clock) Redis(args ...string) *RedisServer {
	c.t.Helper()
	return redis(c.t, c.env, args)
}

// MariaDB starts a MariaDB with this clock.
func (c *Clock) MariaDB(args ...string) *MariaDBServer {
	c.t.Helper()
	return mariadb(c.t, c.env, args)
}

// Postgres starts a PostgreSQL with this clock.
func (c *Clock) Postgres(args ...string) *PostgresServer {
	c.t.Helper()
	return postgres(c.t, c.env, args)
}
