package redisstore

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/testserver"
)

// tb makes a drivertest.T what a server wants.
type tb struct{ drivertest.T }

func (t tb) Skipf(format string, args ...any) { t.Fatalf(format, args...) }

// serverOf remembers which server a store was opened on.
type serverOf struct {
	mu sync.Mutex
	m  map[driver.Locks]*testserver.RedisServer
}

func newServerOf() *serverOf { return &serverOf{m: map[driver.Locks]*testserver.RedisServer{}} }

func (s *serverOf) put(l driver.Locks, server *testserver.RedisServer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[l] = server
}

func (s *serverOf) of(l driver.Locks) *testserver.RedisServer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[l]
}

// eventually polls until ok says so.
func eventually(t drivertest.T, what string, within time.Duration, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, within)
		}
	}
}

// awaitReachable returns when s has a working connection again.
func awaitReachable(t drivertest.T, s *Store) {
	t.Helper()
	eventually(t, "the server answers again", 10*time.Second, func() bool {
		_, err := s.Inspect(t.Context(), "reachable?")
		return err == nil
	})
}

// claimOf makes an exclusive claim.
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

// renewOne renews one claim.
func renewOne(t testing.TB, s *Store, c driver.Claim, ttl time.Duration) driver.Renewal {
	t.Helper()
	r := s.Renew(t.Context(), []driver.Claim{c}, ttl)
	if len(r) != 1 {
		t.Fatalf("renewing one claim gave %d answers", len(r))
	}
	return r[0]
}

func splitLines(s string) []string { return strings.Split(s, "\n") }

// lab is one server and several stores on it, as processes would have them.
type lab struct {
	*testing.T
	server *testserver.RedisServer
	stores []*Store
	key    string
}

func newLab(t *testing.T, stores int, cfg ...Config) *lab {
	t.Helper()
	t.Parallel()
	testserver.NeedRedis(t)
	l := &lab{T: t, server: testserver.Redis(t), key: "job"}
	for range stores {
		l.stores = append(l.stores, mustNew(t, dial(t, l.server.Addr), append(cfg, Config{})[0]))
	}
	return l
}

// do runs a command as an operator would.
func (l *lab) do(args ...string) string {
	l.Helper()
	reply, err := l.server.Do(args...)
	if err != nil {
		l.Fatalf("%v: %v", args, err)
	}
	return reply
}

func (l *lab) names(key string) lockNames {
	n, err := l.stores[0].names.of(key)
	if err != nil {
		l.Fatal(err)
	}
	return n
}

// hints watches a claim.
func (l *lab) hints(s *Store, c driver.Claim) <-chan driver.Hint {
	ch := make(chan driver.Hint, 100)
	l.Cleanup(s.Watch(c, func(h driver.Hint) {
		select {
		case ch <- h:
		default:
		}
	}))
	return ch
}

// awaitGrant waits for a hint that tells of a grant.
func (l *lab) awaitGrant(ch <-chan driver.Hint) driver.Grant {
	l.Helper()
	timeout := time.After(5 * time.Second)
	for {
		select {
		case h := <-ch:
			if h.Granted {
				return h.Grant
			}
		case <-timeout:
			l.Fatal("no push within 5 s")
		}
	}
}

// awaitSubscribed returns when pushes reach the store.
func (l *lab) awaitSubscribed(stores ...*Store) {
	l.Helper()
	for _, s := range stores {
		s.pushes.start()
		eventually(l, "the subscription", 5*time.Second, func() bool {
			return strings.HasSuffix(l.do("PUBSUB", "NUMSUB", s.channel), "1")
		})
	}
}

// calls is how often the server has run scripts.
func (l *lab) calls(command string) int {
	for line := range strings.Lines(l.do("INFO", "commandstats")) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_"+command+":calls="); ok {
			n, _, _ := strings.Cut(rest, ",")
			count, _ := strconv.Atoi(n)
			return count
		}
	}
	return 0
}
