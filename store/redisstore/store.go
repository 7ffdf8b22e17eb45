package redisstore

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/contended"
	"github.com/batonhq/baton/internal/findings"
	"github.com/batonhq/baton/internal/kept"
	"github.com/batonhq/baton/internal/quorum"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// Store keeps locks, rate limits and records of operations in Redis. It implements
// driver.Store with all abilities of package driver, limits.Store, limits.Lister,
// limits.Overrider, and quorum.Member. Use New or Open.
type Store struct {
	records
	overrides

	client     wire.Client
	owned      bool // Close closes the client
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
	replicas   replicas

	decisions batcher // for simple.lua
	closed    atomic.Bool
	server    *Server // the server that Open connected to; nil with a client of the caller's
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

// Traits implements driver.Locks.
func (s *Store) Traits() driver.Traits { return traits }

// Config says how a store works. The zero Config is ready to use.
type Config struct {
	// Prefix begins the name of every key of the store. Defaults to none, so that a
	// lock's name on the server is its key. It may contain braces only as a complete hash
	// tag: "{app}:" puts all locks on one slot of a Cluster. It may not contain "baton:".
	//
	// All programs that share a lock must use the same prefix. Prefix "app:" with key "k"
	// and no prefix with key "app:k" name one lock, and exclude each other. But the
	// counter and the queue depend on the prefix: tokens do not rise from a holder with
	// one prefix to a holder with the other, and programs with one prefix overtake
	// waiters with the other.
	Prefix string

	// AllowEviction accepts a server that may evict keys when its memory is full. An
	// evicted lock is free while a process still considers itself its holder. By default
	// New refuses such a server with an *EvictionError.
	AllowEviction bool

	// Replicas is how many replicas must have acknowledged a grant, a renewal, a move or
	// a downgrade before it counts, so that a promoted replica knows it. If too few do so
	// in time, a grant fails with a *ReplicasError, and a lease that could not be renewed
	// ends at its old end. Each such call costs a round trip from the primary to its
	// replicas. AllReplicas needs Cluster, or Sentinel with a store that Open made.
	// Limits and records do not wait. Defaults to NoReplicas.
	Replicas Replicas
}

// checkTimeout bounds the checks of New.
const checkTimeout = 5 * time.Second

// New returns a store over a go-redis client of the program: a *redis.Client, alone or
// behind Sentinel (NewFailoverClient), or a *redis.ClusterClient. The client stays the
// caller's: Close leaves it open. Hooks of the client see the store's commands, also
// hooks that are added later. Package rueidisstore takes a client of rueidis.
//
// Two settings do not apply to the store's commands. Scripts are never sent again after a
// network error, for any MaxRetries, because the first one may have taken effect.
// Deadlines of contexts are obeyed without ContextTimeoutEnabled.
//
// ReadTimeout is how long the client waits on a silent connection, and DialTimeout how
// long for a new one: two seconds and one second leave time to renew a lease. Examine
// warns of a ReadTimeout of more than five seconds, or none. If a context is cancelled
// while a server falls silent, the call ends within ReadTimeout, and so may Unlock; later
// calls end at once. A call costs a goroutine if its deadline is sooner than ReadTimeout,
// without ContextTimeoutEnabled, or if ReadTimeout is more than five seconds. Dialer
// makes the client a little faster.
//
// The client does not tell when it reconnects: in a Redlock, the store asks the server
// after each grant whether it has restarted, in one more round trip.
//
// New asks the server for its version, role and eviction policy. It fails with
// *VersionError, *ReplicaError or *EvictionError if locks would not be safe there, and
// with driver.ErrUnavailable if the server does not answer within five seconds.
func New(client redis.UniversalClient, cfg Config) (*Store, error) {
	c, err := over(client)
	if err != nil {
		return nil, err
	}
	return Adapt(c, cfg)
}

// Adapt is New for another client. It is for the adapters in this module, such as package
// rueidisstore.
func Adapt(client wire.Client, cfg Config) (*Store, error) {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	s, err := newStore(ctx, client, false, newLife(false), cfg)
	if err != nil {
		return nil, err
	}
	return s, s.follow(ctx, nil, cfg.Replicas)
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
	texts := kept.Texts{Store: traits.Store, Swap: s.swapText, List: s.listTexts}
	s.records, s.overrides = kept.NewRecords(texts), kept.NewOverrides(texts)
	s.pushes.open = s.subscribe
	s.batcher.off, s.batcher.one, s.batcher.many = n.cluster, s.single, s.several
	s.decisions.off, s.decisions.one, s.decisions.many = n.cluster, s.decideOne, s.decideSeveral
	s.decisions.far = true // decisions are short: with fewer calls, 64 goroutines lose a tenth
	s.clock.start()
	err = client.Primaries(ctx, func(n wire.Node) error { return s.check(ctx, n, cfg) })
	switch err.(type) {
	case nil:
		return s, nil
	case *EvictionError, *ReplicaError, *VersionError:
		return nil, err
	}
	return nil, opening(err)
}

// check checks that locks are safe on a server.
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
	if v := info["redis_version"]; findings.Older(v, 6, 2) {
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

// serverInfo reads INFO. A server that denies it is accepted without these checks.
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

// denied reports whether the server has answered that the user may not run a command.
func denied(err error) bool {
	e, ok := errors.AsType[*wire.ServerError](err)
	return ok && (e.Code() == "NOPERM" || e.Code() == "ERR")
}

// Close ends the store. Locks that are held stay until they expire. Close closes the
// client only if Open made it, and gives calls under way a second to be answered. Later
// calls fail with driver.ErrClosed.
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
	s.replicas.close()
	if s.owned {
		s.client.Close()
	}
	return nil
}

// serverClock estimates the server's time, only for people.
type serverClock struct {
	begin  time.Time
	offset atomic.Int64 // server time at begin, ms
}

func (c *serverClock) start() {
	c.begin = time.Now()
	c.offset.Store(c.begin.UnixMilli())
}

// observe learns from a number that the server drew from its clock, in µs. The number may
// be 140 ms slow, so a small difference means nothing.
func (c *serverClock) observe(micros int64) {
	offset := micros/1000 - time.Since(c.begin).Milliseconds()
	if d := offset - c.offset.Load(); d > 500 || d < -500 {
		c.offset.Store(offset)
	}
}

func (c *serverClock) millis() int64 { return c.offset.Load() + time.Since(c.begin).Milliseconds() }

// Server is the address of Redis, for Open.
type Server struct {
	// Addrs are host:port pairs: of the server, of the Sentinels, or of some nodes of the
	// Cluster. For a single server it may be the absolute path of its unix socket.
	Addrs []string

	// Master is the Sentinels' name of the primary. Defaults to none: Addrs are servers.
	Master string

	// Cluster says that Addrs are nodes of a Redis Cluster. Defaults to a single server.
	Cluster bool

	// DB is the number of the database; Cluster has only 0. Defaults to 0.
	DB int

	// Username and Password log in to the servers; SentinelUsername and
	// SentinelPassword to the Sentinels. Default to none.
	Username, Password                 string
	SentinelUsername, SentinelPassword string

	// TLS encrypts the connections to servers and Sentinels. Without a ServerName, the
	// name in each address is verified. Defaults to plain TCP.
	TLS *tls.Config
}

// Open connects to Redis and returns a store whose Close closes the connections. The
// store gives up a connection that is silent for two seconds and makes another one, which
// has one second to answer; both times are longer if answers usually take long. So leases
// of ten seconds and more survive a NAT or a load balancer that forgets the store's
// connections.
//
// A call ends with the deadline of its context. If a context is cancelled while the
// server falls silent, the call ends when its connection is given up, within two seconds;
// later calls end at once.
//
// Besides the errors of New it fails with driver.ErrUnavailable if there is no
// connection; ctx bounds how long it tries. go-redis writes news of Sentinels, and lost
// connections in use, to standard error, unless redis.SetLogger says otherwise.
func Open(ctx context.Context, at Server, cfg Config) (*Store, error) {
	return open(ctx, at, newLinks(at), cfg)
}

func open(ctx context.Context, at Server, links *links, cfg Config) (*Store, error) {
	switch {
	case len(at.Addrs) == 0:
		return nil, errors.New("redis: no address")
	case at.Cluster && at.Master != "":
		return nil, errors.New("redis: both Cluster and a Sentinel's master: choose one")
	case at.Cluster && at.DB != 0:
		return nil, errors.New("redis: Cluster has no database but 0")
	case !at.Cluster && at.Master == "" && len(at.Addrs) > 1:
		return nil, errors.New("redis: several addresses are for Sentinel or Cluster: say which")
	}
	c, err := over(links.client(at))
	if err != nil {
		return nil, err
	}
	c.links, c.dated, c.silence = links, true, answerPatience
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	s, err := newStore(ctx, c, true, links.born, cfg)
	if err == nil {
		err = s.follow(ctx, &at, cfg.Replicas)
	}
	if err != nil {
		links.close()
		_ = c.UniversalClient.Close()
		return nil, err
	}
	s.server, s.links = &at, links
	return s, nil
}

func (ls *links) client(at Server) redis.UniversalClient {
	o := redis.UniversalOptions{
		Addrs:            at.Addrs,
		MasterName:       at.Master,
		IsClusterMode:    at.Cluster,
		DB:               at.DB,
		Username:         at.Username,
		Password:         at.Password,
		SentinelUsername: at.SentinelUsername,
		SentinelPassword: at.SentinelPassword,

		Dialer:    ls.connect,
		OnConnect: ls.identify(""),

		// links has the timeouts. The client must not repeat what links gives up.
		ContextTimeoutEnabled: true,
		DialTimeout:           mostDial,
		DialerRetries:         1,
		ReadTimeout:           mostAnswer,
		WriteTimeout:          answerPatience,
		PoolTimeout:           checkTimeout,
		MaxRetries:            -1,

		PoolSize:         64,
		PipelinePoolSize: -1,
		// Locks are small.
		ReadBufferSize:  1 << 13,
		WriteBufferSize: 1 << 13,

		// Subscriptions have connections of their own, and no answer is cached.
		Protocol:                 2,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	switch {
	case at.Cluster:
		cluster := o.Cluster()
		cluster.MaxRedirects = 3
		cluster.DisableRoutingPolicies = true
		cluster.NewClient = func(node *redis.Options) *redis.Client {
			node.OnConnect = ls.identify(node.Addr)
			return redis.NewClient(node)
		}
		return redis.NewClusterClient(cluster)
	case at.Master != "":
		ls.follow(at)
		return redis.NewFailoverClient(o.Failover())
	}
	return redis.NewClient(o.Simple())
}
