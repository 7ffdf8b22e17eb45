// Package testserver starts real servers as private children, for tests, examples and
// benchmarks. Each listens on a free port of 127.0.0.1, keeps its data in a fresh
// directory, and ends with its test. On Linux it also ends with the process, in whatever
// way.
//
// A test starts servers and other programs only if BATON_REQUIRE_SERVERS is 1; then it
// fails if one is not installed. Otherwise it is skipped, and the command that runs the
// tests says so, once for each package and program. A Program or a Site always starts
// them.
//
// An environment variable selects another server of a kind:
//
//	BATON_SERVER_REDIS      a redis-server or valkey-server
//	BATON_SERVER_MARIADB    a mariadbd or mysqld
//	BATON_SERVER_POSTGRES   the directory of initdb, postgres and psql
//	BATON_SERVER_ETCD       an etcd
//	BATON_SERVER_ZOOKEEPER  the class path of ZooKeeper's jars
//
// Its other programs and libraries are expected beside it.
package testserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// TB is the part of testing.TB that this package needs. A program that is not a test uses
// a Program.
type TB interface {
	Helper()
	Cleanup(func())
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// NeedRedis skips the test if it may not start Redis.
func NeedRedis(t TB) {
	t.Helper()
	require(t, "redis-server", "redis-server")
}

// Long skips the test unless BATON_LONG is 1: it belongs to make test-long.
func Long(t TB) {
	t.Helper()
	if os.Getenv("BATON_LONG") != "1" {
		t.Skipf("long: runs with BATON_LONG=1, as in make test-long")
	}
}

// Rounds returns how often to repeat a test whose runs differ: n times in make test-long,
// and a quarter of that in make test.
func Rounds(n int) int {
	if os.Getenv("BATON_LONG") == "1" {
		return n
	}
	return (n + 3) / 4
}

// require returns the path of a binary. install is its package.
func require(t TB, binary, install string) string {
	t.Helper()
	return find(t, binary, install, func() (string, error) { return exec.LookPath(binary) })
}

// variables are those of the documentation, by the name of the program.
var variables = map[string]string{
	"redis-server": "BATON_SERVER_REDIS",
	"mariadbd":     "BATON_SERVER_MARIADB",
	"initdb":       "BATON_SERVER_POSTGRES",
	"etcd":         "BATON_SERVER_ETCD",
	zookeeperJar:   "BATON_SERVER_ZOOKEEPER",
}

// find returns the result of look, or of the variable for it. It skips a test that may
// not start the program, and fails one if it is not installed; a Site returns
// ErrNotInstalled.
func find(t TB, what, install string, look func() (string, error)) string {
	t.Helper()
	if !mayStart(t) {
		announce(callersErrors, what)
		t.Skipf("needs %s: runs with BATON_REQUIRE_SERVERS=1, as in make test", what)
	}
	if path := os.Getenv(variables[what]); path != "" {
		return path
	}
	path, err := look()
	if err == nil {
		return path
	}
	if s, ok := t.(*Site); ok {
		s.Fatalf("%s is %w: install the package %s", what, ErrNotInstalled, install)
	}
	t.Fatalf("%s is not installed: install the package %s, as make test or make test-long does", what, install)
	return ""
}

// mayStart reports whether t may start servers. A program always may.
func mayStart(t TB) bool {
	switch t := t.(type) {
	case *Program, *Site:
		return true
	case borrowed:
		return mayStart(t.TB)
	}
	return os.Getenv("BATON_REQUIRE_SERVERS") == "1"
}

// ErrNotInstalled is in the error of Site.Try if a server is not installed.
var ErrNotInstalled = errors.New("not installed")

var announced sync.Map // what was not started

// announce says once, to the user who runs the tests, what is not tested: the go command
// drops the output of tests that pass, and a skipped one is not noticed.
func announce(open func() (*os.File, error), what string) {
	if _, said := announced.LoadOrStore(what, true); said {
		return
	}
	dir, _ := os.Getwd() // the package's directory, while its tests run
	outer, err := open()
	if err != nil {
		return // then only -v shows it
	}
	defer outer.Close()
	fmt.Fprintf(outer, "skipped: tests in %s/%s that need %s; make test runs them\n",
		filepath.Base(filepath.Dir(dir)), filepath.Base(dir), what)
}

// Program is the TB of a program or of a TestMain: a failure or skip ends the process
// with status 1.
type Program struct {
	mu       sync.Mutex
	cleanups []func()
}

// Close ends what was started, the last first. It may be called again.
func (p *Program) Close() {
	for {
		p.mu.Lock()
		n := len(p.cleanups)
		if n == 0 {
			p.mu.Unlock()
			return
		}
		f := p.cleanups[n-1]
		p.cleanups = p.cleanups[:n-1]
		p.mu.Unlock()
		f()
	}
}

// Cleanup makes Close call f.
func (p *Program) Cleanup(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cleanups = append(p.cleanups, f)
}

// Helper does nothing.
func (p *Program) Helper() {}

// Skipf is Fatalf: a program has nothing to skip.
func (p *Program) Skipf(format string, args ...any) { p.Fatalf(format, args...) }

// Fatalf prints the message, closes p and exits with status 1.
func (p *Program) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	p.Close()
	os.Exit(1)
}

// shared is a server that the tests of one binary share.
type shared[T any] struct {
	mu     sync.Mutex
	server T
	users  int
	owner  *Program // nil while nothing runs
}

// get starts the server for the first test that asks. Where children die with their
// parent, the server stays until the process ends and serves later tests; elsewhere it
// ends with the last test that uses it.
func (s *shared[T]) get(t TB, start func(TB) T) T {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner == nil {
		owner := new(Program)
		s.server = start(borrowed{TB: t, owner: owner})
		s.owner = owner
	}
	s.users++
	t.Cleanup(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.users--
		if s.users == 0 && !diesWithParent {
			s.owner.Close()
			s.owner = nil
		}
	})
	return s.server
}

// borrowed reports to a test, and starts things for another owner.
type borrowed struct {
	TB
	owner *Program
}

func (b borrowed) Cleanup(f func()) { b.owner.Cleanup(f) }

func (b borrowed) Fatalf(format string, args ...any) {
	b.TB.Helper()
	b.owner.Close() // what was started before the failure
	b.TB.Fatalf(format, args...)
}
