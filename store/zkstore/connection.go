package zkstore

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// answerWithin bounds the answer to the connect request. The client itself would wait for
// nearly seven times the session's timeout.
const answerWithin = 5 * time.Second

// The numbers of requests in the protocol.
const (
	opPing       = 11
	opSetAuth    = 100
	opSetWatches = 101
)

// serverConn is a connection to a server. It parses the first answer. In a continued
// session it sends the request that sets the watches before all others.
//
// The client sends the watches concurrently with other requests. That request contains
// the last transaction that the session has seen, which must be the one from before the
// first answer; but the client reads that number while another goroutine updates it by
// the answers.
type serverConn struct {
	net.Conn
	session *Session
	began   time.Time
	head    [20]byte // length, protocol, time-out in ms, session
	n       int      // how much of it has been read
	hungUp  func()   // called if the server hangs up before it answers

	mu          sync.Mutex
	holdsBack   bool   // requests wait until the watches are set
	heldBack    []byte // the waiting requests
	giveUpTimer *time.Timer

	asking  sync.Mutex
	timeout atomic.Int64 // the session's, in ns; 0 before the connect answer
	asked   time.Time    // the first write since the server last sent something; zero: none
	silent  *time.Timer  // nil before the first request
}

func (t *serverConn) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	if n > 0 {
		t.endSilence()
	}
	if t.n == 0 && n == 0 && isHungUp(err) {
		t.hungUp()
	}
	if t.n < len(t.head) {
		t.n += copy(t.head[t.n:], b[:n])
		if t.n == len(t.head) {
			t.answered()
		}
	}
	return n, err
}

func (t *serverConn) answered() {
	s := t.session
	id := int64(binary.BigEndian.Uint64(t.head[12:]))
	timeout := time.Duration(binary.BigEndian.Uint32(t.head[8:])) * time.Millisecond
	s.mu.Lock()
	s.answered = connected{id: id, timeout: timeout, dialled: t.began}
	s.mu.Unlock()
	t.timeout.Store(int64(timeout))
	t.mu.Lock()
	t.holdsBack = id != 0 && id == s.watchedID.Load()
	t.mu.Unlock()
}

// Write gets one whole request at a time.
func (t *serverConn) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.startSilence()
	if !t.holdsBack || len(b) < 12 {
		return t.Conn.Write(b)
	}
	switch binary.BigEndian.Uint32(b[8:]) { // after the length and the request's number
	case opPing, opSetAuth:
		return t.Conn.Write(b)
	case opSetWatches:
		t.holdsBack = false
		if t.giveUpTimer != nil {
			t.giveUpTimer.Stop()
		}
		n, err := t.Conn.Write(append(b[:len(b):len(b)], t.heldBack...))
		t.heldBack = nil
		return min(n, len(b)), err
	}
	if t.giveUpTimer == nil {
		t.giveUpTimer = time.AfterFunc(answerWithin, t.giveUp)
	}
	t.heldBack = append(t.heldBack, b...)
	return len(b), nil
}

// giveUp closes a connection whose client sends no request to set watches, which should
// not happen. The next connection does not wait for that request.
func (t *serverConn) giveUp() {
	t.mu.Lock()
	waits := t.holdsBack
	t.mu.Unlock()
	if waits {
		t.session.watchedID.Store(0)
		t.Close()
	}
}

func (t *serverConn) SetReadDeadline(at time.Time) error {
	if latest := time.Now().Add(answerWithin); t.n < len(t.head) && (at.IsZero() || at.After(latest)) {
		at = latest
	}
	return t.Conn.SetReadDeadline(at)
}

// A server that hangs keeps its connections, and the client waits for two thirds of the
// session's timeout, or until the next ping is due: longer than any TTL. The session
// survives a move to another server, so the store leaves a silent server much earlier.

// leastSilence is the least silence of a server that is not just busy.
const leastSilence = 500 * time.Millisecond

// silence is how long a server may be silent while a request is under way, in a session
// with that timeout: a quarter of the longest TTL.
func silence(timeout time.Duration) time.Duration { return max(timeout/8, leastSilence) }

// startSilence notes a write, and starts the timer that leaves a silent server. The
// answer to the connect request has a limit of its own.
func (t *serverConn) startSilence() {
	t.asking.Lock()
	defer t.asking.Unlock()
	if limit := silence(time.Duration(t.timeout.Load())); t.timeout.Load() != 0 && t.asked.IsZero() {
		t.asked = time.Now()
		if t.silent == nil {
			t.silent = time.AfterFunc(limit, func() { t.closeIfSilent(limit) })
		} else {
			t.silent.Reset(limit)
		}
	}
}

func (t *serverConn) endSilence() {
	t.asking.Lock()
	defer t.asking.Unlock()
	t.asked = time.Time{}
	if t.silent != nil {
		t.silent.Stop()
	}
}

// closeIfSilent closes the connection if the server has been silent for that long.
func (t *serverConn) closeIfSilent(limit time.Duration) {
	t.asking.Lock()
	asked, now := t.asked, time.Now()
	if !asked.IsZero() && now.Sub(asked) >= 2*limit {
		// This process was stopped; an answer may have come already.
		t.asked = now
		t.silent.Reset(limit)
	}
	t.asking.Unlock()
	if asked.IsZero() || now.Sub(asked) < limit || now.Sub(asked) >= 2*limit {
		return
	}
	if t.session.onSilent != nil {
		t.session.onSilent()
	}
	t.Close()
}

func (t *serverConn) Close() error {
	t.endSilence()
	return t.Conn.Close()
}

// closeIfSilentFor leaves the server if it is silent for a quarter of that TTL from now
// on: leases may be much shorter than the longest TTL.
func (s *Session) closeIfSilentFor(ttl time.Duration) {
	t := s.conn.Load()
	l := s.link()
	if limit := max(ttl/4, leastSilence); t != nil && l.up && limit < silence(l.timeout) {
		time.AfterFunc(limit+limit/10, func() { t.closeIfSilent(limit) })
	}
}

// neverCreated is a path that no program uses. It is watched while a session has other
// watches, so that the client has watches to set at each reconnection, and serverConn can
// wait for them.
const neverCreated = "/zookeeper/baton"

// watchAlways makes the connection's session watch neverCreated.
func (s *Session) watchAlways(c *zk.Conn) error {
	s.watchMu.Lock()
	defer s.watchMu.Unlock()
	id := c.SessionID()
	if id == s.watchedID.Load() {
		return nil
	}
	_, _, _, err := c.ExistsW(neverCreated)
	if err == nil && c.SessionID() == id {
		s.watchedID.Store(id)
	}
	return err
}
