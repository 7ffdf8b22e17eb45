package main

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/testserver"
)

// TestServersCount compares what the servers say that they have done with what
// is known of the bare exchange: two requests and two commits.
func TestServersCount(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"pg", "mariadb", "zk", "etcd"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newTestEnv(t, name)
			server := e.servers[name]
			if server.counting != nil {
				if err := server.counting(true); err != nil {
					t.Fatal(err)
				}
				awaitCounting(t, server)
			}
			rv, err := findRival(name, "raw")
			if err != nil {
				t.Fatal(err)
			}
			r, err := rv.open(e, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer r.close()
			pairs := func(n int) {
				t.Helper()
				for range n {
					held, err := r.seat(0).Lock(t.Context(), "test/counted")
					if err != nil {
						t.Fatal(err)
					}
					if err := held.Unlock(); err != nil {
						t.Fatal(err)
					}
				}
			}
			pairs(3) // prepares the statements
			before, err := server.work()
			if err != nil {
				t.Fatal(err)
			}
			// Pings, requests of this test and the server's own work count too, but they do not
			// double the figures.
			const n, others = 100, 50
			pairs(n)
			after, err := server.work()
			if err != nil {
				t.Fatal(err)
			}
			if got := after.requests - before.requests; got < 2*n || got > 2*n+others {
				t.Errorf("%d requests for %d pairs", got, n)
			}
			if got := after.commits - before.commits; got < 2*n || got > 2*n+others {
				t.Errorf("%d commits for %d pairs", got, n)
			}
		})
	}
}

// awaitCounting returns when the server, which has been told to count, does.
func awaitCounting(t *testing.T, s *server) {
	t.Helper()
	first, err := s.work()
	for deadline := time.Now().Add(30 * time.Second); err == nil; time.Sleep(time.Millisecond) {
		var w work
		if w, err = s.work(); w.requests > first.requests {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the server does not count")
		}
	}
	t.Fatal(err)
}

// TestWaitingConnections sees the connections of clients that wait for a lock of the
// server.
func TestWaitingConnections(t *testing.T) {
	t.Parallel()
	for system, rival := range map[string]string{"pg": "advisory-lock", "mariadb": "get-lock"} {
		t.Run(system, func(t *testing.T) {
			t.Parallel()
			e := newTestEnv(t, system)
			rv, err := findRival(system, rival)
			if err != nil {
				t.Fatal(err)
			}
			const goroutines = 4
			r, err := rv.open(e, goroutines)
			if err != nil {
				t.Fatal(err)
			}
			defer r.close()
			held, err := r.seat(0).Lock(t.Context(), "test/waiting")
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error)
			for i := 1; i < goroutines; i++ {
				go func() {
					held, err := r.seat(i).Lock(t.Context(), "test/waiting")
					if err == nil {
						err = held.Unlock()
					}
					ended <- err
				}()
			}
			for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
				all, waiting, err := e.servers[system].connections()
				if err != nil {
					t.Fatal(err)
				}
				if all == goroutines && waiting == goroutines-1 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%d of %d connections wait, want %d of %d", waiting, all, goroutines-1, goroutines)
				}
			}
			if err := held.Unlock(); err != nil {
				t.Fatal(err)
			}
			for range goroutines - 1 {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestRunOnServers makes a very short run of the parts that only some systems have.
func TestRunOnServers(t *testing.T) {
	t.Parallel()
	testserver.NeedPostgres(t)
	testserver.NeedZooKeeper(t)
	testserver.NeedEtcd(t)
	testserver.NeedRedis(t)
	var out strings.Builder
	err := run(t.Context(), []string{
		"-only", "pg-pair,zk-newkey,etcd-aged,redlock-pair", "-rivals", "baton", "-time", "20ms", "-reps", "1", "-age", "100", "-o", "json",
	}, &out, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var report jsonTestReport
	if err := json.Unmarshal([]byte(out.String()), &report); err != nil {
		t.Fatalf("%v:\n%s", err, out.String())
	}
	measured := 0
	for _, w := range report.Workloads {
		for _, r := range w.Rivals {
			if v, ok := r.Median["p50"].(float64); !ok || v <= 0 {
				t.Errorf("%s %s: p50 = %v", w.Name, r.Name, r.Median["p50"])
			}
			measured++
		}
	}
	if measured != 8 {
		t.Errorf("%d figures, want those of Baton and the bare exchange in four workloads:\n%s", measured, out.String())
	}
}
