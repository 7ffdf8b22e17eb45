package zkstore

import (
	"encoding/binary"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/internal/bootclock"
)

// A Session follows the session of a connection: its number, the time-out that the
// server granted, and how long it can be trusted. The client tells none of this
// afterwards, so a Session has to be there from the beginning:
//
//	var session zkstore.Session
//	conn, _, err := zk.Connect(servers, 30*time.Second, session.Option())
//	store, err := zkstore.New(ctx, conn, &session, zkstore.Config{})
//
// It belongs to one connection for good. Set the fields before Option.
type Session struct {
	// Dial connects to a server. It defaults to net.DialTimeout.
	Dial zk.Dialer

	// Events is called as zk.WithEventCallback says. It must not block.
	Events func(zk.Event)

	now       atomic.Pointer[link]
	watchedID atomic.Int64 // the session that watches neverCreated
	watchMu   sync.Mutex   // held while that watch is set
	expiredID atomic.Int64 // a session that the servers no longer accept

	conn     atomic.Pointer[serverConn] // the latest connection
	onSilent func()                     // nil, or called before a silent server is left

	mu       sync.Mutex
	answered connected    // the last connect answer
	marks    [8]time.Time // when some of the answered requests were sent, the newest at newest
	newest   int

	provenID    int64 // the session that lives until provenUntil at least
	provenUntil time.Time
}

// A link is the state of a session while that does not change.
type link struct {
	id      int64 // 0: there is none
	timeout time.Duration
	up      bool      // requests are answered
	epoch   int       // incremented by every connection
	since   time.Time // when its connection was begun
	lost    time.Time // when the connection before was lost, while it is not up
	outages int       // connections that came after an outage
	next    chan struct{}
}

// connected is what a connect answer says.
type connected struct {
	id      int64
	timeout time.Duration
	dialled time.Time
}

// Option returns the option for zk.Connect that makes the session known. It replaces
// zk.WithDialer and zk.WithEventCallback.
func (s *Session) Option() func(*zk.Conn) {
	dialer, events := zk.WithDialer(s.dial), zk.WithEventCallback(s.event)
	return func(c *zk.Conn) {
		s.now.Store(&link{next: make(chan struct{})})
		dialer(c)
		events(c)
	}
}

func (s *Session) link() *link { return s.now.Load() }

// event is called by the client's own loop, before that sends anything in the new
// state.
func (s *Session) event(e zk.Event) {
	if e.Type == zk.EventSession {
		old := s.now.Load()
		l := *old
		switch e.State {
		case zk.StateHasSession:
			s.mu.Lock()
			a := s.answered
			s.mu.Unlock()
			l.id, l.timeout, l.since, l.up = a.id, a.timeout, a.dialled, true
			l.epoch++
			if !l.lost.IsZero() && bootclock.Now().Sub(l.lost) >= outage {
				l.outages++
			}
			l.lost = time.Time{}
		case zk.StateExpired:
			l.id, l.up = 0, false
			s.watchedID.Store(0)
		case zk.StateDisconnected, zk.StateConnecting:
			l.up = false
		}
		if old.up && !l.up {
			l.lost = bootclock.Now()
		}
		if l.id != old.id || l.up != old.up || l.epoch != old.epoch {
			l.next = make(chan struct{})
			s.now.Store(&l)
			close(old.next)
		}
	} else if e.Path == neverCreated {
		s.watchedID.Store(0)
	}
	if s.Events != nil {
		s.Events(e)
	}
}

// Trust. A session ends when its leader has not heard of it for its time-out. The
// leader hears of it later than the client gets its answers: a follower tells it only
// at every half tick which sessions were active. If the follower dies just before, the
// session counts from activity that is half a tick older. A session lasts for two ticks
// at least, so half a tick is a quarter of it at most.

// grain is the resolution in which activity is noted: one request in each sixteenth of
// a session's time-out, and at least one in an eighth more (see Store.keepAlive).
const grain = 16

// active notes that a request that was sent at sent was answered.
func (s *Session) active(l *link, sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sent.Sub(s.marks[s.newest]) >= l.timeout/grain {
		s.newest = (s.newest + 1) % len(s.marks)
		s.marks[s.newest] = sent
	}
}

// idle is how long ago the newest noted request was sent.
func (s *Session) idle(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return now.Sub(s.marks[s.newest])
}

// committed notes a request that was committed and answered on l, and returns how long the
// session certainly lives, counted from when the request was sent. It is half of the
// time-out, or less after a silence, zero at worst.
//
// Only commits count: a follower that was cut off from the others goes on answering
// reads when the others have ended its sessions.
func (s *Session) committed(l *link, sent time.Time) (sure time.Duration) {
	known := l.since // a server that accepts a connection tells its leader of the session
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.marks {
		if m.After(known) && sent.Sub(m) >= l.timeout/4 {
			known = m
		}
	}
	sure = known.Add(l.timeout - l.timeout/grain).Sub(sent)
	sure = max(0, min(sure, l.timeout/2))
	if until := sent.Add(sure); s.provenID != l.id || until.After(s.provenUntil) {
		s.provenID, s.provenUntil = l.id, until
	}
	return sure
}

// provenLeft is how much longer the session with that number certainly lives.
func (s *Session) provenLeft(id int64) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id != s.provenID {
		return 0
	}
	return max(0, s.provenUntil.Sub(bootclock.Now()))
}

// dial connects, and reads along the server's first answer.
func (s *Session) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	if id := s.link().id; id != 0 && id == s.expiredID.Load() {
		return expired(), nil
	}
	began := bootclock.Now()
	c, err := s.connect(network, address, timeout)
	if err != nil {
		return nil, err
	}
	t := &serverConn{Conn: c, session: s, began: began, hungUp: func() { s.hungUp(network, address) }}
	s.conn.Store(t)
	return t, nil
}

// hosts gives out the servers in one random order. After a connection was lost it tries
// each server once without a pause, the last one too: the client's own provider pauses
// for a second before it tries the last one again, and a session may be over by then.
type hosts struct {
	mu      sync.Mutex
	servers []string
	at      int
	tried   int  // since the last success
	skip    bool // do not try the server that was connected first
}

func (h *hosts) Init(servers []string) error {
	if len(servers) == 0 {
		return errors.New("no servers")
	}
	h.servers = servers
	h.at = rand.IntN(len(servers))
	return nil
}

func (h *hosts) Len() int { return len(h.servers) }

func (h *hosts) Next() (server string, pause bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tried > 0 || h.skip {
		h.at = (h.at + 1) % len(h.servers)
	}
	h.skip = false
	pause = h.tried > 0 && h.tried%len(h.servers) == 0
	h.tried++
	return h.servers[h.at], pause
}

// skipCurrent makes the next server the first to try, as the last one is silent.
func (h *hosts) skipCurrent() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.skip = true
}

func (h *hosts) Connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tried = 0
}

var silent = log.New(io.Discard, "", 0)

// Servers may be restored: a backup or a lost disk brings back a state older than what
// this process has seen. That may have two effects.
//
// A server hangs up, without a word, on a client that has seen a later transaction than
// its last one. The client would try again with the same number for ever, so the store
// declares its session over: when the session has had no answer for its whole time-out,
// so that it is over by any leader's clock, and the server that has just hung up does
// serve a client that has seen nothing.
//
// Or the numbers of a new leader are higher, and the session goes on, if the state
// knows it. It may then have nodes that this process had deleted. They would stay for
// as long as it lives, so removeLeftovers looks for them after an outage.

// hungUp is called when a server ended a connection instead of answering the connect
// request. A follower that lags behind does that, too, and a server without a leader.
func (s *Session) hungUp(network, address string) {
	l := s.link()
	if l.id == 0 {
		return
	}
	s.mu.Lock()
	heard := s.marks[s.newest]
	s.mu.Unlock()
	if l.since.After(heard) {
		heard = l.since
	}
	if bootclock.Now().Sub(heard) >= l.timeout && s.serves(network, address) {
		s.expiredID.Store(l.id)
	}
}

// A connect request, and the beginning of its answer: length, protocol, the last
// transaction seen or nothing, time-out in ms, session, password of 16 bytes.
const (
	connectRequest = 4 + 4 + 8 + 4 + 8 + 4 + 16
	connectAnswer  = 4 + 4 + 4 + 8 + 4 + 16
)

// serves reports whether a server answers a client that has seen nothing. It asks for a
// session that cannot exist, so that the server makes none.
func (s *Session) serves(network, address string) bool {
	const within = time.Second
	c, err := s.connect(network, address, within)
	if err != nil {
		return false
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return false
	}
	ask := binary.BigEndian.AppendUint32(nil, connectRequest-4)
	ask = append(ask, make([]byte, 4+8)...)
	ask = binary.BigEndian.AppendUint32(ask, uint32(within/time.Millisecond))
	ask = binary.BigEndian.AppendUint64(ask, 1)
	ask = binary.BigEndian.AppendUint32(ask, 16)
	ask = append(ask, make([]byte, 16)...)
	if _, err := c.Write(ask); err != nil {
		return false
	}
	_, err = io.ReadFull(c, make([]byte, 4))
	return err == nil
}

// connect opens a connection by Dial, if that is set.
func (s *Session) connect(network, address string, within time.Duration) (net.Conn, error) {
	if s.Dial != nil {
		return s.Dial(network, address, within)
	}
	return net.DialTimeout(network, address, within)
}

// expired is a connection to a server that knows no session: it makes the client forget
// its own, and all that it has seen.
func expired() net.Conn {
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		head := make([]byte, 4)
		if _, err := io.ReadFull(server, head); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, server, int64(binary.BigEndian.Uint32(head))); err != nil {
			return
		}
		answer := make([]byte, connectAnswer)
		binary.BigEndian.PutUint32(answer, connectAnswer-4)
		binary.BigEndian.PutUint32(answer[connectAnswer-20:], 16)
		_, _ = server.Write(answer) // if the client has not read it, it dials again
	}()
	return client
}

// isHungUp reports whether the server caused the error, rather than a time-out or a
// Close of this process.
func isHungUp(err error) bool {
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, net.ErrClosed)
}
