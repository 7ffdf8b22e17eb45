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

// crowdOn has processes that lock one key again and again while fault happens, and
// until each was served twice after it. No two may hold at once, and tokens rise.
func crowdOn(t *testing.T, ttl time.Duration, urls []string, fault func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	var mu sync.Mutex
	var holder *baton.Lease
	var last int64
	var healed atomic.Bool
	var served atomic.Int64
	var work sync.WaitGroup
	for i, url := range urls {
		locks := newLocker(t, url, baton.Config{TTL: ttl})
		work.Go(func() {
			after := 0
			for after < 2 && ctx.Err() == nil {
				begun := healed.Load()
				lease, err := locks.Lock(ctx, t.Name())
				if err != nil {
					if ctx.Err() != nil {
						t.Errorf("process %d was not served: %v", i, err)
						return
					}
					continue // the store was out of reach for too long
				}
				mu.Lock()
				if holder != nil && holder.Err() == nil && lease.Err() == nil {
					t.Errorf("tokens %d and %d are valid together", holder.Token(), lease.Token())
				}
				if lease.Token() <= last {
					t.Errorf("token %d after %d", lease.Token(), last)
				}
				holder, last = lease, lease.Token()
				mu.Unlock()
				served.Add(1)
				if begun {
					after++
				}
				mu.Lock()
				if holder == lease {
					holder = nil
				}
				mu.Unlock()
				if err := lease.Unlock(); err != nil && !errors.Is(err, baton.ErrLost) {
					t.Logf("process %d: unlock: %v", i, err)
				}
			}
		})
	}
	for served.Load() < int64(3*len(urls)) && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond) // until the crowd is at work
	}
	fault()
	healed.Store(true)
	work.Wait()
	t.Logf("%d were served", served.Load())
}

// What some processes ask comes late, all at once, while they hand a lock to each
// other: no two hold at once, tokens rise, and every process is served. Package verify
// tries other faults.
func TestRequestsThatComeLate(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	const ttl = 3 * time.Second
	server := testserver.SharedPostgres(t)
	proxy := faultproxy.New(t, server.Addr)
	url := server.URL(server.Database(t))
	late := strings.Replace(url, server.Addr, proxy.Addr, 1)
	crowdOn(t, ttl, []string{url, url, late, late}, func() {
		proxy.Hold(faultproxy.ToServer)
		<-time.After(2 * ttl) // time passing is the fault itself
		proxy.Heal()
	})
}

// Ten thousand goroutines wait for a hundred locks on few connections, and all are
// served.
func TestTenThousandWaiters(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	t.Run("mysql", func(t *testing.T) {
		t.Parallel()
		server := testserver.MariaDB(t)
		url := mysqlURL(server.Addr)
		tenThousand(t, url, url+"?connections=4", func() bool { // the other has 24
			var n int
			err := plainMySQL(t, server.Addr).QueryRow("SELECT COUNT(*) FROM information_schema.processlist WHERE db='baton' AND id<>CONNECTION_ID()").Scan(&n)
			return err == nil && n <= 4+24
		})
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		server := testserver.Postgres(t)
		url := server.URL("postgres")
		tenThousand(t, url, url+"&connections=4&application_name=crowd", func() bool { // two renew, and one listens
			n, err := server.Query("postgres", `SELECT count(*) <= 7 FROM pg_stat_activity WHERE application_name = 'crowd'`)
			return err == nil && n == "t"
		})
	})
}

// tenThousand has the crowd wait at the second URL.
func tenThousand(t *testing.T, url, crowd string, fewConnections func() bool) {
	t.Helper()
	elsewhere, here := newLocker(t, url, baton.Config{TTL: time.Minute}), newLocker(t, crowd, baton.Config{TTL: time.Minute})
	const keys, each = 100, 100
	var held []*baton.Lease
	for i := range keys {
		lease, err := elsewhere.Lock(t.Context(), fmt.Sprint("k", i))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, lease)
	}
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
	if !fewConnections() {
		t.Error("there are too many connections")
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
