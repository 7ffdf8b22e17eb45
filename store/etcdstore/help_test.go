package etcdstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

var prefixes sync.Map // by test

// prefixOf is the prefix of a test's keys, different for each run of the test.
func prefixOf(t testing.TB) string {
	p, _ := prefixes.LoadOrStore(t, t.Name()+"-"+rand.Text())
	return p.(string)
}

// openOn makes n stores on one server, each as a separate process has it, below the
// test's prefix.
func openOn(t testing.TB, server *testserver.EtcdServer, n int) []*Store {
	t.Helper()
	var all []*Store
	for range n {
		all = append(all, mustNew(t, dial(t, server.Addr), Config{Prefix: prefixOf(t)}))
	}
	return all
}

func claimOf(key, owner string) driver.Claim {
	return driver.Claim{Key: key, ID: driver.NewID(), Owner: owner, Weight: driver.Whole, Capacity: driver.Whole}
}

// take acquires and returns the claim with its ticket.
func take(t testing.TB, s *Store, c driver.Claim, ttl time.Duration, queue bool) (driver.Claim, driver.Grant) {
	t.Helper()
	g, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: ttl, Queue: queue})
	if err != nil {
		t.Fatalf("acquire %s for %s: %v", c.Key, c.Owner, err)
	}
	c.Ticket = g.Ticket
	return c, g
}

func mustRelease(t testing.TB, s *Store, c driver.Claim) {
	t.Helper()
	if err := s.Release(t.Context(), c); err != nil {
		t.Fatalf("release %s by %s: %v", c.Key, c.Owner, err)
	}
}

func renewOne(t testing.TB, s *Store, c driver.Claim, ttl time.Duration) driver.Renewal {
	t.Helper()
	r := s.Renew(t.Context(), []driver.Claim{c}, ttl)
	if len(r) != 1 {
		t.Fatalf("renewing one claim gave %d answers", len(r))
	}
	return r[0]
}

// names reads all names below a key, as another client would.
func names(t testing.TB, s *Store, key string) *clientv3.GetResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	dir := s.dir(key)
	resp, err := s.client.Get(ctx, dir, clientv3.WithRange(afterDir(dir)))
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// awaitNames polls until there are n names below a key.
func awaitNames(t testing.TB, s *Store, key string, n int, within time.Duration) {
	t.Helper()
	eventually(t, "the names below "+key, within, func() bool { return len(names(t, s, key).Kvs) == n })
}

// hintsOf watches a claim until the test ends.
func hintsOf(t testing.TB, s *Store, c driver.Claim) <-chan driver.Hint {
	t.Helper()
	hints := make(chan driver.Hint, 64)
	t.Cleanup(s.Watch(c, func(h driver.Hint) {
		select {
		case hints <- h:
		default:
		}
	}))
	return hints
}

// awaitHint returns the next hint for which ok is true.
func awaitHint(t testing.TB, what string, hints <-chan driver.Hint, ok func(driver.Hint) bool) driver.Hint {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		select {
		case h := <-hints:
			if ok(h) {
				return h
			}
		case <-late:
			t.Fatalf("no hint: %s", what)
		}
	}
}

// revoke ends a lease of the store on the server.
func revoke(t testing.TB, s *Store, class int64) {
	t.Helper()
	s.mu.Lock()
	id := s.leases[class].id
	s.mu.Unlock()
	if _, err := s.client.Revoke(t.Context(), clientv3.LeaseID(id)); err != nil {
		t.Fatal(err)
	}
}

// noticed revokes a lease and lets the store hear of it.
func noticed(t testing.TB, s *Store, class int64) {
	t.Helper()
	revoke(t, s, class)
	s.mu.Lock()
	asking := s.refreshLocked(s.leases[class])
	s.mu.Unlock()
	<-asking.done
}

// synced waits until the store's mirror of key knows the queue.
func synced(t testing.TB, s *Store, key string) {
	t.Helper()
	eventually(t, "a mirror", 20*time.Second, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		k := s.keys[key]
		return k != nil && k.mirror != nil && k.mirror.synced
	})
}

// A trial is a test that may be repeated.
type trial struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	cleanups []func()
}

// steady runs f, and again if it failed after more than a second: a position lives for
// one and a half seconds, and a busy machine may stall for longer. Each run has its own
// keys.
func steady(t *testing.T, f func(t testing.TB)) {
	t.Helper()
	for n := 1; ; n++ {
		r := &trial{TB: t}
		begun := time.Now()
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() {
				for _, f := range slices.Backward(r.cleanups) {
					f()
				}
			}()
			f(r)
		}()
		<-done
		took := time.Since(begun)
		if len(r.failures) == 0 {
			return
		}
		if took < time.Second || n == 6 {
			t.Fatal(strings.Join(r.failures, "\n"))
		}
		t.Logf("again, as it took %v: %q", took, r.failures)
	}
}

func (r *trial) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *trial) Failed() bool     { r.mu.Lock(); defer r.mu.Unlock(); return len(r.failures) > 0 }

func (r *trial) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *trial) Fatalf(format string, args ...any) { r.Errorf(format, args...); runtime.Goexit() }
func (r *trial) Error(args ...any)                 { r.Errorf("%s", fmt.Sprintln(args...)) }
func (r *trial) Fatal(args ...any)                 { r.Fatalf("%s", fmt.Sprintln(args...)) }
