package zkstore

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// answerWithin is how long a server may take to answer the connect request. The client
// itself would wait for nearly seven times the session's time-out.
const answerWithin = 5 * time.Second

// The numbers of requests, as they are on the wire.
const (
	opPing       = 11
	opSetAuth    = 100
	opSetWatches = 101
)

// tapped is a connection that reads along the first answer, and that, in a session that
// goes on, sets its watches before any other request is sent.
//
// The client sends the watches beside other requests. They say up to which transaction
// the session has seen everything, which has to be what it knew before the first
// answer; but the client reads that number while another goroutine updates it by the
// answers.
type tapped struct {
	net.Conn
	session *Session
	began   time.Time
	head    [20]byte // length, protocol, time-out in ms, session
	n       int      // how much of it has been read
	hungUp  func()   // called if the server hangs up before it answers

	mu    sync.Mutex
	waits bool   // requests wait until the watches are set
	kept  []byte // the requests that wait
	late  *time.Timer

	asking  sync.Mutex
	timeout atomic.Int64 // the session's, in ns; 0 before the connect answer
	asked   time.Time    // when something was first written since the server was last heard; zero: nothing
	silent  *time.Timer  // nil before the first request
}

func (t *tapped) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	if n > 0 {
		t.heard()
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

// answered is called when the connect answer has been read.
func (t *tapped) answered() {
	s := t.session
	id := int64(binary.BigEndian.Uint64(t.head[12:]))
	timeout := time.Duration(binary.BigEndian.Uint32(t.head[8:])) * time.Millisecond
	s.mu.Lock()
	s.answered = connected{id: id, timeout: timeout, dialled: t.began}
	s.mu.Unlock()
	t.timeout.Store(int64(timeout))
	t.mu.Lock()
	t.waits = id != 0 && id == s.stood.Load()
	t.mu.Unlock()
}

// Write is called with one whole request at a time.
func (t *tapped) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asks()
	if !t.waits || len(b) < 12 {
		return t.Conn.Write(b)
	}
	switch binary.BigEndian.Uint32(b[8:]) { // after the length and the request's number
	case opPing, opSetAuth:
		return t.Conn.Write(b)
	case opSetWatches:
		t.waits = false
		if t.late != nil {
			t.late.Stop()
		}
		n, err := t.Conn.Write(append(b[:len(b):len(b)], t.kept...))
		t.kept = nil
		return min(n, len(b)), err
	}
	if t.late == nil {
		t.late = time.AfterFunc(answerWithin, t.giveUp)
	}
	t.kept = append(t.kept, b...)
	return len(b), nil
}

// giveUp handles what should not happen: the client has no watches to set. The next
// connection does not wait for them.
func (t *tapped) giveUp() {
	t.mu.Lock()
	waits := t.waits
	t.mu.Unlock()
	if waits {
		t.session.stood.Store(0)
		t.Close()
	}
}

func (t *tapped) SetReadDeadline(at time.Time) error {
	if latest := time.Now().Add(answerWithin); t.n < len(t.head) && (at.IsZero() || at.After(latest)) {
		at = latest
	}
	return t.Conn.SetReadDeadline(at)
}

// A server that hangs keeps its connections, and the client stays for two thirds of the
// session's time-out, or until the next ping is due: longer than any TTL lasts. The
// session survives a move to another server, so the store leaves a silent server much
// earlier.

// leastSilence is never taken for silence: a server may be busy.
const leastSilence = 500 * time.Millisecond

// silence is how long a server may send nothing while a request is under way, in a
// session of that time-out: a quarter of the longest TTL.
func silence(timeout time.Duration) time.Duration { return max(timeout/8, leastSilence) }

// asks notes that something is written, and starts the timer that leaves a silent
// server. The answer to the connect request has a limit of its own.
func (t *tapped) asks() {
	t.asking.Lock()
	defer t.asking.Unlock()
	if limit := silence(time.Duration(t.timeout.Load())); t.timeout.Load() != 0 && t.asked.IsZero() {
		t.asked = time.Now()
		if t.silent == nil {
			t.silent = time.AfterFunc(limit, func() { t.leave(limit) })
		} else {
			t.silent.Reset(limit)
		}
	}
}

func (t *tapped) heard() {
	t.asking.Lock()
	defer t.asking.Unlock()
	t.asked = time.Time{}
	if t.silent != nil {
		t.silent.Stop()
	}
}

// leave closes the connection if the server has been silent for that long.
func (t *tapped) leave(limit time.Duration) {
	t.asking.Lock()
	asked, now := t.asked, time.Now()
	if !asked.IsZero() && now.Sub(asked) >= 2*limit {
		// This process has stood still, and an answer may have come already.
		t.asked = now
		t.silent.Reset(limit)
	}
	t.asking.Unlock()
	if asked.IsZero() || now.Sub(asked) < limit || now.Sub(asked) >= 2*limit {
		return
	}
	if t.session.leaving != nil {
		t.session.leaving()
	}
	t.Close()
}

func (t *tapped) Close() error {
	t.heard()
	return t.Conn.Close()
}

// within leaves the server if it is silent for a quarter of a TTL from now on: leases
// may be much shorter than the longest TTL.
func (s *Session) within(ttl time.Duration) {
	t := s.tapped.Load()
	l := s.link()
	if limit := max(ttl/4, leastSilence); t != nil && l.up && limit < silence(l.timeout) {
		time.AfterFunc(limit+limit/10, func() { t.leave(limit) })
	}
}

// neverMade is a path that no program uses. It is watched as long as a session has
// other watches, so that the client has watches to set whenever it reconnects, and
// tapped can wait for them.
const neverMade = "/zookeeper/baton"

// standing makes sure that the connection's session watches neverMade.
func (s *Session) standing(c *zk.Conn) error {
	s.stand.Lock()
	defer s.stand.Unlock()
	id := c.SessionID()
	if id == s.stood.Load() {
		return nil
	}
	_, _, _, err := c.ExistsW(neverMade)
	if err == nil && c.SessionID() == id {
		s.stood.Store(id)
	}
	return err
}
