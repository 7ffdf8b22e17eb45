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
	// writeTimeout is how long a write to a client that does not read may take.
	writeTimeout = time.Second

	// grace is how long a session at least keeps its locks after the agent has ended it,
	// unless the client closes the connection earlier. The client needs that time to read
	// the last line and to stop.
	grace = 250 * time.Millisecond
)

// Config bounds what clients may do. The zero Config is ready to use.
type Config struct {
	// MaxHold ends the session of a client that holds a lock for this time. A request may
	// ask for less. Defaults to 0, no bound.
	MaxHold time.Duration

	// MaxSessions is the largest number of sessions. Defaults to 10000.
	MaxSessions int

	// MaxUserSessions is the largest number of sessions of one user of the host, so that
	// one user cannot lock out the others. Defaults to half of MaxSessions.
	MaxUserSessions int

	// MaxLocks is the largest number of locks that one session may hold and wait for. A
	// lock of several keys counts once per key. It is also the largest number of its
	// reservations. Defaults to 1000.
	MaxLocks int

	// MaxUserLocks is the largest number of locks that one user may hold and wait for, in
	// all sessions. Defaults to 20000.
	MaxUserLocks int

	// Users are the numbers of the users whose processes get a session. The socket's mode
	// decides who can connect at all. Defaults to nil: all users.
	Users []uint32

	// Caller returns what a user may do. It is called at the beginning of a session and
	// again for each request, so its answer may change: see Server.Recheck. uid is -1
	// where the system does not tell the user. The client is told the error. Several
	// goroutines call it. Defaults to nil: all may do everything.
	Caller func(uid int64) (Caller, error)

	// Limits answers take. Defaults to none: take is refused as unsupported.
	Limits *rules.Limiter

	// Once runs operations. Defaults to none: once is refused as unsupported.
	Once *once.Runner

	// Logger gets refused clients, denials, cut-off clients and failures of the listener
	// as warnings, and sessions at the debug level. "caller" is the user, if it is known.
	// Clients can cause any number of warnings, and all wait while one is written: bound
	// the number, and the time to write. Defaults to silence.
	Logger *slog.Logger
}

// A Caller is what one user may do. Its methods must be safe for concurrent use.
type Caller interface {
	// Name returns a name for logs.
	Name() string

	// May returns nil if the caller may do what verb says with a key, and else an error
	// for the client. The verbs are:
	//
	// "lock", for locks of every kind and elections; "list", for who and watch: key is
	// then the prefix of all keys that are shown; "limit", for take, and "giveback" as
	// well for a cost below zero; "once", for operations.
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

// user counts what the sessions of one user have together.
type user struct {
	id       int64 // -1: the system does not tell
	sessions int   // guarded by Server.mu
	locks    atomic.Int64
	watches  atomic.Int64
	asks     atomic.Int64 // requests to the store that take no lock
}

// LogValue names the user as a file of roles does.
func (u *user) LogValue() slog.Value { return slog.StringValue(fmt.Sprintf("uid:%d", u.id)) }

// New makes a Server. All its clients lock through locks, with its TTL, its owner unless a
// request names a value, and its local queues. The caller closes the store when Serve has
// returned. The error is a *ConfigError.
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
// closes l, tells all clients, and waits a quarter of a second for them to close their
// connections. It returns when their locks are released, or, if the store does not answer,
// after the time that baton.Lease.Unlock takes; such locks expire.
//
// If a client has not closed its connection and was promised its lock for longer, Serve
// leaves that lock in the store until it expires. If the store would free it with the
// agent (driver.Traits.Sessions), Serve returns when the promised time is over.
//
// The error is nil if ctx has ended. A Server serves once: another call of Serve fails.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if s.served.Swap(true) {
		return errors.New("agent: the server has served before: make another one")
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // makes Accept return
	defer stop()
	err := s.accept(ctx, l)
	_ = l.Close() // closed or failed
	s.stop()
	s.ended.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("agent: the listener has ended: %w", err)
}

// accept accepts connections until the listener is closed. Other errors, such as a lack of
// file descriptors, pass: accept tries again, for the sake of the present sessions.
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

// welcome starts a session for a connection, or refuses it.
func (s *Server) welcome(conn net.Conn) {
	p := peerOf(conn)
	c, refused := s.admit(conn, p)
	if refused == nil {
		go c.serve()
		return
	}
	s.cfg.Logger.Warn("a client was refused", "peer", p, "error", refused.Error, "reason", refused.Message)
	_ = conn.SetWriteDeadline(time.Now().Add(grace)) // the buffer of a new connection has space for a line
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

// caller returns what the user of a session may do; nil: everything.
func (s *Server) caller(p peer) (Caller, error) {
	if s.cfg.Caller == nil {
		return nil, nil
	}
	return s.cfg.Caller(p.uid)
}

// may returns an error if the user of a session may not do what verb says with a key.
func (s *Server) may(p peer, verb, key string) error {
	of, err := s.caller(p)
	if of == nil || err != nil {
		return err
	}
	return of.May(verb, key)
}

// Recheck ends sessions after a change of the roles: those of users whom Config.Caller
// refuses now, and those with a lock, held or waited for, that the user may not have any
// more. The client is told, and its locks are released as after a loss.
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

// forget removes a session that has no locks left.
func (s *Server) forget(c *session) {
	s.mu.Lock()
	delete(s.sessions, c)
	if c.user.sessions--; c.user.sessions == 0 {
		delete(s.users, c.user.id)
	}
	s.mu.Unlock()
	s.ended.Done()
}

// stop ends all sessions, and refuses new ones.
func (s *Server) stop() {
	s.mu.Lock()
	s.stopping = true
	open := make([]*session, 0, len(s.sessions))
	for c := range s.sessions {
		open = append(open, c)
	}
	s.mu.Unlock()
	last := &answer{Error: codeClosing, Message: "the agent is being stopped"}
	// All sessions are shut before any client is told: otherwise a lock that a client
	// gives back could be granted to a waiter whose session is about to end.
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
