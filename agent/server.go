package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/lockfeed"
	"github.com/batonhq/baton/internal/quick"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit/rules"
)

const (
	// writeTimeout is how long the agent tries to write to a client that does not read.
	writeTimeout = time.Second

	// grace is how long a session at least keeps its locks after the agent has ended it,
	// unless the client closes the connection before. The client needs that time to read
	// it and to stop.
	grace = 250 * time.Millisecond
)

// Config says what clients may do. The zero Config is ready to use.
type Config struct {
	// MaxHold ends the session of a client that has a lock for this time; a request may
	// ask for less. Defaults to 0, no limit.
	MaxHold time.Duration

	// MaxSessions is how many sessions there may be at a time. Defaults to 10000.
	MaxSessions int

	// MaxUserSessions is how many of them one user of the host may have, so that one
	// cannot keep out the others. Defaults to half of MaxSessions.
	MaxUserSessions int

	// MaxLocks is how many locks one session may hold and wait for; a lock of several
	// keys counts as many. Defaults to 1000.
	MaxLocks int

	// MaxUserLocks is how many locks one user may hold and wait for, in all sessions.
	// Defaults to 20000.
	MaxUserLocks int

	// Users are the users, by number, whose processes may connect. Who can connect at all
	// is the matter of the socket's mode. Defaults to all.
	Users []uint32

	// Caller finds what a user may do, at the beginning of a session, and again for each
	// request: its answer may change, see Server.Recheck. The user is -1 where the system
	// does not tell. The error is for the client. It is called from several goroutines.
	// Defaults to nil: all may do everything.
	Caller func(uid int64) (Caller, error)

	// Limits decide about take. Defaults to none: a take is refused as unsupported.
	Limits *rules.Limiter

	// Once runs the operations of once. Defaults to none: a once is refused as unsupported.
	Once *once.Runner

	// Logger gets denials and cut-off clients as warnings, with "caller" if that is known,
	// and sessions at the debug level. Clients can cause as many warnings as they like, and
	// all wait while one is written: bound their number, and the time. Defaults to silence.
	Logger *slog.Logger
}

// A Caller is what one user may do. Its methods are safe for concurrent use.
type Caller interface {
	// Name is who it is, for logs.
	Name() string

	// May returns nil if the caller may do what verb says with a key, else an error that
	// tells the client so. Verbs are "lock", for locks of every kind and elections; "list",
	// for who and watch, where the key is the beginning of all keys that are asked for; "limit", for
	// take, and "giveback" beside it for a cost below zero; and "once".
	May(verb, key string) error
}

// A ConfigError says which field of a Config makes no sense.
type ConfigError struct {
	Field, Reason string
}

func (e *ConfigError) Error() string { return "agent: config: " + e.Field + " " + e.Reason }

func (c *Config) complete() error {
	if c.MaxHold < 0 {
		return &ConfigError{"MaxHold", fmt.Sprintf("is %v, negative", c.MaxHold)}
	}
	for _, f := range []struct {
		name  string
		value int
	}{{"MaxSessions", c.MaxSessions}, {"MaxUserSessions", c.MaxUserSessions}, {"MaxLocks", c.MaxLocks}, {"MaxUserLocks", c.MaxUserLocks}} {
		if f.value < 0 {
			return &ConfigError{f.name, fmt.Sprintf("is %d, negative", f.value)}
		}
	}
	c.MaxSessions = cmp.Or(c.MaxSessions, 10_000)
	c.MaxUserSessions = cmp.Or(c.MaxUserSessions, (c.MaxSessions+1)/2)
	c.MaxLocks = cmp.Or(c.MaxLocks, 1000)
	c.MaxUserLocks = cmp.Or(c.MaxUserLocks, 20_000)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// A Server answers the clients of one host. All methods are safe for concurrent use.
type Server struct {
	locks *baton.Locker
	looks *lockfeed.Feeds
	cfg   Config
	table table
	hello []byte

	served atomic.Bool

	mu       sync.Mutex
	sessions map[*session]struct{}
	users    map[int64]*user
	stopping bool
	ended    sync.WaitGroup // the sessions
}

// user is what the sessions of one user of the host have together.
type user struct {
	id       int64 // -1: the system does not tell
	sessions int   // guarded by Server.mu
	locks    atomic.Int64
	watches  atomic.Int64
	asks     atomic.Int64 // requests to the store that hold nothing
}

// LogValue names the user as a file of roles does.
func (u *user) LogValue() slog.Value { return slog.StringValue(fmt.Sprintf("uid:%d", u.id)) }

// New makes a Server. All its clients lock through locks: its TTL, its owner, and its
// place in the queues are theirs. The caller closes the store when Serve has returned.
func New(locks *baton.Locker, cfg Config) (*Server, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return &Server{
		locks: locks, looks: lockfeed.New(locks.List), cfg: cfg,
		table:    table{keys: make(map[string][]*lock)},
		hello:    line(answer{OK: true, V: Version, Store: locks.Traits().Store}),
		sessions: make(map[*session]struct{}),
		users:    make(map[int64]*user),
	}, nil
}

// Serve answers the clients that connect to l, until ctx ends or l is closed. Then it
// closes l, tells all clients, waits a quarter of a second for them to close their
// connections, and returns when their locks are released, or, if the store does not
// answer, after the time that baton.Lease.Unlock takes. What is not released then expires
// in the store. So does the lock of a client that has not closed its connection and was
// told that it has the lock for longer; if the store would free it with the agent
// (driver.Traits.Sessions), Serve returns when that time is over.
//
// The error is nil if ctx has ended. A Server serves once: Serve fails if it was called
// before.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if s.served.Swap(true) {
		return errors.New("agent: the server has served before: make another one")
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // ends Accept
	defer stop()
	err := s.accept(ctx, l)
	_ = l.Close() // it was closed, or it has failed
	s.stop()
	s.ended.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("agent: the listener has ended: %w", err)
}

// accept takes connections until the listener is closed. What else goes wrong, such as a
// lack of file descriptors, passes, and the sessions that there are need the agent.
func (s *Server) accept(ctx context.Context, l net.Listener) error {
	const shortest, longest = 5 * time.Millisecond, time.Second
	pause := shortest
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			pause = shortest
			s.welcome(conn)
			continue
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return err
		}
		s.cfg.Logger.Warn("no new client could be accepted, will try again", "error", err, "in", pause)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause = min(2*pause, longest)
	}
}

// welcome makes a session of a connection, or refuses it.
func (s *Server) welcome(conn net.Conn) {
	p := peerOf(conn)
	c, refused := s.admit(conn, p)
	if refused == nil {
		go c.serve()
		return
	}
	s.cfg.Logger.Warn("a client was refused", "peer", p, "error", refused.Error, "reason", refused.Message)
	_ = conn.SetWriteDeadline(time.Now().Add(grace)) // a new connection has room for a line
	_, _ = conn.Write(line(refused))
	_ = conn.Close()
}

func (s *Server) admit(conn net.Conn, p peer) (*session, *answer) {
	if !s.allows(p) {
		return nil, &answer{Error: codeDenied, Message: fmt.Sprintf("user %d may not use this agent", p.uid)}
	}
	if _, err := s.caller(p); err != nil {
		return nil, &answer{Error: codeDenied, Message: driver.Printable(err.Error())}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.users[p.uid]
	switch {
	case s.stopping:
		return nil, &answer{Error: codeClosing, Message: "the agent is being stopped"}
	case len(s.sessions) >= s.cfg.MaxSessions:
		return nil, &answer{Error: codeBusy, Message: fmt.Sprintf("this agent has %d sessions, as many as it is allowed", s.cfg.MaxSessions)}
	case u != nil && u.sessions >= s.cfg.MaxUserSessions:
		return nil, &answer{Error: codeBusy, Message: fmt.Sprintf("user %d has %d sessions at this agent, as many as a user is allowed", p.uid, s.cfg.MaxUserSessions)}
	case u == nil:
		u = &user{id: p.uid}
		s.users[p.uid] = u
	}
	u.sessions++
	c := &session{server: s, conn: quick.Conn(conn), peer: p, user: u, locks: make(map[int64]*lock)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	s.sessions[c] = struct{}{}
	s.ended.Add(1)
	return c, nil
}

func (s *Server) allows(p peer) bool {
	if s.cfg.Users == nil {
		return true
	}
	for _, uid := range s.cfg.Users {
		if int64(uid) == p.uid {
			return true
		}
	}
	return false
}

// caller finds what the user of a session may do. It is nil if that is everything.
func (s *Server) caller(p peer) (Caller, error) {
	if s.cfg.Caller == nil {
		return nil, nil
	}
	return s.cfg.Caller(p.uid)
}

// may says whether the user of a session may do what verb says with a key.
func (s *Server) may(p peer, verb, key string) error {
	of, err := s.caller(p)
	if of == nil || err != nil {
		return err
	}
	return of.May(verb, key)
}

// Recheck ends the sessions of users who, by Config.Caller, are unknown now, or may not
// have a lock any more that they hold or wait for. The client is told, and its locks are
// released as after a loss. Call it when the roles have changed.
func (s *Server) Recheck() {
	s.mu.Lock()
	open := make([]*session, 0, len(s.sessions))
	for c := range s.sessions {
		open = append(open, c)
	}
	s.mu.Unlock()
	for _, c := range open {
		if err := c.recheck(); err != nil {
			s.cfg.Logger.Warn("a session is ended: the roles have changed", "caller", c.user, "peer", c.peer, "reason", err)
			go c.end(&answer{Error: codeDenied, Message: driver.Printable(err.Error())}) // a client that does not read must not delay others
		}
	}
}

// forget is called at the end of a session, when it has no locks any more.
func (s *Server) forget(c *session) {
	s.mu.Lock()
	delete(s.sessions, c)
	if c.user.sessions--; c.user.sessions == 0 {
		delete(s.users, c.user.id)
	}
	s.mu.Unlock()
	s.ended.Done()
}

// stop ends all sessions, and lets none begin.
func (s *Server) stop() {
	s.mu.Lock()
	s.stopping = true
	open := make([]*session, 0, len(s.sessions))
	for c := range s.sessions {
		open = append(open, c)
	}
	s.mu.Unlock()
	last := &answer{Error: codeClosing, Message: "the agent is being stopped"}
	// All are shut before one is told: the lock that a client gives back then would be granted
	// to a waiter of a session that is about to end.
	var shut []*session
	for _, c := range open {
		if c.shut(last) {
			shut = append(shut, c)
		}
	}
	for _, c := range shut {
		go c.tell(last) // a client that does not read must not delay others
	}
}
