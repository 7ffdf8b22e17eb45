//go:build linux

package faulttest

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// On ZooKeeper a process that died keeps its locks for its session, not for
// their TTL, and a TTL is half of a session at most. So the faults of processes
// have sessions and bounds of their own here.

func shortTicks(t *testing.T) *testserver.ZooKeeperServer {
	t.Helper()
	return testserver.ZooKeeper(t, "tickTime=200")
}

// lockWithin locks, and fails the test if that takes longer.
func lockWithin(t *testing.T, locks *baton.Locker, key string, d time.Duration) *baton.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	lease, err := locks.Lock(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// A holder that was killed, and a waiter that was killed behind it, cost their
// sessions and a tick.
func TestKilledOnZooKeeper(t *testing.T) {
	t.Parallel()
	const session = 4 * time.Second
	url := "zk://" + shortTicks(t).Addr + "/faults?session=4s"
	holder := startChild(t, url, "k", session/2)
	token := number(t, holder.expect(t, "held")[0])
	locks := newLocker(t, url, baton.Config{TTL: session / 2})
	waiter := startChild(t, url, "k", session/2)
	awaitWaiters(t, locks, "k", 1)
	got := make(chan *baton.Lease)
	go func() {
		lease, err := locks.Lock(t.Context(), "k")
		if err != nil {
			t.Error(err)
		}
		got <- lease
	}()
	awaitWaiters(t, locks, "k", 2)
	killed := time.Now()
	waiter.signal(t, syscall.SIGKILL)
	holder.signal(t, syscall.SIGKILL)
	lease := <-got
	if lease == nil {
		return
	}
	// What is above the session and a tick is for a busy machine.
	if d := time.Since(killed); d > session+5*time.Second {
		t.Errorf("free %v after the kill, with sessions of %v", d, session)
	}
	if lease.Token() <= token {
		t.Errorf("token %d after %d", lease.Token(), token)
	}
	if err := lease.Unlock(); err != nil {
		t.Error(err)
	}
}

// A holder that is stopped for longer than its session stops believing before
// the next holder begins, and learns that it lost its lock when it goes on.
func TestStoppedOnZooKeeper(t *testing.T) {
	t.Parallel()
	const session = 2 * time.Second
	url := "zk://" + shortTicks(t).Addr + "/faults?session=2s"
	holder := startChild(t, url, "k", session/2)
	token := number(t, holder.expect(t, "held")[0])
	locks := newLocker(t, url, baton.Config{TTL: session / 2})
	stopped := time.Now()
	holder.signal(t, syscall.SIGSTOP)
	lease := lockWithin(t, locks, "k", 30*time.Second)
	granted := monotonic()
	if lease.Token() <= token {
		t.Errorf("token %d after %d", lease.Token(), token)
	}
	// Time passing is the fault itself.
	<-time.After(time.Until(stopped.Add(2 * session)))
	holder.signal(t, syscall.SIGCONT)
	ended := holder.expect(t, "ended")
	if last := number(t, ended[0]); last > granted {
		t.Errorf("the stopped holder believed in its lease %v after the next was granted", time.Duration(last-granted))
	}
	if ended[1] != "true" {
		t.Error("its context did not end with ErrLost")
	}
	// The next one may have been stopped too, by a busy machine.
	if err := lease.Unlock(); err != nil && !errors.Is(err, baton.ErrLost) {
		t.Error(err)
	}
}

// Nothing answers any more, and no connection breaks.
func TestSilenceOfZooKeeper(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	for name, setUp := range map[string]func(t *testing.T) (addr string, silence func()){
		"connection": func(t *testing.T) (string, func()) {
			proxy := faultproxy.New(t, testserver.SharedZooKeeper(t).Addr)
			return proxy.Addr, func() {
				proxy.Swallow(faultproxy.ToServer)
				proxy.Swallow(faultproxy.ToClient)
			}
		},
		"server stopped": func(t *testing.T) (string, func()) {
			server := testserver.ZooKeeper(t)
			return server.Addr, server.Stop
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, silence := setUp(t)
			locks := newLocker(t, "zk://"+addr+"/silence", baton.Config{TTL: ttl})
			lease, err := locks.Lock(t.Context(), t.Name())
			if err != nil {
				t.Fatal(err)
			}
			ctx := lease.Context(t.Context())
			silence()
			silent := time.Now()
			// The last renewal was sent before the silence.
			if d := lastBelief(lease).Sub(silent); d >= ttl {
				t.Errorf("believed in for %v, the store expires it after %v", d, ttl)
			}
			<-ctx.Done()
			if lost, ok := errors.AsType[*baton.LostError](context.Cause(ctx)); !ok || lost.Cause != baton.Expired {
				t.Errorf("cause: %v", context.Cause(ctx))
			}
		})
	}
}

// The server is killed and started again: the lock stands, and waiters are served.
func TestRestartOfZooKeeper(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	url := "zk://" + server.Addr + "/restart"
	holder, next := newLocker(t, url, baton.Config{}), newLocker(t, url, baton.Config{})
	lease := lockWithin(t, holder, "k", 20*time.Second)
	got := make(chan *baton.Lease, 1)
	go func() {
		lease, err := next.Lock(t.Context(), "k")
		if err != nil {
			t.Error(err)
		}
		got <- lease
	}()
	awaitWaiters(t, holder, "k", 1)
	server.Restart()
	if err := lease.Unlock(); err != nil && !errors.Is(err, baton.ErrLost) {
		t.Error(err)
	}
	select {
	case after := <-got:
		if after == nil {
			return
		}
		if after.Token() <= lease.Token() {
			t.Errorf("token %d after %d", after.Token(), lease.Token())
		}
		if err := after.Unlock(); err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the waiter was never granted")
	}
}

// A crowd of goroutines has one position in the queue, and survives the loss of its
// connection.
func TestCrowdOnZooKeeper(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	proxy := faultproxy.New(t, server.Addr)
	elsewhere := newLocker(t, "zk://"+server.Addr+"/crowd", baton.Config{})
	here := newLocker(t, "zk://"+proxy.Addr+"/crowd", baton.Config{})
	lease := lockWithin(t, elsewhere, "k", 20*time.Second)
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			lease, err := here.Lock(t.Context(), "k")
			if err == nil {
				err = lease.Unlock()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	awaitWaiters(t, elsewhere, "k", 1)
	proxy.Cut()
	if info, err := elsewhere.Inspect(t.Context(), "k"); err != nil || len(info.Waiters) > 1 {
		t.Errorf("%d waiters in the store, error %v", len(info.Waiters), err)
	}
	if err := lease.Unlock(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}
