package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// several makes requests for exclusive locks.
func several(owner string, keys ...string) (r []driver.Request) {
	for _, key := range keys {
		r = append(r, driver.Request{Claim: claimOf(key, owner), TTL: long})
	}
	return r
}

// takeAll acquires and returns the claims with their tickets.
func takeAll(t testing.TB, s *Store, r []driver.Request) (claims []driver.Claim) {
	t.Helper()
	grants, err := s.AcquireAll(t.Context(), r)
	if err != nil || len(grants) != len(r) {
		t.Fatalf("acquire %d: %d grants, %v", len(r), len(grants), err)
	}
	for i, g := range grants {
		if g.TTL < r[i].TTL/2 || g.TTL > r[i].TTL {
			t.Errorf("%s for %v: granted for %v", r[i].Key, r[i].TTL, g.TTL)
		}
		c := r[i].Claim
		c.Ticket = g.Ticket
		claims = append(claims, c)
	}
	return claims
}

// nothingLeft asserts that the keys have no names, and the process no claims.
func nothingLeft(t testing.TB, s *Store, keys ...string) {
	t.Helper()
	for _, key := range keys {
		awaitNames(t, s, key, 0, 20*time.Second)
	}
	eventually(t, "the process has forgotten", 20*time.Second, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, key := range keys {
			if k := s.keys[key]; k != nil && len(k.all) > 0 {
				return false
			}
		}
		return true
	})
}

// The most locks that can be asked for together take one transaction, and so
// does a refusal.
func TestSeveralAreOneTransaction(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 2)
	var keys []string
	for i := range check.MaxTogether {
		keys = append(keys, fmt.Sprint("k", i))
	}
	for range 2 { // the first time it has no leases
		spy := spyOn(s[0])
		r := several("me", keys...)
		for i := range r[:10] {
			r[i].TTL = 10 * time.Second
		}
		claims := takeAll(t, s[0], r)
		if n := len(spy.about(prefixOf(t))); n != 1 {
			t.Errorf("%d locks took %d transactions", len(keys), n)
		}
		for i, c := range claims {
			if kvs := names(t, s[0], keys[i]).Kvs; len(kvs) != 1 || kvs[0].CreateRevision != c.Ticket {
				t.Errorf("%s: %v, want one name that was created at %d", keys[i], kvs, c.Ticket)
			}
		}
		spy.reset()
		_, err := s[0].AcquireAll(t.Context(), several("me", "free", keys[7]))
		if held, ok := errors.AsType[*driver.HeldError](err); !ok || held.Key != keys[7] || held.Owner != "me" || held.Remaining <= 0 {
			t.Errorf("what is held: %v", err)
		}
		if n := len(spy.about(prefixOf(t))); n != 1 {
			t.Errorf("a refusal took %d transactions", n)
		}
		for i, a := range s[0].Renew(t.Context(), claims, long) {
			if a.State != driver.Held || a.Grant.Token != claims[i].Ticket {
				t.Errorf("%s: renewed: %+v", keys[i], a)
			}
		}
		for _, c := range claims {
			mustRelease(t, s[0], c)
		}
		nothingLeft(t, s[0], append(keys, "free")...)
		s[0], s[1] = s[1], s[0]
	}
}

// A server that takes fewer operations in a transaction says so, and nothing was
// done.
func TestSeveralAreTooMany(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.Etcd(t, "--max-txn-ops=8"), 1)[0]
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"}
	if _, err := s.AcquireAll(t.Context(), several("me", keys...)); !errors.Is(err, errors.ErrUnsupported) || errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("nine locks where eight go: %v, want errors.ErrUnsupported", err)
	}
	nothingLeft(t, s, keys...)
	for _, c := range takeAll(t, s, several("me", keys[:8]...)) {
		mustRelease(t, s, c)
	}
}

// Names that belong to keys below, and readers that hold, are in no claim's way. A
// contender that comes between two reads is.
func TestSeveralBesideOthers(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 2)
	me, other := s[0], s[1]
	below, _ := take(t, other, claimOf("a/below", "other"), long, false)
	reader := claimOf("b", "reader")
	reader.Weight = 1
	reader, _ = take(t, other, reader, long, false)
	request := func() []driver.Request {
		r := several("me", "a", "b", "c")
		r[1].Weight = 1
		return r
	}

	spy := spyOn(me)
	claims := takeAll(t, me, request())
	if n := len(spy.about(prefixOf(t))); n != 2 {
		t.Errorf("beside others it took %d transactions", n)
	}
	for _, c := range claims {
		mustRelease(t, me, c)
	}

	for _, key := range []string{"a", "b", "c"} {
		var late driver.Claim
		spy.mu.Lock()
		spy.after = func() { late, _ = take(t, other, claimOf(key, "late"), long, true) } // a writer, also queued for b
		spy.mu.Unlock()
		_, err := me.AcquireAll(t.Context(), request())
		held, ok := errors.AsType[*driver.HeldError](err)
		if !ok || held.Key != key {
			t.Fatalf("a claim has come to %s: %v, want that held", key, err)
		}
		mustRelease(t, other, late)
		nothingLeft(t, me, "c")
	}

	// A reader that leaves in between lets more in.
	spy.mu.Lock()
	spy.after = func() { mustRelease(t, other, reader) }
	spy.mu.Unlock()
	for _, c := range takeAll(t, me, request()) {
		mustRelease(t, me, c)
	}
	mustRelease(t, other, below)
}

// "etcdctl lock" on one of the keys refuses all.
func TestSeveralBesideAStranger(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	l, err := s.client.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Put(t.Context(), s.dir("b")+"694d", "", clientv3.WithLease(l.ID)); err != nil {
		t.Fatal(err)
	}
	_, err = s.AcquireAll(t.Context(), several("me", "a", "b", "c"))
	if held, ok := errors.AsType[*driver.HeldError](err); !ok || held.Key != "b" || !held.Foreign {
		t.Errorf("%v, want b held by a stranger", err)
	}
	nothingLeft(t, s, "a", "c")
}

// The answer is lost on its way. A repetition finds the claims, and a release that
// knows only the ID removes them.
func TestSeveralWhoseAnswerIsCut(t *testing.T) {
	t.Parallel()
	for i := range 4 {
		proxy := faultproxy.New(t, testserver.SharedEtcd(t).Addr)
		s := mustNew(t, dial(t, proxy.Addr), Config{Prefix: prefixOf(t)})
		var keys []string
		for _, name := range []string{"a", "b", "c"} {
			keys = append(keys, fmt.Sprint(name, i))
		}
		for _, c := range takeAll(t, s, several("me", "warm")) {
			mustRelease(t, s, c)
		}
		r := several("me", keys...)
		sprung := proxy.CutAfterRequest(func(request []byte) bool { return strings.Contains(string(request), prefixOf(t)+"/"+keys[1]) })
		_, err := s.AcquireAll(t.Context(), r)
		<-sprung
		if !errors.Is(err, driver.ErrUnknown) {
			t.Fatalf("with its answer cut: %v, want ErrUnknown", err)
		}
		if i < 2 {
			var grants []driver.Grant
			eventually(t, "the repetition is answered", 20*time.Second, func() bool {
				grants, err = s.AcquireAll(t.Context(), r)
				return err == nil
			})
			again := takeAll(t, s, r)
			for n, g := range grants {
				if kvs := names(t, s, r[n].Key).Kvs; len(kvs) != 1 || kvs[0].CreateRevision != g.Token || again[n].Ticket != g.Token {
					t.Errorf("%s: %+v, and then %+v, with %v", r[n].Key, g, again[n], kvs)
				}
			}
		}
		for _, q := range r {
			eventually(t, "the release is answered", 20*time.Second, func() bool {
				err = s.Release(t.Context(), q.Claim)
				return !errors.Is(err, driver.ErrUnknown) && !errors.Is(err, driver.ErrUnavailable)
			})
			if err != nil && !errors.Is(err, driver.ErrLost) {
				t.Errorf("release: %v", err)
			}
		}
		// All of them wait for what may come late at the same time.
		defer nothingLeft(t, s, keys...)
	}
}

// A request that reaches the server when its caller no longer waits leaves nothing.
func TestSeveralThatComeLate(t *testing.T) {
	t.Parallel()
	server := testserver.SharedEtcd(t)
	proxy := faultproxy.New(t, server.Addr)
	s := mustNew(t, dial(t, proxy.Addr), Config{Prefix: prefixOf(t)})
	watcher := openOn(t, server, 1)[0]
	warm, _ := take(t, s, claimOf("warm", "me"), long, false)
	proxy.Hold(faultproxy.ToServer)
	ctx, cancel := context.WithCancel(t.Context())
	spy := spyOn(s)
	spy.before = cancel
	r := several("me", "a", "b")
	if _, err := s.AcquireAll(ctx, r); !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Fatalf("unanswered: %v, want ErrUnknown and the context's error", err)
	}
	released := make(chan error, len(r))
	for _, q := range r {
		go func() { released <- s.Release(t.Context(), q.Claim) }()
	}
	proxy.Heal()
	for range r {
		if err := <-released; err != nil && !errors.Is(err, driver.ErrLost) {
			t.Errorf("released: %v", err)
		}
	}
	for _, q := range r {
		awaitNames(t, watcher, q.Key, 0, 20*time.Second)
	}
	mustRelease(t, s, warm)
}

// The lease ends before the server is asked, or while its answer is under way.
func TestSeveralOnALeaseThatEnds(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	spy := spyOn(s)
	for _, early := range []bool{true, false} {
		for _, c := range takeAll(t, s, several("me", "warm")) {
			mustRelease(t, s, c)
		}
		spy.mu.Lock()
		if early {
			spy.before = func() { revoke(t, s, seconds(long)) }
		} else {
			spy.after = func() { noticed(t, s, seconds(long)) }
		}
		spy.mu.Unlock()
		claims := takeAll(t, s, several("me", "a", "b"))
		for i, a := range s.Renew(t.Context(), claims, long) {
			if a.State != driver.Held || a.Grant.Token != claims[i].Ticket {
				t.Errorf("revoked before it was asked is %v: %+v", early, a)
			}
		}
		for _, c := range claims {
			mustRelease(t, s, c)
		}
		nothingLeft(t, s, "a", "b")
	}
}

// All was done, but cannot be trusted: the process takes its lease for dead, and gets
// no other. The caller is told so, and has to release.
func TestSeveralWithoutALease(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	spy := spyOn(s)
	for _, c := range takeAll(t, s, several("me", "warm")) {
		mustRelease(t, s, c)
	}
	spy.mu.Lock()
	spy.after = func() {
		s.mu.Lock()
		s.leaseGoneLocked(s.leases[seconds(long)])
		s.mu.Unlock()
		spy.mu.Lock()
		spy.stingy = true
		spy.mu.Unlock()
	}
	spy.mu.Unlock()
	r := several("me", "a", "b")
	if _, err := s.AcquireAll(t.Context(), r); !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("%v, want ErrUnknown", err)
	}
	for _, q := range r {
		mustRelease(t, s, q.Claim)
	}
	nothingLeft(t, s, "a", "b")
}
