package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/contended"
	"github.com/batonhq/baton/internal/quorum"
	"github.com/batonhq/baton/internal/workers"
)

// Store is a quorum. It implements driver.Store, driver.Watcher, driver.Inspector,
// driver.Downgrader, driver.Renamer and driver.Examiner. All methods are safe for
// concurrent use. Use New or Open.
type Store struct {
	nodes     []*node
	quorum    int
	longest   time.Duration
	durable   bool
	replicas  bool
	owned     bool // Close closes the nodes
	claims    [32]shard
	busy      contended.Keys // keys lately found held
	workers   *workers.Pool  // do the requests to nodes
	fills     filler
	root      context.Context // of requests that continue without their caller
	stop      context.CancelFunc
	detached  atomic.Pointer[detached]
	closed    atomic.Bool
	learnedMu sync.Mutex // guards the duplicates of nodes
}

var (
	_ driver.Store      = (*Store)(nil)
	_ driver.Watcher    = (*Store)(nil)
	_ driver.Inspector  = (*Store)(nil)
	_ driver.Downgrader = (*Store)(nil)
	_ driver.Renamer    = (*Store)(nil)
	_ driver.Examiner   = (*Store)(nil)

	_ driver.Refusal = (*CountError)(nil)
	_ driver.Refusal = (*DuplicateError)(nil)
	_ driver.Refusal = (*ReplicatedError)(nil)
	_ driver.Refusal = (*NodeError)(nil)
)

const (
	// DefaultLongestTTL is the default of Config.LongestTTL.
	DefaultLongestTTL = time.Minute

	minTTL = 100 * time.Millisecond

	// nodeTimeout bounds a request to one server, with or without a waiting caller.
	nodeTimeout = time.Second

	// openTimeout bounds the questions of New.
	openTimeout = 5 * time.Second

	maxNodes = 31

	// The number of idle goroutines that are kept for requests to nodes.
	maxIdle = 64
)

// Config says how a quorum works. The zero Config is ready to use.
type Config struct {
	// LongestTTL bounds the TTL of claims. A server that restarted may have forgotten
	// such claims, so it does not vote for that long. All programs that share the servers
	// must agree on it, and other Redlock clients must not ask for more. Defaults to
	// DefaultLongestTTL.
	LongestTTL time.Duration

	// Durable says that the servers forget nothing in a restart, so that they vote at
	// once. For Redis that takes appendonly yes with appendfsync always. Defaults to
	// servers that forget.
	Durable bool

	// AllowReplicas accepts servers with replicas. A replica that is promoted may not
	// know a held lock. By default they are refused with a *ReplicatedError.
	AllowReplicas bool
}

// A Member is one of the stores that grant by majority. It keeps locks with readers and
// tokens on a server of its own that fails alone, reports when that server started
// (Life), and raises its tokens (Raise). *redisstore.Store on a single server is one.
type Member = quorum.Member

// A Life is the time of a server between two starts.
type Life = quorum.Life

// A Node is a server for Open.
type Node struct {
	Name string                                        // for errors: "db1:6379"
	Open func(ctx context.Context) (OpenMember, error) // connects
}

// An OpenMember is a Member that the quorum closes.
type OpenMember interface {
	Member
	Close() error
}

// New returns a quorum over members of the caller, which Close leaves open. Each must be
// a server of its own that fails alone. All programs must list them in the same order.
//
// New asks each for its life. It fails with *CountError, *DuplicateError or
// *ReplicatedError if locks would not be safe, with *NodeError if a member has no readers
// or tokens, or refuses itself, and with driver.ErrUnavailable if fewer than a majority
// answer within five seconds.
func New(members []Member, cfg Config) (*Store, error) {
	s, err := newStore(len(members), cfg)
	if err != nil {
		return nil, err
	}
	for i, m := range members {
		n := s.nodes[i]
		n.name = fmt.Sprintf("node %d", i+1)
		in, err := s.fit(n, m)
		if err != nil {
			s.stop()
			return nil, err
		}
		n.inner.Store(in)
	}
	ctx, cancel := context.WithTimeout(s.root, openTimeout)
	defer cancel()
	if err := s.meet(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Open is New for nodes that it connects to, and that Close closes. A minority of nodes
// may be out of reach; they are connected to later.
func Open(ctx context.Context, nodes []Node, cfg Config) (*Store, error) {
	s, err := newStore(len(nodes), cfg)
	if err != nil {
		return nil, err
	}
	s.owned = true
	for i, n := range nodes {
		s.nodes[i].name, s.nodes[i].open = n.Name, n.Open
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if err := s.meet(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func newStore(n int, cfg Config) (*Store, error) {
	if n < 3 || n%2 == 0 || n > maxNodes {
		return nil, &CountError{n}
	}
	s := &Store{quorum: n/2 + 1, longest: cfg.LongestTTL, durable: cfg.Durable, replicas: cfg.AllowReplicas}
	if s.longest == 0 {
		s.longest = DefaultLongestTTL
	}
	if s.longest < minTTL {
		return nil, fmt.Errorf("redlock: the longest TTL, %v, is below the shortest that is accepted, %v", s.longest, minTTL)
	}
	s.root, s.stop = context.WithCancel(context.Background())
	s.workers = workers.New(s.root, maxIdle)
	for i := range n {
		node := &node{index: i, opening: make(chan struct{}, 1)}
		node.rtt.Store(int64(50 * time.Millisecond)) // until it is measured
		s.nodes = append(s.nodes, node)
	}
	return s, nil
}

// meet asks every node for its life, and refuses what is not safe. When a majority has
// answered, it does not wait much longer for the others: a later node is judged at its
// answer.
func (s *Store) meet(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type met struct {
		i   int
		err error
	}
	answers := make(chan met, len(s.nodes))
	began := time.Now()
	for i, n := range s.nodes {
		go func() { answers <- met{i, s.introduce(ctx, n)} }()
	}
	var late <-chan time.Time
	reached, missing := 0, s.all()
	var errs []error
	for missing != 0 && ctx.Err() == nil {
		select {
		case m := <-answers:
			missing &^= 1 << m.i
			switch {
			case m.err == nil:
				reached++
			case !unreachable(m.err):
				return m.err
			default:
				errs = append(errs, m.err)
			}
			if reached >= s.quorum && late == nil {
				t := time.NewTimer(max(4*time.Since(began), slow))
				defer t.Stop()
				late = t.C
			}
		case <-late:
			cancel()
		case <-ctx.Done():
		}
	}
	for i, n := range s.nodes {
		if missing.has(i) {
			s.account(n, driver.ErrUnavailable, slow)
		}
		if d := n.duplicate.Load(); d != nil {
			return &DuplicateError{d.name, n.name}
		}
	}
	if reached < s.quorum {
		if missing != 0 {
			errs = append(errs, fmt.Errorf("no answer from %s in time", s.names(missing)))
		}
		return fmt.Errorf("redlock: %w: %d of %d servers answer, at least %d are needed: %w",
			driver.ErrUnavailable, reached, len(s.nodes), s.quorum, several(errs))
	}
	return nil
}

// several are the errors of several servers, on one line.
type several []error

func (s several) Error() string {
	texts := make([]string, len(s))
	for i, err := range s {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (s several) Unwrap() []error { return s }

// introduce asks one node for its life, and refuses a node that is not safe.
func (s *Store) introduce(ctx context.Context, n *node) error {
	in, err := s.reach(ctx, n)
	if err != nil {
		return err
	}
	l, err := in.Life(ctx)
	if err != nil {
		return &NodeError{n.name, err}
	}
	s.learn(n, l)
	s.mayVote(n, l)
	if l.Replicas > 0 && !s.replicas {
		return &ReplicatedError{n.name, l.Replicas}
	}
	return nil
}

// unreachable reports whether err is about a server without a vote, not the refusal of a
// request.
func unreachable(err error) bool {
	return errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrDenied) || errors.Is(err, driver.ErrUnknown) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// Traits implements driver.Locks.
func (s *Store) Traits() driver.Traits {
	t := driver.Traits{
		Store:     "redlock",
		Fencing:   true,
		Shared:    true,
		Failover:  true,
		Consensus: true,
		Processes: true,
		Machines:  true,
		MinTTL:    minTTL,
		MaxTTL:    s.longest,
	}
	if t.MaxTTL == 0 { // a Store that was never opened
		t.MaxTTL = DefaultLongestTTL
	}
	return t
}

// Close ends the store. Locks that are held stay until they expire. Close closes the
// nodes only if Open made them. Later calls fail with driver.ErrClosed.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.stop()
	if !s.owned {
		return nil
	}
	closed := make(chan error, len(s.nodes))
	for _, n := range s.nodes {
		go func() {
			n.opening <- struct{}{} // reach no longer opens it
			if in := n.inner.Load(); in != nil {
				if c, ok := in.Member.(OpenMember); ok {
					closed <- c.Close()
					return
				}
			}
			closed <- nil
		}()
	}
	// A silent server may keep its client waiting for a last answer; that client closes
	// by itself.
	patience := time.NewTimer(nodeTimeout)
	defer patience.Stop()
	var errs []error
	for range s.nodes {
		select {
		case err := <-closed:
			errs = append(errs, err)
		case <-patience.C:
			return errors.Join(errs...)
		}
	}
	return errors.Join(errs...)
}

// check is called first by every method.
func (s *Store) check(ctx context.Context) error {
	if s.closed.Load() {
		return driver.ErrClosed
	}
	return ctx.Err()
}

// drift is the greatest difference of clocks that run at different speeds within ttl, and
// what servers round off.
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

func (s *Store) all() set { return set(1)<<len(s.nodes) - 1 }

type set uint32

func (x set) has(i int) bool { return x>>i&1 == 1 }
func (x set) count() int     { return bits.OnesCount32(uint32(x)) }

// detached is the context of requests to the nodes. It does not end with their caller's:
// the answer to a sent request tells its effect on the node. All requests that begin
// within a while share one context, because each costs a timer.
type detached struct {
	context.Context
	until time.Time
}

func (s *Store) detach() context.Context {
	now := time.Now()
	if d := s.detached.Load(); d != nil && now.Before(d.until) {
		return d
	}
	ctx, cancel := context.WithTimeout(s.root, nodeTimeout+nodeTimeout/4)
	context.AfterFunc(ctx, cancel) // its own end frees it
	d := &detached{ctx, now.Add(nodeTimeout / 4)}
	s.detached.Store(d)
	return d
}

func (s *Store) names(x set) string {
	var all []string
	for i, n := range s.nodes {
		if x.has(i) {
			all = append(all, n.name)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
