package scale

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"modernc.org/sqlite"

	"github.com/batonhq/baton/internal/testserver"
)

// kind is a store, on a server that is set up as in production: a granted lock is on the
// disk, or as near as possible.
type kind struct {
	name, setup string
	start       func(t testserver.TB) place
}

// place is the address of a store, and of its server's counters. The measuring processes get
// it as JSON.
type place struct {
	Kind  string
	URL   string
	Addrs []string
	PIDs  []int // without their children
}

var kinds = []kind{
	{"memory", "goroutines of one process", func(testserver.TB) place { return place{URL: "memory:"} }},
	{"SQLite", "WAL, synchronous FULL", func(t testserver.TB) place {
		return place{URL: "sqlite:" + filepath.Join(t.(*testserver.Site).FreshDir().Dir(), "locks.db")}
	}},
	{"Redis", "appendonly yes, appendfsync everysec", func(t testserver.TB) place {
		s := testserver.Redis(t, "--appendonly", "yes")
		return place{URL: "redis://" + s.Addr, Addrs: []string{s.Addr}, PIDs: []int{s.Pid()}}
	}},
	{"Redis Cluster", "three primaries, no persistence", func(t testserver.TB) place {
		c := testserver.RedisCluster(t)
		p := place{URL: "redis+cluster://" + strings.Join(c.Addrs(), ","), Addrs: c.Addrs()}
		for _, n := range c.Nodes {
			p.PIDs = append(p.PIDs, n.Pid())
		}
		return p
	}},
	{"Redlock", "five servers, appendonly yes, appendfsync everysec", func(t testserver.TB) place {
		nodes := testserver.RedisNodes(t, 5, "--appendonly", "yes")
		// durable=true lets them vote although they have just been started: they do not
		// restart.
		p := place{URL: "redlock://" + strings.Join(testserver.Addrs(nodes), ",") + "?durable=true", Addrs: testserver.Addrs(nodes)}
		for _, n := range nodes {
			p.PIDs = append(p.PIDs, n.Pid())
		}
		return p
	}},
	{"MariaDB", "innodb_flush_log_at_trx_commit 1", func(t testserver.TB) place {
		s := testserver.MariaDB(t, "--innodb-flush-log-at-trx-commit=1", "--max-connections=2000", "--innodb-log-file-size=96M",
			"--innodb-buffer-pool-size=256M", "--innodb-monitor-enable=trx_rw_commits")
		return place{URL: "mysql://root@" + s.Addr + "/baton", Addrs: []string{s.Addr}, PIDs: []int{s.Pid()}}
	}},
	{"PostgreSQL", "fsync on, synchronous_commit on", func(t testserver.TB) place {
		s := testserver.Postgres(t, "-c", "fsync=on", "-c", "synchronous_commit=on", "-c", "full_page_writes=on", "-c", "max_connections=1000",
			"-c", "shared_buffers=256MB", "-c", "max_wal_size=1GB", "-c", "shared_preload_libraries=pg_stat_statements", "-c", "pg_stat_statements.track=top")
		url := s.URL(s.Database(t))
		return place{URL: url, Addrs: []string{s.Addr}, PIDs: []int{s.Pid()}}
	}},
	{"ZooKeeper", "one server, forceSync yes", func(t testserver.TB) place {
		s := testserver.ZooKeeper(t, "-Dzookeeper.forceSync=yes", "-Xmx1g", "maxClientCnxns=0")
		return place{URL: "zk://" + s.Addr + "/locks", Addrs: []string{s.Addr}, PIDs: []int{s.Pid()}}
	}},
	{"etcd", "one member, every write synced", func(t testserver.TB) place {
		s := testserver.Etcd(t, "--unsafe-no-fsync=false")
		return place{URL: "etcd://" + s.Addr + "/locks", Addrs: []string{s.Addr}, PIDs: []int{s.Pid()}}
	}},
}

// quickKinds are those of -quick.
func quickKinds() (all []kind) {
	for _, k := range kinds {
		switch k.name {
		case "memory", "SQLite", "Redis":
			all = append(all, k)
		}
	}
	return all
}

// work is a server's counters. Only differences have a meaning.
type work struct {
	requests float64 // from clients: commands, statements, messages
	commits  float64 // transactions with a change; 0 if they are not counted
}

func (p *place) scheme() string {
	scheme, _, _ := strings.Cut(p.URL, ":")
	return scheme
}

// work asks the server. SQLite and memory have no server.
func (p *place) work(ctx context.Context) (w work, err error) {
	switch p.scheme() {
	case "redis", "redis+cluster", "redlock":
		for _, addr := range p.Addrs {
			n, err := redisRequests(ctx, addr)
			if err != nil {
				return w, err
			}
			w.requests += n
		}
	case "mysql":
		err = p.mariadb(func(db *sql.DB) error {
			return db.QueryRowContext(ctx, `SELECT
				(SELECT CAST(VARIABLE_VALUE AS SIGNED) FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'QUESTIONS'),
				(SELECT COUNT FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rw_commits')`).Scan(&w.requests, &w.commits)
		})
	case "postgres":
		err = p.postgres(ctx, func(c *pgx.Conn) error {
			if _, err := c.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements"); err != nil {
				return err
			}
			// Each transaction that writes takes one number.
			return c.QueryRow(ctx, `SELECT coalesce((SELECT sum(calls) FROM pg_stat_statements), 0)::float8,
				pg_snapshot_xmax(pg_current_snapshot())::text::float8`).Scan(&w.requests, &w.commits)
		})
	case "zk":
		var text string
		if text, err = ask(p.Addrs[0], "srvr"); err != nil {
			return w, err
		}
		if w.requests, err = strconv.ParseFloat(textAfter(text, "Received: "), 64); err != nil {
			return w, fmt.Errorf("read the statistics of ZooKeeper: %w", err)
		}
		zxid, err := strconv.ParseUint(strings.TrimPrefix(textAfter(text, "Zxid: "), "0x"), 16, 64)
		if err != nil {
			return w, fmt.Errorf("read the statistics of ZooKeeper: %w", err)
		}
		w.commits = float64(zxid)
	case "etcd":
		var text string
		if text, err = get("http://" + p.Addrs[0] + "/metrics"); err != nil {
			return w, err
		}
		if w.requests, err = metric(text, "grpc_server_msg_received_total"); err == nil {
			w.commits, err = metric(text, "etcd_server_proposals_applied_total")
		}
	}
	return w, err
}

// redisRequests is how many commands clients sent. The server also counts the commands that
// scripts call, so only scripts count, and commands that no script calls. A connection's
// first commands and the requests of this program do not count.
func redisRequests(ctx context.Context, addr string) (sum float64, err error) {
	c := redis.NewClient(&redis.Options{Addr: addr})
	defer c.Close()
	stats, err := c.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(stats) {
		name, rest, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "cmdstat_"), ":calls=")
		switch name {
		case "evalsha", "eval", "fcall", "ping", "subscribe", "ssubscribe":
			count, _, _ := strings.Cut(rest, ",")
			n, err := strconv.ParseFloat(count, 64)
			if err != nil {
				return 0, fmt.Errorf("read the statistics of Redis: %w", err)
			}
			sum += n
		}
	}
	return sum, nil
}

func (p *place) mariadb(f func(*sql.DB) error) error {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Net, cfg.Addr = "root", "tcp", p.Addrs[0]
	db, err := sql.Open("mysql", cfg.FormatDSN())
	if err != nil {
		return err
	}
	defer db.Close()
	return f(db)
}

func (p *place) postgres(ctx context.Context, f func(*pgx.Conn) error) error {
	c, err := pgx.Connect(ctx, p.URL)
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	return f(c)
}

// version asks the server for its name and version.
func (p *place) version() (v string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	switch p.scheme() {
	case "memory":
		return "memory", nil
	case "sqlite":
		db, err := sql.Open("sqlite", ":memory:")
		if err != nil {
			return "", err
		}
		defer db.Close()
		err = db.QueryRowContext(ctx, "SELECT 'SQLite ' || sqlite_version()").Scan(&v)
		return v, err
	case "mysql":
		err = p.mariadb(func(db *sql.DB) error {
			return db.QueryRowContext(ctx, "SELECT CONCAT('MariaDB ', SUBSTRING_INDEX(VERSION(), '-', 1))").Scan(&v)
		})
	case "postgres":
		err = p.postgres(ctx, func(c *pgx.Conn) error {
			return c.QueryRow(ctx, "SELECT 'PostgreSQL ' || split_part(current_setting('server_version'), ' ', 1)").Scan(&v)
		})
	case "zk":
		var text string
		text, err = ask(p.Addrs[0], "srvr")
		v = "ZooKeeper " + textAfter(text, "Zookeeper version: ")
		v, _, _ = strings.Cut(v, "-")
	case "etcd":
		var text string
		text, err = get("http://" + p.Addrs[0] + "/version")
		_, v, _ = strings.Cut(text, `"etcdserver":"`)
		v, _, _ = strings.Cut(v, `"`)
		v = "etcd " + v
	default:
		c := redis.NewClient(&redis.Options{Addr: p.Addrs[0]})
		defer c.Close()
		var info string
		info, err = c.Info(ctx, "server").Result()
		v = "Redis " + textAfter(info, "redis_version:")
	}
	return v, err
}

// commits counts the commits of this process's connections to SQLite.
var commits sqliteCommits

func init() {
	sqlite.RegisterConnectionHook(func(conn sqlite.ExecQuerierContext, _ string) error {
		if c, ok := conn.(sqlite.HookRegisterer); ok {
			c.RegisterCommitHook(func() int32 {
				commits.Add(1)
				return 0
			})
		}
		return nil
	})
}

// ask sends a four-letter command to ZooKeeper.
func ask(addr, command string) (string, error) {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second)) // without one the read would wait longer
	if _, err := io.WriteString(c, command); err != nil {
		return "", err
	}
	text, err := io.ReadAll(c)
	return string(text), err
}

func get(url string) (string, error) {
	client := http.Client{Timeout: 30 * time.Second}
	r, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return string(text), err
}

// metric sums a counter of a Prometheus page over all its labels.
func metric(text, name string) (sum float64, err error) {
	found := false
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == '{' || rest[0] == ' ') {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
			if err != nil {
				return 0, err
			}
			sum, found = sum+v, true
		}
	}
	if !found {
		return 0, errors.New("the server does not publish " + name)
	}
	return sum, nil
}

// textAfter finds a line that begins with the label and returns the rest, up to the next
// comma or space.
func textAfter(info, label string) string {
	_, rest, _ := strings.Cut("\n"+info, "\n"+label)
	if end := strings.IndexAny(rest, ", \r\n"); end >= 0 {
		rest = rest[:end]
	}
	return rest
}
