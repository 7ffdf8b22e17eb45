package etcdstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/workers"
)

// Store keeps locks in etcd. It implements driver.Store, driver.Watcher,
// driver.Inspector, driver.Downgrader, driver.Renamer, driver.Together,
// driver.Examiner, limits.Store, limits.Overrider and driver.Records. Use New or Open.
type Store struct {
	client  *clientv3.Client
	kv      pb.KVClient
	leaser  pb.LeaseClient
	owned   bool    // Open made the client, so Close closes it
	server  *Server // what Open was told
	prefix  string  // empty, or with a slash at its end
	process string  // the name of this process in every queue
	workers *workers.Pool
	batch   *batch.Batcher[*item]
	limits  *limiter
	past    past
	alive   keeper
	spares  atomic.Uint32 // how many connections spare was asked for
	answers pace
	ctx     context.Context // ends with the store
	stop    context.CancelFunc
	work    sync.WaitGroup

	mu     sync.Mutex
	keys   map[string]*lock
	leases map[int64]*lease // by class
	former []*lease         // leases that another has replaced and that have not ended
	house  housekeeping
	closed bool

	strayRounds   int  // incremented whenever the leases may have strays
	seekingStrays bool // a goroutine looks for strays
}

var (
	_ driver.Store      = (*Store)(nil)
	_ driver.Watcher    = (*Store)(nil)
	_ driver.Inspector  = (*Store)(nil)
	_ driver.Downgrader = (*Store)(nil)
	_ driver.Renamer    = (*Store)(nil)
	_ driver.Together   = (*Store)(nil)
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

// Traits says what the store promises.
func (s *Store) Traits() driver.Traits { return traits }

// Config says how a store works. The zero value is fine.
type Config struct {
	// Prefix and a slash stand before the name of every lock. Defaults to none, so
	// that a lock's name on the server is its key. A slash at its end changes nothing.
	Prefix string
}

// New returns a store that uses the caller's client, which Close leaves open. It does
// not talk to the server. It does not see a namespace that was put around parts of the
// client: use Config.Prefix.
//
// The client should detect connections that have fallen silent
// (clientv3.Config.DialKeepAliveTime and DialKeepAliveTimeout), and reconnect soon
// after a long outage (grpc.WithConnectParams with a short MaxDelay; gRPC's
// default pauses for up to two minutes).
func New(client *clientv3.Client, cfg Config) (*Store, error) {
	s := &Store{
		client: client,
		leaser: clientv3.RetryLeaseClient(client),
		keys:   map[string]*lock{},
		leases: map[int64]*lease{},
		house:  housekeeping{later: map[*claim]*sweep{}},
		limits: newLimiter(),
		// Other processes see it in the queue; nothing relies on it.
		process: fmt.Sprintf("%016x", rand.Uint64()),
	}
	if s.prefix = strings.TrimSuffix(cfg.Prefix, "/"); s.prefix != "" {
		if err := check.Key(s.prefix); err != nil {
			return nil, fmt.Errorf("etcd: prefix: %w", err)
		}
		s.prefix += "/"
	}
	s.kv = led{clientv3.RetryKVClient(client), s}
	// A member without a leader ends watches, too.
	s.ctx, s.stop = context.WithCancel(clientv3.WithRequireLeader(context.Background()))
	s.workers = workers.New(s.ctx, maxFlying)
	s.batch = s.newBatcher(unhurried)
	return s, nil
}

// Close ends the store. Locks that are held stay until they expire. The client
// is closed only if Open made it. Further calls fail with driver.ErrClosed.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.house.stopLocked()
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
	if s.closed {
		return driver.ErrClosed
	}
	return nil
}

// A lock is what this process knows of one key. Guarded by Store.mu.
type lock struct {
	key, dir string
	claims   map[string]*claim    // that stand, by ID
	all      map[*claim]bool      // those, and ended ones that still have to be cleaned up
	places   []*claim             // the claim that has each name of this process; nil: free, or see returned
	returned map[string]*claim    // the claims that have come back under a name of this process
	aside    map[string]time.Time // names of this process that others have taken over, until when
	watches  map[string][]*watch  // by ID
	mirror   *mirror
}

// A claim is a claim of this process. Guarded by Store.mu.
type claim struct {
	driver.Claim
	lock  *lock
	place int // index in lock.places; -1: it was found on the server
	name  string
	value string
	asked string // the value that an acquire puts: a downgrade changes value

	rev, mod int64     // create and mod revision; 0: not known to exist
	lease    *lease    // the lease that the name is on
	moving   bool      // an answer was lost: it may be on another lease
	on       []*lease  // the leases of this process that it was put on, or may have been
	changing bool      // a Downgrade is under way: do not write the name with its old value
	taken    time.Time // when it was seen on a lease that is not ours: another process has it

	item       *item     // the acquire whose answer is not known
	doubtful   bool      // its caller left before the answer: another process may have put a name before
	second     bool      // that process has, and this name is given up
	unresolved time.Time // until when a request whose answer was lost may take effect: see uncertain

	ttl      time.Duration // as asked for
	held     bool          // it is known to be held, until deadline
	since    time.Time     // when that became known
	sent     time.Time     // when the last request was sent that was answered with "waiting"
	deadline time.Time     // when it ends
	spared   time.Time     // it is not removed before, as another process may believe in it
	leaving  bool          // a Release is under way
	busy     int           // calls that are about to renew it
	ended    bool
}

// mayBeOn notes a lease that a request puts the name on.
func (c *claim) mayBeOn(l *lease) {
	c.on = slices.DeleteFunc(c.on, func(o *lease) bool { return o == l || o.dead })
	c.on = append(c.on, l)
}

// uncertain reports whether a request that got no answer may still take effect. A later
// answer to the same request does not settle that: the first one may take effect after
// it.
func (c *claim) uncertain() bool { return bootclock.Coarse().Before(c.unresolved) }

func (s *Store) lockLocked(key string) *lock {
	k := s.keys[key]
	if k == nil {
		k = &lock{key: key, dir: s.dir(key), claims: map[string]*claim{}, all: map[*claim]bool{}}
		s.keys[key] = k
	}
	return k
}

// claimLocked returns what this process knows of a claim that stands, or nil.
func (s *Store) claimLocked(cl driver.Claim) *claim {
	if k := s.keys[cl.Key]; k != nil {
		return k.claims[cl.ID]
	}
	return nil
}

// endLocked ends a claim for this process. Its name stays taken until forgetLocked. The
// caller runs what it returns after unlocking.
func (s *Store) endLocked(c *claim) (wake []func()) {
	if c.ended {
		return nil
	}
	c.ended = true
	if c.lock.claims[c.ID] == c {
		delete(c.lock.claims, c.ID)
	}
	return c.lock.wakeLocked(c.ID, driver.Hint{})
}

// forgetLocked forgets a claim that has nothing on the server, once no unresolved
// request can put its name there any more.
func (s *Store) forgetLocked(c *claim) {
	k := c.lock
	if !k.all[c] {
		return
	}
	c.ended = true
	if k.claims[c.ID] == c {
		delete(k.claims, c.ID)
	}
	if c.uncertain() {
		s.sweepLocked(c)
		return
	}
	delete(k.all, c)
	if k.returned[c.name] == c {
		delete(k.returned, c.name)
	}
	if c.place >= 0 && c.place < len(k.places) && k.places[c.place] == c {
		k.places[c.place] = nil
		for len(k.places) > 0 && k.places[len(k.places)-1] == nil {
			k.places = k.places[:len(k.places)-1]
		}
	}
	s.idleLocked(k)
}

// idleLocked forgets a lock that this process no longer uses.
func (s *Store) idleLocked(k *lock) {
	if len(k.all) == 0 && len(k.watches) == 0 && len(k.aside) == 0 && k.mirror == nil && s.keys[k.key] == k {
		delete(s.keys, k.key)
	}
}
