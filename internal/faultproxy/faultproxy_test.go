package faultproxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// patience bounds a wait for what must happen; blink is how long to look for
// what must not happen.
const (
	patience = 20 * time.Second
	blink    = 50 * time.Millisecond
)

// echo is a server that answers each line with the same line and counts them.
type echo struct {
	addr string
	seen atomic.Int64
	ends chan error // how each connection ended
}

func startEcho(t *testing.T) *echo {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	e := &echo{addr: l.Addr().String(), ends: make(chan error, 100)}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for {
					line, err := r.ReadString('\n')
					if err != nil {
						e.ends <- err
						return
					}
					e.seen.Add(1)
					io.WriteString(c, line)
				}
			}()
		}
	}()
	return e
}

// client is a connection through the proxy.
type client struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

func dial(t *testing.T, p *Proxy) *client {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &client{c, t, bufio.NewReader(c)}
}

func (c *client) send(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) receive(within time.Duration) (string, error) {
	c.SetReadDeadline(time.Now().Add(within))
	line, err := c.r.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

func (c *client) want(line string) {
	c.t.Helper()
	if got, err := c.receive(patience); err != nil || got != line {
		c.t.Fatalf("received %q, %v; want %q", got, err, line)
	}
}

func (c *client) wantSilence() {
	c.t.Helper()
	if got, err := c.receive(blink); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("received %q, %v; want nothing", got, err)
	}
}

func (c *client) wantReset() {
	c.t.Helper()
	if got, err := c.receive(patience); !errors.Is(err, syscall.ECONNRESET) {
		c.t.Fatalf("received %q, %v; want a reset connection", got, err)
	}
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(time.Millisecond) // between two looks
	}
}

func setUp(t *testing.T) (*echo, *Proxy) {
	t.Parallel()
	e := startEcho(t)
	return e, New(t, e.addr)
}

func TestForward(t *testing.T) {
	e, p := setUp(t)
	c := dial(t, p)
	c.send("hello")
	c.want("hello")
	big := strings.Repeat("x", 1<<20)
	go io.WriteString(c, big+"\n")
	c.want(big)
	if n := p.Conns(); n != 1 {
		t.Errorf("%d connections are open", n)
	}
	c.Close()
	if err := <-e.ends; !errors.Is(err, io.EOF) {
		t.Errorf("the server saw %v, want the end of the stream", err)
	}
	await(t, "the connection is forgotten", func() bool { return p.Conns() == 0 })
}

func TestHalfClose(t *testing.T) {
	_, p := setUp(t)
	c := dial(t, p)
	c.send("last words")
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	c.want("last words")
	if _, err := c.receive(patience); !errors.Is(err, io.EOF) {
		t.Errorf("after the answer: %v, want the end", err)
	}
}

func TestDelay(t *testing.T) {
	for _, dir := range []Direction{ToServer, ToClient} {
		t.Run(fmt.Sprint(dir), func(t *testing.T) {
			_, p := setUp(t)
			c := dial(t, p)
			const delay = 200 * time.Millisecond
			p.Delay(dir, delay)
			start := time.Now()
			for i := range 20 {
				c.send(fmt.Sprint(i))
			}
			for i := range 20 {
				c.want(fmt.Sprint(i))
			}
			if took := time.Since(start); took < delay {
				t.Errorf("it took %v, less than the delay", took)
			} else if took > 10*delay {
				t.Errorf("it took %v: each of 20 lines was delayed for itself", took)
			}
			p.Heal()
			c.send("soon")
			c.want("soon")
		})
	}
}

func TestSlice(t *testing.T) {
	e, p := setUp(t)
	c := dial(t, p)
	c.send("whole")
	c.want("whole")
	p.Slice(ToServer, 7)
	p.Slice(ToClient, 3)
	long := strings.Repeat("0123456789", 20)
	c.send(long)
	var pieces int
	var got []byte
	for buf := make([]byte, 1000); !bytes.HasSuffix(got, []byte("\n")); pieces++ {
		c.SetReadDeadline(time.Now().Add(patience))
		n, err := c.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, buf[:n]...)
	}
	if string(got) != long+"\n" {
		t.Errorf("received %q", got)
	}
	if pieces < 3 { // a slow reader finds several at one time
		t.Errorf("%d bytes came in %d pieces", len(got), pieces)
	}
	if n := e.seen.Load(); n != 2 {
		t.Errorf("the server saw %d lines", n)
	}

	// What is lost in the middle of a message is lost.
	half := strings.Repeat("x", 5000)
	c.send(half)
	buf := make([]byte, 1)
	c.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(c, buf); err != nil {
		t.Fatal(err)
	}
	p.Swallow(ToClient)
	await(t, "the rest is lost", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for c := range p.conns {
			if c.gap {
				return true
			}
		}
		return false
	})
	p.Heal()
	if got, err := c.receive(patience); err == nil {
		t.Errorf("the whole message came, %d bytes", len(got))
	}
	c = dial(t, p)
	c.send("anew")
	c.want("anew")
}

func TestHoldDeliversOnHeal(t *testing.T) {
	e, p := setUp(t)
	c := dial(t, p)
	c.send("a")
	c.want("a")

	p.Hold(ToServer)
	c.send("b")
	c.wantSilence()
	if n := e.seen.Load(); n != 1 {
		t.Fatalf("the server saw %d lines while the way to it was held", n)
	}
	p.Heal()
	c.want("b")

	p.Hold(ToClient)
	c.send("c")
	await(t, "the server sees the line", func() bool { return e.seen.Load() == 3 })
	c.wantSilence()
	p.Heal()
	c.want("c")
}

func TestSwallowLosesAndHealCuts(t *testing.T) {
	for _, dir := range []Direction{ToServer, ToClient} {
		t.Run(fmt.Sprint(dir), func(t *testing.T) {
			e, p := setUp(t)
			c, idle := dial(t, p), dial(t, p)
			c.send("a")
			c.want("a")
			idle.send("a")
			idle.want("a")

			p.Swallow(dir)
			c.send("b")
			late := dial(t, p) // accepted, and never answered
			late.send("b")
			late.wantSilence()
			c.wantSilence()
			if dir == ToServer && e.seen.Load() != 2 {
				t.Errorf("the server saw %d lines, want the 2 before", e.seen.Load())
			}
			if dir == ToClient {
				await(t, "the server sees all lines", func() bool { return e.seen.Load() == 4 })
			}
			p.Heal()
			c.wantReset()
			late.wantReset()
			idle.send("c") // lost nothing and lives on
			idle.want("c")
			again := dial(t, p)
			again.send("d")
			again.want("d")
		})
	}
}

func TestCut(t *testing.T) {
	e, p := setUp(t)
	c, d := dial(t, p), dial(t, p)
	for _, each := range []*client{c, d} {
		each.send("a")
		each.want("a")
	}
	p.Cut()
	c.wantReset()
	d.wantReset()
	for range 2 {
		if err := <-e.ends; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the server saw %v, want a reset connection", err)
		}
	}
	again := dial(t, p)
	again.send("b")
	again.want("b")
}

func TestCutEndsAHeldConnection(t *testing.T) {
	_, p := setUp(t)
	c := dial(t, p)
	c.send("a")
	c.want("a")
	p.Hold(ToClient)
	c.send("b")
	c.wantSilence()
	p.Cut()
	c.wantReset()
}

func TestRefuse(t *testing.T) {
	_, p := setUp(t)
	open := dial(t, p)
	open.send("a")
	open.want("a")
	p.Refuse()
	if c, err := net.Dial("tcp", p.Addr); err == nil {
		c.Close()
		t.Fatal("a connection was accepted")
	} else if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("%v, want a refused connection", err)
	}
	open.send("b")
	open.want("b")
	p.Accept()
	again := dial(t, p)
	again.send("c")
	again.want("c")
}

// Nothing slips through while it is on its way to the server.
func TestRefuseAndCutLeaveNothing(t *testing.T) {
	_, p := setUp(t)
	for round := range 200 {
		const callers = 8
		var calling sync.WaitGroup
		conns := make(chan net.Conn, callers)
		begun := make(chan struct{}, callers)
		for range callers {
			calling.Go(func() {
				begun <- struct{}{}
				if c, err := net.Dial("tcp", p.Addr); err == nil {
					conns <- c
				}
			})
		}
		for range round % (callers + 1) {
			<-begun
		}
		p.Refuse()
		p.Cut()
		calling.Wait()
		close(conns)
		for c := range conns {
			io.WriteString(c, "a\n") // fails if the reset is already here
			c.SetReadDeadline(time.Now().Add(patience))
			if n, err := c.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("round %d: a connection lives: %d bytes, %v", round, n, err)
			}
			c.Close()
		}
		p.Accept()
	}
}

func TestCutAfterRequest(t *testing.T) {
	e, p := setUp(t)
	c, other := dial(t, p), dial(t, p)
	sprung := p.CutAfterRequest(func(request []byte) bool { return bytes.Contains(request, []byte("EVAL")) })
	c.send("PING")
	c.want("PING")
	other.send("PING")
	other.want("PING")
	c.send("EVAL")
	c.wantReset()
	<-sprung
	if n := e.seen.Load(); n != 3 {
		t.Errorf("the server saw %d requests, want all 3", n)
	}
	other.send("EVAL") // the trap takes one
	other.want("EVAL")
}

func TestCutBeforeRequest(t *testing.T) {
	e, p := setUp(t)
	c := dial(t, p)
	c.send("a")
	c.want("a")
	sprung := p.CutBeforeRequest(nil)
	c.send("b")
	c.wantReset()
	<-sprung
	if n := e.seen.Load(); n != 1 {
		t.Errorf("the server saw %d requests, want 1", n)
	}
}

// A connection that ends by itself before the answer does not use the trap up,
// and one that has been cut does not fall into the next.
func TestTrapOutlivesTheConnection(t *testing.T) {
	e, p := setUp(t)
	p.Delay(ToClient, time.Hour)
	sprung := p.CutAfterRequest(nil)
	c := dial(t, p)
	c.send("goes away")
	await(t, "the request at the server", func() bool { return e.seen.Load() == 1 })
	reset(c.Conn.(*net.TCPConn))
	await(t, "the end of the connection", func() bool { return p.Conns() == 0 })
	p.Delay(ToClient, 0)
	for range 50 {
		c := dial(t, p)
		chatter := make(chan struct{})
		go func() {
			defer close(chatter)
			for {
				if _, err := io.WriteString(c, "more\n"); err != nil {
					return
				}
			}
		}()
		select {
		case <-sprung:
		case <-time.After(patience):
			t.Fatal("the trap is lost")
		}
		sprung = p.CutAfterRequest(nil)
		<-chatter
	}
}

func TestHealForgetsTraps(t *testing.T) {
	_, p := setUp(t)
	p.CutAfterRequest(nil)
	p.Heal()
	c := dial(t, p)
	c.send("a")
	c.want("a")
}

func TestRetarget(t *testing.T) {
	first, p := setUp(t)
	second := startEcho(t)
	c := dial(t, p)
	c.send("a")
	c.want("a")
	p.Retarget(second.addr)
	d := dial(t, p)
	d.send("b")
	d.want("b")
	c.send("c")
	c.want("c")
	if a, b := first.seen.Load(), second.seen.Load(); a != 2 || b != 1 {
		t.Errorf("the servers saw %d and %d lines, want 2 and 1", a, b)
	}
}

func TestDeadTargetResets(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	c, err := net.Dial("tcp", New(t, l.Addr().String()).Addr)
	if err == nil { // the reset may be faster than the dial
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v, want a reset connection", err)
	}
}

func TestRewrite(t *testing.T) {
	e, p := setUp(t)
	replace := func(old, by string) func([]byte) []byte {
		return func(data []byte) []byte { return bytes.ReplaceAll(data, []byte(old), []byte(by)) }
	}
	p.Rewrite(ToClient, replace("there", "elsewhere"))
	p.Rewrite(ToServer, replace("this", "it"))
	c := dial(t, p)
	c.send("this is there")
	c.want("it is elsewhere")
	p.Heal()
	c.send("and there")
	c.want("and elsewhere")
	if n := e.seen.Load(); n != 2 {
		t.Errorf("the server has seen %d lines, want 2", n)
	}
}

// Some clients of a proxy are cut off, with the connections that they have and those
// that they make.
func TestSwallowOf(t *testing.T) {
	e, p := setUp(t)
	a, b := dial(t, p), dial(t, p)
	a.send("I am a")
	a.want("I am a")
	b.send("I am b")
	b.want("I am b")
	p.SwallowOf(func(first []byte) bool { return bytes.Contains(first, []byte("I am a")) })
	again := dial(t, p)
	again.send("I am a")
	a.send("lost")
	b.send("heard")
	b.want("heard")
	a.wantSilence()
	again.wantSilence()
	if n := e.seen.Load(); n != 3 {
		t.Errorf("the server has seen %d lines, want 3", n)
	}
	p.Heal()
	a.wantReset()
	again.wantReset()
	b.send("still here")
	b.want("still here")
}

func TestHalfOpen(t *testing.T) {
	e, p := setUp(t)
	c, idle := dial(t, p), dial(t, p)
	for _, each := range []*client{c, idle} {
		each.send("a")
		each.want("a")
	}
	p.HalfOpen()
	late := dial(t, p)
	c.send("lost")
	late.send("b")
	late.want("b")
	c.wantSilence()
	c.Conn.(*net.TCPConn).CloseWrite() // the server does not hear of that either
	c.wantSilence()
	if n := e.seen.Load(); n != 3 || len(e.ends) != 0 {
		t.Errorf("the server has seen %d lines and %d ends, want 3 and none", n, len(e.ends))
	}
	p.Heal()
	c.wantReset()
	idle.wantReset() // it would be as silent as the other
	late.send("still here")
	late.want("still here")
}
