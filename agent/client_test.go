package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/batontest"
)

// patience bounds every wait of a test. Nothing takes nearly that long on an idle machine.
const patience = 30 * time.Second

// ttl is that of the locks in these tests.
const ttl = 2 * time.Second

// pipes is a listener without a kernel, for fake time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) dial() net.Conn {
	ours, theirs := net.Pipe()
	p.conns <- theirs
	return ours
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "pipe"} }

// A host is an agent over a store in memory, in fake time.
type host struct {
	t      *testing.T
	store  *batontest.Store
	locks  *baton.Locker
	server *Server
	dial   func() net.Conn
	stop   context.CancelFunc
	ended  chan error
}

// newHost starts an agent, and stops it at the end of the test. The store then fails the
// test if a lock is still held.
func newHost(t *testing.T, cfg Config) *host {
	t.Helper()
	p := newPipes()
	return newHostAt(t, cfg, p, p.dial)
}

func newHostAt(t *testing.T, cfg Config, l net.Listener, dial func() net.Conn) *host {
	t.Helper()
	h := &host{t: t, store: batontest.New(t), dial: dial, ended: make(chan error, 1)}
	var err error
	if h.locks, err = baton.New(h.store, baton.Config{TTL: ttl}); err != nil {
		t.Fatal(err)
	}
	if h.server, err = New(h.locks, cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.stop = cancel
	go func() { h.ended <- h.server.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-h.ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("the agent does not stop")
		}
		h.server.mu.Lock()
		defer h.server.mu.Unlock()
		if len(h.server.sessions) != 0 || len(h.server.users) != 0 {
			t.Errorf("the agent still has %d sessions of %d users", len(h.server.sessions), len(h.server.users))
		}
		if n := len(h.server.table.keys); n != 0 {
			t.Errorf("the agent still has locks of %d keys", n)
		}
	})
	return h
}

// A reply is an answer as clients get it.
type reply struct {
	ID          int64             `json:"id"`
	OK          bool              `json:"ok"`
	Error       string            `json:"error"`
	Event       string            `json:"event"`
	Key         string            `json:"key"`
	Owner       string            `json:"owner"`
	Each        []each            `json:"each"`
	Before      bool              `json:"before"`
	Message     string            `json:"message"`
	Lost        int64             `json:"lost"`
	Cause       string            `json:"cause"`
	V           int               `json:"v"`
	Store       string            `json:"store"`
	Tokens      map[string]string `json:"tokens"`
	Token       string            `json:"token"`
	RemainingMS *int64            `json:"remaining_ms"`
	MaxHoldMS   int64             `json:"max_hold_ms"`
	Limit       *int64            `json:"limit"`
	Remaining   *int64            `json:"remaining"`
	WaitMS      int64             `json:"wait_ms"`
	RetryMS     int64             `json:"retry_ms"`
	ResetMS     int64             `json:"reset_ms"`
	Run         bool              `json:"run"`
	Attempts    int64             `json:"attempts"`
	Result      *string           `json:"result"`
	Led         *bool             `json:"led"`
	Value       string            `json:"value"`
	Reason      string            `json:"reason"`
	Locks       []struct {
		Key, State, Mode, Token, Program string
		PID                              int
		UID                              *int64
	} `json:"locks"`
	More int `json:"more"`

	at time.Time
}

func (r reply) String() string {
	text, _ := json.Marshal(r) // for messages
	return string(text)
}

// A client speaks the protocol. A goroutine reads all the time.
type client struct {
	t     *testing.T
	conn  net.Conn
	lines chan reply // closed at the end of the connection
	end   time.Time  // when that was, once lines is closed
}

// connect begins a session and reads the greeting.
func (h *host) connect() *client {
	h.t.Helper()
	c := h.connectRaw()
	if r := c.next(); !r.OK || r.V != Version || r.Store != "memory" {
		h.t.Fatalf("the greeting is %v", r)
	}
	return c
}

func (h *host) connectRaw() *client {
	c := &client{t: h.t, conn: h.dial(), lines: make(chan reply, 4096)}
	go c.read()
	h.t.Cleanup(func() { c.conn.Close() })
	return c
}

func (c *client) read() {
	in := bufio.NewScanner(c.conn)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var r reply
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			c.t.Errorf("the agent sent %q: %v", in.Text(), err)
		}
		r.at = time.Now()
		c.lines <- r
	}
	c.end = time.Now()
	close(c.lines)
}

// send sends text as a line.
func (c *client) send(format string, args ...any) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c.conn, format+"\n", args...); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		c.t.Fatalf("sending: %v", err)
	}
}

// next returns the next line.
func (c *client) next() reply {
	c.t.Helper()
	select {
	case r, ok := <-c.lines:
		if !ok {
			c.t.Fatal("the session has ended")
		}
		return r
	case <-time.After(patience):
		c.t.Fatal("no answer")
	}
	return reply{}
}

// ask sends a request and returns its answer.
func (c *client) ask(format string, args ...any) reply {
	c.t.Helper()
	c.send(format, args...)
	return c.next()
}

// must is ask for a request that succeeds.
func (c *client) must(format string, args ...any) reply {
	c.t.Helper()
	r := c.ask(format, args...)
	if !r.OK {
		c.t.Fatalf("%s: %v", fmt.Sprintf(format, args...), r)
	}
	return r
}

// refused is ask for a request that fails with a code.
func (c *client) refused(code, format string, args ...any) reply {
	c.t.Helper()
	r := c.ask(format, args...)
	if r.OK || r.Error != code {
		c.t.Fatalf("%s: %v, want %s", fmt.Sprintf(format, args...), r, code)
	}
	return r
}

// over waits for the end of the session and returns its last line.
func (c *client) over() (last reply) {
	c.t.Helper()
	late := time.After(patience)
	for {
		select {
		case r, ok := <-c.lines:
			if !ok {
				return last
			}
			last = r
		case <-late:
			c.t.Fatal("the session does not end")
		}
	}
}

// quiet demands that no line has come.
func (c *client) quiet() {
	c.t.Helper()
	select {
	case r, ok := <-c.lines:
		c.t.Fatalf("got %v (%v), want silence", r, ok)
	default:
	}
}
