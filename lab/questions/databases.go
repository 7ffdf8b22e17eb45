package questions

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "modernc.org/sqlite" // lock-table opens a database of its own
)

// databases are the questions about locks in a database.
var databases = []*lab.Question{
	{
		Name:  "lock-table",
		Topic: lab.OneServer,
		Ask:   text("A table with a unique key as a lock: what happens if the holder crashes?", "用数据库唯一索引做分布式锁，持有者崩溃了怎么办？"),
		Answer: [3]lab.Text{
			text("The row stays: INSERT fails for everybody else, for ever, until a person deletes it.", "那一行会一直留着：别人 INSERT 永远报唯一键冲突，直到有人手工删掉。"),
			text("A row needs an expiry, by the database's clock, and a token, so that a late holder can be told from the new one.", "行里要有过期时间（按数据库的时钟），还要有栅栏令牌，才能区分迟到的旧持有者和新持有者。"),
			text("Baton's tables have both, and a queue, so that the one who came first is the next.", "Baton 的表两者都有，还有一个队列：先到的先拿到锁。"),
		},
		Tests: []string{"drivertest: expiry frees the lock"},
		Run:   lockTable,
	},
	{
		Name:  "connection-lock",
		Topic: lab.OneServer,
		Ask:   text("pg_advisory_lock and GET_LOCK: what happens when the connection ends?", "pg_advisory_lock、GET_LOCK：连接断了会怎样？"),
		Answer: [3]lab.Text{
			text("The server releases the lock as soon as it sees that, and nobody tells the holder, which works on beside the next one.", "服务器一发现连接断开就释放锁，没有谁通知持有者；它还在工作，下一个已经拿到锁了。"),
			text("Connections end by failover, idle timeouts, proxies and an administrator, and a pool may hide it.", "主从切换、空闲超时、代理、管理员都会断开连接，连接池还会把这件事藏起来。"),
			text("Baton's lock is a row that belongs to no connection: it outlives one, and the lease tells its holder when it is lost.", "Baton 的锁是一行数据，不属于任何连接：断线后锁还在；真丢了，租约会通知持有者。"),
		},
		Needs: []lab.Server{lab.Postgres},
		Tests: []string{"store/pgstore: TestAnswerCutAfterTheEffect"},
		Run:   connectionLock,
	},
	{
		Name:  "optimistic-or-pessimistic",
		Topic: lab.OneServer,
		Ask:   text("Version column, SELECT FOR UPDATE or a distributed lock: which, when many want the same row?", "版本号乐观锁、SELECT FOR UPDATE、分布式锁：很多人抢同一行时选哪个？"),
		Answer: [3]lab.Text{
			text("All three keep the row right; a version column locks nothing and suits rare conflicts, as work is thrown away with each conflict.", "三种都能保证数据正确；版本号不加锁，适合冲突少的情况：每次冲突都要重做一遍。"),
			text("SELECT FOR UPDATE throws nothing away, but keeps a connection and a transaction open for as long as the work takes.", "SELECT FOR UPDATE 不浪费工作，但干活期间一直占着一个连接和一个事务。"),
			text("A lock outside of the transaction suits work that is long or does more than write that row; its token guards the write.", "工作时间长，或不止写这一行时，用事务之外的锁；写入时用栅栏令牌把关。"),
		},
		Needs: []lab.Server{lab.Postgres},
		Tests: []string{"drivertest: a crowd is served one at a time"},
		Run:   optimisticOrPessimistic,
	},
}

// startPostgres starts a server and records it.
func startPostgres(r *lab.Run) *testserver.PostgresServer {
	s := testserver.Postgres(r.Site)
	version, err := s.Query("postgres", "SHOW server_version")
	if err != nil {
		r.Site.Fatalf("ask PostgreSQL for its version: %v", err)
	}
	r.With("postgresql " + strings.Fields(version + " ?")[0])
	return s
}

func lockTable(ctx context.Context, r *lab.Run) error {
	const ttl = time.Second
	folder := r.Site.Folder()
	db, err := sql.Open("sqlite", filepath.Join(folder, "naive.db"))
	if err != nil {
		return err
	}
	r.Site.Cleanup(func() { _ = db.Close() })
	if _, err := db.ExecContext(ctx, "CREATE TABLE locks (name TEXT PRIMARY KEY, owner TEXT, since TEXT DEFAULT CURRENT_TIMESTAMP)"); err != nil {
		return err
	}
	insert := func(owner string) error {
		_, err := db.ExecContext(ctx, "INSERT INTO locks (name, owner) VALUES ('order/42', ?)", owner)
		return err
	}
	locks, crash, err := lockerAt(ctx, r, "sqlite:"+filepath.Join(folder, "locks.db"), baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	others, _, err := lockerAt(ctx, r, "sqlite:"+filepath.Join(folder, "locks.db"), baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	naiveA, naiveB := r.Lane(text("INSERT: A", "INSERT：A")), r.Lane(text("INSERT: B", "INSERT：B"))
	batonA, batonB := r.Lane(text("Baton: A", "Baton：A")), r.Lane(text("Baton: B", "Baton：B"))
	r.Start()
	if err := insert("A"); err != nil {
		return err
	}
	naiveA.Begin(lab.Holds, lab.Text{})
	lease, err := locks.Lock(ctx, "order/42")
	if err != nil {
		return err
	}
	batonA.Begin(lab.Holds, lab.Text{})
	if err := wait(ctx, 300*time.Millisecond); err != nil {
		return err
	}
	crash()
	crashed := r.Since()
	for _, lane := range []*lab.Lane{naiveA, batonA} {
		lane.Mark(lab.Crashed, text("A crashes", "A 崩溃"))
		lane.End()
	}

	naiveB.Begin(lab.Waits, lab.Text{})
	batonB.Begin(lab.Waits, lab.Text{})
	next, err := others.Lock(ctx, "order/42")
	if err != nil {
		return err
	}
	free := r.Since() - crashed
	batonB.Begin(lab.Holds, lab.Text{})
	batonB.Mark(lab.Granted, text("the lease of A has ended: B is granted", "A 的租约到期：B 获得锁"))
	tries, failed := 0, error(nil)
	for range 5 { // B tries again, long after the crash
		if err := wait(ctx, 200*time.Millisecond); err != nil {
			return err
		}
		tries, failed = tries+1, insert("B")
		if failed == nil {
			return unexpected("B could insert its row at try %d", tries)
		}
	}
	naiveB.Mark(lab.Harm, text("UNIQUE constraint failed, for ever", "唯一键冲突，永远失败"))
	if err := next.Unlock(); err != nil {
		return err
	}
	batonB.Mark(lab.Released, lab.Text{})
	batonB.End()
	t := r.Table(text("way", "方式"), text("B after the crash of A", "A 崩溃之后的 B"), text("token of A, of B", "A、B 的令牌"))
	t.Add("INSERT", lab.Textf("%d tries, all refused", "试了 %d 次，全部失败", tries), text("none", "没有"))
	t.Add("Baton", lab.Textf("granted after %v", "%v 后获得锁", free.Round(10*time.Millisecond)), fmt.Sprintf("%d, %d", lease.Token(), next.Token()))
	if !strings.Contains(failed.Error(), "UNIQUE constraint") || next.Token() <= lease.Token() || free > ttl+2*time.Second {
		return unexpected("INSERT: %v; tokens %d, %d; B had to wait %v", failed, lease.Token(), next.Token(), free)
	}
	r.Say("The row of the crashed A refused all %d tries of B. In Baton's table B was granted %d ms after the crash; the TTL was 1000 ms.",
		"崩溃的 A 留下的行让 B 的 %d 次尝试全部失败。在 Baton 的表里，崩溃 %d ms 之后 B 就获得了锁；TTL 是 1000 ms。", tries, free.Milliseconds())
	return nil
}

func connectionLock(ctx context.Context, r *lab.Run) error {
	server := startPostgres(r)
	database := server.Database(r.Site)
	locks, _, err := lockerAt(ctx, r, server.URL(database), baton.Config{})
	if err != nil {
		return err
	}
	others, _, err := lockerAt(ctx, r, server.URL(database), baton.Config{})
	if err != nil {
		return err
	}
	a, err := pgx.Connect(ctx, server.URL("postgres"))
	if err != nil {
		return err
	}
	b, err := pgx.Connect(ctx, server.URL("postgres"))
	if err != nil {
		return err
	}
	r.Site.Cleanup(func() { _, _ = a.Close(context.Background()), b.Close(context.Background()) })
	naiveA, naiveB := r.Lane(text("pg_advisory_lock: A", "pg_advisory_lock：A")), r.Lane(text("pg_advisory_lock: B", "pg_advisory_lock：B"))
	batonA, batonB := r.Lane(text("Baton: A", "Baton：A")), r.Lane(text("Baton: B", "Baton：B"))
	r.Start()

	var pid int
	if err := a.QueryRow(ctx, "SELECT pg_backend_pid() FROM pg_advisory_lock(42)").Scan(&pid); err != nil {
		return err
	}
	holds := naiveA.Begin(lab.Holds, lab.Text{})
	lease, err := locks.Lock(ctx, "order/42")
	if err != nil {
		return err
	}
	batonA.Begin(lab.Holds, lab.Text{})
	naive, ours := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := b.Exec(ctx, "SELECT pg_advisory_lock(42)")
		naive <- err
	}()
	naiveB.Begin(lab.Waits, lab.Text{})
	var next *baton.Lease
	go func() {
		var err error
		next, err = others.Lock(ctx, "order/42")
		ours <- err
	}()
	batonB.Begin(lab.Waits, lab.Text{})
	if err := wait(ctx, 400*time.Millisecond); err != nil {
		return err
	}

	// The connections of both holders end. Their programs continue.
	if _, err := server.Query("postgres", fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid)); err != nil {
		return err
	}
	ended, err := server.Query("postgres", "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '"+database+"'")
	if err != nil {
		return err
	}
	if err := <-naive; err != nil {
		return err
	}
	naiveA.Mark(lab.Noted, text("its connection ends; nobody tells A", "连接断了，没有谁通知 A"))
	holds.End()
	naiveA.Begin(lab.Wrong, lab.Text{})
	naiveB.Begin(lab.Holds, lab.Text{})
	naiveB.Mark(lab.Harm, text("B works beside A", "B 与 A 同时工作"))
	batonA.Mark(lab.Noted, text("all its connections end", "所有连接都断了"))
	if err := wait(ctx, 600*time.Millisecond); err != nil {
		return err
	}
	early := len(ours) // 0: B still waits
	lost := lease.Err()
	naiveA.End()
	if err := lease.Unlock(); err != nil {
		return err
	}
	batonA.Mark(lab.Released, text("A unlocks", "A 解锁"))
	batonA.End()
	if err := <-ours; err != nil {
		return err
	}
	batonB.Begin(lab.Holds, lab.Text{})
	batonB.Mark(lab.Granted, lab.Text{})
	_, told := a.Exec(ctx, "SELECT 1") // A learns of the loss when it next uses that connection
	if err := wait(ctx, 300*time.Millisecond); err != nil {
		return err
	}
	if err := next.Unlock(); err != nil {
		return err
	}
	t := r.Table(text("lock", "锁"), text("connections ended", "断开的连接"), text("A still has it", "A 还持有"), text("B was granted", "B 获得锁"))
	t.Add("pg_advisory_lock", 1, text("no, and is not told", "不持有，也没有得到通知"), text("while A worked", "A 还在工作时"))
	t.Add("Baton", ended, text("yes", "持有"), text("after A had unlocked", "A 解锁之后"))
	if early != 0 || lost != nil || told == nil || ended == "0" {
		return unexpected("B was granted early: %d; the lease of A: %v; %s connections ended; A's next query: %v", early, lost, ended, told)
	}
	r.Say("When its connection ended, A lost the advisory lock at once, and B worked beside it; A learned of it from the error of its next query. All %s connections of Baton's two programs ended, and A kept its lock until it unlocked it.",
		"连接一断，A 立刻丢了咨询锁，B 与它同时工作；A 直到下一次查询报错才知道。Baton 两个进程的 %s 个连接全部断开，A 的锁一直保持到它解锁。", ended)
	return nil
}

func optimisticOrPessimistic(ctx context.Context, r *lab.Run) error {
	const updates = 48 // for all workers together
	server := startPostgres(r)
	programs := make([]*baton.Locker, 4) // the workers are divided among them
	for i := range programs {
		locks, _, err := lockerAt(ctx, r, server.URL("postgres"), baton.Config{})
		if err != nil {
			return err
		}
		programs[i] = locks
	}
	cfg, err := pgxpool.ParseConfig(server.URL("postgres"))
	if err != nil {
		return err
	}
	cfg.MaxConns = 16 // one for each worker
	db, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	r.Site.Cleanup(db.Close)
	if _, err := db.Exec(ctx, "CREATE TABLE stock (item int PRIMARY KEY, n int, version int); INSERT INTO stock VALUES (1, 0, 0)"); err != nil {
		return err
	}

	// Each way adds one to the stock, with a millisecond of work between reading and
	// writing. It returns false if it must be repeated.
	optimistic := func() (bool, error) {
		var n, version int
		if err := db.QueryRow(ctx, "SELECT n, version FROM stock WHERE item = 1").Scan(&n, &version); err != nil {
			return false, err
		}
		if err := wait(ctx, time.Millisecond); err != nil {
			return false, err
		}
		tag, err := db.Exec(ctx, "UPDATE stock SET n = $1, version = version + 1 WHERE item = 1 AND version = $2", n+1, version)
		return tag.RowsAffected() == 1, err
	}
	pessimistic := func() (bool, error) {
		return true, pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			var n int
			if err := tx.QueryRow(ctx, "SELECT n FROM stock WHERE item = 1 FOR UPDATE").Scan(&n); err != nil {
				return err
			}
			if err := wait(ctx, time.Millisecond); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "UPDATE stock SET n = $1 WHERE item = 1", n+1)
			return err
		})
	}
	var next atomic.Int64
	locked := func() (bool, error) {
		return true, programs[next.Add(1)%4].Do(ctx, "stock/1", func(ctx context.Context, _ *baton.Lease) error {
			var n int
			if err := db.QueryRow(ctx, "SELECT n FROM stock WHERE item = 1").Scan(&n); err != nil {
				return err
			}
			if err := wait(ctx, time.Millisecond); err != nil {
				return err
			}
			_, err := db.Exec(ctx, "UPDATE stock SET n = $1 WHERE item = 1", n+1)
			return err
		})
	}
	ways := []struct {
		name lab.Text
		once func() (bool, error)
	}{
		{text("version column", "版本号"), optimistic},
		{text("SELECT FOR UPDATE", "SELECT FOR UPDATE"), pessimistic},
		{text("Baton's lock", "Baton 锁"), locked},
	}
	chart := &lab.Chart{X: text("workers that want the same row", "抢同一行的并发数"), Y: text("attempts for one update", "一次更新要尝试几次")}
	for _, way := range ways {
		chart.Lines = append(chart.Lines, &lab.Line{Name: way.name})
	}
	t := r.Table(text("workers", "并发数"), text("version column: thrown away", "版本号：白做的次数"), text("updates per second", "每秒更新"),
		text("FOR UPDATE: updates per second", "FOR UPDATE：每秒更新"), text("Baton: updates per second", "Baton：每秒更新"))
	wasted := map[int]int64{}
	for _, workers := range []int{1, 4, 16} {
		var rates []string
		for i, way := range ways {
			attempts, took, err := hammer(workers, updates, way.once)
			if err != nil {
				return err
			}
			if i == 0 {
				wasted[workers] = attempts - updates
			} else if attempts != updates {
				return unexpected("%s: %d attempts for %d updates", way.name.EN, attempts, updates)
			}
			chart.Lines[i].Points = append(chart.Lines[i].Points, [2]float64{float64(workers), float64(attempts) / updates})
			rates = append(rates, fmt.Sprintf("%.0f", updates/took.Seconds()))
		}
		t.Add(workers, wasted[workers], rates[0], rates[1], rates[2])
	}
	r.Chart(chart)
	var n int
	if err := db.QueryRow(ctx, "SELECT n FROM stock WHERE item = 1").Scan(&n); err != nil {
		return err
	}
	if n != updates*len(ways)*3 || wasted[1] != 0 || wasted[4] == 0 || wasted[16] == 0 {
		return unexpected("the stock is %d after %d updates; thrown away: %v", n, updates*len(ways)*3, wasted)
	}
	r.Say("No update was lost: the stock is %d. With a version column %d workers threw %d attempts away for %d updates, one worker none; FOR UPDATE and Baton's lock threw nothing away.",
		"没有丢失更新：库存是 %d。用版本号，%d 个并发为 %[4]d 次更新白做了 %[3]d 次，单个并发一次也没有；FOR UPDATE 和 Baton 锁都没有白做。", n, 16, wasted[16], updates)
	return nil
}

// hammer lets workers do updates, that many together, and counts their attempts.
func hammer(workers int, updates int64, once func() (bool, error)) (attempts int64, took time.Duration, err error) {
	var begun, tried atomic.Int64
	failed := make([]error, workers)
	var all sync.WaitGroup
	start := time.Now()
	for i := range workers {
		all.Go(func() {
			for begun.Add(1) <= updates {
				for done := false; !done; {
					tried.Add(1)
					if done, failed[i] = once(); failed[i] != nil {
						return
					}
				}
			}
		})
	}
	all.Wait()
	return tried.Load(), time.Since(start), errors.Join(failed...)
}
