package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// several makes requests for exclusive locks.
func several(owner string, keys ...string) (r []driver.Request) {
	for _, key := range keys {
		r = append(r, driver.Request{Claim: claimOf(key, owner), TTL: time.Minute})
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
		c := r[i].Claim
		c.Ticket = g.Ticket
		claims = append(claims, c)
	}
	return claims
}

// One key under which a classic lock, or something else, stands refuses all, and what
// was free stays as it was.
func TestSeveralBesideClassicLocks(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	l.do("SET", "string", "value")
	l.do("HSET", "hash", "field", "value")
	l.do("SET", "lock", "theirs", "PX", "60000")
	for key, wrong := range map[string]func(error) bool{
		"string": func(err error) bool {
			e, ok := errors.AsType[*driver.NotLockError](err)
			return ok && e.Key == "string" && e.Found == "a string without expiry"
		},
		"hash": func(err error) bool {
			e, ok := errors.AsType[*driver.NotLockError](err)
			return ok && e.Key == "hash" && e.Found == "a hash"
		},
		"lock": func(err error) bool {
			e, ok := errors.AsType[*driver.HeldError](err)
			return ok && e.Key == "lock" && e.Foreign && e.Remaining > 0 && e.Remaining <= time.Minute
		},
	} {
		for at := range 3 {
			r := slices.Insert(several("a", "one", "two"), at, several("a", key)...)
			if _, err := s.AcquireAll(t.Context(), r); !wrong(err) {
				t.Errorf("%s at %d: %v", key, at, err)
			}
			if at != 1 {
				r[2-at].Weight = 1 // a reader among them
			}
			if _, err := s.AcquireAll(t.Context(), r); !wrong(err) {
				t.Errorf("%s at %d, of several kinds: %v", key, at, err)
			}
		}
	}
	names := splitLines(l.do("KEYS", "*"))
	slices.Sort(names)
	names = slices.DeleteFunc(names, func(n string) bool { return n == "baton:T" || n == "baton:H" })
	if want := []string{"hash", "lock", "string"}; !slices.Equal(names, want) {
		t.Errorf("the server has %q, want %q", names, want)
	}
	if v := l.do("GET", "lock"); v != "theirs" {
		t.Errorf("their lock became %q", v)
	}
}

// The most locks that can be asked for together take one command, also when the
// server does not know the script.
func TestSeveralAreOneCommand(t *testing.T) {
	l := newLab(t, 2)
	var keys []string
	for i := range check.MaxTogether {
		keys = append(keys, fmt.Sprint("job ", i))
	}
	for _, flush := range []bool{true, false} {
		if flush {
			l.do("SCRIPT", "FLUSH")
		}
		l.do("CONFIG", "RESETSTAT")
		claims := takeAll(t, l.stores[0], several("a", keys...))
		if n, full := l.calls("evalsha"), l.calls("eval"); n != 1 || full != 0 && !flush || full > 1 {
			t.Errorf("EVALSHA was called %d times, EVAL %d times", n, full)
		}
		_, err := l.stores[1].AcquireAll(t.Context(), several("b", "free", keys[63]))
		if held, ok := errors.AsType[*driver.HeldError](err); !ok || held.Key != keys[63] || held.Owner != "a" {
			t.Errorf("beside it: %v, want it held by a", err)
		}
		for _, c := range claims {
			mustRelease(t, l.stores[0], c)
		}
	}
}

// An answer that is lost leaves the outcome unknown. A caller that asks again finds
// what was granted, and one that releases by the IDs leaves nothing.
func TestSeveralWhoseAnswerIsLost(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	server := testserver.Redis(t)
	proxy := faultproxy.New(t, server.Addr)
	s := mustNew(t, dial(t, proxy.Addr))
	for _, again := range []bool{true, false} {
		for _, c := range takeAll(t, s, several("warm", "x", "y")) {
			mustRelease(t, s, c)
		}
		r := several("a", "x", "y", "z")
		r[2].Weight = 1
		cut := proxy.CutAfterRequest(func(request []byte) bool { return strings.Contains(string(request), r[1].ID) })
		if _, err := s.AcquireAll(t.Context(), r); !errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("the answer was cut off: %v, want driver.ErrUnknown", err)
		}
		<-cut
		if again {
			for i := range r {
				r[i].Retry = true
			}
			first, second := takeAll(t, s, r), takeAll(t, s, r)
			if !slices.Equal(first, second) {
				t.Errorf("asked again, the tickets %v became %v", first, second)
			}
		}
		for _, q := range r {
			err := s.Release(t.Context(), q.Claim)
			if err != nil && (again || !errors.Is(err, driver.ErrLost)) { // the server may drop what it read from a connection that is gone
				t.Errorf("released by its ID: %v", err)
			}
		}
		eventually(t, "free locks", 10*time.Second, func() bool {
			reply, err := server.Do("EXISTS", "x", "y", "z")
			return err == nil && reply == "0"
		})
	}
}

// A caller that gives up before the answer comes, and cleans up at once, leaves
// nothing: the release of each does not overtake the request for all, even where there
// are many connections.
func TestSeveralThatWereAbandoned(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	server := testserver.Redis(t)
	proxy := faultproxy.New(t, server.Addr)
	other := mustNew(t, dial(t, server.Addr))
	for _, open := range []opener{brought(proxy.Addr), through(Server{Addrs: []string{proxy.Addr}})} {
		s := open(t, Config{})
		for _, c := range takeAll(t, s, several("warm", "x", "y")) {
			mustRelease(t, s, c)
		}
		for range 5 { // connections are chosen by chance
			r := several("a", "x", "y", "z")
			proxy.Hold(faultproxy.ToServer)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond) // it is sent by then, or never
			_, err := s.AcquireAll(ctx, r)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("abandoned: %v", err)
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
			for _, c := range takeAll(t, other, several("b", "z", "y", "x")) {
				mustRelease(t, other, c)
			}
		}
	}
}

// In Cluster, locks of one slot are granted together, and others not at all.
func TestSeveralInCluster(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	cluster := testserver.SharedRedisCluster(t)
	prefix := driver.NewID()
	dial := func() redis.UniversalClient { return dialCluster(t, cluster) }
	for _, c := range []struct {
		prefix string
		keys   []string
		can    bool
	}{
		{prefix + ":", []string{"a", "b"}, false},
		{prefix + ":", []string{"a{x}", "{x}b", "c"}, false},
		{prefix + ":", []string{"a{x}", "{x}b", "{x}"}, true},
		{prefix + ":", []string{"a"}, true},
		{prefix + ":", []string{"{x}a", "{}x", "b"}, false},
		{"{" + prefix + "}:", []string{"a", "b", "{x}c", "d}"}, true},
	} {
		s := mustNew(t, dial(), Config{Prefix: c.prefix})
		r := several("a", c.keys...)
		if !c.can {
			if _, err := s.AcquireAll(t.Context(), r); !errors.Is(err, errors.ErrUnsupported) || errors.Is(err, driver.ErrUnknown) {
				t.Errorf("%q: %v, want errors.ErrUnsupported", c.keys, err)
			}
			for _, key := range c.keys { // nothing was done
				one, _ := take(t, s, claimOf(key, "b"), time.Minute, false)
				mustRelease(t, s, one)
			}
			continue
		}
		for _, one := range takeAll(t, s, r) {
			mustRelease(t, s, one)
		}
	}
}
