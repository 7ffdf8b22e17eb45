// Package faultproxy is a TCP proxy for tests that breaks connections on command: it
// delays, slices, holds back, swallows, cuts, refuses, and loses exactly the answer to
// one request.
package faultproxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/batonhq/baton/internal/testserver"
)

type Direction int

const (
	ToServer Direction = iota
	ToClient
)

// Proxy forwards connections to its target. A fault is in effect when its method returns,
// for open and for new connections. All methods are safe for concurrent use.
type Proxy struct {
	// Addr is where the proxy listens: "127.0.0.1:port".
	Addr string

	t    testserver.TB
	work sync.WaitGroup

	mu       sync.Mutex
	target   string
	listener net.Listener // nil while refusing
	conns    map[*conn]struct{}
	rules    [2]rule
	rewrite  [2]func([]byte) []byte
	lost     func([]byte) bool // selects connections that lose everything
	only     func([]byte) bool // selects connections that rules and Cut affect; nil: all
	changed  chan struct{}     // closed and replaced when rules change
	traps    []*trap
	closed   bool
}

// rule is the treatment of one direction.
type rule struct {
	delay time.Duration
	slice int // at most this many bytes at once; 0: unchanged
	mode  mode
}

type mode int

const (
	pass mode = iota
	hold
	swallow
)

// trap waits for one request.
type trap struct {
	match   func([]byte) bool
	forward bool // let the request reach the server
	healed  bool // never set it again; under Proxy.mu
	sprung  chan struct{}
}

// New starts a proxy to target. It ends with the test.
func New(t testserver.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{t: t, target: target, conns: make(map[*conn]struct{}), changed: make(chan struct{})}
	for attempt := 1; p.listener == nil; attempt++ {
		p.Addr = testserver.FreeAddr(t)
		l, err := net.Listen("tcp", p.Addr)
		switch {
		case err == nil:
			p.listen(l)
		case attempt == 5: // otherwise another program took the port meanwhile
			t.Fatalf("fault proxy: %v", err)
		}
	}
	t.Cleanup(p.close)
	return p
}

func (p *Proxy) close() {
	p.Refuse()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Cut()
	p.work.Wait()
}

// Retarget sends later connections to another server. Open ones stay.
func (p *Proxy) Retarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Conns returns the number of open connections.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Delay adds d to the latency of the direction. It keeps the order and does not limit the
// rate.
func (p *Proxy) Delay(dir Direction, d time.Duration) {
	p.change(func() { p.rules[dir].delay = d })
}

// sliceGap lets a receiver read a slice before the next one comes.
const sliceGap = time.Millisecond

// Slice delivers at most n bytes of the direction at once, a millisecond apart: the
// reader gets messages in pieces, and some ends together with the next beginning.
func (p *Proxy) Slice(dir Direction, n int) {
	p.change(func() { p.rules[dir].slice = n })
}

// Rewrite lets f change what goes in the direction, for servers that tell addresses. f
// gets what was read at once. Heal does not end it.
func (p *Proxy) Rewrite(dir Direction, f func([]byte) []byte) {
	p.change(func() { p.rewrite[dir] = f })
}

// Hold keeps back everything in the direction, including the end of a connection, and
// delivers it on Heal: a partition that heals while TCP still tries.
func (p *Proxy) Hold(dir Direction) {
	p.change(func() { p.rules[dir].mode = hold })
}

// Swallow loses everything in the direction, including the end of a connection. New
// connections are accepted. Heal cuts the connections that lost something, since TCP
// cannot continue after a gap.
func (p *Proxy) Swallow(dir Direction) {
	p.change(func() { p.rules[dir].mode = swallow })
}

// SwallowOf is Swallow, both ways, for connections whose first bytes to the server match:
// those of one client of several.
func (p *Proxy) SwallowOf(match func(first []byte) bool) {
	p.change(func() { p.lost = match })
}

// Only limits Delay, Hold, Swallow and Cut to connections whose first bytes to the server
// match. Heal does not end it.
func (p *Proxy) Only(match func(first []byte) bool) {
	p.change(func() { p.only = match })
}

// concerns reports whether rules and Cut affect c. p.mu is held.
func (p *Proxy) concerns(c *conn) bool {
	return p.only == nil || c.first != nil && p.only(c.first)
}

// HalfOpen silences all open connections, both ways and without an end, as a NAT or a
// load balancer does that has forgotten its flows. Later connections work. Heal cuts the
// silent ones.
func (p *Proxy) HalfOpen() {
	p.change(func() {
		for c := range p.conns {
			c.silent = true
		}
	})
}

// Heal ends Delay, Slice, Hold, Swallow, SwallowOf, HalfOpen and Refuse, and removes the
// unused traps.
func (p *Proxy) Heal() {
	p.t.Helper()
	var broken []*conn
	p.change(func() {
		p.rules = [2]rule{}
		p.lost = nil
		p.traps = nil
		for c := range p.conns {
			if c.lastly != nil {
				c.lastly.healed = true
			}
			if c.gap || c.silent {
				broken = append(broken, c)
			}
		}
	})
	for _, c := range broken {
		c.cut()
	}
	p.Accept()
}

func (p *Proxy) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

// Cut resets all open connections, on both sides. New ones are accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	var open []*conn
	for c := range p.conns {
		if p.concerns(c) || p.closed {
			open = append(open, c)
		}
	}
	p.mu.Unlock()
	for _, c := range open {
		c.cut()
	}
}

// Refuse refuses new connections, as if no program listened. Open ones stay.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close() // the accept loop ends
		p.listener = nil
	}
}

// Accept ends Refuse.
func (p *Proxy) Accept() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil || p.closed {
		return
	}
	l, err := net.Listen("tcp", p.Addr)
	if err != nil {
		p.t.Fatalf("fault proxy: %v", err)
	}
	p.listen(l)
}

func (p *Proxy) listen(l net.Listener) {
	p.listener = l
	p.work.Go(func() { p.accept(l) })
}

// CutAfterRequest passes the next request on to the server, drops the answer, and resets
// the connection when that answer comes: the request has taken effect, and the client
// cannot know. Then the channel is closed.
//
// A request is what the client wrote at once and match accepts; a nil match accepts all.
// If earlier requests on the connection are unanswered, the first answer to any of them
// counts. If the connection ends before any answer, the next request is taken.
func (p *Proxy) CutAfterRequest(match func(request []byte) bool) <-chan struct{} {
	return p.arm(match, true)
}

// CutBeforeRequest drops the next request that match accepts, or any if match is nil, and
// resets the connection: the server never saw it, and the client cannot know. Then the
// channel is closed.
func (p *Proxy) CutBeforeRequest(match func(request []byte) bool) <-chan struct{} {
	return p.arm(match, false)
}

func (p *Proxy) arm(match func([]byte) bool, forward bool) <-chan struct{} {
	tr := &trap{match: match, forward: forward, sprung: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traps = append(p.traps, tr)
	return tr.sprung
}

// caught disarms and returns the trap of a request, or nil. A connection that the next
// answer ends has no second trap.
func (c *conn) caught(request []byte) *trap {
	p := c.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.lastly != nil {
		return nil
	}
	for i, tr := range p.traps {
		if tr.match == nil || tr.match(request) {
			p.traps = append(p.traps[:i:i], p.traps[i+1:]...)
			if tr.forward {
				c.lastly = tr
			}
			return tr
		}
	}
	return nil
}

func (p *Proxy) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return // closed by Refuse
		}
		c := &conn{p: p, client: client.(*net.TCPConn), done: make(chan struct{})}
		p.mu.Lock()
		refused, target := p.listener != l, p.target
		if !refused { // open from now on, however long the connection to the server takes
			p.conns[c] = struct{}{}
		}
		p.mu.Unlock()
		if refused {
			reset(c.client)
			return
		}
		p.work.Go(func() { p.serve(c, target) })
	}
}

func (p *Proxy) serve(c *conn, target string) {
	defer func() {
		p.mu.Lock()
		delete(p.conns, c)
		if tr := c.lastly; tr != nil && !tr.healed {
			p.traps = append([]*trap{tr}, p.traps...)
		}
		p.mu.Unlock()
	}()
	server, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil || !c.reached(server.(*net.TCPConn)) {
		c.cut()
		return
	}

	var pumps sync.WaitGroup
	pumps.Go(func() { c.pump(ToServer, c.client, c.server) })
	pumps.Go(func() { c.pump(ToClient, c.server, c.client) })
	pumps.Wait()

	_ = c.client.Close() // both ways have ended, or it was cut
	_ = c.server.Close()
}

// conn is one connection through the proxy.
type conn struct {
	p      *Proxy
	client *net.TCPConn
	server *net.TCPConn // nil until there is a connection to the server; set under p.mu

	once sync.Once
	done chan struct{} // closed by cut

	first  []byte // first bytes from the client; under p.mu
	gap    bool   // bytes were swallowed; under p.mu
	silent bool   // the first bytes from the client; under p.mu
	lastly *trap  // the next answer springs it; under p.mu
}

func (c *conn) cut() {
	c.once.Do(func() {
		close(c.done)
		reset(c.client)
		c.p.mu.Lock()
		server := c.server
		c.p.mu.Unlock()
		if server != nil {
			reset(server)
		}
	})
}

// reached sets the connection to the server. It returns false if c was cut meanwhile.
func (c *conn) reached(server *net.TCPConn) bool {
	c.p.mu.Lock()
	c.server = server
	c.p.mu.Unlock()
	select {
	case <-c.done:
		reset(server)
		return false
	default:
		return true
	}
}

// reset closes with RST instead of FIN.
func reset(t *net.TCPConn) {
	_ = t.SetLinger(0) // fails only if it is closed
	_ = t.Close()
}

// chunk is what was read at once, or the end of the stream.
type chunk struct {
	data []byte
	at   time.Time
	err  error
}

// pump moves bytes one way until the stream ends or the connection is cut. It reads
// ahead, so that a delay costs latency and not throughput.
func (c *conn) pump(dir Direction, from, to *net.TCPConn) {
	ahead := make(chan chunk, 1024)
	go func() { // ends because cut, or the end of serve, closes from
		defer close(ahead)
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			var ch chunk
			if n > 0 {
				ch = chunk{data: append([]byte(nil), buf[:n]...), at: time.Now()}
			} else {
				ch = chunk{err: err, at: time.Now()}
			}
			select {
			case ahead <- ch:
			case <-c.done:
				return
			}
			if err != nil && n == 0 {
				return
			}
		}
	}()
	for ch := range ahead {
		if dir == ToServer {
			c.p.mu.Lock()
			if c.first == nil {
				c.first = ch.data
			}
			c.p.mu.Unlock()
		}
		if !c.gate(dir, ch.at) {
			continue
		}
		if ch.err != nil {
			if !errors.Is(ch.err, io.EOF) {
				c.cut()
			}
			_ = to.CloseWrite() // the other way may continue
			return
		}
		if !c.deliver(dir, ch, to) {
			c.cut()
			return
		}
	}
}

// gate waits as long as the rules require, and reports whether to deliver what was read
// at that time.
func (c *conn) gate(dir Direction, at time.Time) bool {
	for {
		c.p.mu.Lock()
		r, changed := c.p.rules[dir], c.p.changed
		if !c.p.concerns(c) {
			r = rule{slice: r.slice}
		}
		if c.silent || c.p.lost != nil && c.first != nil && c.p.lost(c.first) {
			r.mode = swallow
		}
		if r.mode == swallow {
			c.gap = true
		}
		c.p.mu.Unlock()

		var due <-chan time.Time
		switch {
		case r.mode == swallow:
			return false
		case r.mode == hold: // until the rules change
		default:
			wait := time.Until(at.Add(r.delay))
			if wait <= 0 {
				return true
			}
			due = time.After(wait)
		}
		select {
		case <-changed:
		case <-due:
		case <-c.done:
			return false
		}
	}
}

// deliver writes data unless a trap catches it. It returns false if the connection must
// end.
func (c *conn) deliver(dir Direction, ch chunk, to *net.TCPConn) bool {
	data := ch.data
	c.p.mu.Lock()
	rewrite := c.p.rewrite[dir]
	var lastly *trap
	if dir == ToClient {
		lastly, c.lastly = c.lastly, nil
	}
	c.p.mu.Unlock()
	if rewrite != nil {
		data = rewrite(data)
	}
	if lastly != nil {
		c.cut()
		close(lastly.sprung)
		return false
	}
	if dir == ToServer {
		if tr := c.caught(data); tr != nil && !tr.forward {
			c.cut()
			close(tr.sprung)
			return false
		}
	}
	for {
		c.p.mu.Lock()
		n := c.p.rules[dir].slice
		c.p.mu.Unlock()
		if n == 0 || n > len(data) {
			n = len(data)
		}
		if _, err := to.Write(data[:n]); err != nil {
			return false
		}
		if data = data[n:]; len(data) == 0 {
			return true
		}
		select {
		case <-time.After(sliceGap):
		case <-c.done:
			return false
		}
		if !c.gate(dir, ch.at) { // the rest is lost, and Heal knows it
			return true
		}
	}
}
