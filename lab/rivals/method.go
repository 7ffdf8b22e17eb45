package main

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton/lab/measure"
)

// method describes the measurement.
type method struct {
	Notes  []string      `json:"notes,omitempty"` // events during the run
	Lines  []string      `json:"lines"`
	Rivals []methodRival `json:"rivals"`
}

type methodRival struct {
	Name  string `json:"name"`
	About string `json:"about"`
}

func describe(b *bench, res *results) method {
	m := method{Notes: b.notes}
	say := func(format string, args ...any) { m.Lines = append(m.Lines, fmt.Sprintf(format, args...)) }

	say("%s, %d CPUs for this process (%s), %s, %s.", when(), runtime.NumCPU(), cpuModel(), kernel(), runtime.Version())
	say("%s", strings.Join(libraries(), ", ")+".")
	var running []string
	for _, name := range slices.Sorted(maps.Keys(b.env.servers)) {
		running = append(running, b.env.servers[name].about)
	}
	if len(running) > 0 {
		say("Servers of its own on 127.0.0.1: %s. Clients and servers share the machine.", strings.Join(running, "; "))
	}
	if b.env.sqlite != nil {
		say("The SQLite file is under %s; a write of 4 KiB with fsync takes %s there (median of 50).", filepath.Dir(b.env.dir), span(fsyncTime(b.env.dir)))
	}
	say("%d repetitions, each of all workloads in turn, the order of the rivals rotating: figures are medians over the repetitions, ratios are medians of the ratios to the named rival within the same repetition.", b.reps)
	say("Each measurement lasts %v after a warm-up of %v, of ten times that for baton-noline, whose servers plan statements on many connections first; those of SQL databases under contention last twice that. Locking is a closed loop: no pause between unlock and lock, nothing in the critical section but the checks.", b.time, b.warmUp(rival{}))
	say("*-pair: one goroutine in a process that shares one CPU with the server (GOMAXPROCS=1), but for SQLite and memory; rivals alternate in blocks of %d pairs; quantiles are exact. Not pinned, a round trip costs 14 µs or 65–80 µs depending on which CPU the kernel wakes.", pairsPerBlock)
	say("redis-doors*: the agent by a Unix socket, the server by HTTP/1.1 on loopback, each a process of its own; both are called from this process, whose client is counted, too. rls*: the service and its rival in processes of their own, asked over one connection of grpc-go.")
	say("zk-newkey: a key for each pair, never locked before. etcd-aged: a key that has been locked %d times before, the raw one too.", b.age)
	say("Contended: hand-offs are acquisitions by another goroutine than the last holder, the figure that unfair locks cannot flatter; a hand-off's time runs from just before the unlock call to the return of the next lock call, on the clock that all processes share. Exclusion is checked in each run, by a mark in shared memory and by a counter that only a working lock keeps right; a violation ends the run with an error. Connections and waiting (in the server, for a lock): medians of five looks.")
	say("commands: counted where the clients write to their sockets, so that commands called by scripts are not in it; pushes: the server's count of PUBLISH calls. Both over a run of their own (redis-cmds*), once, from which no speed is taken for the goals.")
	say("*-cost: what the servers have counted themselves, once. requests: statements (pg_stat_statements, Questions of MariaDB), packets to ZooKeeper, messages to etcd, renewals and pings among them; commits: transactions that wrote (transaction numbers of PostgreSQL, trx_rw_commits of InnoDB, zxids, revisions of etcd).")
	say("renew: %d leases on each store for %v, TTL %v, renewed every %v; requests are commands sent to Redis, and write transactions committed to SQLite, counted by its commit hook. Not repeated.", b.leases, b.hold, ttl, renewEvery)

	seen := make(map[string]bool)
	for _, w := range res.workloads {
		for _, name := range w.names {
			r, err := findRival(w.system, name)
			if err != nil || seen[r.about] || res.cells[cell{w.name, name}] == nil {
				continue
			}
			seen[r.about] = true
			m.Rivals = append(m.Rivals, methodRival{w.system + " " + r.name, r.about})
		}
	}
	return m
}

func when() string { return time.Now().UTC().Format("2006-01-02 15:04 UTC") }

func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// libraries lists the versions of the measured modules.
func libraries() []string {
	shown := []string{
		"github.com/redis/rueidis", "github.com/redis/go-redis/v9", "github.com/bsm/redislock",
		"github.com/go-redsync/redsync/v4", "modernc.org/sqlite", "github.com/jackc/pgx/v5", "github.com/go-sql-driver/mysql",
		"github.com/go-zookeeper/zk", "go.etcd.io/etcd/client/v3",
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return shown
	}
	versions := make(map[string]string)
	for _, d := range info.Deps {
		versions[d.Path] = d.Version
	}
	var out []string
	for _, path := range shown {
		out = append(out, path+" "+versions[path])
	}
	return out
}

// fsyncTime is the median time, in nanoseconds, of a small durable write; NaN
// if it cannot be measured.
func fsyncTime(dir string) float64 {
	f, err := os.Create(filepath.Join(dir, "fsync"))
	if err != nil {
		return math.NaN()
	}
	defer f.Close()
	var all []float64
	for range 50 {
		start := time.Now()
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return math.NaN()
		}
		if err := f.Sync(); err != nil {
			return math.NaN()
		}
		all = append(all, float64(time.Since(start)))
	}
	return measure.Median(all)
}
