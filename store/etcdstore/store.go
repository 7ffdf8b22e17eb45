package etcdstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/bound"
	"github.com/batonhq/baton/internal/kept"
	"github.com/batonhq/baton/internal/workers"
)

// Server is the address of etcd, for Open.
type Server struct {
	// Endpoints are host:port pairs, of all members if possible.
	Endpoints []string

	// Username and Password log in. Default to none.
	Username, Password string

	// TLS encrypts the connections. Without a ServerName, the name in each endpoint is
	// verified. Defaults to plain TCP.
	TLS *tls.Config
}

// Open connects to etcd and returns a store whose Close closes the connections. It fails
// with driver.ErrUnavailable if no member answers; ctx bounds how long it tries.
func Open(ctx context.Context, at Server, cfg Config) (*Store, error) {
	if len(at.Endpoints) == 0 {
		return nil, errors.New("etcd: no endpoint")
	}
	client, err := connect(ctx, at)
	if err != nil {
		return nil, err
	}
	s, err := New(client, cfg)
	if err != nil {
		client.Close()
		return nil, err
	}
	s.owned, s.server = true, &at
	// Fails with wrong endpoints, or a user that may not read the locks.
	if _, err := s.list(ctx, &lock{key: "?", dir: s.dir("?")}); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// connect makes a client. The client logs in before it is returned, with only its own
// timeout as the bound.
func connect(ctx context.Context, at Server) (*clientv3.Client, error) {
	client, err := bound.Call(ctx, func() (*clientv3.Client, error) { return clientv3.New(clientConfig(at)) },
		func(late *clientv3.Client) { late.Close() })
	if err != nil && err != ctx.Err() {
		err = readFailure(ctx, err)
	}
	return client, err
}

// verifying verifies every endpoint by ServerName if that is set: gRPC would use the
// endpoint's name in any case.
func verifying(c *tls.Config) *tls.Config {
	if c == nil || c.ServerName == "" || c.InsecureSkipVerify {
		return c
	}
	name, roots := c.ServerName, c.RootCAs
	c = c.Clone()
	c.InsecureSkipVerify = true // VerifyConnection does it
	c.VerifyConnection = func(state tls.ConnectionState) error {
		options := x509.VerifyOptions{DNSName: name, Roots: roots, Intermediates: x509.NewCertPool()}
		for _, cert := range state.PeerCertificates[1:] {
			options.Intermediates.AddCert(cert)
		}
		_, err := state.PeerCertificates[0].Verify(options)
		return err
	}
	return c
}

func clientConfig(at Server) clientv3.Config {
	return clientv3.Config{
		Endpoints: at.Endpoints,
		Username:  at.Username,
		Password:  at.Password,
		TLS:       verifying(at.TLS),

		DialTimeout: 5 * time.Second,
		// The shortest that gRPC allows. If the system can, a connection without
		// acknowledgements ends after the timeout. Members close a connection that is
		// pinged without a stream; a process that holds or waits has a stream.
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 2 * time.Second,

		Logger: zap.NewNop(), // errors are returned
		DialOptions: []grpc.DialOption{
			// By default gRPC pauses for up to two minutes before it tries a member
			// again.
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
				MinConnectTimeout: 3 * time.Second,
			}),
		},
	}
}

// Store keeps locks (driver.Store, driver.Watcher, driver.Inspector, driver.Downgrader,
// driver.Renamer, driver.Examiner), rate limits (limits.Store, limits.Lister,
// limits.Overrider) and records (driver.Records, driver.RecordLister) in etcd. Use New or
// Open. All methods are safe for concurrent use.
type Store struct {
	records
	overrides

	client  *clientv3.Client
	kv      pb.KVClient
	leaser  pb.LeaseClient
	owned   bool    // Close closes the client, which Open made
	server  *Server // of Open
	prefix  string  // empty, or with a slash at its end
	process string  // of this process in every queue
	workers *workers.Pool
	batch   *batch.Batcher[*item]
	limits  *limiter
	history history
	alive   keepAliveStream
	dialed  atomic.Uint32 // the count of dialNext
	latency latency
	ctx     context.Context // ends with the store
	stop    context.CancelFunc
	work    sync.WaitGroup

	mu      sync.Mutex
	keys    map[string]*lock
	leases  map[int64]*lease // by class
	former  []*lease         // replaced leases that have not ended
	cleaner cleaner
	closed  bool

	leftoverRounds   int  // incremented whenever the leases may have leftovers
	findingLeftovers bool // a goroutine searches for leftovers
}

var (
	_ driver.Store      = (*Store)(nil)
	_ driver.Watcher    = (*Store)(nil)
	_ driver.Inspector  = (*Store)(nil)
	_ driver.Downgrader = (*Store)(nil)
	_ driver.Renamer    = (*Store)(nil)
	_ driver.Examiner   = (*Store)(nil)
)

var traits = driver.Traits{
	Store:     "etcd",
	Fencing:   true,
	FIFO:      true,
	Shared:    true,
	Permits:   true,
	Durable:   true,
	Failover:  true,
	Consensus: true,
	Processes: true,
	Machines:  true,
	MinTTL:    waiterSeconds * time.Second,
	MaxTTL:    24 * time.Hour,
}

// Traits implements driver.Locks.
func (s *Store) Traits() driver.Traits { return traits }

// Config says how a store works. The zero Config is ready to use.
type Config struct {
	// Prefix and a slash begin the name of every lock. Defaults to none, so that a lock's
	// name on the server is its key. A slash at its end has no effect.
	Prefix string
}

// New returns a store over the caller's client, which Close leaves open. It sends no
// request to the server. It ignores a namespace that was put around parts of the client:
// use Config.Prefix.
//
// The client should detect silent connections (clientv3.Config.DialKeepAliveTime and
// DialKeepAliveTimeout), and reconnect soon after a long outage (grpc.WithConnectParams
// with a short MaxDelay; gRPC's default pauses for up to two minutes).
func New(client *clientv3.Client, cfg Config) (*Store, error) {
	s := &Store{
		client:  client,
		leaser:  clientv3.RetryLeaseClient(client),
		keys:    map[string]*lock{},
		leases:  map[int64]*lease{},
		cleaner: cleaner{later: map[*claim]*sweep{}},
		limits:  newLimiter(),
		// For other processes, which see it in the queue; no rule depends on it.
		process: fmt.Sprintf("%016x", rand.Uint64()),
	}
	texts := kept.Texts{Store: traits.Store, Swap: s.swapText, List: s.listTexts}
	s.records, s.overrides = kept.NewRecords(texts), kept.NewOverrides(texts)
	if s.prefix = strings.TrimSuffix(cfg.Prefix, "/"); s.prefix != "" {
		if err := check.Key(s.prefix); err != nil {
			return nil, fmt.Errorf("etcd: prefix: %w", err)
		}
		s.prefix += "/"
	}
	s.kv = leaderKV{clientv3.RetryKVClient(client), s}
	// A member without a leader also ends watches.
	s.ctx, s.stop = context.WithCancel(clientv3.WithRequireLeader(context.Background()))
	s.workers = workers.New(s.ctx, maxFlying)
	s.batch = s.newBatcher()
	return s, nil
}

// Close ends the store. Locks that are held stay until they expire. Close closes the
// client only if Open made it. Later calls fail with driver.ErrClosed.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.cleaner.stopLocked()
	s.mu.Unlock()
	s.stop()
	s.work.Wait()
	if s.owned {
		return s.client.Close()
	}
	return nil
}

// ready returns the error of a call that must not be made.
func (s *Store) ready(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.client.Ctx().Err() != nil { // the program has closed its client
		return driver.ErrClosed
	}
	return nil
}
