package batonasynq_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton"
	batonasynq "github.com/batonhq/baton/adapters/asynq"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/ratelimit/joblimit"
	"github.com/batonhq/baton/store/redisstore"
)

// TestMain makes of a copy of the test a worker process that a test can kill.
func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Arg(0) == "worker" {
		if err := worker(flag.Arg(1), os.Stdin); err != nil {
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

// key is the key of a task: its payload. One that begins with "last/" counts in the last
// attempt only.
func key(ctx context.Context, t *asynq.Task) string {
	key, last := strings.CutPrefix(string(t.Payload()), "last/")
	retried, _ := asynq.GetRetryCount(ctx)
	if most, _ := asynq.GetMaxRetry(ctx); last && retried < most {
		return ""
	}
	return key
}

// quiet drops what asynq logs.
type quiet struct{}

func (quiet) Debug(...any) {}
func (quiet) Info(...any)  {}
func (quiet) Warn(...any)  {}
func (quiet) Error(...any) {}
func (quiet) Fatal(...any) {}

func config(concurrency int) asynq.Config {
	return batonasynq.Config(asynq.Config{
		Concurrency: concurrency, Logger: quiet{},
		TaskCheckInterval: 50 * time.Millisecond, DelayedTaskCheckInterval: 200 * time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
	})
}

func serve(addr string, handler asynq.Handler, concurrency int) (*asynq.Server, error) {
	server := asynq.NewServer(asynq.RedisClientOpt{Addr: addr}, config(concurrency))
	return server, server.Start(handler)
}

func open(ctx context.Context, addr string) (*redisstore.Store, *baton.Locker, error) {
	store, err := redisstore.Open(ctx, redisstore.Server{Addrs: []string{addr}}, redisstore.Config{})
	if err != nil {
		return nil, nil, err
	}
	locks, err := baton.New(store, baton.Config{TTL: ttl})
	return store, locks, err
}

// journal is the list in Redis in which tasks note that they begin and end: one order
// of events for all processes.
const journal = "journal"

// worker works until its standard input ends.
func worker(addr string, stdin io.Reader) error {
	ctx := context.Background()
	store, locks, err := open(ctx, addr)
	if err != nil {
		return err
	}
	defer store.Close()
	limit, err := joblimit.New(joblimit.Config{Locks: locks, Running: running, Prefix: "permits/", Longest: 5 * time.Second})
	if err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	note := func(what string, t *asynq.Task, id string) error {
		return client.RPush(ctx, journal, fmt.Sprintf("%s %s %s %d", what, t.Payload(), id, os.Getpid())).Err()
	}
	mux := asynq.NewServeMux()
	mux.Use(batonasynq.Middleware(client, limit, key))
	mux.HandleFunc("job", func(ctx context.Context, t *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		if n, _ := asynq.GetRetryCount(ctx); n > 0 {
			id += "/retried" // only what a killed worker ran may be
		}
		if err := note("begin", t, id); err != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond) // the work
		return note("end", t, id)
	})
	server, err := serve(addr, mux, 10)
	if err != nil {
		return err
	}
	fmt.Println(testserver.Ready)
	_, _ = io.Copy(io.Discard, stdin)
	server.Shutdown()
	return nil
}

// kill ends a worker at once, and notes that what it ran has ended.
func kill(t *testing.T, worker *testserver.Worker, client *redis.Client) {
	t.Helper()
	worker.Kill()
	if err := client.RPush(t.Context(), journal, fmt.Sprintf("killed - - %d", worker.PID())).Err(); err != nil {
		t.Fatal(err)
	}
}
