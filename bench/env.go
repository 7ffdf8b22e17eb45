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

// An env is what the rivals work on.
type env struct {
	redis    string // address of the Redis server, "" without one
	server   *testserver.RedisServer
	commands *commandCounter // counts what is sent to Redis; nil: nothing is counted

	dir    string
	sqlite *sqlitestore.Store
	db     *sql.DB // the same file, for the rivals: one connection
	keys   atomic.Int64
}

// newEnv starts what the rivals need and gives it to t to clean up.
func newEnv(t testserver.TB, dir string, needs needs) (*env, error) {
	dir, err := os.MkdirTemp(dir, "baton-bench-")
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // only the disk space is lost
	e := &env{dir: dir}
	if needs.redis {
		e.server = testserver.Redis(t)
		e.redis = e.server.Addr
	}
	if needs.sqlite {
		if err := e.openSQLite(t); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// needs says what a workload runs on.
type needs struct{ redis, sqlite bool }

func (e *env) openSQLite(t testserver.TB) (err error) {
	path := filepath.Join(e.dir, "bench.db")
	// The store comes first: see its package comment.
	if e.sqlite, err = sqlitestore.Open(context.Background(), path); err != nil {
		return err
	}
	t.Cleanup(func() { _ = e.sqlite.Close() }) // the file goes with its directory
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

// key returns a name that nobody has used yet.
func (e *env) key(workload, rival string) string {
	return "bench/" + workload + "/" + rival + "/" + strconv.FormatInt(e.keys.Add(1), 10)
}

// counted is a view of e whose clients count the commands they send.
func (e *env) counted() *env {
	return &env{redis: e.redis, server: e.server, commands: new(commandCounter), dir: e.dir, sqlite: e.sqlite, db: e.db}
}

// pushes is how many messages Redis has published, on its own or in scripts.
func (e *env) pushes() (int64, error) {
	info, err := e.server.Do("INFO", "commandstats")
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, command := range []string{"publish", "spublish"} {
		n, err := numberAfter(info, "cmdstat_"+command+":calls=")
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return int64(sum), nil
}

// serverCPU is how much CPU Redis has used; 0 without one.
func (e *env) serverCPU() (time.Duration, error) {
	if e.server == nil {
		return 0, nil
	}
	info, err := e.server.Do("INFO", "cpu")
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, part := range []string{"used_cpu_sys:", "used_cpu_user:"} {
		n, err := numberAfter(info, part)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return time.Duration(sum * float64(time.Second)), nil
}

// numberAfter finds a number in the text of INFO; 0 if it is not there.
func numberAfter(info, label string) (float64, error) {
	_, rest, ok := strings.Cut(info, "\n"+label)
	if !ok {
		return 0, nil
	}
	text := rest[:strings.IndexFunc(rest+"\n", func(c rune) bool { return c != '.' && (c < '0' || c > '9') })]
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s from the statistics of Redis: %w", label, err)
	}
	return n, nil
}
