//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
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
	t.Parallel()
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
			if time.Since(sent) > ttl/4 {
				sent = time.Now() // it may have been renewed meanwhile
			}
			if d := lastBelief(lease).Sub(sent); d >= ttl {
				t.Errorf("believed in for %v, the store expires it after %v", d, ttl)
			}
			<-ctx.Done()
			if lost, ok := errors.AsType[*baton.LostError](context.Cause(ctx)); !ok || lost.Cause != baton.Expired {
				t.Errorf("cause: %v", context.Cause(ctx))
			}
		})
	}
}

// While processes hand a lock to each other, the server stands still for all of them,
// or what some of them ask comes late, all at once: no two hold at once, tokens rise,
// and every process is served. Package verify tries other faults in each run of the
// tests: the server is killed, falls silent for one process, or its answers are lost.
func TestPostgresFaultsInTraffic(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	through := func(t *testing.T) (*faultproxy.Proxy, []string) {
		server := testserver.SharedPostgres(t)
		proxy := faultproxy.New(t, server.Addr)
		url := server.URL(server.Database(t))
		cut := strings.Replace(url, server.Addr, proxy.Addr, 1)
		return proxy, []string{url, url, cut, cut}
	}
	t.Run("stands still", func(t *testing.T) {
		t.Parallel()
		proxy, urls := through(t)
		crowdOn(t, ttl, urls[2:], func() { // as seen by every process
			proxy.Hold(faultproxy.ToServer)
			proxy.Hold(faultproxy.ToClient)
			<-time.After(2 * ttl) // time passing is the fault itself
			proxy.Heal()
		})
	})
	t.Run("held back", func(t *testing.T) {
		t.Parallel()
		proxy, urls := through(t)
		crowdOn(t, ttl, urls, func() {
			proxy.Hold(faultproxy.ToServer) // and delivered late, all at once
			<-time.After(2 * ttl)           // time passing is the fault itself
			proxy.Heal()
		})
	})
}

// The server crashes while some hold and some wait. Holders whose TTL is
// longer than that keep their leases, waiters are served, tokens rise.
func TestPostgresCrash(t *testing.T) {
	t.Parallel()
	server := testserver.Postgres(t)
	url := server.URL("postgres")
	lease, err := newLocker(t, url, baton.Config{TTL: 2 * time.Minute}).Lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tokens := make(chan int64, 3)
	var wg sync.WaitGroup
	waiter := newLocker(t, url, baton.Config{TTL: 2 * time.Minute})
	for i := range cap(tokens) {
		locks := waiter
		if i > 0 {
			locks = newLocker(t, url, baton.Config{TTL: 2 * time.Minute})
		}
		wg.Go(func() {
			lease, err := locks.Lock(ctx, "k")
			if err != nil {
				t.Errorf("a waiter: %v", err)
				return
			}
			tokens <- lease.Token()
			if err := lease.Unlock(); err != nil {
				t.Errorf("a waiter: %v", err)
			}
		})
	}
	awaitWaiters(t, waiter, "k", cap(tokens))
	server.Kill()
	if err := lease.Err(); err != nil {
		t.Errorf("the holder, with the server down: %v", err)
	}
	server.Restart()
	if err := lease.Unlock(); err != nil {
		t.Errorf("the holder: %v", err)
	}
	wg.Wait()
	close(tokens)
	last := lease.Token()
	for token := range tokens {
		if token <= last {
			t.Errorf("token %d after %d", token, last)
		}
		last = token
	}
}

// Ten thousand goroutines wait for a hundred locks on four connections, two that
// renew and one that listens, and all are served.
func TestPostgresTenThousandWaiters(t *testing.T) {
	t.Parallel()
	server := testserver.Postgres(t)
	url := server.URL("postgres")
	elsewhere := newLocker(t, url, baton.Config{TTL: time.Minute})
	const keys, each = 100, 100
	var held []*baton.Lease
	for i := range keys {
		lease, err := elsewhere.Lock(t.Context(), fmt.Sprint("k", i))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, lease)
	}
	here := newLocker(t, url+"&connections=4&application_name=crowd", baton.Config{TTL: time.Minute})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var served atomic.Int64
	var wg sync.WaitGroup
	for i := range keys * each {
		wg.Go(func() {
			lease, err := here.Lock(ctx, fmt.Sprint("k", i%keys))
			if err == nil {
				err = lease.Unlock()
			}
			if err != nil {
				t.Error(err)
				return
			}
			served.Add(1)
		})
	}
	for i := range keys {
		awaitWaiters(t, elsewhere, fmt.Sprint("k", i), 1)
	}
	n, err := server.Query("postgres", `SELECT count(*) <= 7 FROM pg_stat_activity WHERE application_name = 'crowd'`)
	if err != nil || n != "t" {
		t.Errorf("more than four for requests, two for renewals, and one that listens: %q, %v", n, err)
	}
	for _, lease := range held {
		if err := lease.Unlock(); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	if n := served.Load(); n != keys*each {
		t.Errorf("%d of %d were served", n, keys*each)
	}
}

// The answer to the acquisition is lost after its effect: the client finds the lock by
// asking again, and no claim is left behind in the store.
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
