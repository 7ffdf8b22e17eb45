package sqlitestore

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/sqlstore"
)

// pollDeaf is the period in which a process without a socket, while its goroutines wait,
// looks for changes.
const pollDeaf = 2 * time.Millisecond

// A mailbox receives the hints of other processes that this one's waiters were granted: a
// socket beside the database, made when this process first waits. Hints may be lost, so
// this process also polls the database, and does only that if it cannot make a socket.
// Without watchers it has no goroutine.
type mailbox struct {
	s    *Store
	dir  *os.File
	name string

	mu       sync.Mutex
	conn     *net.UnixConn
	deaf     bool // no socket can be made
	closed   bool
	watching int
	waiting  int
	reading  bool               // a goroutine reads from conn
	stopPoll context.CancelFunc // nil: no goroutine polls
}

// A letter is the content of a datagram.
type letter struct {
	Key   string `json:"key"`
	ID    string `json:"id"`
	Token int64  `json:"token,omitempty"` // 0: look again
	TTL   int64  `json:"ttl,omitempty"`   // microseconds
}

func newMailbox(s *Store) *mailbox {
	m := &mailbox{s: s, dir: s.beside, name: driver.NewID() + ".sock", deaf: s.opts.deaf}
	s.watchers.Changed = m.changed
	return m
}

// address is the name to write into rows so that hints arrive, or "".
func (m *mailbox) address(needed bool) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn == nil && needed && !m.deaf && !m.closed {
		if err := m.bind(); err != nil {
			m.deaf = true
		}
		m.adjust()
	}
	if m.conn == nil {
		return ""
	}
	return m.name
}

func (m *mailbox) bind() error {
	m.tidy()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: socketPath(m.dir, m.name)})
	if err != nil {
		return err
	}
	// A user who may write the database may send hints about it.
	if err := shareSocket(m.dir, m.name, m.s.file); err != nil {
		removeFrom(m.dir, m.name)
		conn.Close()
		return err
	}
	m.conn = conn
	return nil
}

// tidy removes the sockets of ended processes.
func (m *mailbox) tidy() {
	entries, err := m.dir.ReadDir(-1)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSocket == 0 || !strings.HasSuffix(e.Name(), ".sock") {
			continue
		}
		at, done, err := reach(m.dir, e.Name())
		if err != nil {
			continue
		}
		c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Net: "unixgram", Name: at})
		done()
		if err == nil {
			c.Close()
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			removeFrom(m.dir, e.Name())
		}
	}
}

// changed is told how many claims are watched, and how many of these wait.
func (m *mailbox) changed(watching, waiting int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watching, m.waiting = watching, waiting
	m.adjust()
}

// adjust starts and stops the goroutines as needed.
func (m *mailbox) adjust() {
	listen := m.conn != nil && m.watching > 0 && !m.closed
	switch {
	case listen && !m.reading:
		m.reading = true
		m.conn.SetReadDeadline(time.Time{})
		go m.read(m.conn)
	case !listen && m.reading && m.conn != nil:
		m.conn.SetReadDeadline(time.Unix(1, 0))
	}
	poll := m.waiting > 0 && !m.closed
	switch {
	case poll && m.stopPoll == nil:
		ctx, cancel := context.WithCancel(context.Background())
		m.stopPoll = cancel
		every := m.s.opts.poll
		if m.conn == nil {
			every = pollDeaf
		}
		go m.s.poll(ctx, every)
	case !poll && m.stopPoll != nil:
		m.stopPoll()
		m.stopPoll = nil
	}
}

func (m *mailbox) read(conn *net.UnixConn) {
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			m.mu.Lock()
			if m.watching == 0 || m.closed || !errors.Is(err, os.ErrDeadlineExceeded) {
				m.reading = false
				m.mu.Unlock()
				return
			}
			conn.SetReadDeadline(time.Time{}) // a claim is watched again
			m.mu.Unlock()
			continue
		}
		var l letter
		if json.Unmarshal(buf[:n], &l) != nil {
			continue
		}
		var h driver.Hint
		if l.Token > 0 && l.TTL > 0 {
			ttl := min(time.Duration(l.TTL)*time.Microsecond, driver.ClaimTTL)
			h = driver.Hint{Granted: true, Grant: driver.Grant{Token: l.Token, Ticket: l.Token, TTL: ttl}}
		}
		m.s.watchers.Deliver(l.Key, l.ID, h)
	}
}

// tell sends the hints of a commit. Those for this process are calls.
func (s *Store) tell(fx sqlstore.Effects) {
	for _, g := range fx.Granted {
		if s.watchers.Deliver(g.Key, g.ID, g.Hint()) {
			continue
		}
		s.mail.send(g.Node, letter{Key: g.Key, ID: g.ID, Token: g.Token, TTL: g.TTL.Microseconds()})
	}
	for _, b := range fx.Broken {
		if s.watchers.Deliver(b.Key, b.ID, driver.Hint{}) {
			continue
		}
		s.mail.send(b.Node, letter{Key: b.Key, ID: b.ID})
	}
}

// send never waits: the owner of a full mailbox has enough hints to read.
func (m *mailbox) send(to string, l letter) {
	if to == "" || to == m.name || to != filepath.Base(to) || !strings.HasSuffix(to, ".sock") {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	text, err := json.Marshal(l)
	if err != nil {
		return
	}
	at, done, err := reach(m.dir, to)
	if err != nil {
		return
	}
	defer done()
	if err := sendTo(at, text); errors.Is(err, syscall.ECONNREFUSED) {
		removeFrom(m.dir, to) // its process has ended
	}
}

func (m *mailbox) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.adjust()
	if m.conn != nil {
		m.conn.Close()
		removeFrom(m.dir, m.name)
	}
}

// poll looks, while this process has waiters, whether another process has committed, and
// then whether one of the positions was granted.
func (s *Store) poll(ctx context.Context, every time.Duration) {
	conn, err := s.readers.Conn(ctx)
	if err != nil {
		return // the waiters still renew by themselves
	}
	defer conn.Close()
	var seen int64 = -1
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var version int64
		if err := conn.QueryRowContext(ctx, "PRAGMA data_version").Scan(&version); err != nil {
			continue
		}
		if version == seen {
			continue
		}
		granted, err := s.granted(ctx, conn, s.watchers.Positions())
		if err != nil {
			continue
		}
		seen = version
		for _, g := range granted {
			s.watchers.Deliver(g.Key, g.ID, g.Hint())
		}
	}
}

// Watch implements driver.Watcher. Within the process a hint is a call; from another
// process it is a datagram. Polling finds a lost hint after at most 50 milliseconds.
func (s *Store) Watch(c driver.Claim, wake func(driver.Hint)) (stop func()) {
	return s.watchers.Watch(c, wake)
}
