package redisstore

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/internal/quick"
	"github.com/batonhq/baton/internal/settling"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// links makes the connections of Open's client and gives up those that fall silent. A
// NAT, a load balancer or a virtual IP that has forgotten a connection does not tell; a
// new connection works.
//
// The patience with silence depends on the distance of the servers, which links measures
// by their answers. It grows for a server that does not answer even on new connections.
type links struct {
	tls    *tls.Config // nil: none
	dialer net.Dialer
	born   *life

	first  time.Duration // the patience before any server has answered
	dial   time.Duration // the least patience with a connection without an answer so far
	answer time.Duration // the least patience with other connections

	met atomic.Bool  // some server has answered
	rtt atomic.Int64 // the time of an answer, rather overestimated

	listening atomic.Pointer[redis.PubSub] // the last subscription

	mu     sync.Mutex
	peers  map[string]*peer          // by address
	open   map[*link]<-chan struct{} // not nil: the answer to a call whose caller left is awaited; closed when it came
	closed bool
	over   context.Context // ends in close
	end    context.CancelFunc
}

// peer is the server at one address. Each has its own patience: after the loss of a
// primary's host, the Sentinel that knows the next primary is needed soon.
type peer struct {
	failed atomic.Int32  // connections in a row without any answer
	era    atomic.Uint64 // connections of an earlier era are no longer used
	left   settling.Mark // when leave last began an era

	mu     sync.Mutex
	server string        // run_id of the server at this address
	pause  time.Duration // the last pause between attempts to connect
	until  time.Time     // its end
	why    error         // the error of the last attempt
}

const (
	dialPatience   = time.Second
	answerPatience = 2 * time.Second

	// mostDial and mostAnswer bound the patience.
	mostDial   = checkTimeout
	mostAnswer = 10 * time.Second

	// Least pauses between connections that fail: deniedPause after a denial; after other
	// failures the pause doubles from leastPause to mostPause.
	deniedPause           = time.Second
	leastPause, mostPause = 10 * time.Millisecond, 500 * time.Millisecond

	// rest is the time after an answer in which a connection is not looked at: a look
	// costs a system call.
	rest = int64(100 * time.Microsecond)
)

func newLinks(at Server) *links {
	n := max(len(at.Addrs), 1)
	over, end := context.WithCancel(context.Background())
	return &links{
		over: over, end: end,
		tls: at.TLS,
		// Finds connections that a NAT forgot while they were idle.
		dialer: net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 3}},
		born:   newLife(true),
		peers:  map[string]*peer{},
		open:   map[*link]<-chan struct{}{},
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
	// Each try with a lost primary delays the switch to the next primary, so the time
	// doubles only every other time.
	return max(ls.dial, min(max(ls.dial, far)<<min(p.failed.Load()/2, 4), mostDial))
}

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

// rests returns the error of the last attempt to connect during the pause after it.
func (p *peer) rests() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until.IsZero() || time.Now().After(p.until) {
		return nil
	}
	return p.why
}

func (p *peer) fails(why error, pause time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pause = max(pause, min(2*p.pause, mostPause))
	p.until, p.why = time.Now().Add(p.pause), why
}

// greets notes the first answer on a connection.
func (p *peer) greets(answer []byte) {
	p.failed.Store(0)
	if bytes.HasPrefix(answer, []byte("-WRONGPASS")) || bytes.HasPrefix(answer, []byte("-NOAUTH")) {
		line, _, _ := bytes.Cut(answer[1:], []byte("\r\n"))
		p.fails(&wire.ServerError{Text: string(line)}, deniedPause)
		return
	}
	p.mu.Lock()
	p.pause = 0
	p.mu.Unlock()
}

// connect is the client's Dialer. It never fails, because the client would write that to
// standard error; the first use of the connection fails instead.
func (ls *links) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	p := ls.peer(addr)
	if err := p.rests(); err != nil {
		return stillborn(err), nil
	}
	era, patience := p.era.Load(), ls.patience(p, false)
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	defer context.AfterFunc(ls.over, cancel)()
	dial := ls.dialer.DialContext
	if ls.tls != nil {
		dial = (&tls.Dialer{NetDialer: &ls.dialer, Config: ls.tls}).DialContext
	}
	conn, err := dial(limited, network, addr)
	ls.born.connections.Add(1) // before the first request on it
	if err != nil {
		if limited.Err() != nil && ctx.Err() == nil {
			p.failed.Add(1)
			err = fmt.Errorf("no connection within %v", patience)
		}
		err = wire.NotSent(err)
		p.fails(err, leastPause)
		return stillborn(err), nil
	}
	l := &link{fresh: newFresh(quick.Conn(conn)), of: ls, peer: p, era: era}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.open[l] = nil
	if ls.closed {
		delete(ls.open, l)
		conn.Close()
	}
	return l, nil
}

// close closes all connections, also those in the making: the client does not close
// these, and waits for them.
func (ls *links) close() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.closed = true
	ls.end()
	for l := range ls.open {
		_ = l.Conn.Close()
	}
}

func (ls *links) gone(l *link) error {
	ls.mu.Lock()
	delete(ls.open, l)
	ls.mu.Unlock()
	return l.Conn.Close()
}

// failed stands in for a connection that was not made.
type failed struct {
	net.Conn
	why error
}

func stillborn(why error) net.Conn {
	c, other := net.Pipe()
	_, _ = c.Close(), other.Close()
	return failed{c, why}
}

func (f failed) SetWriteDeadline(time.Time) error { return f.why }
func (f failed) Write([]byte) (int, error)        { return 0, f.why }

// identify is OnConnect, in one round trip. An address may lead to another server while
// connections to the old one still work. When a new connection leads to another server,
// the older ones are no longer used. This needs the right to run INFO. addr is empty if
// all connections lead to one server.
func (ls *links) identify(addr string) func(context.Context, *redis.Conn) error {
	at := ls.peer(addr)
	return func(ctx context.Context, c *redis.Conn) error {
		p := c.Pipeline()
		p.ClientSetName(ctx, "baton")
		answer := p.Info(ctx, "server")
		_, _ = p.Exec(ctx) // a name is optional
		text, err := answer.Result()
		if _, refused := errors.AsType[redis.Error](err); refused {
			return nil
		} else if err != nil {
			return wire.NotSent(err)
		}
		info := lines(text)
		if info["redis_mode"] == "sentinel" {
			return nil
		}
		at.mu.Lock()
		before := at.server
		at.server = info["run_id"]
		at.mu.Unlock()
		switch {
		case before == "" || before == info["run_id"]:
		case addr == "":
			for _, p := range ls.all() {
				p.era.Add(1)
			}
		default:
			at.era.Add(1)
		}
		return nil
	}
}

func (ls *links) all() (all []*peer) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, p := range ls.peers {
		all = append(all, p)
	}
	return all
}

// leave gives up all connections to some servers, or to all: the addresses may lead to
// other servers now.
func (ls *links) leave(some ...*peer) {
	if some == nil {
		some = ls.all()
	}
	for _, p := range some {
		if p.left.TrySet() {
			p.era.Add(1)
			if sub := ls.listening.Swap(nil); sub != nil {
				go sub.Close() // it may wait for its connection, which this goroutine may be reading
			}
		}
	}
}

// drain waits for the answer to an abandoned call: by then the server has executed it.
func (ls *links) drain(l *link, within time.Duration) {
	ended := make(chan struct{})
	ls.mu.Lock()
	ls.open[l] = ended
	ls.mu.Unlock()
	_ = l.Conn.SetReadDeadline(time.Now().Add(within))
	go func() {
		_, _ = l.Conn.Read(make([]byte, 1))
		_ = ls.gone(l)
		close(ended)
	}()
}

// draining returns a channel that is closed when the calls abandoned so far have ended,
// nil if there are none.
func (ls *links) draining() <-chan struct{} {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	var all []<-chan struct{}
	for _, ended := range ls.open {
		if ended != nil {
			all = append(all, ended)
		}
	}
	if all == nil {
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, ended := range all {
			<-ended
		}
	}()
	return done
}

// link is one connection of links, for one call at a time.
type link struct {
	*fresh
	of   *links
	peer *peer
	era  uint64 // of peer, at its making

	since  atomic.Int64 // when the unanswered request was written, see now; or 0
	left   atomic.Bool  // the caller did not wait for the answer
	spoke  atomic.Bool  // some bytes have come
	closed atomic.Bool

	// For the goroutine that has the connection.
	want   time.Time // the client's read deadline
	capped int64     // when that was shortened to patience; 0: not
}

var linksBegan = time.Now()

// now is the time in a form that fits an atomic, never 0.
func now() int64 { return int64(time.Since(linksBegan)) + 1 }

func (l *link) Write(b []byte) (int, error) {
	l.since.Store(now())
	n, err := l.Conn.Write(b)
	if err != nil {
		l.since.Store(0) // it was not written completely, so it has no effect
	}
	return n, err
}

func (l *link) Read(b []byte) (int, error) {
	n, err := l.fresh.Read(b)
	since := l.since.Load()
	switch {
	case n > 0:
		if since != 0 {
			l.since.Store(0)
			l.of.answered(time.Duration(now() - since))
		}
		if !l.spoke.Load() {
			l.spoke.Store(true)
			l.peer.greets(b[:n])
		}
		if l.capped != 0 && now()-l.capped > int64(settling.Time) { // a long answer is still coming
			l.cap(now())
		}
	case since != 0 && errors.Is(err, os.ErrDeadlineExceeded):
		l.left.Store(true)
		silent, patience := time.Duration(now()-since), l.of.patience(l.peer, l.spoke.Load())
		if l.spoke.Load() && silent >= patience/4 {
			l.of.leave(l.peer)
		}
		if silent < patience {
			break
		}
		err = fmt.Errorf("no answer within %v, so the connection was given up", patience)
		if !l.spoke.Load() { // only the client's introduction was sent
			l.peer.failed.Add(1)
			err = wire.NotSent(err)
		}
	}
	return n, err
}

// SetReadDeadline shortens the wait for an answer to patience.
func (l *link) SetReadDeadline(t time.Time) error {
	l.want, l.capped = t, 0
	if since := l.since.Load(); since != 0 {
		return l.cap(since)
	}
	return l.Conn.SetReadDeadline(t)
}

func (l *link) cap(since int64) error {
	t := l.want
	if end := linksBegan.Add(time.Duration(since) + l.of.patience(l.peer, l.spoke.Load())); t.IsZero() || end.Before(t) {
		t, l.capped = end, since
	}
	return l.Conn.SetReadDeadline(t)
}

// Close closes the connection. After an abandoned call it first waits for the answer, in
// the background.
func (l *link) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	if since := l.since.Load(); l.left.Load() && since != 0 {
		if within := l.of.patience(l.peer, l.spoke.Load()) - time.Duration(now()-since); within > 0 {
			l.of.drain(l, within)
			return nil
		}
	}
	return l.of.gone(l)
}

// SyscallConn is for the client's look before each call: no goroutine reads from a
// connection while no call waits for an answer.
func (l *link) SyscallConn() (syscall.RawConn, error) { return looked{l.fresh, l}, nil }

// fresh is a connection that is not looked at shortly after an answer, when no server or
// proxy can have closed it for being idle. The look itself bypasses Go's scheduler, see
// package quick.
type fresh struct {
	net.Conn
	raw  syscall.RawConn // nil: the connection has none
	used atomic.Int64    // when bytes last came
}

func newFresh(conn net.Conn) *fresh {
	f := &fresh{Conn: conn}
	if t, ok := conn.(*tls.Conn); ok { // in TLS the peer's close is a message to read
		conn = t.NetConn()
	}
	if c, ok := conn.(syscall.Conn); ok {
		f.raw, _ = c.SyscallConn()
	}
	return f
}

func (f *fresh) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	if n > 0 {
		f.used.Store(now())
	}
	return n, err
}

// SyscallConn is for the client's look before each call.
func (f *fresh) SyscallConn() (syscall.RawConn, error) { return looked{f, nil}, nil }

type looked struct {
	*fresh
	link *link
}

func (k looked) Control(f func(uintptr)) error    { return k.raw.Control(f) }
func (k looked) Write(f func(uintptr) bool) error { return k.raw.Write(f) }

func (k looked) Read(f func(uintptr) bool) error {
	if k.link != nil && k.link.era != k.link.peer.era.Load() {
		return net.ErrClosed
	}
	if k.raw == nil || now()-k.used.Load() < rest {
		return nil
	}
	return k.raw.Control(func(fd uintptr) { f(fd) })
}

// Dialer makes a client of the program's as fast as that of Open, for Options.Dialer,
// FailoverOptions.Dialer or ClusterOptions.Dialer:
//
//	options := &redis.Options{Addr: "redis1:6379"}
//	options.Dialer = redisstore.Dialer(options)
//
// It connects as go-redis does, with the DialTimeout and TLSConfig of the options. It
// saves about a tenth of a lock and unlock: on Linux its system calls bypass Go's
// scheduler, and everywhere a connection used within the last 0.1 ms is not looked at. If
// such a connection was cut since, the outcome of the next command is unknown.
// Connections with TLS are those of go-redis.
func Dialer(options *redis.Options) func(ctx context.Context, network, addr string) (net.Conn, error) {
	dial := redis.NewDialer(options)
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if _, encrypted := conn.(*tls.Conn); err != nil || encrypted {
			return conn, err
		}
		return newFresh(quick.Conn(conn)), nil
	}
}
