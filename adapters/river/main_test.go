package batonriver_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	"github.com/batonhq/baton"
	batonriver "github.com/batonhq/baton/adapters/river"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/ratelimit/joblimit"
	"github.com/batonhq/baton/store/pgstore"
)

// TestMain makes of a copy of the test a worker process that a test can kill.
func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Arg(0) == "worker" {
		if err := worker(flag.Arg(1), flag.Arg(2), os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const (
	running = 3 // the cap of every key
	ttl     = 2 * time.Second
)

type args struct {
	Key string `json:"key"`
}

func (args) Kind() string { return "job" }

// key is the key of a job, which the tests give as its only tag.
func key(_ context.Context, job *rivertype.JobRow) string {
	if len(job.Tags) == 0 {
		return ""
	}
	return job.Tags[0]
}

func insertion(key string, attempts int) river.InsertManyParams {
	opts := &river.InsertOpts{MaxAttempts: attempts}
	if key != "" {
		opts.Tags = []string{key}
	}
	return river.InsertManyParams{Args: args{key}, InsertOpts: opts}
}

// database is one of a server, and its URL.
type database struct{ addr, name, url string }

// migrated makes a database with River's tables, in the server that the tests share.
func migrated(t testing.TB) database {
	t.Helper()
	server := testserver.SharedPostgres(t)
	name := server.Database(t)
	db := database{server.Addr, name, server.URL(name)}
	pool := connect(t, db.url)
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrator.Migrate(context.Background(), rivermigrate.DirectionUp, nil); err != nil {
		t.Fatal(err)
	}
	return db
}

func connect(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

// retryAtOnce is a river.ClientRetryPolicy.
type retryAtOnce struct{}

func (retryAtOnce) NextRetry(*rivertype.JobRow) time.Time { return time.Now() }

func newClient(pool *pgxpool.Pool, middleware []rivertype.Middleware, work func(context.Context, *river.Job[args]) error, change func(*river.Config)) (*river.Client[pgx.Tx], error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(work))
	cfg := &river.Config{
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}},
		FetchCooldown: 10 * time.Millisecond, FetchPollInterval: 100 * time.Millisecond,
		RetryPolicy: retryAtOnce{}, Middleware: middleware, Workers: workers, Logger: slog.New(slog.DiscardHandler),
		JobTimeout: 20 * time.Second, RescueStuckJobsAfter: 30 * time.Second,
	}
	if change != nil {
		change(cfg)
	}
	return river.NewClient(riverpgxv5.New(pool), cfg)
}

func open(ctx context.Context, addr, database string) (*pgstore.Store, *baton.Locker, error) {
	store, err := pgstore.Open(ctx, pgstore.Server{Addrs: []string{addr}, Database: database, User: "postgres", SSLMode: "disable", Conns: 8}, pgstore.Config{})
	if err != nil {
		return nil, nil, err
	}
	locks, err := baton.New(store, baton.Config{TTL: ttl})
	return store, locks, err
}

// clientID is the name of a worker in River's attempted_by and in PostgreSQL's
// pg_stat_activity.
func clientID(pid int) string { return fmt.Sprint("worker-", pid) }

// worker works until its standard input ends.
func worker(addr, database string, stdin io.Reader) error {
	ctx := context.Background()
	store, locks, err := open(ctx, addr, database)
	if err != nil {
		return err
	}
	defer store.Close()
	limit, err := joblimit.New(joblimit.Config{Locks: locks, Running: running, Prefix: "permits/", Longest: 5 * time.Second})
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable&application_name=%s", addr, database, clientID(os.Getpid())))
	if err != nil {
		return err
	}
	defer pool.Close()
	// The journal is a table in which jobs note that they begin and end: its numbers are
	// one order of events for all processes.
	note := func(what string, job *river.Job[args]) error {
		_, err := pool.Exec(ctx, "insert into journal (what, key, job, lost, pid) values ($1, $2, $3, $4, $5)", what, job.Args.Key, job.ID, job.Attempt > 1, os.Getpid())
		return err
	}
	client, err := newClient(pool, []rivertype.Middleware{batonriver.Middleware(limit, key)}, func(ctx context.Context, job *river.Job[args]) error {
		if err := note("begin", job); err != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond) // the work
		return note("end", job)
	}, func(cfg *river.Config) { cfg.ID = clientID(os.Getpid()) })
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	fmt.Println(testserver.Ready)
	_, _ = io.Copy(io.Discard, stdin)
	return client.Stop(ctx)
}

// kill ends a worker at once, and notes that what it ran has ended.
func kill(t *testing.T, worker *testserver.Worker, pool *pgxpool.Pool) {
	t.Helper()
	worker.Kill()
	// What the process sent before is done, or never will be.
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var left int
		if err := pool.QueryRow(t.Context(), "select count(*) from pg_stat_activity where application_name = $1", clientID(worker.PID())).Scan(&left); err != nil {
			t.Fatal(err)
		}
		if left == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d connections of a process that was killed", left)
		}
	}
	if _, err := pool.Exec(t.Context(), "insert into journal (what, pid) values ('killed', $1)", worker.PID()); err != nil {
		t.Fatal(err)
	}
}
