package httpguard

import (
	"bytes"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/internal/quick"
)

// writeTimeout is how long a client may leave unread what the server sends.
const writeTimeout = 30 * time.Second

// Bound returns a listener like l with at most that many connections at a time, half of
// them from one address; those of a Unix socket have no address. It closes further
// connections at once, and log gets a warning. A connection whose client does not read for
// half a minute fails.
func Bound(l net.Listener, most int, log *slog.Logger) net.Listener {
	return newListener(l, most, log, func(net.Conn) bool { return false })
}

func newListener(l net.Listener, most int, log *slog.Logger, proxy func(net.Conn) bool) *listener {
	return &listener{Listener: l, most: most, log: log, proxy: proxy, from: make(map[netip.Addr]int)}
}

// A listener bounds the number of connections.
type listener struct {
	net.Listener
	most  int
	log   *slog.Logger
	proxy func(net.Conn) bool // reports whether a connection is of many clients, and so does not count by address

	mu   sync.Mutex
	open int
	from map[netip.Addr]int
	full bool // a connection was refused, and none was accepted since
}

// Accept closes a connection beyond the bound at once, without telling the client why.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		leave := l.enter(c, 1)
		if leave == nil {
			_ = c.Close()
			continue
		}
		return &conn{Conn: quick.Conn(c), leave: leave}, nil
	}
}

// told is a connection of a proxy that may tell its client's address. It counts by that
// address once it is known.
type told struct {
	net.Conn
	bounds *listener
	once   sync.Once
	leave  func()
}

func (c *told) RemoteAddr() net.Addr {
	c.once.Do(func() {
		if c.leave = c.bounds.enter(c.Conn, 0); c.leave == nil {
			_ = c.Conn.Close()
		}
	})
	return c.Conn.RemoteAddr()
}

func (c *told) Read(p []byte) (int, error) {
	if c.RemoteAddr(); c.leave == nil { // the buffer may have what the proxy sent before
		return 0, net.ErrClosed
	}
	return c.Conn.Read(p)
}

func (c *told) Close() error {
	err := c.Conn.Close() // first: RemoteAddr may be waiting for the proxy's header
	c.once.Do(func() {})
	if c.leave != nil {
		c.leave()
	}
	return err
}

func addressOf(c net.Conn) netip.Addr {
	if of, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return of.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// enter counts n more connections, and one more of the address of c. It returns the
// function that takes both back, or nil if a bound is reached.
func (l *listener) enter(c net.Conn, n int) (leave func()) {
	from := addressOf(c)
	if l.proxy(c) {
		from = netip.Addr{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open+n > l.most || from.IsValid() && l.from[from] >= (l.most+1)/2 {
		if !l.full {
			l.log.Warn("too many connections: new ones are closed", "open", l.open, "from", from, "open from there", l.from[from])
		}
		l.full = true
		return nil
	}
	l.full = false
	l.open += n
	l.from[from]++
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open -= n
		if l.from[from]--; l.from[from] == 0 {
			delete(l.from, from)
		}
	})
}

// A conn is a connection whose writes fail if its client does not read.
type conn struct {
	net.Conn
	leave func()
	own   atomic.Bool            // the server has set a deadline, which counts instead of writeTimeout
	read  bool                   // something was read
	out   atomic.Pointer[outbox] // of HTTP/2 without TLS; else nil
}

// Read recognizes HTTP/2 by the first bytes.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.read {
		c.read = true
		if bytes.HasPrefix(p[:n], []byte("PRI * HTTP/2.0")) {
			c.out.Store(newOutbox(c.Conn, c.leave))
		}
	}
	return n, err
}

func (c *conn) Close() error {
	if out := c.out.Load(); out != nil {
		return out.close()
	}
	defer c.leave()
	return c.Conn.Close()
}

func (c *conn) SetDeadline(t time.Time) error {
	if c.out.Load() != nil {
		return c.Conn.SetReadDeadline(t)
	}
	c.own.Store(!t.IsZero())
	return c.Conn.SetDeadline(t)
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	if c.out.Load() != nil {
		return nil // the outbox sets its own
	}
	c.own.Store(!t.IsZero())
	return c.Conn.SetWriteDeadline(t)
}

func (c *conn) Write(p []byte) (int, error) {
	if out := c.out.Load(); out != nil {
		return out.write(p)
	}
	if !c.own.Load() {
		if err := c.Conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(p)
}
