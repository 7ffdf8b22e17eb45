package questions

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/internal/scratch"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab"
	"github.com/batonhq/baton/lab/measure"
	"github.com/batonhq/baton/open"
	_ "github.com/go-sql-driver/mysql" // to ask MariaDB for its version
)

// compared are the questions about the stores side by side.
var compared = []*lab.Question{
	{
		Name:  "stores-compared",
		Topic: lab.Compared,
		Ask:   text("Redis, Redlock, ZooKeeper, etcd, PostgreSQL, MariaDB, SQLite, memory: how fast is a lock on each?", "Redis、Redlock、ZooKeeper、etcd、PostgreSQL、MariaDB、SQLite、内存：锁各有多快？"),
		Answer: [3]lab.Text{
			text("Memory is the fastest, with microseconds; Redis adds the way to a server; others also wait for a disk, or for several servers.", "内存最快，微秒级；Redis 加上一趟网络往返；其余的还要等磁盘，或者等多台服务器。"),
			text("With 64 at once a lock takes longer than with one, on most stores: they wait for each other though each has a key of its own.", "64 个并发时，多数存储上单次加锁比单个并发慢：虽然各用各的键，还是要互相等待。"),
			text("Take the store that you already run and whose promises suffice: few programs need more locks per second than the slowest gives.", "选你已经在用、承诺又够用的那一种：最慢的存储每秒能给的锁，多数程序也用不完。"),
		},
		Tests: []string{"lab/measure: TestRunMeasuresAll"},
		Run:   storesCompared,
	},
	{
		Name:  "commands-per-lock",
		Topic: lab.Compared,
		Ask:   text("How many requests does one lock cost?", "加一次锁、放一次锁，要向服务器发几次请求？"),
		Answer: [3]lab.Text{
			text("With nobody in the way: one request to acquire and one to release, on every store with one server.", "没有竞争时，单台服务器的存储：加锁一次请求，释放一次请求。"),
			text("Redlock as published sends both to all 5 servers; Baton asks a majority first, and for a lock that is held for less than a millisecond that suffices.", "按 Redlock 原文，两次请求都要发给全部 5 台；Baton 先问多数派，持有时间不到一毫秒的锁，这就够了。"),
			text("So a lock costs two round trips, and on a store that keeps it on a disk the time of its commits, too.", "所以一把锁的开销是两次网络往返；落盘的存储还要加上提交的时间。"),
		},
		Tests: []string{
			"store/redisstore: TestUncontendedIsOneCommandEach",
			"store/zkstore: TestCost",
		},
		Run: commandsPerLock,
	},
}

// A kindOfStore is one that is compared with the others.
type kindOfStore struct {
	name lab.Text
	url  string

	// requests is how many requests its servers have got so far.
	requests func() (int64, error)
}

// everyStore starts a server for each store, behind proxies that count requests if counted
// is set. Stores whose servers are not installed are absent.
func everyStore(ctx context.Context, r *lab.Run, counted bool) (all []kindOfStore, absent []string, err error) {
	folder := r.Site.Folder()
	none := func() (int64, error) { return 0, nil }
	all = append(all, kindOfStore{text("memory", "内存"), "memory:", none}, kindOfStore{lab.Plain("SQLite"), "sqlite:" + filepath.Join(folder, "locks.db"), none})
	var nodes []*testserver.RedisServer // of the Redis or Redlock that was started last
	for _, one := range []struct {
		name  string
		start func() (url string, addrs []string)
	}{
		{"Redis", func() (string, []string) {
			nodes = []*testserver.RedisServer{startRedis(r)}
			return "redis://" + nodes[0].Addr, testserver.Addrs(nodes)
		}},
		{"Redlock", func() (string, []string) {
			var url string
			nodes, url = startRedisNodes(r, 5, true)
			return url, testserver.Addrs(nodes)
		}},
		{"PostgreSQL", func() (string, []string) {
			s := startPostgres(r)
			return s.URL("postgres"), []string{s.Addr}
		}},
		{"MariaDB", func() (string, []string) {
			s := startMariaDB(ctx, r)
			return "mariadb://root@" + s.Addr + "/baton", []string{s.Addr}
		}},
		{"ZooKeeper", func() (string, []string) {
			s := startZooKeeper(r)
			return "zk://" + s.Addr + "/locks", []string{s.Addr}
		}},
		{"etcd", func() (string, []string) {
			s := testserver.Etcd(r.Site)
			r.With("etcd")
			return "etcd://" + s.Addr + "/locks", []string{s.Addr}
		}},
	} {
		var url string
		var addrs []string
		err := r.Site.Try(func() { url, addrs = one.start() })
		if errors.Is(err, testserver.ErrNotInstalled) {
			absent = append(absent, one.name)
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		store := kindOfStore{lab.Plain(one.name), url, none}
		switch {
		case !counted:
		case one.name == "Redis", one.name == "Redlock": // a program does not wait for every answer: Redis counts
			servers := nodes
			store.requests = func() (int64, error) { return redisScripts(servers) }
		case one.name == "etcd": // one HTTP/2 connection carries more than requests: etcd counts
			store.requests = func() (int64, error) { return etcdRequests(ctx, addrs[0]) }
		default:
			n := new(atomic.Int64)
			for _, addr := range addrs {
				proxy, err := countingProxy(r, addr, n)
				if err != nil {
					return nil, nil, err
				}
				store.url = strings.Replace(store.url, addr, proxy, 1)
			}
			store.requests = func() (int64, error) { return n.Load(), nil }
		}
		all = append(all, store)
	}
	return all, absent, nil
}

// startMariaDB starts a server, and names it in the record.
func startMariaDB(ctx context.Context, r *lab.Run) *testserver.MariaDBServer {
	s := testserver.MariaDB(r.Site)
	db, err := sql.Open("mysql", "root@tcp("+s.Addr+")/baton")
	if err != nil {
		r.Site.Fatalf("ask MariaDB for its version: %v", err)
	}
	defer db.Close()
	var version string
	if err := db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version); err != nil {
		r.Site.Fatalf("ask MariaDB for its version: %v", err)
	}
	version, _, _ = strings.Cut(version, "-")
	r.With("mariadb " + version)
	return s
}

func storesCompared(ctx context.Context, r *lab.Run) error {
	levels := []int{1, 4, 16, 64}
	stores, absent, err := everyStore(ctx, r, false)
	if err != nil {
		return err
	}
	var targets []measure.Target
	for _, s := range stores {
		store, err := open.Store(ctx, s.url)
		if err != nil {
			return err
		}
		r.Site.Cleanup(func() { _ = store.Close() })
		if _, err := scratch.Measure(ctx, store, 10); err != nil { // the first lock makes tables and connections
			return fmt.Errorf("%s: %w", s.name.EN, err)
		}
		targets = append(targets, measure.Target{Name: s.name.EN, Store: store})
	}
	figures := map[string]map[int]measure.Figures{}
	for _, n := range levels { // the stores take turns, so that all meet the same moments of this machine
		for _, target := range targets {
			result, err := measure.Run(ctx, measure.Plan{
				Targets: []measure.Target{target}, Goroutines: []int{n}, Repetitions: 1, Shapes: []measure.Shape{measure.Apart}, For: 400 * time.Millisecond,
			})
			if err := errors.Join(err, result.Failed[target.Name]); err != nil {
				return fmt.Errorf("%s with %d goroutines: %w", target.Name, n, err)
			}
			if figures[target.Name] == nil {
				figures[target.Name] = map[int]measure.Figures{}
			}
			figures[target.Name][n] = result.Cell(target.Name, measure.Apart, n).Median()
		}
	}
	chart := &lab.Chart{X: text("goroutines, each with a key of its own", "并发数（每个 goroutine 一个键）"), Y: text("time for one lock and unlock, median, in ms", "一次加锁加释放的中位时间（ms）"), LogX: true, LogY: true}
	for _, metric := range measure.Metrics {
		if metric.Shared {
			continue
		}
		columns := []lab.Text{metricTitle(metric)}
		for _, n := range levels {
			columns = append(columns, lab.Plain(n))
		}
		t := r.Table(columns...)
		for _, s := range stores {
			row := []any{s.name}
			for _, n := range levels {
				row = append(row, metric.Format(metric.Get(figures[s.name.EN][n])))
			}
			t.Add(row...)
		}
	}
	p50 := func(store lab.Text, n int) float64 { return figures[store.EN][n].P50 }
	memory, slowest := stores[0].name, stores[0].name
	slower := 0 // stores that are slower with 64 goroutines than with one
	for _, s := range stores {
		line := &lab.Line{Name: s.name}
		for _, n := range levels {
			line.Points = append(line.Points, [2]float64{float64(n), math.Round(p50(s.name, n)*1e7) / 1e4})
		}
		chart.Lines = append(chart.Lines, line)
		if s.name != memory && p50(s.name, 1) <= p50(memory, 1) {
			return unexpected("%s: the median lock takes %v s, in memory %v s", s.name.EN, p50(s.name, 1), p50(memory, 1))
		}
		if p50(s.name, 64) > p50(s.name, 1) {
			slower++
		}
		if p50(s.name, 1) > p50(slowest, 1) {
			slowest = s.name
		}
	}
	r.Chart(chart)
	if slower <= len(stores)/2 { // another program on this machine may spoil the figures of one
		return unexpected("only %d of %d stores are slower with 64 goroutines than with one", slower, len(stores))
	}
	r.Say("With one goroutine the median lock takes %s in memory and %s on %s, the slowest here; all servers ran on this machine, so a network adds its own time.",
		"单个 goroutine 时，加锁加释放的中位时间：内存 %s，这里最慢的 %[3]s 是 %[2]s；服务器都在本机，走网络还要加上网络的时间。",
		measure.Span(p50(memory, 1)), measure.Span(p50(slowest, 1)), slowest.EN)
	sayAbsent(r, absent)
	return nil
}

// metricTitle is the title of a metric in both languages.
func metricTitle(m measure.Metric) lab.Text {
	chinese := map[string]string{"p50": "一次加锁，p50", "p99": "一次加锁，p99", "jitter": "抖动", "rate": "每秒加锁次数"}
	return lab.Text{EN: m.Title, ZH: chinese[m.Name]}
}

func sayAbsent(r *lab.Run, absent []string) {
	if len(absent) > 0 {
		r.Say("Not installed here, and so not measured: %s.", "这里没有安装，所以没有测：%s。", strings.Join(absent, ", "))
	}
}

func commandsPerLock(ctx context.Context, r *lab.Run) error {
	const pairs = 50
	stores, absent, err := everyStore(ctx, r, true)
	if err != nil {
		return err
	}
	chart := &lab.Chart{X: text("requests for acquire and release, nobody in the way", "没有竞争时，加锁加释放的请求数")}
	t := r.Table(text("store", "存储"), text("requests for one lock and unlock", "一次加锁加释放的请求数"), text("median time", "中位时间"))
	cost := map[string]float64{}
	for _, s := range stores {
		store, err := open.Store(ctx, s.url)
		if err != nil {
			return err
		}
		r.Site.Cleanup(func() { _ = store.Close() })
		if _, err := scratch.Measure(ctx, store, 10); err != nil { // the first lock makes tables and connections
			return fmt.Errorf("%s: %w", s.name.EN, err)
		}
		before, err := s.requests()
		if err != nil {
			return err
		}
		took, err := scratch.Measure(ctx, store, pairs)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name.EN, err)
		}
		after, err := s.requests()
		if err != nil {
			return err
		}
		each := float64(after-before) / pairs
		cost[s.name.EN] = each
		shown := strconv.FormatFloat(each, 'f', 1, 64)
		chart.Bars = append(chart.Bars, lab.ChartBar{Name: s.name, Value: each, Shown: lab.Plain(shown)})
		t.Add(s.name, shown, measure.Span(took.P50.Seconds()))
	}
	r.Chart(chart)
	if cost["memory"] != 0 || cost["SQLite"] != 0 {
		return unexpected("requests for each lock: %v", cost)
	}
	for name, n := range cost {
		switch name {
		case "Redis", "PostgreSQL", "MariaDB", "ZooKeeper", "etcd":
			if n < 1.9 || n > 2.5 { // 2, and now and then a sign of life
				return unexpected("%s: %.2f requests for each lock", name, n)
			}
		case "Redlock":
			if n < 5.9 || n > 9.5 { // 2 by 3, and for a lock that took longer than a millisecond 2 by 5
				return unexpected("Redlock: %.2f requests for each lock", n)
			}
		}
	}
	r.Say("%d pairs were counted on each store: %.1f requests each on Redis, %.1f on 5 servers of Redlock. Memory and SQLite have no server: what they cost is a map, and a file.",
		"每种存储数了 %d 次加锁加释放：Redis 每次 %.1f 个请求，5 台服务器的 Redlock 每次 %.1f 个。内存和 SQLite 没有服务器：只是一个 map、一个文件。", pairs, cost["Redis"], cost["Redlock"])
	sayAbsent(r, absent)
	return nil
}

// countingProxy passes everything to a server and back, and counts requests: what a client
// sends after it has got an answer, or first, counts once.
func countingProxy(r *lab.Run, server string, n *atomic.Int64) (addr string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	r.Site.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			answered := new(atomic.Bool)
			answered.Store(true)
			go pass(up, client, func() {
				if answered.Swap(false) {
					n.Add(1)
				}
			})
			go pass(client, up, func() { answered.Store(true) })
		}
	}()
	return listener.Addr().String(), nil
}

// pass copies until one side ends, and calls before for what was read at once.
func pass(to, from net.Conn, before func()) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			before()
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// redisScripts is how many scripts Redis servers have run: Baton sends nothing else about
// locks.
func redisScripts(servers []*testserver.RedisServer) (n int64, err error) {
	for _, s := range servers {
		stats, err := s.Do("INFO", "commandstats")
		if err != nil {
			return 0, err
		}
		for _, m := range scriptCalls.FindAllStringSubmatch(stats, -1) {
			calls, err := strconv.ParseInt(m[1], 10, 64)
			if err != nil {
				return 0, err
			}
			n += calls
		}
	}
	return n, nil
}

var scriptCalls = regexp.MustCompile(`cmdstat_(?:eval|evalsha|fcall):calls=(\d+)`)

// etcdRequests is how many messages etcd has got over gRPC.
func etcdRequests(ctx context.Context, addr string) (n int64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "grpc_server_msg_received_total{") {
			fields := strings.Fields(line)
			v, err := strconv.ParseFloat(fields[len(fields)-1], 64)
			if err != nil {
				return 0, err
			}
			n += int64(v)
		}
	}
	return n, nil
}
