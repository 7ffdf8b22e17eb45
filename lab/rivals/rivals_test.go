package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/testserver"
)

func TestMain(m *testing.M) {
	if runChild() {
		return
	}
	os.Exit(m.Run())
}

// redisEnv is an env on the server that the tests share.
func redisEnv(t *testing.T) *env {
	t.Helper()
	r := testserver.SharedRedis(t)
	return &env{redis: r, at: map[string][]string{"redis": {r.Addr}}, dir: t.TempDir(), servers: make(map[string]*server)}
}

// newTestEnv starts systems for one test.
func newTestEnv(t *testing.T, systems ...string) *env {
	t.Helper()
	e, err := newEnv(t, t.TempDir(), systems)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestRivalsExclude lets eight goroutines fight for a lock of each kind.
func TestRivalsExclude(t *testing.T) {
	t.Parallel()
	for name, system := range systems {
		if strings.HasPrefix(name, "limit-") || system.rivals == nil {
			continue // they do not exclude
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "redis" {
				exclude(t, system.rivals, func(t *testing.T) *env {
					e := redisEnv(t)
					for _, door := range []string{"agent", "serve"} {
						if strings.Contains(t.Name(), "/"+door) {
							if err := systems[door].start(t, e); err != nil {
								t.Fatal(err)
							}
						}
					}
					return e
				})
				return
			}
			e := newTestEnv(t, name)
			exclude(t, system.rivals, func(*testing.T) *env { return e })
		})
	}
}

// TestLimitersAllow asks each limiter, as its measurements do.
func TestLimitersAllow(t *testing.T) {
	t.Parallel()
	for name, system := range systems {
		if !strings.HasPrefix(name, "limit-") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			needed := []string{name}
			if name == "limit-redis" {
				needed = append(needed, "rls", "rls-incr")
			}
			e := newTestEnv(t, needed...)
			for _, rv := range system.rivals {
				r, err := rv.open(e, 2)
				if err != nil {
					t.Fatalf("%s: %v", rv.name, err)
				}
				for i := range 100 {
					if held, err := r.seat(i%2).Lock(t.Context(), fmt.Sprint("test/", i%10)); err != nil || held.Unlock() != nil {
						t.Errorf("%s: %v", rv.name, err)
					}
				}
				r.close()
			}
		})
	}
}

func exclude(t *testing.T, rivals []rival, newEnv func(*testing.T) *env) {
	for _, rv := range rivals {
		if rv.name == "raw" || rv.open == nil {
			continue // it cannot wait
		}
		t.Run(rv.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			const goroutines, enough = 8, 100
			key := "test/" + t.Name()
			r, err := rv.open(e, goroutines)
			if err != nil {
				t.Fatal(err)
			}
			defer r.close()
			if rv.prepare != nil {
				if err := rv.prepare(e, key); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			a := new(arena)
			a.phase.Store(measuring)
			result := make(chan tally, 1)
			go func() { result <- fight(ctx, a, r, 0, goroutines, key) }()
			ours := strings.HasPrefix(rv.name, "baton") || rv.name == "agent" || rv.name == "serve"
			for deadline := time.Now().Add(15 * time.Second); a.total.Load() < enough; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					// That a rival gets stuck is for the report.
					t.Logf("only %d acquisitions", a.total.Load())
					if ours {
						t.Fail()
					}
					break
				}
			}
			a.phase.Store(stopped)
			sum := await(result, cancel, time.Second)
			if err := a.verdict(sum); err != nil {
				t.Fatal(err)
			}
			if ours && sum.Stuck > 0 {
				t.Errorf("%d goroutines did not get their last turn", sum.Stuck)
			}
		})
	}
}

// TestRawPair sees that the bare exchanges really lock: a second one is
// refused until the first has ended.
func TestRawPair(t *testing.T) {
	t.Parallel()
	r, err := openRaw(redisEnv(t), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	first, second := r.seat(0), r.seat(1)
	held, err := first.Lock(t.Context(), "test/raw")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.Lock(t.Context(), "test/raw"); err != errTaken {
		t.Fatalf("locked twice: %v", err)
	}
	if err := held.Unlock(); err != nil {
		t.Fatal(err)
	}
	if held, err = second.Lock(t.Context(), "test/raw"); err != nil {
		t.Fatalf("not unlocked: %v", err)
	}
	if err := held.Unlock(); err != nil {
		t.Fatal(err)
	}
}

// TestBLPOPHandsOver sees that a waiter blocks on the server, and that only the release
// wakes it.
func TestBLPOPHandsOver(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t) // of its own: it counts blocked clients
	e := &env{redis: server, at: map[string][]string{"redis": {server.Addr}}}
	const key = "test/blpop"
	if err := prepareBLPOP(e, key); err != nil {
		t.Fatal(err)
	}
	r, err := openBLPOP(e, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	first, err := r.seat(0).Lock(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	type answer struct {
		held unlocker
		err  error
	}
	second := make(chan answer, 1)
	go func() {
		held, err := r.seat(1).Lock(t.Context(), key)
		second <- answer{held, err}
	}()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		info, err := server.Do("INFO", "clients")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(info, "blocked_clients:1\r\n") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("nobody waits:\n%s", info)
		}
	}
	select {
	case a := <-second:
		t.Fatalf("two hold the lock (%v)", a.err)
	default:
	}
	if err := first.Unlock(); err != nil {
		t.Fatal(err)
	}
	a := <-second
	if a.err != nil {
		t.Fatal(a.err)
	}
	if n, err := server.Do("LLEN", key); n != "0" || err != nil {
		t.Errorf("%s tokens are in the list while the lock is held (%v)", n, err)
	}
	if err := a.held.Unlock(); err != nil {
		t.Fatal(err)
	}
}

// TestCommandsAreCounted compares the counter with what is known of the bare
// exchange: two commands each.
func TestCommandsAreCounted(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"raw", "raw-blpop"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rv, err := findRival("redis", name)
			if err != nil {
				t.Fatal(err)
			}
			e := redisEnv(t).counted()
			key := "test/counted/" + name
			if rv.prepare != nil {
				if err := rv.prepare(e, key); err != nil {
					t.Fatal(err)
				}
			}
			r, err := rv.open(e, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer r.close()
			s := r.seat(0)
			pair := func() {
				t.Helper()
				held, err := s.Lock(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				if err := held.Unlock(); err != nil {
					t.Fatal(err)
				}
			}
			for range 50 { // opens all connections, loads the script
				pair()
			}
			before := e.commands.n.Load()
			const pairs = 50
			for range pairs {
				pair()
			}
			if got := e.commands.n.Load() - before; got != 2*pairs {
				t.Errorf("%d commands for %d pairs, want %d", got, pairs, 2*pairs)
			}
		})
	}
}

// TestRun makes a very short run of what needs other processes and of what
// renews, from the command line to the report.
func TestRun(t *testing.T) {
	t.Parallel()
	redisEnv(t) // skips without a server
	var out strings.Builder
	err := run(t.Context(), []string{
		"-only", "redis-pair,redis-doors,redis-procs,renew,memory-c64", "-rivals", "baton,agent,serve,redis,sqlite", "-time", "20ms", "-reps", "1",
		"-renew", "100ms", "-leases", "100", "-dir", t.TempDir(), "-o", "json",
	}, &out, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var report jsonTestReport
	if err := json.Unmarshal([]byte(out.String()), &report); err != nil {
		t.Fatalf("%v:\n%s", err, out.String())
	}
	got := make(map[string]map[string]any)
	for _, w := range report.Workloads {
		for _, r := range w.Rivals {
			got[w.Name+"/"+r.Name] = r.Median
		}
	}
	for name, metrics := range map[string][]string{
		"redis-pair/raw":          {"p50"},
		"redis-pair/baton":        {"p50", "p99", "rate"},
		"redis-doors/agent":       {"p50", "p99", "rate"},
		"redis-doors/serve":       {"p50", "p99", "rate"},
		"redis-procs/raw-blpop":   {"rate"},
		"redis-procs/baton":       {"rate", "handoffs"},
		"redis-procs/agent":       {"rate", "handoffs"},
		"memory-c64/fifo-channel": {"handoffs"},
		"memory-c64/baton":        {"handoffs"},
		"renew/redis":             {"leases"},
		"renew/sqlite":            {"leases"},
	} {
		for _, metric := range metrics {
			// So short a time may not be enough for a lock to be handed over.
			enough := metric != "rate" && metric != "handoffs"
			if v, ok := got[name][metric].(float64); !ok || v < 0 || v == 0 && enough {
				t.Errorf("%s %s = %v", name, metric, got[name][metric])
			}
		}
	}
	for _, store := range []string{"redis", "sqlite"} {
		if lost := got["renew/"+store]["lost"]; lost != 0.0 {
			t.Errorf("%s lost %v leases", store, lost)
		}
	}
}

type jsonTestReport struct {
	Workloads []struct {
		Name   string
		Rivals []struct {
			Name   string
			Median map[string]any
		}
	}
}

func TestBadFlags(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"-only", "nothing"}, {"-o", "xml"}, {"-reps", "0"}, {"-time", "0s"}, {"extra"},
	} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("bench %s: no error", strings.Join(args, " "))
		}
	}
}
