package faulttest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

func init() {
	stores["postgres"] = func(t *testing.T) string {
		s := testserver.SharedPostgres(t)
		return s.URL(s.Database(t))
	}
	stores["pgbouncer"] = func(t *testing.T) string {
		s := testserver.SharedPostgres(t)
		return testserver.PgBouncer(t, s).URL(s.Database(t))
	}
}

// Nothing answers any more, and no connection breaks: the lease ends before
// the server could give the lock away.
func TestPostgresSilence(t *testing.T) {
	const ttl = 2 * time.Second
	for name, setUp := range map[string]func(t *testing.T) (url string, silence func()){
		"swallowed": func(t *testing.T) (string, func()) {
			s := testserver.SharedPostgres(t)
			proxy := faultproxy.New(t, s.Addr)
			return strings.Replace(s.URL(s.Database(t)), s.Addr, proxy.Addr, 1), func() {
				proxy.Swallow(faultproxy.ToServer)
				proxy.Swallow(faultproxy.ToClient)
			}
		},
		"pooler stopped": func(t *testing.T) (string, func()) {
			s := testserver.SharedPostgres(t)
			pooler := testserver.PgBouncer(t, s)
			return pooler.URL(s.Database(t)), pooler.Stop
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, silence := setUp(t)
			locks := newLocker(t, url, baton.Config{TTL: ttl})
			sent := time.Now()
			lease, err := locks.Lock(t.Context(), t.Name())
			if err != nil {
				t.Fatal(err)
			}
			ctx := lease.Context(t.Context())
			silence()
			<-ctx.Done()
			if d := time.Since(sent); d >= ttl {
				t.Errorf("believed in for %v, the store expires it after %v", d, ttl)
			}
			if lost, ok := errors.AsType[*baton.LostError](context.Cause(ctx)); !ok || lost.Cause != baton.Expired {
				t.Errorf("cause: %v", context.Cause(ctx))
			}
		})
	}
}

// The server is killed and started again twice while three processes hand a
// lock to each other: no two hold it at once, tokens rise, and everybody is
// served.
func TestPostgresKilledInTraffic(t *testing.T) {
	t.Parallel()
	server := testserver.Postgres(t)
	url := server.URL("postgres")
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	var mu sync.Mutex
	var holding int
	var last int64
	served := make(chan int, 10_000)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for p := range 3 {
		locks := newLocker(t, url, baton.Config{TTL: 3 * time.Second})
		for range 4 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					lease, err := locks.Lock(ctx, "k")
					if ctx.Err() != nil {
						t.Errorf("process %d waited for too long: %v", p, err)
						return
					}
					if err != nil {
						continue // the server is away
					}
					mu.Lock()
					if lease.Err() == nil { // it is ours at this instant
						if holding++; holding > 1 {
							t.Error("two hold the lock")
						}
						if lease.Token() <= last {
							t.Errorf("token %d after %d", lease.Token(), last)
						}
						last = max(last, lease.Token())
						holding--
						select {
						case served <- p:
						default:
						}
					}
					mu.Unlock()
					_ = lease.Unlock() // it may be lost with the server
				}
			})
		}
	}
	await := func(n int) {
		t.Helper()
		for got := map[int]int{}; len(got) < 3 || got[0] < n || got[1] < n || got[2] < n; {
			select {
			case p := <-served:
				got[p]++
			case <-ctx.Done():
				t.Fatalf("served: %v, want every process %d times", got, n)
			}
		}
	}
	for range 2 {
		await(5)
		server.Restart()
		for len(served) > 0 {
			<-served
		}
	}
	await(5)
	close(stop)
	wg.Wait()
}

// The answer to the acquisition is lost after its effect: the lock is found by
// asking again, and nobody is left behind in the store.
func TestPostgresAnswerCutAfterTheEffect(t *testing.T) {
	t.Parallel()
	s := testserver.SharedPostgres(t)
	proxy := faultproxy.New(t, s.Addr)
	url := s.URL(s.Database(t))
	plain := newLocker(t, url, baton.Config{})
	locks := newLocker(t, strings.Replace(url, s.Addr, proxy.Addr, 1), baton.Config{Owner: "the-one-that-is-cut"})
	if lease, err := locks.Lock(t.Context(), "warm"); err != nil {
		t.Fatal(err)
	} else if err := lease.Unlock(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	sprung := proxy.CutAfterRequest(func(request []byte) bool { return strings.Contains(string(request), "the-one-that-is-cut") })
	lease, err := locks.Lock(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	<-sprung
	if info, err := plain.Inspect(ctx, "k"); err != nil || len(info.Holders) != 1 || len(info.Waiters) != 0 {
		t.Errorf("%+v, %v, want one holder", info, err)
	}
	if err := lease.Unlock(); err != nil {
		t.Error(err)
	}
	next, err := plain.TryLock(ctx, "k")
	if err != nil {
		t.Fatalf("after the release: %v", err)
	}
	if err := next.Unlock(); err != nil {
		t.Error(err)
	}
}
