//go:build linux

package faulttest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

func mysqlURL(addr string) string { return "mysql://root@" + addr + "/baton" }

func plainMySQL(t *testing.T, addr string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", "root@tcp("+addr+")/baton")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// lockTables begins another program's transaction, which locks every row until the test
// ends.
func lockTables(t *testing.T, addr string) {
	t.Helper()
	tx, err := plainMySQL(t, addr).Begin()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	for _, table := range []string{"baton_lock", "baton_claim"} {
		rows, err := tx.Query("SELECT k FROM " + table + " FOR UPDATE")
		if err != nil {
			t.Fatal(err)
		}
		rows.Close()
	}
}

// The server crashes while some hold and some wait. Holders whose TTL is
// longer than that keep their leases, waiters are served, tokens rise.
func TestMySQLCrash(t *testing.T) {
	t.Parallel()
	server := testserver.MariaDB(t)
	holder := newLocker(t, mysqlURL(server.Addr), baton.Config{TTL: 2 * time.Minute})
	lease, err := holder.Lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tokens := make(chan int64, 3)
	var waiters []*baton.Locker
	var wg sync.WaitGroup
	for range cap(tokens) {
		waiter := newLocker(t, mysqlURL(server.Addr), baton.Config{TTL: 2 * time.Minute})
		waiters = append(waiters, waiter)
		wg.Go(func() {
			lease, err := waiter.Lock(ctx, "k")
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
	awaitWaiters(t, waiters[0], "k", len(waiters))
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

// A waiter survives the loss of all its connections.
func TestMySQLWaiterSurvivesCutConnections(t *testing.T) {
	t.Parallel()
	server := testserver.SharedMariaDB(t)
	proxy := faultproxy.New(t, server.Addr)
	holder, waiter := newLocker(t, mysqlURL(server.Addr), baton.Config{}), newLocker(t, mysqlURL(proxy.Addr), baton.Config{})
	lease, err := holder.Lock(t.Context(), t.Name())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	got := make(chan error, 1)
	go func() {
		lease, err := waiter.Lock(ctx, t.Name())
		if err == nil {
			err = lease.Unlock()
		}
		got <- err
	}()
	awaitWaiters(t, holder, t.Name(), 1)
	proxy.Cut()
	if err := lease.Unlock(); err != nil {
		t.Error(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// Ten thousand goroutines wait for a hundred locks on four connections, and
// all are served.
func TestMySQLTenThousandWaiters(t *testing.T) {
	t.Parallel()
	server := testserver.MariaDB(t)
	elsewhere := newLocker(t, mysqlURL(server.Addr), baton.Config{})
	const keys, each = 100, 100
	var held []*baton.Lease
	for i := range keys {
		lease, err := elsewhere.Lock(t.Context(), fmt.Sprint("k", i))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, lease)
	}
	here := newLocker(t, mysqlURL(server.Addr)+"?connections=4", baton.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var served, lost atomic.Int64
	var wg sync.WaitGroup
	for i := range keys * each {
		wg.Go(func() {
			lease, err := here.Lock(ctx, fmt.Sprint("k", i%keys))
			if err != nil {
				t.Error(err)
				return
			}
			served.Add(1)
			if err := lease.Unlock(); errors.Is(err, baton.ErrLost) {
				lost.Add(1) // a busy machine did not renew a grant in time
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	for i := range keys {
		awaitWaiters(t, elsewhere, fmt.Sprint("k", i), 1)
	}
	var connections int
	if err := plainMySQL(t, server.Addr).QueryRow("SELECT COUNT(*) FROM information_schema.processlist WHERE db='baton' AND id<>CONNECTION_ID()").Scan(&connections); err != nil {
		t.Fatal(err)
	}
	if connections > 4+24 {
		t.Errorf("%d connections, want at most 4 and the other's 24", connections)
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
	if n := lost.Load(); n > keys {
		t.Errorf("%d of them lost their lease", n)
	}
}
