//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

func init() {
	stores["redlock"] = func(t *testing.T) string {
		return redlockURL(testserver.Addrs(testserver.SharedRedisNodes(t)), 0)
	}
}

// redlockURL is for servers that vote at once, or, if longest is set, once they have
// run for that long.
func redlockURL(addrs []string, longest time.Duration) string {
	url := "redlock://" + strings.Join(addrs, ",")
	if longest == 0 {
		return url + "?durable=true"
	}
	return fmt.Sprintf("%s?longest-ttl=%v", url, longest)
}

// aged returns five servers that have run for long enough to vote.
func aged(t *testing.T, longest time.Duration) []*testserver.RedisServer {
	t.Helper()
	nodes := testserver.RedisNodes(t, 5)
	pairs(t, newLocker(t, redlockURL(testserver.Addrs(nodes), longest), baton.Config{TTL: longest}), 1)
	return nodes
}

// pairs returns when a free key was locked and unlocked n times, each with a
// higher token.
func pairs(t *testing.T, locks *baton.Locker, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	last := int64(0)
	for range n {
		lease, err := locks.Lock(ctx, "pairs/"+t.Name())
		for err != nil && ctx.Err() == nil {
			lease, err = locks.Lock(ctx, "pairs/"+t.Name()) // no majority for too long
		}
		if err != nil {
			t.Error(err)
			return
		}
		if lease.Token() <= last {
			t.Errorf("token %d after %d", lease.Token(), last)
		}
		last = lease.Token()
		if err := lease.Unlock(); err != nil && !errors.Is(err, baton.ErrLost) {
			t.Logf("unlock: %v", err)
		}
	}
}

// lastBelief waits until the lease has ended, and returns when it had not.
func lastBelief(lease *baton.Lease) time.Time {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var last time.Time
	for {
		now := time.Now() // first: the belief lasted at least until then
		if lease.Err() != nil {
			return last
		}
		last = now
		<-tick.C
	}
}

// behind are proxies of servers.
func behind(t *testing.T, nodes []*testserver.RedisServer) (proxies []*faultproxy.Proxy, addrs []string) {
	for _, n := range nodes {
		p := faultproxy.New(t, n.Addr)
		proxies, addrs = append(proxies, p), append(addrs, p.Addr)
	}
	return proxies, addrs
}

// Two of five are killed and come back empty, first two and then two others, while some
// processes hold and some wait. The holder of another lock keeps it.
func TestRedlockTwoKilled(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	const longest = 4 * time.Second
	nodes := aged(t, longest)
	url := redlockURL(testserver.Addrs(nodes), longest)
	locks := newLocker(t, url, baton.Config{TTL: longest})
	held, err := locks.Lock(t.Context(), "held")
	if err != nil {
		t.Fatal(err)
	}
	crowdOn(t, 3*time.Second, []string{url, url, url, url}, func() {
		for _, pair := range [][]int{{0, 1}, {2, 3}} {
			for _, i := range pair {
				nodes[i].Kill()
			}
			pairs(t, locks, 5)
			for _, i := range pair {
				nodes[i].Restart()
			}
			// Until these vote again the other three are all there is, and they
			// do not all know the same: time passing is part of the fault.
			<-time.After(longest + 2*time.Second)
			pairs(t, locks, 5)
		}
	})
	// It has to live through stops of this machine, too.
	if err := held.Err(); err != nil && !errors.Is(err, baton.ErrLost) {
		t.Errorf("the holder: %v", err)
	} else if err == nil {
		if lease, err := newLocker(t, url, baton.Config{TTL: longest}).TryLock(t.Context(), "held"); err == nil && held.Err() == nil {
			t.Errorf("tokens %d and %d are valid together", held.Token(), lease.Token())
		}
		if err := held.Unlock(); err != nil {
			t.Error(err)
		}
	}
}

// The holder's majority loses two servers, which come back empty: with one that never
// had the lock they would be a majority for another process. The holder is stopped, so
// that it cannot put its lock back.
func TestRedlockForgetfulServers(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	const longest = 4 * time.Second
	nodes := aged(t, longest)
	proxies, addrs := behind(t, nodes[4:])
	proxies[0].Refuse()
	url := redlockURL(testserver.Addrs(nodes), longest)
	holder := startChild(t, redlockURL(append(testserver.Addrs(nodes[:4]), addrs...), longest), "k", longest)
	token := number(t, holder.expect(t, "held")[0])
	holder.signal(t, syscall.SIGSTOP)
	nodes[0].Restart()
	nodes[1].Restart()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	locks := newLocker(t, url, baton.Config{TTL: longest})
	lease, err := locks.Lock(ctx, "k")
	for err != nil && ctx.Err() == nil {
		lease, err = locks.Lock(ctx, "k")
	}
	granted := monotonic()
	if err != nil {
		t.Fatal(err)
	}
	if lease.Token() <= token {
		t.Errorf("token %d after %d", lease.Token(), token)
	}
	holder.signal(t, syscall.SIGCONT)
	ended := holder.expect(t, "ended")
	if last := number(t, ended[0]); last > granted {
		t.Errorf("the holder believed in its lease %v after the next was granted", time.Duration(last-granted))
	}
	if err := lease.Unlock(); err != nil && !errors.Is(err, baton.ErrLost) {
		t.Error(err)
	}
}

// Two of five swallow everything, and no connection breaks; then two others.
func TestRedlockBlackHoles(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	proxies, addrs := behind(t, testserver.SharedRedisNodes(t))
	url := redlockURL(addrs, 0) + "&prefix=" + t.Name() + ":"
	locks := newLocker(t, url, baton.Config{})
	crowdOn(t, 3*time.Second, []string{url, url, url}, func() {
		for _, pair := range [][]int{{0, 1}, {1, 4}, {3, 2}} {
			for _, i := range pair {
				proxies[i].Swallow(faultproxy.ToServer)
				proxies[i].Swallow(faultproxy.ToClient)
			}
			pairs(t, locks, 10)
			for _, i := range pair {
				proxies[i].Heal()
			}
		}
	})
}

// All answers to an attempt are lost, and the next one succeeds: nothing that
// cleans up behind the first takes the lock from its holder, however late.
func TestRedlockAttemptAfterLostAnswers(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	direct, open := networked["redlock"](t)
	mine := newLossy(t, open)
	locks, err := baton.New(mine, baton.Config{TTL: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	lost := mine.lose("acquire", 1, after)
	lease, err := locks.Lock(t.Context(), t.Name())
	if err != nil {
		t.Fatal(err)
	}
	if !lost.happened(t) {
		t.Error("no answer was lost")
	}
	<-time.After(2500 * time.Millisecond) // the stores' clean-up takes two seconds: the fault itself
	if _, err := newLocker(t, direct, baton.Config{}).TryLock(t.Context(), t.Name()); !errors.Is(err, baton.ErrHeld) {
		t.Errorf("beside the holder: %v, want ErrHeld", err)
	}
	if err := lease.Unlock(); err != nil {
		t.Error(err)
	}
}
