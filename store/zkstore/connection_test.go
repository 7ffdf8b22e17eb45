package zkstore

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// opcodes notes what kinds of requests are written on each connection.
type opcodes struct {
	mu    sync.Mutex
	conns [][]int32
}

func (o *opcodes) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	c, err := net.DialTimeout(network, address, timeout)
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.conns = append(o.conns, nil)
	return &noted{Conn: c, all: o, n: len(o.conns) - 1}, nil
}

type noted struct {
	net.Conn
	all   *opcodes
	n     int
	begun bool
}

func (c *noted) Write(b []byte) (int, error) {
	if c.begun {
		c.all.mu.Lock()
		for rest := b; len(rest) > 0; rest = rest[4+binary.BigEndian.Uint32(rest):] {
			c.all.conns[c.n] = append(c.all.conns[c.n], int32(binary.BigEndian.Uint32(rest[8:])))
		}
		c.all.mu.Unlock()
	}
	c.begun = true // the first one connects, and has no kind
	return c.Conn.Write(b)
}

// count is how often a kind of request was written.
func (o *opcodes) count(op int32) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, sent := range o.conns {
		for _, x := range sent {
			if x == op {
				n++
			}
		}
	}
	return n
}

const (
	opExists       = 3
	opGetChildren  = 8
	opGetChildren2 = 12
)

// quiet removes events of watches from what goes to a client.
func quiet(b []byte) []byte {
	var out []byte
	for len(b) >= 8 && len(b) >= 4+int(binary.BigEndian.Uint32(b)) {
		frame := b[:4+binary.BigEndian.Uint32(b)]
		if int32(binary.BigEndian.Uint32(frame[4:])) != -1 {
			out = append(out, frame...)
		}
		b = b[len(frame):]
	}
	return append(out, b...)
}

// A waiter that waits for long checks now and then whether it has missed something, at
// two nodes and not in the whole queue: ten thousand waiters would read ten thousand
// names each. And a waiter that has missed something is granted.
func TestLookingAgain(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	proxy := faultproxy.New(t, server.Addr)
	other := openOn(t, "", server.Addr)
	wire := new(opcodes)
	s := dialled(t, wire.dial, other.root, proxy.Addr)
	r, next := writer("k"), writer("k")
	hold(t, other, r)
	keepRenewing(t, other, r)
	if !acquire(t, s, next).Waiting {
		t.Fatal("two hold")
	}
	keepRenewing(t, s, next)
	lists := func() int { return wire.count(opGetChildren) + wire.count(opGetChildren2) }
	listed, asked := lists(), wire.count(opExists)
	if listed == 0 {
		t.Fatal("the queue was not even read to join it")
	}
	eventually(t, "a look at two nodes", func() bool { return wire.count(opExists) >= asked+2 })
	if n := lists(); n != listed {
		t.Errorf("the queue was read %d times, want %d", n, listed)
	}

	proxy.Rewrite(faultproxy.ToClient, quiet)
	release(t, other, r)
	eventually(t, "the waiter is served, which heard nothing", func() bool { return renew(t, s, next).State == driver.Held })
	if n := lists() - listed; n > 10 {
		t.Errorf("one waiter read the queue %d times", n)
	}
}

// The connection is lost again and again beside a waiter and many requests. Before any
// request the watches are set again, as they were when it was lost: the client itself
// would set them as they are after the first answers, and read what it writes on
// another goroutine.
func TestWatchesAreSetBeforeAllElse(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	proxy := faultproxy.New(t, server.Addr)
	wire := new(opcodes)
	session := &Session{Dial: wire.dial}
	conn, _, err := zk.Connect([]string{proxy.Addr}, 30*time.Second, session.Option(),
		zk.WithHostProvider(new(hosts)), zk.WithLogger(silent), zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	other := openOn(t, "", server.Addr)
	s, err := New(t.Context(), conn, session, Config{Root: other.root})
	if err != nil {
		t.Fatal(err)
	}
	r, next := writer("k"), writer("k")
	hold(t, other, r)
	keepRenewing(t, other, r)
	if !acquire(t, s, next).Waiting {
		t.Fatal("two hold")
	}

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				_, _ = s.Inspect(ctx, fmt.Sprint("k", i)) // fails whenever the connection does
			}
		})
	}
	const cuts = 20
	for range cuts {
		before := session.link().epoch
		proxy.Cut()
		eventually(t, "a new connection", func() bool { return session.link().epoch > before })
		eventually(t, "the position is confirmed", func() bool {
			a := renew(t, s, next)
			if a.State == driver.Lost { // no server was reached for too long
				next.ID = driver.NewID()
				_, _ = s.Acquire(t.Context(), next) // the next renewal tells
			}
			return a.State == driver.Waiting
		})
	}
	release(t, other, r)
	eventually(t, "the waiter is served", func() bool { return renew(t, s, next).State == driver.Held })

	wire.mu.Lock()
	defer wire.mu.Unlock()
	set := 0
	for i, sent := range wire.conns {
		sent = slices.DeleteFunc(slices.Clone(sent), func(op int32) bool { return op == opPing })
		if i == 0 || len(sent) == 0 {
			continue // nothing to be set again, or lost at once
		}
		if sent[0] != opSetWatches {
			t.Errorf("connection %d began with %v", i, sent[:min(len(sent), 5)])
		}
		set++
	}
	if set < cuts/2 {
		t.Errorf("only %d of %d connections came to anything", set, cuts)
	}
}

// A server that hangs keeps its connections. Its clients leave it, with their
// sessions, before their leases are over.
func TestServerThatHangs(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	const session, ttl = 8 * time.Second, 4 * time.Second
	e := testserver.ZooKeeperEnsemble(t, nil)
	leader := e.Nodes[e.AwaitLeader(t)].Addr
	root := "/" + rand.Text()
	var all []drivertest.Holder
	clients := map[string]int{} // of each follower
	most := ""
	for len(all) < 6 || clients[most] < 2 {
		s := mustOpen(t, Server{Addrs: e.Addrs(), Session: session}, Config{Root: root})
		if at := s.conn.Server(); at != leader {
			if clients[at]++; clients[at] > clients[most] {
				most = at
			}
		}
		r, sent := writer(fmt.Sprint(len(all))), bootclock.Now()
		r.TTL = ttl
		all = append(all, drivertest.Holder{Locks: s, Claim: r.Claim, Sent: sent, Until: sent.Add(hold(t, s, r).TTL)})
	}
	for _, n := range e.Nodes {
		if n.Addr == most {
			n.Stop()
			t.Cleanup(n.Cont)
		}
	}
	drivertest.KeepAll(t, all, ttl, 3*ttl)
}

// A server that is silent for a while, but for less than the limit, is not left, nor is
// one that has no requests.
func TestSlowServerIsNotLeft(t *testing.T) {
	t.Parallel()
	proxy := faultproxy.New(t, testserver.SharedZooKeeper(t).Addr)
	s := openOn(t, "", proxy.Addr)
	epoch := s.session.link().epoch
	r := writer("k")
	hold(t, s, r)
	proxy.Delay(faultproxy.ToClient, leastSilence/2)
	for range 4 {
		if a := s.Renew(t.Context(), []driver.Claim{r.Claim}, minTTL)[0]; a.State == driver.Unknown {
			t.Fatalf("%+v", a)
		}
	}
	if l := s.session.link(); l.epoch != epoch || !l.up {
		t.Errorf("after %d connections there are %d", epoch, l.epoch)
	}
}

// A process that has stood still does not leave a server whose answer is there.
func TestOwnSilenceIsNotTheServers(t *testing.T) {
	t.Parallel()
	s := openOn(t, "", testserver.SharedZooKeeper(t).Addr)
	if _, err := s.exists(t.Context(), s.root); err != nil && !answer(err) {
		t.Fatal(err)
	}
	epoch := s.session.link().epoch
	c := s.session.conn.Load()
	limit := silence(s.session.link().timeout)
	c.asking.Lock()
	c.asked = time.Now().Add(-time.Hour)
	c.asking.Unlock()
	c.closeIfSilent(limit)
	if _, err := s.exists(t.Context(), s.root); err != nil && !answer(err) {
		t.Fatal(err)
	}
	if l := s.session.link(); l.epoch != epoch || !l.up {
		t.Errorf("after %d connections there are %d", epoch, l.epoch)
	}
}
