package zkstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// The numbers of a queue do not wrap round at their end, they stick there: from then on
// only the transactions tell the order.
func TestNumbersAtTheirEnd(t *testing.T) {
	t.Parallel()
	testserver.NeedZooKeeper(t)
	testserver.NeedJar(t, slf4jJar, "libslf4j-java")
	dir, err := os.MkdirTemp("", "baton-seed-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	data := filepath.Join(dir, "data")
	if out, err := testserver.RunJava(t, []string{zooKeeperJar, slf4jJar}, "testdata/Seed.java", data, "/k", fmt.Sprint(math.MaxInt32-9)); err != nil {
		t.Fatalf("seed: %v\n%s", err, out)
	}
	server := testserver.ZooKeeperOn(t, dir)
	var stores []*Store
	for range 3 {
		stores = append(stores, patient(openOn(t, "/", server.Addr)))
	}

	// A queue across the end: granted in the order of arrival, tokens rising.
	type place struct {
		s     *Store
		r     driver.Request
		hints <-chan driver.Hint
	}
	join := func(i int, waits bool) place {
		p := place{s: stores[i%3], r: writer("k")}
		if i%4 == 3 {
			p.r = reader("k")
		}
		p.hints = watching(t, p.s, p.r)
		if g := acquire(t, p.s, p.r); g.Waiting != waits {
			t.Fatalf("number %d: waiting %v, want %v", i, g.Waiting, waits)
		}
		return p
	}
	holder := join(0, false)
	var line []place
	for i := range 16 {
		line = append(line, join(i+1, true))
	}
	if all := strings.Join(lineOf(t, stores[0].conn, stores[0], "k"), " "); !strings.Contains(all, "2147483647") || !strings.Contains(all, "-21474836") {
		t.Errorf("the line does not cross the end: %s", all)
	}
	var token int64
	for i, p := range line {
		release(t, holder.s, holder.r)
		g, _ := awaitHeld(t, p.s, p.r, p.hints)
		if g.Token <= token {
			t.Errorf("number %d: token %d after %d", i+1, g.Token, token)
		}
		token = g.Token
		for j, later := range line[i+1:] {
			if later.r.Shared() && j == 0 && p.r.Shared() {
				continue
			}
			select {
			case h := <-later.hints:
				if h.Granted {
					t.Fatalf("number %d was granted beside number %d", i+j+2, i+1)
				}
			default:
			}
		}
		holder = p
	}
	release(t, holder.s, holder.r)

	// And from then on, one at a time.
	var inside int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, s := range stores {
		wg.Go(func() {
			for range 20 {
				r := writer("k")
				r.Queue = false
				if _, err := s.Acquire(t.Context(), r); err != nil {
					if !errors.Is(err, driver.ErrHeld) {
						t.Error(err)
					}
					continue
				}
				mu.Lock()
				if inside++; inside > 1 {
					t.Error("two hold")
				}
				inside--
				mu.Unlock()
				if err := s.Release(t.Context(), r.Claim); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

const (
	zooKeeperJar = "/usr/share/java/zookeeper.jar"
	slf4jJar     = "/usr/share/java/slf4j-simple.jar"
)

// A node that was found after a lost answer counts only if it belongs to the present
// session: otherwise no session of ours keeps it alive.
func TestANodeOfAnotherSessionIsNotAdopted(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := openOn(t, "", server.Addr)
	direct := plain(t, server.Addr)
	warm := writer("k")
	hold(t, s, warm)
	release(t, s, warm)

	r := writer("k")
	c := s.claim(r)
	c.state, c.guid = unsure, "_c_0123456789abcdef0123456789abcdef"
	c.lastLocked(ttl)
	for _, mark := range c.marks() {
		if _, err := direct.Create(s.parent("k")+"/"+c.guid+mark, nil, zk.FlagEphemeralSequential, s.acl); err != nil {
			t.Fatal(err)
		}
	}
	r.Retry = true
	hold(t, s, r)
	for _, n := range lineOf(t, direct, s, "k") {
		stat, err := s.exists(t.Context(), s.parent("k")+"/"+n)
		if err != nil || stat.EphemeralOwner != s.session.link().id {
			t.Errorf("%s belongs to session %x, %v", n, stat.EphemeralOwner, err)
		}
	}
}

// Nodes of other programs that are no contenders are ignored.
func TestForeignChildrenAreIgnored(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := patient(openOn(t, "", server.Addr))
	direct := plain(t, server.Addr)
	r := writer("k")
	hold(t, s, r)
	release(t, s, r)
	for _, name := range []string{"0", "config", "lock-", "lock-7", "_c_x-lock-99999999999", "a-perm.0.3-0000000000", "x__WRIT__00000000zz"} {
		if _, err := direct.Create(s.parent("k")+"/"+name, []byte("data"), 0, s.acl); err != nil {
			t.Fatal(err)
		}
	}
	r, next := writer("k"), writer("k")
	hints := watching(t, s, next)
	hold(t, s, r)
	if g := acquire(t, s, next); !g.Waiting {
		t.Error("two hold")
	}
	release(t, s, r)
	awaitHeld(t, s, next, hints)
	info, err := s.Inspect(t.Context(), "k")
	if err != nil || len(info.Holders) != 1 || len(info.Waiters) != 0 {
		t.Errorf("%+v, %v", info, err)
	}
	release(t, s, next)
}

// A key with a slash is no child of the key before the slash.
func TestNestedKeysDoNotInterfere(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := openOn(t, "", server.Addr)
	hold(t, s, writer("a"))
	hold(t, s, writer("a/0"))
	hold(t, s, writer("a/0/b"))
	for _, n := range lineOf(t, s.conn, s, "a") {
		if _, ok := parse(n); !ok {
			t.Errorf("the line of %q has a child %q", "a", n)
		}
	}
}

// A parent is a container, which the server removes when it has been empty for
// a while.
func TestParentsAreContainers(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t, "-Dznode.container.checkIntervalMs=200")
	s := openOn(t, "", server.Addr)
	r := writer("k")
	token := hold(t, s, r).Token
	release(t, s, r)
	eventually(t, "the server removes the parent", func() bool {
		ok, _, err := s.conn.Exists(s.parent("k"))
		return err == nil && !ok
	})
	// The store believes that it exists.
	if g := hold(t, s, writer("k")); g.Token <= token {
		t.Errorf("token %d after %d", g.Token, token)
	}
}

// Nodes are made for one user, and no other user may use them.
func TestAccessLists(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	root := "/" + driver.NewID()
	joe, below := Server{Addrs: []string{server.Addr}, User: "joe", Password: "s3cret:word"}, Config{Root: root}
	s, same := mustOpen(t, joe, below), mustOpen(t, joe, below)
	r := writer("k")
	hold(t, s, r)
	next := writer("k")
	next.Queue = false
	if _, err := same.Acquire(t.Context(), next); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("the same user: %v", err)
	}
	stranger := openOn(t, root, server.Addr)
	_, acquired := stranger.Acquire(t.Context(), next)
	_, inspected := stranger.Inspect(t.Context(), "k")
	_, broken := stranger.Break(t.Context(), "k")
	for what, err := range map[string]error{"acquire": acquired, "inspect": inspected, "break": broken} {
		if err == nil || !strings.Contains(err.Error(), "access list") || errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("a stranger's %s: %v", what, err)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s shows the password: %v", what, err)
		}
	}
	if a := renew(t, s, r); a.State != driver.Held {
		t.Errorf("renewed: %+v", a)
	}
	acl, _, err := s.conn.GetACL(root + "/k")
	if err != nil || len(acl) != 1 || acl[0].Scheme != "digest" || !strings.HasPrefix(acl[0].ID, "joe:") {
		t.Errorf("access list %+v, %v", acl, err)
	}
	release(t, s, r)
}

// The user is known again after a reconnect, and in a new session.
func TestUserAfterReconnect(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	s := mustOpen(t, Server{Addrs: []string{server.Addr}, User: "joe", Password: "secret"}, Config{Root: "/joes"})
	r := writer("k")
	hold(t, s, r)
	server.Restart()
	// Only the user may make a node there. What was held is lost if the start
	// took longer than its TTL.
	insist(t, s, writer("another"))
	eventually(t, "an answer about the holder", func() bool { return renew(t, s, r).State != driver.Unknown })
}

// A user who may create children, but not write to the parent, gets locks, too.
func TestParentThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := patient(openOn(t, "", server.Addr))
	if err := s.makeRoot(t.Context()); err != nil {
		t.Fatal(err)
	}
	acl := zk.WorldACL(zk.PermCreate | zk.PermRead | zk.PermDelete)
	if _, err := s.conn.Create(s.parent("k"), nil, 0, acl); err != nil {
		t.Fatal(err)
	}
	a, b := writer("k"), writer("k")
	hints := watching(t, s, b)
	first := hold(t, s, a)
	if !acquire(t, s, b).Waiting {
		t.Fatal("two hold")
	}
	release(t, s, a)
	if g, _ := awaitHeld(t, s, b, hints); g.Token <= first.Token {
		t.Errorf("token %d after %d", g.Token, first.Token)
	}
	release(t, s, b)
}

// A connection of the caller's own is watched, and left open.
func TestOwnConnection(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	if _, err := New(t.Context(), nil, new(Session), Config{}); err == nil {
		t.Error("a session that knows no connection was accepted")
	}
	var session Session
	conn, _, err := zk.Connect([]string{server.Addr}, 12*time.Second, session.Option(), zk.WithLogger(silent), zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := New(ctx, conn, &session, Config{Root: driver.NewID()})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Traits().MaxTTL; got != 6*time.Second {
		t.Errorf("the longest TTL is %v, want half of the session", got)
	}
	r := writer("k")
	r.TTL = time.Second
	hold(t, s, r)
	release(t, s, r)
	s.Close()
	if _, _, err := conn.Exists("/"); err != nil {
		t.Errorf("the connection was closed: %v", err)
	}
}

// The store counts with the session that the server grants, not with a shorter one that
// was asked for.
func TestTheServerDecidesTheSession(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t) // ticks of 2 s: 4 s to 40 s
	for asked, want := range map[time.Duration]time.Duration{time.Second: 2 * time.Second, time.Hour: 20 * time.Second} {
		s := mustOpen(t, Server{Addrs: []string{server.Addr}, Session: asked})
		if got := s.Traits().MaxTTL; got != want {
			t.Errorf("a session of %v: the longest TTL is %v, want %v", asked, got, want)
		}
	}
}

// A server with ticks of a second grants a session of 20 s at most, and doctor says
// what that means.
func TestShortTicks(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t, "tickTime=1000")
	s := mustOpen(t, Server{Addrs: []string{server.Addr}})
	if got := s.Traits().MaxTTL; got != 10*time.Second {
		t.Errorf("the longest TTL is %v, want 10s", got)
	}
	r := writer("k")
	r.TTL = 10*time.Second + time.Millisecond
	var refused *driver.RequestError
	if _, err := s.Acquire(t.Context(), r); !errors.As(err, &refused) {
		t.Errorf("for longer: %v", err)
	}
	r.TTL = 10 * time.Second
	if g := hold(t, s, r); g.TTL <= 0 || g.TTL > r.TTL {
		t.Errorf("granted for %v", g.TTL)
	}
	found, err := s.Examine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	for _, f := range found {
		said[f.Name] = f.What
	}
	if !strings.Contains(said["session-timeout"], "no TTL can be longer than 10s") || !strings.Contains(said["session-bounds"], "20s granted") {
		t.Errorf("found %v", found)
	}

	// A session that goes on at a server that grants less.
	proxy := faultproxy.New(t, testserver.SharedZooKeeper(t).Addr)
	moved := mustOpen(t, Server{Addrs: []string{proxy.Addr}})
	if got := moved.Traits().MaxTTL; got != 15*time.Second {
		t.Errorf("before: %v", got)
	}
	proxy.Retarget(server.Addr)
	proxy.Cut()
	eventually(t, "another session", func() bool { return moved.Traits().MaxTTL == 10*time.Second })
	r = writer("moved")
	r.TTL = 15 * time.Second // as it was asked for from the beginning
	g, _ := insist(t, moved, r)
	if g.TTL <= 0 || g.TTL > 10*time.Second {
		t.Errorf("granted for %v in a session of 20s", g.TTL)
	}
}

// After a silence the server may count from long ago, and a grant lasts less.
func TestTrustAfterSilence(t *testing.T) {
	t.Parallel()
	const T = 16 * time.Second
	start := time.Now()
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	for name, c := range map[string]struct {
		since  float64
		active []float64
		sent   float64
		want   float64
	}{
		"a new connection":            {0, nil, 0, 8},
		"soon after":                  {0, nil, 5, 8},
		"long after, in silence":      {0, nil, 10, 5},
		"at the end":                  {0, nil, 15, 0},
		"beyond":                      {0, nil, 40, 0},
		"reported often":              {0, []float64{90, 92, 94, 96, 98}, 100, 8},
		"the last not yet passed on":  {0, []float64{85, 99}, 100, 0},
		"and a little before, passed": {0, []float64{93, 99}, 100, 8},
	} {
		var s Session
		l := &link{id: 1, timeout: T, since: at(c.since)}
		for _, a := range c.active {
			s.active(l, at(a))
		}
		if got := s.commit(l, at(c.sent)); got != time.Duration(c.want*float64(time.Second)) {
			t.Errorf("%s: %v, want %vs", name, got, c.want)
		}
	}
}

// A process that was stopped for long does not take a lock in a session that may end
// before the answer is used.
func TestAcquireAfterSilence(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := openOn(t, "", server.Addr)
	kept := writer("kept")
	hold(t, s, kept)
	// As if nothing had been heard for nearly the whole session.
	s.session.mu.Lock()
	clear(s.session.marks[:])
	s.session.mu.Unlock()
	l := *s.session.link()
	l.since = l.since.Add(-l.timeout)
	s.session.now.Store(&l)

	r := writer("k")
	if g, err := s.Acquire(t.Context(), r); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("acquire: %+v, %v", g, err)
	}
	if a := renew(t, s, kept); a.State != driver.Unknown || !errors.Is(a.Err, driver.ErrUnavailable) {
		t.Errorf("renew: %+v", a)
	}
	direct := plain(t, server.Addr)
	eventually(t, "an empty line", func() bool { return len(lineOf(t, direct, s, "k")) == 0 })
	release(t, s, kept)
}

// Permits: a waiter in the middle learns that it is at the head although the one before
// it did not go, but was granted.
func TestPermitsAreHandedOnWithoutPolling(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	first := patient(openOn(t, "", server.Addr))
	stores := []*Store{first, patient(openOn(t, first.root, server.Addr)), patient(openOn(t, first.root, server.Addr))}
	type place struct {
		s     *Store
		r     driver.Request
		hints <-chan driver.Hint
	}
	join := func(i int, n int64) place {
		p := place{s: stores[i%3], r: permits("k", n, 4)}
		p.hints = watching(t, p.s, p.r)
		acquire(t, p.s, p.r)
		return p
	}
	a, b := join(0, 2), join(1, 2)
	x, y, z := join(2, 3), join(0, 1), join(1, 4)
	release(t, a.s, a.r) // 2 of 4 are left: x does not fit
	release(t, b.s, b.r) // x fits, and y beside it, which only x's grant tells
	awaitHeld(t, x.s, x.r, x.hints)
	awaitHeld(t, y.s, y.r, y.hints)
	release(t, y.s, y.r)
	release(t, x.s, x.r)
	awaitHeld(t, z.s, z.r, z.hints)
	release(t, z.s, z.r)
}
