//go:build linux

package faulttest

import (
	"context"
	"errors"
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

func etcdURL(members ...*testserver.EtcdServer) string {
	var addrs []string
	for _, m := range members {
		addrs = append(addrs, m.Addr)
	}
	return "etcd://" + strings.Join(addrs, ",")
}

func TestEtcdLeaderKilled(t *testing.T) {
	t.Parallel()
	cluster := testserver.EtcdThree(t)
	url := etcdURL(cluster.Members...)
	crowdOn(t, 3*time.Second, []string{url, url, url, url}, func() {
		leader := cluster.Leader(t)
		leader.Kill()
		cluster.Leader(t) // the next one
		leader.Restart()
	})
}

// The leader hangs for longer than the TTL, and goes on when there is another.
// Its clients' connections stand all the time.
func TestEtcdLeaderStopped(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	cluster := testserver.EtcdThree(t)
	url := etcdURL(cluster.Members...)
	leader := cluster.Leader(t)
	crowdOn(t, ttl, []string{url, url, url, etcdURL(leader)}, func() {
		leader.Stop()
		<-time.After(2 * ttl) // the fault itself
		leader.Cont()
	})
}

func TestEtcdServerKilledAndRestarted(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	url := etcdURL(server)
	crowdOn(t, 3*time.Second, []string{url, url, url}, server.Restart)
}

// The majority is gone for a while: no claim is granted, and holders stop believing.
func TestEtcdMajorityLost(t *testing.T) {
	t.Parallel()
	cluster := testserver.EtcdThree(t)
	url := etcdURL(cluster.Members...)
	const ttl = 2 * time.Second
	lease, err := newLocker(t, url, baton.Config{TTL: ttl}).Lock(t.Context(), "held")
	if err != nil {
		t.Fatal(err)
	}
	crowdOn(t, ttl, []string{url, url, url}, func() {
		cluster.Members[0].Kill()
		cluster.Members[1].Kill()
		select {
		case <-lease.Done():
		case <-time.After(30 * time.Second):
			t.Error("the holder believes without a majority")
		}
		testserver.RestartEtcd(t, cluster.Members[:2]...)
	})
}

// One process is cut off, and answers are lost after their effect, again and
// again.
func TestEtcdConnectionsThatBreak(t *testing.T) {
	t.Parallel()
	server := testserver.SharedEtcd(t)
	proxy := faultproxy.New(t, server.Addr)
	through, direct := "etcd://"+proxy.Addr+"/"+t.Name(), etcdURL(server)+"/"+t.Name()
	crowdOn(t, 3*time.Second, []string{through, through, direct}, func() {
		for range 20 {
			select {
			case <-proxy.CutAfterRequest(nil):
			case <-time.After(10 * time.Second):
				t.Error("no request came through")
			}
		}
		proxy.Swallow(faultproxy.ToClient)
		<-time.After(4 * time.Second) // longer than the TTL: the fault itself
		proxy.Heal()
	})
}
