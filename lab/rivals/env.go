package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/sqlitestore"
)

// An env is the systems that the rivals use.
type env struct {
	at       map[string][]string // where the servers of a system listen
	servers  map[string]*server  // the same, in the process that started them
	redis    *testserver.RedisServer
	commands *commandCounter // counts what is sent to Redis; nil: nothing is counted

	dir    string
	sqlite *sqlitestore.Store
	db     *sql.DB // the same file, for the rivals: one connection
	keys   atomic.Int64
}

// A server describes a running system of the benchmark.
type server struct {
	addrs []string
	pids  []int  // without their child processes
	about string // its version and settings

	// work, if not nil, returns the server's counters.
	work func() (work, error)

	// counting, if not nil, makes the server count for work, or stop counting.
	counting func(on bool) error

	// connections, if not nil, returns how many connections the clients have, and how
	// many of them wait in the server.
	connections func() (all, waiting int64, err error)
}

// work is a server's counters. Only differences have a meaning.
type work struct {
	requests int64 // from clients: packets, statements, messages
	commits  int64 // of transactions that change something
}

// newEnv starts the systems; t's cleanup ends them. Files that belong to no server are below
// dir, or in the folder for temporary files if dir is empty.
func newEnv(t testserver.TB, dir string, needed []string) (*env, error) {
	dir, err := os.MkdirTemp(dir, "baton-bench-")
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // only the disk space is lost
	e := &env{dir: dir, at: make(map[string][]string), servers: make(map[string]*server)}
	for _, name := range needed {
		if start := systems[name].start; start != nil {
			if err := start(t, e); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return e, nil
}

// runs registers a server that has been started.
func (e *env) runs(system string, s *server) {
	e.servers[system], e.at[system] = s, s.addrs
}

func (e *env) sqlitePath() string { return filepath.Join(e.dir, "bench.db") }

func startSQLite(t testserver.TB, e *env) (err error) {
	path := e.sqlitePath()
	// The store comes first: see its package comment.
	if e.sqlite, err = sqlitestore.Open(context.Background(), path); err != nil {
		return err
	}
	t.Cleanup(func() { _ = e.sqlite.Close() }) // the file is removed with its directory
	if e.db, err = sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(5000)&_txlock=immediate"); err != nil {
		return err
	}
	t.Cleanup(func() { _ = e.db.Close() })
	e.db.SetMaxOpenConns(1)
	if _, err = e.db.Exec(sqliteRivalSchema); err != nil {
		return fmt.Errorf("make the rival's tables: %w", err)
	}
	return nil
}

func startRedis(t testserver.TB, e *env) error {
	e.redis = testserver.Redis(t)
	info, err := e.redis.Do("INFO", "server")
	if err != nil {
		return err
	}
	e.runs("redis", &server{
		addrs: []string{e.redis.Addr}, pids: []int{e.redis.Pid()},
		about: "redis-server " + textAfter(info, "redis_version:") + " without persistence",
	})
	return nil
}

// key returns a name that was not used yet.
func (e *env) key(workload, rival string) string {
	return "bench/" + workload + "/" + rival + "/" + strconv.FormatInt(e.keys.Add(1), 10)
}

// counted is a view of e whose Redis clients count their commands.
func (e *env) counted() *env {
	return &env{at: e.at, servers: e.servers, redis: e.redis, commands: new(commandCounter), dir: e.dir, sqlite: e.sqlite, db: e.db}
}

// pushes is how many messages Redis has published, including those of scripts.
func (e *env) pushes() (int64, error) {
	info, err := e.redis.Do("INFO", "commandstats")
	if err != nil {
		return 0, err
	}
	sum := int64(0)
	for _, command := range []string{"publish", "spublish"} {
		text := textAfter(info, "cmdstat_"+command+":calls=")
		if text == "" {
			continue // it has never been called
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the statistics of Redis: %w", err)
		}
		sum += n
	}
	return sum, nil
}

// textAfter finds a line that begins with the label and returns the rest, up to the
// next comma or space.
func textAfter(info, label string) string {
	_, rest, _ := strings.Cut("\n"+info, "\n"+label)
	if end := strings.IndexAny(rest, ", \r\n"); end >= 0 {
		rest = rest[:end]
	}
	return rest
}

// serverCPU is the CPU time of a system's processes; 0 without any.
func (e *env) serverCPU(system string) (sum time.Duration, err error) {
	s := e.servers[system]
	if s == nil {
		return 0, nil
	}
	for _, root := range s.pids {
		for _, pid := range withChildren(root) {
			used, err := processCPU(pid)
			if err != nil && pid == root {
				return 0, fmt.Errorf("read the CPU time of %s: %w", system, err)
			}
			sum += used // 0 for a child that has ended
		}
	}
	return sum, nil
}
