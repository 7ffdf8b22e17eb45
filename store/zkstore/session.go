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

// A Session follows the session of a connection: its number, the timeout that the server
// granted, and how long the session can be relied on. The client does not provide these
// later, so the Session must exist before the connection:
//
//	var session zkstore.Session
//	conn, _, err := zk.Connect(servers, 30*time.Second, session.Option())
//	store, err := zkstore.New(ctx, conn, &session, zkstore.Config{})
//
// It belongs to one connection for good. Set the fields before Option.
type Session struct {
	// Dial connects to a server. Defaults to net.DialTimeout.
	Dial zk.Dialer

	// Events is the callback of zk.WithEventCallback. It must not block.
	Events func(zk.Event)

	now       atomic.Pointer[link]
	watchedID atomic.Int64 // the session that watches neverCreated
	watchMu   sync.Mutex   // held while that watch is set
	expiredID atomic.Int64 // a session that the servers no longer accept

	conn     atomic.Pointer[serverConn] // the latest connection
	onSilent func()                     // nil, or called before a silent server is left

	mu       sync.Mutex
	answered connected    // the last connect answer
	marks    [8]time.Time // the sending times of some answered requests, the newest at newest
	newest   int

	provenID    int64 // the session that lives at least until provenUntil
	provenUntil time.Time
}

// A link is the unchanging state of a session at a time.
type link struct {
	id      int64 // 0: none
	timeout time.Duration
	up      bool      // requests are answered
	epoch   int       // incremented by every connection
	since   time.Time // when its connection was begun
	lost    time.Time // when the last connection was lost, while there is none
	outages int       // connections after an outage
	next    chan struct{}
}

// connected is the content of a connect answer.
type connected struct {
	id      int64
	timeout time.Duration
	dialled time.Time
}

// Option returns the option for zk.Connect that connects the Session. It replaces
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

// event is called by the client's own loop, before that sends in the new state.
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

// How long a session is certain to live. A session ends when its leader has not heard of
// it for its timeout. The leader hears of it later than the client gets its answers: a
// follower reports active sessions only at every half tick. If the follower dies just
// before, the session counts from an activity half a tick earlier. A session lasts for at
// least two ticks, so half a tick is at most a quarter of it.

// grain is the resolution of noted activity: one request in each sixteenth of a session's
// timeout, and at least one in an eighth more (see Store.keepAlive).
const grain = 16

// active notes that a request sent at sent was answered.
func (s *Session) active(l *link, sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sent.Sub(s.marks[s.newest]) >= l.timeout/grain {
		s.newest = (s.newest + 1) % len(s.marks)
		s.marks[s.newest] = sent
	}
}

// idle is the age of the newest noted request.
func (s *Session) idle(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return now.Sub(s.marks[s.newest])
}

// committed notes a request that was committed and answered on l, and returns how long
// the session certainly lives, counted from the sending. It is half of the timeout, or
// less after a silence, at worst zero.
//
// Only commits count: a follower that was cut off from the others continues to answer
// reads when the others have ended its sessions.
func (s *Session) committed(l *link, sent time.Time) (sure time.Duration) {
	known := l.since // a server that accepts a connection reports the session to its leader
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

// dial connects, and parses the server's first answer.
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

// hosts returns the servers in one random order. After the loss of a connection it tries
// each server once without a pause, even the last one: the client's own provider pauses
// for a second before that, and a session may end by then.
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

// skipCurrent skips the silent server at the next try.
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

// Servers may be restored: a backup or a lost disk brings back an older state than this
// process has seen. That may have two effects.
//
// A server hangs up, without an answer, on a client that has seen a later transaction
// than its last one. The client would try again with the same number for ever, so the
// store declares its session over. It does so when the session has had no answer for its
// whole timeout, so that it is over by any leader's clock, and when the server that has
// just hung up serves a new client.
//
// Or the numbers of a new leader are higher, and the session continues if the restored
// state has it. The session may then have nodes that this process had deleted. They would
// stay for as long as it lives, so removeLeftovers looks for them after an outage.

// hungUp is called when a server ends a connection instead of answering the connect
// request. So does a follower that lags behind, and a server without a leader.
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
// transaction seen or 0, timeout in ms, session, password of 16 bytes.
const (
	connectRequest = 4 + 4 + 8 + 4 + 8 + 4 + 16
	connectAnswer  = 4 + 4 + 4 + 8 + 4 + 16
)

// serves reports whether a server serves a new client. It asks for a session that cannot
// exist, so that the server makes none.
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

func (s *Session) connect(network, address string, within time.Duration) (net.Conn, error) {
	if s.Dial != nil {
		return s.Dial(network, address, within)
	}
	return net.DialTimeout(network, address, within)
}

// expired is a connection to a server without sessions: it makes the client forget its
// session and the last transaction seen.
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

// isHungUp reports whether the server ended the connection, rather than a timeout or a
// Close of this process.
func isHungUp(err error) bool {
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, net.ErrClosed)
}
