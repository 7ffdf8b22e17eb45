package redisstore

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// links makes the connections of Open's client and gives up those that fall silent. A
// NAT, a load balancer or a virtual IP that has forgotten a connection does not say so;
// a new connection works. By itself, rueidis waits eleven seconds, in which most leases
// are lost.
//
// How long a silence is too long depends on how far away the servers are. links learns
// that from the answers. A server that does not even answer on new connections gets
// more and more time for that.
type links struct {
	unix   bool // addresses are paths of sockets
	dialer net.Dialer
	born   *life
	lanes  *lanes

	first  time.Duration // the patience while no server has ever answered
	dial   time.Duration // the least patience with a connection that has not answered yet
	answer time.Duration // the least patience with one that has

	shared atomic.Uint64 // connections made, direct's not counted

	left atomic.Int64 // when leave last closed the connections, see now; or 0

	met atomic.Bool  // some server has answered
	rtt atomic.Int64 // how long an answer takes, estimated rather too high

	mu     sync.Mutex
	peers  map[string]*peer // by address
	open   map[*link]bool
	closed bool
}

// peer is a server. If one falls silent, such as a primary whose host is gone, we must
// not wait longer for the Sentinel that knows the next one.
type peer struct {
	failed atomic.Int32 // how many connections in a row never answered
}

const (
	dialPatience   = time.Second
	answerPatience = 2 * time.Second

	// mostDial and mostAnswer bound what patience grows to.
	mostDial   = checkTimeout
	mostAnswer = 10 * time.Second
)

func newLinks(at Server) *links {
	n := max(len(at.Addrs), 1)
	return &links{
		unix:   n == 1 && strings.HasPrefix(strings.Join(at.Addrs, ""), "/"),
		dialer: net.Dialer{KeepAlive: time.Second},
		born:   newLife(true),
		lanes:  newLanes(at.Cluster),
		peers:  map[string]*peer{},
		open:   map[*link]bool{},
		first:  max(checkTimeout/time.Duration(n), dialPatience), // a dead Sentinel leaves time for the next
		dial:   dialPatience,
		answer: answerPatience,
	}
}

// patience is how long to wait for an answer of a server. spoke says whether the server
// has answered on this connection before.
func (ls *links) patience(p *peer, spoke bool) time.Duration {
	far := 4 * time.Duration(ls.rtt.Load())
	switch {
	case !ls.met.Load():
		return ls.first
	case spoke:
		return max(ls.answer, min(far, mostAnswer))
	}
	// Each try with a primary that is gone keeps the client from the next primary, so
	// the time doubles only every other time.
	return max(ls.dial, min(max(ls.dial, far)<<min(p.failed.Load()/2, 4), mostDial))
}

func (ls *links) peer(addr string) *peer {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	p := ls.peers[addr]
	if p == nil {
		p = &peer{}
		ls.peers[addr] = p
	}
	return p
}

// connect is rueidis's DialCtxFn.
func (ls *links) connect(ctx context.Context, addr string, _ *net.Dialer, t *tls.Config) (net.Conn, error) {
	l, err := ls.dialed(ctx, addr, t, false)
	if err != nil {
		return nil, err // not a nil *link
	}
	return l, nil
}

// dialed makes a connection; with alone, one that carries one call at a time.
func (ls *links) dialed(ctx context.Context, addr string, t *tls.Config, alone bool) (*link, error) {
	ls.lanes.trouble() // calls that come while this takes long need not wait for it
	p := ls.peer(addr)
	patience := ls.patience(p, false)
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var conn net.Conn
	var err error
	switch {
	case ls.unix:
		conn, err = ls.dialer.DialContext(limited, "unix", addr)
	case t != nil:
		conn, err = (&tls.Dialer{NetDialer: &ls.dialer, Config: t}).DialContext(limited, "tcp", addr)
	default:
		conn, err = ls.dialer.DialContext(limited, "tcp", addr)
	}
	ls.born.connections.Add(1) // before anything is asked on it
	if !alone {
		ls.shared.Add(1)
	}
	if err != nil {
		if limited.Err() != nil && ctx.Err() == nil {
			if !alone { // direct's failures count for no other connection
				p.failed.Add(1)
			}
			err = fmt.Errorf("no connection within %v", patience)
		}
		if !isDial(err) {
			err = &net.OpError{Op: "dial", Net: "tcp", Err: err}
		}
		return nil, err
	}
	if alone {
		conn = quick(conn)
	}
	l := &link{Conn: conn, of: ls, peer: p}
	if alone {
		l.aside = newAside(conn)
	}
	l.timer = time.AfterFunc(time.Hour, l.look)
	l.timer.Stop()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.closed {
		conn.Close()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: net.ErrClosed}
	}
	ls.open[l] = true
	return l, nil
}

// settling is how long the connections are kept that replace those to a wrong server: a
// fail-over takes a while, and late answers come on the connections before.
const settling = int64(time.Second)

// leave closes all connections, since a server has answered that the address may lead to
// another one by now.
func (ls *links) leave() {
	t, last := now(), ls.left.Load()
	if last != 0 && t-last < settling || !ls.left.CompareAndSwap(last, t) {
		return
	}
	ls.lanes.trouble()
	for _, l := range ls.all() {
		_ = l.end()
	}
}

func (ls *links) all() []*link {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return slices.Collect(maps.Keys(ls.open))
}

// close closes all connections, and those that are being made as soon as they exist.
// The client does not close one that it makes while it is closed itself, and waits for
// the last answers on the others.
func (ls *links) close() {
	ls.mu.Lock()
	ls.closed = true
	ls.mu.Unlock()
	for _, l := range ls.all() {
		l.end()
	}
}

// answered takes note that an answer took d.
func (ls *links) answered(d time.Duration) {
	if usual := time.Duration(ls.rtt.Load()); d > usual {
		ls.rtt.Store(int64(d))
	} else if d != usual {
		ls.rtt.Store(int64(usual - max((usual-d)/16, 1)))
	}
	if !ls.met.Load() {
		ls.met.Store(true)
	}
}

// link is one connection. It is closed when nothing comes back for too long after
// something was written.
type link struct {
	net.Conn
	of     *links
	peer   *peer
	timer  *time.Timer  // runs look
	armed  atomic.Bool  // the timer runs
	since  atomic.Int64 // when the oldest unanswered request was written, see now; or 0
	spoke  atomic.Bool
	silent atomic.Int64 // the patience after which it was given up

	*aside // nil but for direct's
}

var linksBegan = time.Now()

// now is the time in a form that fits an atomic, never 0.
func now() int64 { return int64(time.Since(linksBegan)) + 1 }

func (l *link) Write(b []byte) (int, error) {
	l.since.CompareAndSwap(0, now())
	if l.armed.CompareAndSwap(false, true) {
		l.timer.Reset(l.of.patience(l.peer, l.spoke.Load()))
	}
	n, err := l.Conn.Write(b)
	if err != nil && l.aside != nil {
		l.cut.Store(true)
	}
	return n, err
}

func (l *link) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if n > 0 {
		since := l.since.Swap(0)
		if since != 0 {
			l.of.answered(time.Duration(now() - since))
		}
		if !l.spoke.Load() {
			l.spoke.Store(true)
			l.peer.failed.Store(0)
			l.timer.Stop() // it was set for the first answer
			l.armed.Store(false)
		}
		if l.aside != nil && since != 0 { // this may be the beginning of the answer, see whole
			l.since.Store(now())
			if l.armed.CompareAndSwap(false, true) {
				l.timer.Reset(l.of.patience(l.peer, true))
			}
		}
	}
	if err != nil {
		l.of.lanes.trouble()
		if d := time.Duration(l.silent.Load()); d != 0 {
			err = fmt.Errorf("no answer within %v, so the connection was given up", d)
			if !l.spoke.Load() { // the client has only introduced itself
				err = &net.OpError{Op: "dial", Net: "tcp", Addr: l.RemoteAddr(), Err: err}
			}
		}
	}
	return n, err
}

// Close closes the connection. If a caller has left its call, it closes it only when
// that call was answered.
func (l *link) Close() error {
	l.of.lanes.trouble() // before the client connects again
	if l.aside != nil && l.left.Load() && l.since.Load() != 0 && !l.cut.Load() {
		if l.draining.CompareAndSwap(false, true) { // rueidis closes more than once
			go l.drain()
		}
		return nil
	}
	return l.end()
}

func (l *link) end() error {
	l.since.Store(0)
	l.timer.Stop()
	l.of.mu.Lock()
	delete(l.of.open, l)
	l.of.mu.Unlock()
	if l.aside != nil {
		l.once.Do(func() { close(l.ended) })
	}
	return l.Conn.Close()
}

// look runs by the timer while an answer is due, and closes the connection if it has
// been silent for too long.
func (l *link) look() {
	l.armed.Store(false) // before we read since: a later Write arms the timer
	since := l.since.Load()
	if since == 0 {
		return
	}
	patience := l.of.patience(l.peer, l.spoke.Load())
	left := patience - time.Duration(now()-since)
	if left > 0 {
		if l.armed.CompareAndSwap(false, true) {
			l.timer.Reset(left)
		}
		return
	}
	l.silent.Store(int64(patience))
	if !l.spoke.Load() && l.aside == nil {
		l.peer.failed.Add(1)
	}
	l.of.lanes.trouble()
	_ = l.end()
}

// aside is what a connection has in addition that carries one call at a time, whose
// caller may leave the call.
type aside struct {
	left, draining atomic.Bool
	cut            atomic.Bool // the request was not written completely: it has no effect

	ended chan struct{} // closed when the call that was left was answered, or cannot be any more
	once  sync.Once

	raw  syscall.RawConn // nil: the connection does not show it
	peek func(fd uintptr)
	bad  bool // set by peek
}

func newAside(conn net.Conn) *aside {
	a := &aside{ended: make(chan struct{})}
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if c, ok := conn.(syscall.Conn); ok {
		a.raw, _ = c.SyscallConn()
	}
	a.peek = func(fd uintptr) { a.bad = !quietSocket(fd) }
	return a
}

// isOpen reports whether the other side has not closed the connection, as far as this
// machine knows: nothing is to be read. While no call waits for an answer no goroutine
// reads from the connection. With TLS the other side announces the end by something to
// be read.
func (l *link) isOpen() bool {
	return l.raw == nil || l.raw.Control(l.peek) == nil && !l.bad
}

// leave makes the call under way fail, whether it is being written or waits for its
// answer.
func (l *link) leave() {
	l.left.Store(true)
	_ = l.Conn.SetDeadline(time.Unix(1, 0))
}

// whole notes that the whole answer has come.
func (l *link) whole() { l.since.Store(0) }

// drain waits for the answer to a call that was left, or for the end of the
// connection's patience.
func (l *link) drain() {
	_ = l.Conn.SetReadDeadline(time.Time{})
	_, _ = l.Conn.Read(make([]byte, 1)) // then the server has executed the call
	_ = l.end()
}

// SetDeadline does nothing on a connection for one call at a time: leave and look end
// the call.
func (l *link) SetDeadline(t time.Time) error {
	if l.aside != nil {
		return nil
	}
	return l.Conn.SetDeadline(t)
}
