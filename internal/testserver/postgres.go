package testserver

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// PostgresServer is one PostgreSQL server. It does not wait for the disk: commits survive
// Kill and Restart, but not the crash of the machine.
type PostgresServer struct {
	Process

	// Addr is where it listens: "127.0.0.1:port". It survives Restart.
	Addr string

	psql string
}

// URL returns the URL of a database, for the superuser "postgres". There is no password.
func (s *PostgresServer) URL(database string) string {
	return "postgres://postgres@" + s.Addr + "/" + database + "?sslmode=disable"
}

// Query runs SQL as the superuser on a new connection. It returns the rows as lines, with
// values separated by "|".
func (s *PostgresServer) Query(database, sql string) (string, error) {
	return psql(s.psql, s.URL(database), sql)
}

// Database makes an empty database and returns its name. It is removed with the server.
func (s *PostgresServer) Database(t TB) string {
	t.Helper()
	name := "d" + strconv.Itoa(int(databases.next()))
	if _, err := s.Query("postgres", "CREATE DATABASE "+name+" TEMPLATE template0 ENCODING 'UTF8' STRATEGY wal_log"); err != nil {
		t.Fatalf("make a database: %v", err)
	}
	return name
}

var databases counter

type counter struct {
	mu sync.Mutex
	n  int64
}

func (c *counter) next() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return c.n
}

// Kill ends the server with SIGKILL, together with the processes of its connections: they
// would otherwise live for a moment.
func (s *PostgresServer) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.each(Freeze) // so that it starts no further ones
	s.each((*os.Process).Kill)
	s.kill()
}

// Stop freezes the server and the processes of its connections.
func (s *PostgresServer) Stop() {
	s.Process.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.each(Freeze)
}

func (s *PostgresServer) Cont() {
	s.mu.Lock()
	s.each(Thaw)
	s.mu.Unlock()
	s.Process.Cont()
}

// each signals the server, if it runs, and its children. s.mu is held.
func (s *PostgresServer) each(send func(*os.Process) error) {
	if s.cmd == nil {
		return
	}
	select {
	case <-s.done:
		return // its children have ended, or will soon
	default:
	}
	all := childrenOf(s.cmd.Process.Pid)
	_ = send(s.cmd.Process) // both fail only if it has ended already
	for _, p := range all {
		_ = send(p)
	}
}

// Restart ends the server as Kill does, and starts it again with the same port, directory
// and arguments.
func (s *PostgresServer) Restart() {
	s.t.Helper()
	s.Kill()
	// A child that Kill missed notices a little later that the server is gone.
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(20 * time.Millisecond) {
		err := s.start()
		if err == nil {
			return
		}
		if !errors.Is(err, errExited) || time.Now().After(deadline) {
			s.t.Fatalf("restart: %v", err)
		}
	}
}

// Demote restarts the server as a standby without a primary: it only reads.
func (s *PostgresServer) Demote() {
	s.t.Helper()
	s.Kill()
	signal := filepath.Join(s.dir, "data", "standby.signal")
	if err := os.WriteFile(signal, nil, 0o644); err != nil {
		s.t.Fatalf("demote: %v", err)
	}
	s.Restart()
}

// Promote makes a standby a primary, and returns when it accepts writes.
func (s *PostgresServer) Promote() {
	s.t.Helper()
	if answer, err := s.Query("postgres", "SELECT pg_promote()"); err != nil || answer != "t" {
		s.t.Fatalf("promote: %q, %v", answer, err)
	}
}

// NeedPostgres skips the test if it may not start PostgreSQL.
func NeedPostgres(t TB) {
	t.Helper()
	postgresBin(t)
}

// NeedPgBouncer skips the test if it may not start PgBouncer.
func NeedPgBouncer(t TB) {
	t.Helper()
	NeedPostgres(t)
	require(t, "pgbouncer", "pgbouncer")
}

// postgresBin returns the directory of the server's programs. Debian keeps them out of
// the path.
func postgresBin(t TB) string {
	t.Helper()
	return find(t, "initdb", "postgresql", func() (string, error) {
		if dir := findPostgres(); dir != "" {
			return dir, nil
		}
		return "", ErrNotInstalled
	})
}

func findPostgres() string {
	if path, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(real)
		}
	}
	all, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // the pattern is right
	if len(all) == 0 {
		return ""
	}
	return filepath.Dir(slices.MaxFunc(all, func(a, b string) int { return majorOf(a) - majorOf(b) }))
}

func majorOf(path string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path)))) // 0 if it is no number
	return n
}

// pgTemplate is a data directory, made once, which each server copies.
var pgTemplate = sync.OnceValues(func() (string, error) {
	root, err := rootDir()
	if err != nil {
		return "", err
	}
	// The server does not run as root, and must be able to enter the directory.
	if err := os.Chmod(root.path, 0o711); err != nil {
		return "", err
	}
	dir := filepath.Join(root.path, "postgres-template")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	if err := giveAway(dir); err != nil {
		return "", err
	}
	data := filepath.Join(dir, "data")
	cmd := exec.Command(filepath.Join(cmp.Or(os.Getenv(variables["initdb"]), findPostgres()), "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
		"--locale=C", "--no-sync", "--wal-segsize=1", "--no-instructions")
	cmd.Dir = dir
	if cmd.SysProcAttr, err = unprivileged(); err != nil {
		return "", err
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := startOnLastingThread(cmd); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("initdb: %w: %s", err, &out)
	}
	return data, nil
})

// Postgres starts a server. args are arguments of postgres, for example "-c",
// "max_connections=20".
func Postgres(t TB, args ...string) *PostgresServer {
	t.Helper()
	return postgres(t, nil, args)
}

func postgres(t TB, env, args []string) *PostgresServer {
	t.Helper()
	bin := postgresBin(t)
	template, err := pgTemplate()
	if err != nil {
		t.Fatalf("start postgres: %v", err)
	}
	attr, err := unprivileged()
	if err != nil {
		t.Fatalf("start postgres: %v", err)
	}
	dir := freshDir(t)
	data := filepath.Join(dir, "data")
	if out, err := exec.Command("cp", "-a", template, data).CombinedOutput(); err != nil {
		t.Fatalf("start postgres: %v: %s", err, out)
	}
	if err := giveAway(dir); err != nil {
		t.Fatalf("start postgres: %v", err)
	}
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err != nil {
			t.Fatalf("start postgres: %v", err)
		}
		s := &PostgresServer{Addr: addr(port), psql: filepath.Join(bin, "psql")}
		s.Process = Process{
			t: t, path: filepath.Join(bin, "postgres"), env: env, dir: dir, attr: attr,
			args: append([]string{
				"-D", data, "-p", strconv.Itoa(port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
				"-c", "fsync=off", "-c", "max_connections=200", "-c", "shared_buffers=16MB", "-c", "autovacuum_naptime=5s",
				"-c", "max_wal_size=64MB", "-c", "log_min_messages=warning",
			}, args...),
			ready: func(pid int) error {
				// Another server may have taken the port first.
				if first, err := pgPid(data); err != nil || first != pid {
					return fmt.Errorf("it has not written its pid: %v", err)
				}
				_, err := s.Query("postgres", "SELECT 1")
				return err
			},
		}
		if err = s.start(); err == nil {
			t.Cleanup(s.end)
			return s
		}
		if !errors.Is(err, errExited) || attempt == 5 {
			t.Fatalf("start postgres: %v", err)
		}
	}
}

// end stops the server for good. A killed server would leave shared memory behind, until
// the machine has none left and no server starts.
func (s *PostgresServer) end() {
	s.mu.Lock()
	s.each(Thaw)
	_ = s.cmd.Process.Signal(syscall.SIGQUIT) // fails only if it has ended already
	done := s.done
	s.mu.Unlock()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
	}
	s.Kill()
}

func pgPid(data string) (int, error) {
	text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strconv.Atoi(line)
}

func psql(path, url, sql string) (string, error) {
	cmd := exec.Command(path, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql, url)
	cmd.Env = append(os.Environ(), "PGCONNECT_TIMEOUT=10")
	out, err := cmd.Output()
	if err != nil {
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, e.Stderr)
		}
		return "", err
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

var sharedPostgres shared[*PostgresServer]

// SharedPostgres returns the server that the tests of this binary share. They make their
// own databases and do not stop the server.
func SharedPostgres(t TB) *PostgresServer {
	t.Helper()
	return sharedPostgres.get(t, func(t TB) *PostgresServer {
		// The server vacuums one database after the other: for hundreds of them it would
		// start ten processes a second.
		return Postgres(t, "-c", "max_connections=500", "-c", "autovacuum_naptime=10min")
	})
}

// PgBouncerServer is a PgBouncer that pools transactions in front of a PostgresServer.
type PgBouncerServer struct {
	Process
	Addr string
}

// URL returns the URL of a database through the pooler.
func (s *PgBouncerServer) URL(database string) string {
	return "postgres://postgres@" + s.Addr + "/" + database + "?sslmode=disable"
}

// PgBouncer starts a pooler in front of the server. It opens at most four connections to
// each database, and closes unused ones: many tests with a database each share a server.
// settings are lines such as "pool_mode = session".
func PgBouncer(t TB, server *PostgresServer, settings ...string) *PgBouncerServer {
	t.Helper()
	path := require(t, "pgbouncer", "pgbouncer")
	psqlPath := filepath.Join(postgresBin(t), "psql")
	attr, err := unprivileged()
	if err != nil {
		t.Fatalf("start pgbouncer: %v", err)
	}
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err != nil {
			t.Fatalf("start pgbouncer: %v", err)
		}
		dir := freshDir(t)
		conf := filepath.Join(dir, "pgbouncer.ini")
		host, upstream, _ := strings.Cut(server.Addr, ":")
		text := fmt.Sprintf(`[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 1000
server_login_retry = 1
server_idle_timeout = 2
%s
`, host, upstream, port, strings.Join(settings, "\n"))
		// With auth_type any the user is that of the database's line.
		text = strings.Replace(text, "port="+upstream, "port="+upstream+" user=postgres", 1)
		if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
			t.Fatalf("start pgbouncer: %v", err)
		}
		if err := giveAway(dir); err != nil {
			t.Fatalf("start pgbouncer: %v", err)
		}
		s := &PgBouncerServer{Addr: addr(port)}
		s.Process = Process{t: t, path: path, args: []string{conf}, dir: dir, attr: attr, ready: func(int) error {
			_, err := psql(psqlPath, s.URL("postgres"), "SELECT 1")
			return err
		}}
		if err = s.start(); err == nil {
			t.Cleanup(s.Kill)
			return s
		}
		if !errors.Is(err, errExited) || attempt == 5 {
			t.Fatalf("start pgbouncer: %v", err)
		}
	}
}
