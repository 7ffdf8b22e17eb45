package zkstore

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/bound"
	"github.com/batonhq/baton/internal/kept"
	"github.com/batonhq/baton/internal/workers"
)

// Server is the address of ZooKeeper, for Open.
type Server struct {
	// Addrs are host:port pairs; several for an ensemble.
	Addrs []string

	// Session is the session timeout to ask for. The server may grant another one: by
	// default between 2 and 20 of its ticks. The longest TTL is half of the granted one,
	// and a dead process keeps its locks for all of it. Defaults to DefaultSession.
	Session time.Duration

	// User and Password are for ZooKeeper's digest scheme. With a User and without a
	// Config.ACL, only that user may use the nodes.
	User, Password string

	// TLS encrypts the connections. Defaults to plain TCP.
	TLS *tls.Config
}

// Open connects to ZooKeeper and returns a store whose Close closes the connection. It
// waits until there is a session, or ctx ends.
func Open(ctx context.Context, at Server, cfg Config) (*Store, error) {
	if len(at.Addrs) == 0 {
		return nil, errors.New("zkstore: no servers")
	}
	if at.Session == 0 {
		at.Session = DefaultSession
	}
	if _, err := CheckRoot(cfg.Root); err != nil {
		return nil, fmt.Errorf("zkstore: root %q: %w", cfg.Root, err)
	}
	servers := new(hosts)
	session := &Session{onSilent: servers.skipCurrent}
	if at.TLS != nil {
		session.Dial = func(network, address string, timeout time.Duration) (net.Conn, error) {
			return tls.DialWithDialer(&net.Dialer{Timeout: timeout}, network, address, at.TLS)
		}
	}
	conn, _, err := zk.Connect(slices.Clone(at.Addrs), at.Session, session.Option(),
		zk.WithHostProvider(servers), zk.WithLogger(silent), zk.WithLogInfo(false))
	if err != nil {
		return nil, fmt.Errorf("zkstore: %w", err)
	}
	if at.User != "" {
		err = authenticate(ctx, session, conn, at.User+":"+at.Password)
		if cfg.ACL == nil {
			cfg.ACL = zk.AuthACL(zk.PermAll)
		}
	}
	var s *Store
	if err == nil {
		s, err = New(ctx, conn, session, cfg)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	s.owned, s.asked = true, at.Session
	return s, nil
}

// authenticate passes the user's name and password to the client, which sends them first
// on every connection.
func authenticate(ctx context.Context, session *Session, conn *zk.Conn, credentials string) error {
	if _, err := session.await(ctx); err != nil {
		return err
	}
	_, err := bound.Call(ctx, func() (any, error) { return nil, conn.AddAuth("digest", []byte(credentials)) }, nil)
	switch {
	case errors.Is(err, zk.ErrAuthFailed):
		return fmt.Errorf("zookeeper: %w: authenticate: %w", driver.ErrDenied, err)
	case err != nil && ctx.Err() == nil:
		return fmt.Errorf("zookeeper: %w: authenticate: %w", driver.ErrUnavailable, err)
	case err != nil:
		return unavailable(err)
	}
	return nil
}

// DefaultSession is the session timeout that Open asks for. The longest TTL is half of
// it. A server with default settings grants at most 40 s.
const DefaultSession = 30 * time.Second

const minTTL = 100 * time.Millisecond

// Config says how a store works. The zero Config is ready to use.
type Config struct {
	// Root is the path below which each key is one node. The store makes it at its first
	// use. Defaults to "/".
	Root string

	// ACL is the access list of every node that the store makes. By default every client
	// may do anything.
	ACL []zk.ACL
}

// Store keeps locks (driver.Store, driver.Watcher, driver.Inspector, driver.Downgrader,
// driver.Renamer, driver.Examiner) and records (driver.Records, driver.RecordLister) in
// ZooKeeper. All methods are safe for concurrent use.
type Store struct {
	records

	conn             *zk.Conn
	session          *Session
	root             string
	acl              []zk.ACL
	owned            bool          // Open made the connection, so finish closes it
	asked            time.Duration // the requested session timeout, if known
	guidPrefix       string        // the beginning of all names of this store's nodes
	mayHaveLeftovers atomic.Bool   // there may be nodes without a claim
	maxTTL           time.Duration

	// How long a claim lasts without its caller's renewal: of a waiter, and of a claim
	// that was granted since.
	waiterTTL, claimTTL time.Duration

	closed            atomic.Bool
	workers           *workers.Pool
	life              context.Context // ends when the work after Close is done
	end               context.CancelFunc
	parents           parents
	batch             *batch.Batcher[*item]
	clock             serverClock
	withoutContainers atomic.Bool // the servers have no container nodes

	recordClock recordClock
	sweeping    atomic.Bool   // records
	deadFor     time.Duration // the constant; shorter in tests

	mu        sync.Mutex
	claims    map[name]*claim
	hints     map[name][]*hint
	nodes     map[string]*nodeWatch  // by path
	leftovers map[*leftover]struct{} // with nodes to delete
}

type name struct{ key, id string }

// New returns a store over the caller's connection, which it never closes. The Option of
// session must have been passed to zk.Connect. New waits until there is a session, or ctx
// ends.
func New(ctx context.Context, conn *zk.Conn, session *Session, cfg Config) (*Store, error) {
	if session == nil || session.link() == nil {
		return nil, errors.New("zkstore: the Session does not know the connection: pass its Option to zk.Connect")
	}
	root, err := CheckRoot(cfg.Root)
	if err != nil {
		return nil, fmt.Errorf("zkstore: root %q: %w", cfg.Root, err)
	}
	s := &Store{
		conn: conn, session: session, root: root, acl: cfg.ACL,
		waiterTTL: driver.WaiterTTL, claimTTL: driver.ClaimTTL, deadFor: deadFor,
		claims: map[name]*claim{}, hints: map[name][]*hint{}, nodes: map[string]*nodeWatch{}, leftovers: map[*leftover]struct{}{},
	}
	s.records = kept.NewRecords(kept.Texts{Swap: s.swapText, List: s.listTexts})
	var random [8]byte
	rand.Read(random[:]) // cannot fail
	s.guidPrefix = "_c_" + hex.EncodeToString(random[:])
	if s.acl == nil {
		s.acl = zk.WorldACL(zk.PermAll)
	}
	l, err := session.await(ctx)
	if err != nil {
		return nil, err
	}
	s.maxTTL = l.timeout / 2
	s.life, s.end = context.WithCancel(context.Background())
	s.workers = workers.New(s.life, maxFlying)
	s.batch = s.newBatcher()
	go s.keepAlive()
	return s, nil
}

func (s *Session) await(ctx context.Context) (*link, error) {
	for {
		l := s.link()
		if l.up {
			return l, nil
		}
		select {
		case <-l.next:
		case <-ctx.Done():
			return nil, unavailable(fmt.Errorf("%w: %w", errNoSession, ctx.Err()))
		}
	}
}

// Traits implements driver.Locks. The longest TTL is half of the last granted session
// timeout: another server, or one with new settings, may grant less than before. TTLs
// that were accepted before are still accepted, but a grant then lasts no longer than
// that.
func (s *Store) Traits() driver.Traits {
	t := s.accepted()
	if s.session != nil { // New made the store
		t.MaxTTL = s.session.link().timeout / 2
	}
	return t
}

// accepted are the traits by which requests are checked: those of the start, because a
// program's TTL does not change while it runs.
func (s *Store) accepted() driver.Traits {
	longest := s.maxTTL
	if longest == 0 {
		longest = DefaultSession / 2
	}
	return driver.Traits{
		Store: "zookeeper", Fencing: true, FIFO: true, Shared: true, Permits: true,
		Durable: true, Failover: true, Consensus: true, Processes: true, Machines: true, Sessions: true,
		MinTTL: minTTL, MaxTTL: longest,
	}
}

// Close implements driver.Store. A connection that Open made is closed when the last
// claim of this store has ended, because the session keeps the claims: they last for
// their TTL, on which holders may rely.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.mu.Lock()
	idle := s.idleLocked()
	s.mu.Unlock()
	if idle {
		s.finish()
	}
	return nil
}

func (s *Store) idleLocked() bool { return len(s.claims) == 0 && len(s.leftovers) == 0 }

// finish ends the background work after Close.
func (s *Store) finish() {
	s.end()
	if s.owned {
		s.conn.Close()
	}
}

// keepAlive sends requests often enough that the session can be relied on (see
// Session.committed), and ends the claims of replaced sessions. After a while without a
// connection, or when there may be nodes without a claim, it runs removeLeftovers.
func (s *Store) keepAlive() {
	l := s.session.link()
	for {
		if l.up && s.mayHaveLeftovers.Swap(false) {
			go func(l *link) {
				if !s.removeLeftovers(l) {
					s.mayHaveLeftovers.Store(true)
				}
			}(l)
		}
		every := max(l.timeout/8, 10*time.Millisecond)
		t := time.NewTimer(every)
		select {
		case <-s.life.Done():
			t.Stop()
			return
		case <-l.next:
			t.Stop()
			now := s.session.link()
			if now.id != l.id {
				s.loseAll()
			}
			if now.outages != l.outages {
				s.mayHaveLeftovers.Store(true)
			}
			l = now
			continue
		case <-t.C:
		}
		if l.up && s.session.idle(bootclock.Now()) >= l.timeout/grain {
			ctx, cancel := context.WithTimeout(s.life, every)
			_, _, _ = send(ctx, s, false, func(c *zk.Conn) (bool, error) { // any answer will do
				ok, _, err := c.Exists(s.root)
				return ok, err
			})
			cancel()
		}
	}
}

// parents has the latest few thousand existing parents.
type parents struct {
	mu         sync.Mutex
	young, old map[string]struct{}
	guessOld   bool // the last unknown path existed
}

const manyParents = 4096

func (p *parents) known(path string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.young[path]; ok {
		return true
	}
	if _, ok := p.old[path]; !ok {
		return false
	}
	p.addLocked(path)
	return true
}

func (p *parents) addLocked(path string) {
	if p.young == nil || len(p.young) >= manyParents {
		p.old, p.young = p.young, make(map[string]struct{})
	}
	p.young[path] = struct{}{}
}

// learn notes that path exists. existed says that it did before this process asked for
// it.
func (p *parents) learn(path string, existed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addLocked(path)
	p.guessOld = existed
}

func (p *parents) forget(path string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.young, path)
	delete(p.old, path)
}

func (p *parents) all() (paths []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for path := range p.young {
		paths = append(paths, path)
	}
	for path := range p.old {
		if _, ok := p.young[path]; !ok {
			paths = append(paths, path)
		}
	}
	return paths
}

func (p *parents) guess() (existed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.guessOld
}
