package zkstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// dialled returns a store on a connection that is made by dial. The address
// is given twice, so that the client does not pause before it tries again.
func dialled(t *testing.T, dial zk.Dialer, root, addr string) *Store {
	t.Helper()
	session := &Session{Dial: dial}
	conn, _, err := zk.Connect([]string{addr, addr}, 30*time.Second, session.Option(),
		zk.WithHostProvider(new(hosts)), zk.WithLogger(silent), zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if err := authenticate(t.Context(), session, conn, "joe:secret"); err != nil {
		t.Fatal(err)
	}
	s, err := New(t.Context(), conn, session, Config{Root: root, ACL: zk.AuthACL(zk.PermAll)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// thief learns what identifies the session of a connection.
type thief struct {
	mu     sync.Mutex
	answer []byte // the latest connect answer
}

func (th *thief) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	c, err := net.DialTimeout(network, address, timeout)
	if err != nil {
		return nil, err
	}
	return &overheard{Conn: c, thief: th}, nil
}

type overheard struct {
	net.Conn
	thief *thief
	head  []byte
}

// A connect answer: its length, protocol, time-out, session, and the length of
// the password and the password.
const lengthOfAnswer = 4 + 4 + 4 + 8 + 4 + 16

func (c *overheard) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if missing := lengthOfAnswer - len(c.head); missing > 0 {
		c.head = append(c.head, b[:min(n, missing)]...)
		if len(c.head) == lengthOfAnswer {
			c.thief.mu.Lock()
			c.thief.answer = c.head
			c.thief.mu.Unlock()
		}
	}
	return n, err
}

// end takes the session over and ends it.
func (th *thief) end(addr string) error {
	th.mu.Lock()
	answer := th.answer
	th.mu.Unlock()
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(testTime)); err != nil {
		return err
	}
	hello := binary.BigEndian.AppendUint32(nil, 44)
	hello = append(hello, make([]byte, 4+8)...) // protocol, last transaction seen
	hello = append(hello, answer[8:]...)
	if _, err := c.Write(hello); err != nil {
		return err
	}
	head := make([]byte, 4)
	if _, err := io.ReadFull(c, head); err != nil {
		return fmt.Errorf("take over the session: %w", err)
	}
	rest := make([]byte, binary.BigEndian.Uint32(head))
	if _, err := io.ReadFull(c, rest); err != nil {
		return err
	}
	if !bytes.Equal(rest[8:16], answer[12:20]) {
		return fmt.Errorf("the session %x cannot be taken over", answer[12:20])
	}
	const opClose = -11
	bye := binary.BigEndian.AppendUint32([]byte{0, 0, 0, 8, 0, 0, 0, 1}, 1<<32+opClose)
	if _, err := c.Write(bye); err != nil {
		return err
	}
	if _, err = io.ReadFull(c, make([]byte, 16)); err != nil { // it is answered when it has ended
		return fmt.Errorf("end the session: %w", err)
	}
	return nil
}

// The server ends a session whose client comes back at once, again and again. What it
// held and waited for is lost, a process that waited for it is granted, and the next
// session knows the user.
func TestSessionsThatTheServerEnds(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	proxy := faultproxy.New(t, server.Addr)
	th := new(thief)
	root := "/" + driver.NewID()
	s := longWaiting(dialled(t, th.dial, root, proxy.Addr))
	other := longWaiting(dialled(t, nil, root, server.Addr))
	kept := writer("kept")
	hold(t, other, kept)
	var token int64
	for i := range 50 {
		held, waits, next := writer("k"), writer("kept"), writer("k")
		if g := hold(t, s, held); g.Token <= token {
			t.Fatalf("round %d: token %d after %d", i, g.Token, token)
		} else {
			token = g.Token
		}
		lost := watching(t, s, held)
		hints := watching(t, other, next)
		if !acquire(t, s, waits).Waiting || !acquire(t, other, next).Waiting {
			t.Fatalf("round %d: two hold", i)
		}
		old := s.session.link().id
		// Otherwise the client would take the session back.
		proxy.Hold(faultproxy.ToServer)
		proxy.Hold(faultproxy.ToClient)
		if err := th.end(server.Addr); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		g, _ := awaitHeld(t, other, next, hints)
		if g.Token <= token {
			t.Errorf("round %d: token %d after %d", i, g.Token, token)
		}
		token = g.Token
		proxy.Heal()
		for _, r := range []driver.Request{held, waits} {
			eventually(t, "its owner hears of the end", func() bool {
				a := renew(t, s, r)
				if a.State == driver.Held || a.State == driver.Waiting {
					t.Fatalf("round %d: confirmed in a session that has ended: %+v", i, a)
				}
				return a.State == driver.Lost
			})
		}
		select {
		case <-lost:
		case <-time.After(testTime):
			t.Fatalf("round %d: no waiter was told", i)
		}
		if a := renew(t, other, kept); a.State != driver.Held {
			t.Fatalf("round %d: another's lock: %+v", i, a)
		}
		release(t, other, next)
		eventually(t, "a new session", func() bool { l := s.session.link(); return l.up && l.id != old })
	}
	if n := len(queueIn(t, other.conn, other, "kept")); n != 2 {
		t.Errorf("%d nodes, want the two of the holder", n)
	}
}

// The session ends after the nodes were made and before the queue was read. A claim
// that is not in the queue does not hold the lock.
func TestSessionThatEndsBeforeTheQueueIsRead(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	proxy := faultproxy.New(t, server.Addr)
	th := new(thief)
	root := "/" + driver.NewID()
	s := longWaiting(dialled(t, th.dial, root, proxy.Addr))
	other := longWaiting(dialled(t, nil, root, server.Addr))
	first := writer("k")
	token := hold(t, other, first).Token
	const opGetChildren = 12
	list := binary.BigEndian.AppendUint32([]byte{0, 0, 0, opGetChildren}, uint32(len(s.parent("k"))))
	list = append(list, s.parent("k")...)
	for i := range 5 {
		made := false
		cut := proxy.CutBeforeRequest(func(b []byte) bool {
			made = made || bytes.Contains(b, []byte("_c_"))
			if !made || !bytes.Contains(b, list) {
				return false
			}
			// Nothing goes through the proxy meanwhile.
			if err := th.end(server.Addr); err != nil {
				t.Error(err)
			}
			return true
		})
		old := s.session.link().id
		r := writer("k")
		if g, err := s.Acquire(t.Context(), r); !errors.Is(err, driver.ErrUnknown) && !errors.Is(err, driver.ErrUnavailable) {
			t.Fatalf("round %d: %+v, %v", i, g, err)
		}
		<-cut
		eventually(t, "a new session", func() bool { l := s.session.link(); return l.up && l.id != old })
		r.Retry = true
		var g driver.Grant
		eventually(t, "a repeated acquire", func() (ok bool) {
			var err error
			g, err = s.Acquire(t.Context(), r)
			return err == nil
		})
		if !g.Waiting {
			t.Fatalf("round %d: two hold", i)
		}
		release(t, s, r)
	}
	if a := renew(t, other, first); a.State != driver.Held || a.Grant.Token != token {
		t.Errorf("the holder: %+v", a)
	}
	release(t, other, first)
	if left := queueIn(t, other.conn, other, "k"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// The contender before goes while the waiter's connection is away: the waiter hears of
// it when it comes back.
func TestPredecessorGoesWhileAway(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	proxy := faultproxy.New(t, server.Addr)
	s := longWaiting(openOn(t, "", proxy.Addr))
	other := openOn(t, s.root, server.Addr)
	first, next := writer("k"), writer("k")
	token := hold(t, other, first).Token
	hints := watching(t, s, next)
	if !acquire(t, s, next).Waiting {
		t.Fatal("two hold")
	}
	proxy.Refuse()
	proxy.Cut()
	eventually(t, "the connection is lost", func() bool { return !s.session.link().up })
	release(t, other, first)
	proxy.Accept()
	if g, _ := awaitHeld(t, s, next, hints); g.Token <= token {
		t.Errorf("token %d after %d", g.Token, token)
	}
	release(t, s, next)
}

// In a long queue only the next waiter is told when the first contender goes, and no
// waiter has more than two watches: on its own node and on the one before.
func TestOnlyTheNextIsTold(t *testing.T) {
	t.Parallel()
	const processes, waiters = 5, 100
	server := testserver.ZooKeeper(t)
	told := func() (n int) {
		text, err := server.Ask("mntr")
		if err != nil {
			t.Fatal(err)
		}
		for l := range strings.Lines(text) {
			name, value, _ := strings.Cut(strings.TrimSpace(l), "\t")
			switch name {
			case "zk_sum_node_deleted_watch_count", "zk_sum_node_changed_watch_count", "zk_sum_node_children_watch_count", "zk_sum_node_created_watch_count":
				i, err := strconv.ParseFloat(value, 64)
				if err != nil {
					t.Fatalf("%s: %v", l, err)
				}
				n += int(i)
			}
		}
		return n
	}
	var stores []*Store
	root := "/" + driver.NewID()
	for range processes {
		stores = append(stores, longWaiting(openOn(t, root, server.Addr)))
	}
	first := writer("k")
	hold(t, stores[0], first)
	var line []driver.Request
	var hints []<-chan driver.Hint
	for i := range waiters {
		r, s := writer("k"), stores[i%processes]
		hints = append(hints, watching(t, s, r))
		if !acquire(t, s, r).Waiting {
			t.Fatal("two hold")
		}
		line = append(line, r)
	}
	// A position is renewed once its watches are set. The holder is renewed meanwhile: on a
	// busy machine that takes longer than its TTL.
	for i, r := range line {
		if state := renew(t, stores[0], first).State; state != driver.Held {
			t.Fatalf("the holder is %v", state)
		}
		eventually(t, "a position is confirmed", func() bool { return renew(t, stores[i%processes], r).State == driver.Waiting })
	}
	text, err := server.Ask("wchs")
	if err != nil {
		t.Fatal(err)
	}
	_, total, _ := strings.Cut(text, "Total watches:")
	if n, err := strconv.Atoi(strings.TrimSpace(total)); err != nil || n < waiters || n > 2*waiters+processes {
		t.Errorf("%d waiters of %d processes: %q, %v", waiters, processes, text, err)
	}
	before := told()
	s, r := stores[0], first
	for i := range 10 {
		release(t, s, r)
		s, r = stores[i%processes], line[i]
		awaitHeld(t, s, r, hints[i])
		now := told()
		// The second and all later ones have waited, and so watch themselves.
		if n := now - before; n < 1 || n > 2 {
			t.Errorf("release %d: %d watches fired", i, n)
		}
		before = now
	}
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
	ctx, cancel := context.WithTimeout(t.Context(), testTime)
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
