package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/contended"
	"github.com/batonhq/baton/internal/quorum"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// Store keeps locks, rate limits and records of operations in Redis. It implements
// driver.Store, limits.Store, driver.Records, driver.Watcher, driver.Inspector,
// driver.Downgrader, driver.Mover, driver.Renamer, driver.Together, driver.Examiner,
// driver.Clock and quorum.Member. Use New or Open.
type Store struct {
	client     wire.Client
	owned      bool // the client is ours to close
	names      *names
	channel    string // of this process
	everyone   string // of all processes
	clock      serverClock
	busy       contended.Keys // keys lately found held: they skip the first attempt
	pushes     pushes
	unresolved unresolved
	life       *life
	batcher    batcher
	limits     knownLimits

	decisions batcher // those that simple.lua makes
	closed    atomic.Bool
	server    *Server // what Open connected to; nil with a client of the caller's
	links     *links  // likewise
}

var (
	_ driver.Store      = (*Store)(nil)
	_ driver.Watcher    = (*Store)(nil)
	_ driver.Inspector  = (*Store)(nil)
	_ driver.Downgrader = (*Store)(nil)
	_ driver.Mover      = (*Store)(nil)
	_ driver.Renamer    = (*Store)(nil)
	_ driver.Together   = (*Store)(nil)
	_ quorum.Member     = (*Store)(nil)
	_ driver.Examiner   = (*Store)(nil)
	_ driver.Clock      = (*Store)(nil)
	_ limits.Store      = (*Store)(nil)
)

var traits = driver.Traits{
	Store:     "redis",
	Fencing:   true,
	FIFO:      true,
	Shared:    true,
	Permits:   true,
	Failover:  true,
	Processes: true,
	Machines:  true,
	MinTTL:    100 * time.Millisecond,
	MaxTTL:    24 * time.Hour,
}

// Traits says what the store promises.
func (s *Store) Traits() driver.Traits { return traits }

// Config says how a store works. The zero value is fine.
type Config struct {
	// Prefix stands before the name of every key that the store uses. Defaults to
	// none, so that a lock's name on the server is its key. A prefix may contain
	// braces only as a complete hash tag: "{app}:" puts all locks on one slot of a
	// Cluster. It may not contain "baton:".
	//
	// All programs that share a lock must use the same prefix. Prefix "app:" with key
	// "k" and no prefix with key "app:k" name one lock, and exclude each other. But the
	// counter and the queue lie below the prefix: tokens do not rise from a holder with
	// one prefix to a holder with the other, and programs with one prefix overtake the
	// waiters with the other.
	Prefix string

	// AllowEviction accepts a server that may evict keys when its memory is full. A
	// lock that is evicted is free while its holder still believes in it. Defaults to
	// refusing such a server, with an *EvictionError.
	AllowEviction bool
}

// EvictionError refuses a server that would throw away locks when its memory
// is full.
type EvictionError struct {
	Policy string // maxmemory-policy
}

// Finding implements driver.Refusal.
func (e *EvictionError) Finding() (driver.Finding, bool) { return evicts(e.Policy), true }

func (e *EvictionError) Error() string {
	return fmt.Sprintf("redis evicts keys when its memory is full (maxmemory-policy %s), locks among them: "+
		"set maxmemory-policy noeviction there, or allow it explicitly", e.Policy)
}

// ReplicaError refuses a server that is a replica: it accepts no locks, and
// what it shows is old.
type ReplicaError struct {
	Primary string // its address, if the server tells
}

// Finding implements driver.Refusal.
func (e *ReplicaError) Finding() (driver.Finding, bool) { return replica(e.Primary), true }

func (e *ReplicaError) Error() string {
	s := "redis server is a replica, which cannot grant locks: connect to its primary"
	if e.Primary != "" {
		s += " at " + e.Primary
	}
	return s + ", or through Sentinel"
}

// VersionError refuses a server that is too old.
type VersionError struct {
	Version string
}

// Finding implements driver.Refusal.
func (e *VersionError) Finding() (driver.Finding, bool) { return version(e.Version) }

func (e *VersionError) Error() string {
	return fmt.Sprintf("redis server is version %s, at least 6.2 is needed", e.Version)
}

// checkTimeout bounds what New asks the server.
const checkTimeout = 5 * time.Second

// New returns a store over the caller's client, which Close leaves open. The store
// works in the client's mode: single server, Sentinel or Cluster.
//
// The client may have several connections, on which a later request could overtake an
// attempt for the same lock that was abandoned. So the store holds the later request
// back until the attempt is answered. That costs a goroutine for each request whose
// context can end, which Open's client spares. Nor does the client tell when it
// connects again: as a node of a Redlock, the store asks the server after each grant
// whether it has restarted, in one more round trip.
//
// When a NAT or a load balancer has forgotten a connection, rueidis waits eleven
// seconds for an answer on it before it makes another one, and five seconds for a new
// connection. Meanwhile no lease is renewed. Set ClientOption.ConnWriteTimeout to two
// seconds and Dialer.Timeout to one. The store obeys contexts in any case.
//
// It asks the server for its version, role and eviction policy, and fails with
// *VersionError, *ReplicaError or *EvictionError if locks would not be safe
// there, with driver.ErrUnavailable if it does not answer within five seconds.
func New(client rueidis.Client, cfg Config) (*Store, error) {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	return newStore(ctx, ruClient{c: client, order: &wire.Order{}, apart: new(atomic.Bool)}, false, newLife(false), cfg)
}

// Adapt is New for another client. It is for the adapters in this module, such as
// goredis.New.
func Adapt(ctx context.Context, client wire.Client, cfg Config) (*Store, error) {
	return newStore(ctx, client, false, newLife(false), cfg)
}

func newStore(ctx context.Context, client wire.Client, owned bool, l *life, cfg Config) (*Store, error) {
	n, err := newNames(cfg.Prefix, client.Cluster())
	if err != nil {
		return nil, err
	}
	s := &Store{
		client:   client,
		life:     l,
		owned:    owned,
		names:    n,
		channel:  n.own + strings.ToLower(rand.Text()[:13]),
		everyone: n.own + "everyone",
	}
	s.pushes.open = s.subscribe
	s.batcher.off, s.batcher.one, s.batcher.many = n.cluster, s.single, s.several
	s.decisions.off, s.decisions.one, s.decisions.many = n.cluster, s.decideOne, s.decideSeveral
	s.clock.start()
	err = client.Primaries(ctx, func(n wire.Node) error { return s.check(ctx, n, cfg) })
	switch err.(type) {
	case nil:
		return s, nil
	case *EvictionError, *ReplicaError, *VersionError:
		return nil, err
	}
	return nil, unavailable(err) // nothing was changed
}

// check looks whether locks are safe on a server.
func (s *Store) check(ctx context.Context, n wire.Node, cfg Config) error {
	if _, err := n.Do(ctx, "PING"); err != nil {
		return err
	}
	if t, err := n.Do(ctx, "TIME"); err == nil {
		if list, ok := t.([]any); ok && len(list) == 2 {
			s.clock.observe(1_000_000*number(list[0]) + number(list[1]))
		}
	} else if !denied(err) {
		return err
	}
	info, err := serverInfo(ctx, n)
	if err != nil {
		return err
	}
	if v := info["redis_version"]; v != "" && olderThan(v, 6, 2) {
		return &VersionError{v}
	}
	if info["role"] == "slave" && !s.client.FollowsPrimary() {
		e := &ReplicaError{}
		if host := info["master_host"]; host != "" {
			e.Primary = host + ":" + info["master_port"]
		}
		return e
	}
	if p := info["maxmemory_policy"]; p != "" && p != "noeviction" && !cfg.AllowEviction {
		return &EvictionError{p}
	}
	return nil
}

// serverInfo reads INFO. A server that hides it from us is accepted without these
// checks.
func serverInfo(ctx context.Context, n wire.Node) (map[string]string, error) {
	v, err := n.Do(ctx, "INFO")
	if err != nil {
		if denied(err) {
			return map[string]string{}, nil
		}
		return nil, err
	}
	return lines(text(v)), nil
}

// denied reports whether the server lives but does not let us run a command.
func denied(err error) bool {
	e, ok := errors.AsType[*wire.ServerError](err)
	return ok && (e.Code() == "NOPERM" || e.Code() == "ERR")
}

func olderThan(version string, major, minor int) bool {
	a, rest, _ := strings.Cut(version, ".")
	b, _, _ := strings.Cut(rest, ".")
	x, err := strconv.Atoi(a)
	if err != nil {
		return false
	}
	y, _ := strconv.Atoi(b)
	return x < major || x == major && y < minor
}

// Close ends the store. Locks that are held stay until they expire. Close closes the
// client only if Open made it, and gives calls under way a second to be answered.
// Further calls fail with driver.ErrClosed.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	if s.links != nil {
		last := time.AfterFunc(time.Second, s.links.close)
		defer func() {
			last.Stop()
			s.links.close()
		}()
	}
	s.pushes.close()
	s.unresolved.close()
	if s.owned {
		s.client.Close()
	}
	return nil
}

// serverClock estimates the server's time, to be shown to people and for
// nothing else.
type serverClock struct {
	begin  time.Time
	offset atomic.Int64 // server time at begin, ms
}

func (c *serverClock) start() {
	c.begin = time.Now()
	c.offset.Store(c.begin.UnixMilli())
}

// observe learns from a number that the server drew from its clock, in µs. As
// these may be 140 ms slow, a small difference says nothing.
func (c *serverClock) observe(micros int64) {
	offset := micros/1000 - time.Since(c.begin).Milliseconds()
	if d := offset - c.offset.Load(); d > 500 || d < -500 {
		c.offset.Store(offset)
	}
}

func (c *serverClock) millis() int64 { return c.offset.Load() + time.Since(c.begin).Milliseconds() }

// number reads an integer that Redis may answer as text.
func number(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case string:
		n, _ := strconv.ParseInt(v, 10, 64)
		return n
	}
	return 0
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}
