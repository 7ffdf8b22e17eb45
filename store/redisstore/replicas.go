package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// Replicas is the number of replicas that must have acknowledged a grant, a renewal, a
// move or a downgrade before it counts: any replicas, if positive. More than are
// connected refuse every lock.
type Replicas int

const (
	// NoReplicas waits for none: a failover may lose the latest locks.
	NoReplicas Replicas = 0

	// AllReplicas waits for all replicas that Sentinel or Cluster could promote now. A
	// replica that they call down does not count; one that has only lost its primary
	// does.
	AllReplicas Replicas = -1

	// AutoReplicas waits for one replica if any is connected. It waits for none if the
	// user may not run ROLE and WAIT.
	AutoReplicas Replicas = -2
)

// String is the form in URLs.
func (r Replicas) String() string {
	switch r {
	case AllReplicas:
		return "all"
	case AutoReplicas:
		return "auto"
	}
	return strconv.Itoa(int(r))
}

const (
	// ackPatience is the longest wait for replicas. A short lease waits a quarter of its
	// TTL.
	ackPatience = time.Second

	// A view is renewed every lookEvery, within lookPatience, and serves for viewFor:
	// then a server that no longer answers has no view. After a refusal it is renewed
	// sooner.
	lookEvery    = time.Second
	lookPatience = 700 * time.Millisecond
	viewFor      = 2 * time.Second
	leastLook    = 100 * time.Millisecond

	// A replica that is down may come back and be promoted, so a view that excuses one is
	// renewed more often, and serves for less.
	lookEveryDown = 250 * time.Millisecond
	viewForDown   = 750 * time.Millisecond
)

// replicas does the work of Config.Replicas.
type replicas struct {
	want      Replicas
	who       bool        // the view is of one primary: ask the server for its run_id
	connected sync.Map    // node → how many replicas its primary had at the last answer
	denied    atomic.Bool // AutoReplicas: the user lacks the rights

	look  func(context.Context, map[string]view) // renews all views
	views atomic.Pointer[map[string]view]        // by node
	kick  chan struct{}
	stop  context.CancelFunc
	done  chan struct{}

	mu   sync.Mutex
	down map[string]acknowledged // by address, of replicas that a view called down
}

// acknowledged is a replica's last offset at the primary, and its time.
type acknowledged struct {
	offset int64
	since  time.Time
}

// view is what Sentinel or Cluster say of the replicas of one primary.
type view struct {
	asked    time.Time
	server   string          // run_id of the primary, "" in Cluster
	replicas map[string]bool // by address: whether it could be promoted
	never    map[string]bool // replicas that Sentinels never promote

	// In Cluster: when the node was first seen as a primary, and the nodes of its shard
	// until then.
	since time.Time
	shard []string
}

// excuses reports whether some replica need not acknowledge.
func (v view) excuses() bool {
	for _, could := range v.replicas {
		if !could {
			return true
		}
	}
	return false
}

// by is the view as updated by the primary's answer in a call of Cluster.
func (v *view) by(a *wire.Acks) *view {
	if a.Cluster == "" {
		return v
	}
	now := *v
	now.replicas, _ = replicasOf(a.Cluster, v.shard)
	return &now
}

// serves reports whether the view is recent enough to rely on.
func (v view) serves() bool {
	if v.excuses() {
		return time.Since(v.asked) < viewForDown
	}
	return time.Since(v.asked) < viewFor
}

// youth is how long a new primary of Cluster may not know some of its replicas: it learns
// of them by gossip, which takes up to half of cluster-node-timeout, 15 s by default.
const youth = 10 * time.Second

// follow sets Config.Replicas, and starts the renewal of views if it needs them. at is
// nil with a client of the caller's.
func (s *Store) follow(ctx context.Context, at *Server, want Replicas) error {
	if want == NoReplicas {
		return nil
	}
	c, ok := s.client.(*client)
	switch {
	case want < AutoReplicas:
		return fmt.Errorf("redis: Replicas %d: say a number, AllReplicas or AutoReplicas", want)
	case !ok:
		return fmt.Errorf("redis: Replicas needs a client of go-redis: %w", errors.ErrUnsupported)
	}
	r := &s.replicas
	r.want, r.kick, r.done = want, make(chan struct{}, 1), make(chan struct{})
	needs := [][]string{{"ROLE"}, {"WAIT", "0", "1"}}
	switch {
	case want == AutoReplicas:
		return c.Primaries(ctx, func(n wire.Node) error {
			r.meet(ctx, n.(node), c.cluster != nil)
			return nil
		})
	case want != AllReplicas:
		return s.mayRun(ctx, needs)
	case c.cluster != nil:
		r.look, needs = c.lookCluster, append(needs, []string{"CLUSTER", "NODES"})
	case at != nil && at.Master != "":
		r.who, r.look, needs = true, newSentinels(*at).look, append(needs, []string{"INFO", "server"})
	default:
		r.want = NoReplicas
		return fmt.Errorf("redis: only Sentinel (redis+sentinel://) and Cluster tell which replicas are all: say how many, as in replicas=1: %w", errors.ErrUnsupported)
	}
	if err := s.mayRun(ctx, needs); err != nil {
		return err
	}
	r.refresh(ctx)
	ctx, r.stop = context.WithCancel(context.Background())
	go r.run(ctx)
	return nil
}

// meet counts the replicas of a primary: otherwise the first lock would wait for missing
// ones.
func (r *replicas) meet(ctx context.Context, n node, cluster bool) {
	at := ""
	if cluster {
		at = n.c.(*redis.Client).Options().Addr
	}
	_, connected, err := role(n.DoAll(ctx, [][]string{{"ROLE"}})[0])
	switch {
	case mayNot(err):
		r.denied.Store(true)
	case err == nil: // else the first lock asks again
		r.connected.Store(at, len(connected))
	}
}

// mayRun returns a *PermissionError if the primary denies a command. A failed lock would
// not tell this reason.
func (s *Store) mayRun(ctx context.Context, commands [][]string) error {
	return s.client.Primaries(ctx, func(n wire.Node) error {
		for _, a := range n.DoAll(ctx, commands) {
			if a.Err != nil && refusalOf(a.Err) == noAccess {
				return failure(a.Err)
			}
		}
		return nil
	})
}

func (r *replicas) run(ctx context.Context) {
	defer close(r.done)
	for {
		every := lookEvery
		for _, v := range *r.views.Load() {
			if v.excuses() {
				every = lookEveryDown
			}
		}
		select {
		case <-time.After(every):
		case <-r.kick:
			select {
			case <-time.After(leastLook):
			case <-ctx.Done():
			}
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			r.look(ctx, nil) // closes its connections
			return
		}
		r.refresh(ctx)
	}
}

func (r *replicas) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	views := map[string]view{}
	if old := r.views.Load(); old != nil {
		maps.Copy(views, *old)
	}
	r.look(ctx, views)
	r.views.Store(&views)
}

func (r *replicas) close() {
	if r.stop != nil {
		r.stop()
		<-r.done
	}
}

// view returns the view of a primary, nil if it is too old.
func (r *replicas) view(node string) *view {
	all := r.views.Load()
	if all == nil {
		return nil
	}
	if v, ok := (*all)[node]; ok && v.serves() {
		return &v
	}
	return nil
}

// ask makes the question for a call that grants for ttl, nil if none is needed.
func (r *replicas) ask(ttl time.Duration) *wire.Acks {
	if r.want == NoReplicas || r.denied.Load() {
		return nil
	}
	a := &wire.Acks{Await: r.await, Lacks: r.lacks, Within: min(ackPatience, ttl/4), Who: r.who, Err: errNotAsked}
	if r.want == AllReplicas && !r.who {
		a.Nodes = r.excuses
	}
	return a
}

// excuses reports whether the last view of a primary of Cluster excuses a replica. Each
// call then asks again: the replica may have come back and been promoted.
func (r *replicas) excuses(node string) bool {
	v := r.view(node)
	return v != nil && v.excuses()
}

var errNotAsked = errors.New("the client has not asked")

func (r *replicas) await(node string) (n int) {
	switch r.want {
	case AllReplicas:
		if v := r.view(node); v != nil {
			for _, could := range v.replicas {
				if could {
					n++
				}
			}
		}
		return n
	case AutoReplicas:
		if before, ok := r.connected.Load(node); ok {
			return min(before.(int), 1)
		}
		return 1
	}
	return int(r.want)
}

// needs reports whether a replica must acknowledge. Cluster promotes no node that the
// primary does not know; Sentinels learn of a new replica within ten seconds.
func (r *replicas) needs(v *view, addr string, a *wire.Acks) bool {
	could, known := v.replicas[addr]
	if !known {
		return r.who && !v.never[addr]
	}
	return could || r.moves(addr, a)
}

// lacks reports whether a required replica is connected and late.
func (r *replicas) lacks(a *wire.Acks) bool {
	v := r.view(a.Node)
	if r.want != AllReplicas || v == nil {
		return false
	}
	v = v.by(a)
	for addr := range a.Replicas {
		if a.Late(addr) && r.needs(v, addr, a) {
			return true
		}
	}
	return false
}

// missing returns the error of a grant or renewal that does not count, else nil.
func (r *replicas) missing(a *wire.Acks, key string) error {
	if a == nil {
		return nil
	}
	e := &ReplicasError{Key: key, Asked: r.want}
	if a.Err != nil {
		if r.want == AutoReplicas && mayNot(a.Err) {
			r.denied.Store(true)
			return nil
		}
		e.Err = failure(a.Err)
		return e
	}
	e.Acknowledged = a.Acknowledged()
	r.connected.Store(a.Node, len(a.Replicas))
	for addr := range a.Replicas {
		if r.want != AllReplicas && a.Late(addr) {
			e.Missing = append(e.Missing, addr)
		}
	}
	switch r.want {
	case AllReplicas:
		v := r.view(a.Node)
		switch {
		case v == nil:
			e.Err = errors.New("for too long no answer about the replicas that could be promoted")
		case v.server != a.Server:
			e.Err = errors.New("the server is not the primary that the Sentinels name")
		default:
			v = v.by(a)
			for addr := range v.replicas {
				if a.Late(addr) && r.needs(v, addr, a) {
					e.Missing = append(e.Missing, addr)
				}
			}
			for addr := range a.Replicas {
				if _, known := v.replicas[addr]; !known && a.Late(addr) && r.needs(v, addr, a) {
					e.Missing = append(e.Missing, addr)
				}
			}
			if e.Missing == nil {
				return nil
			}
		}
		select {
		case r.kick <- struct{}{}:
		default:
		}
	case AutoReplicas:
		if e.Acknowledged > 0 || len(a.Replicas) == 0 {
			return nil
		}
	default:
		if e.Acknowledged >= int(r.want) {
			return nil
		}
	}
	slices.Sort(e.Missing)
	return e
}

// moves reports whether a replica that the view calls down has come back since: the
// primary has a connection to it, on which it has acknowledged something within viewFor.
func (r *replicas) moves(addr string, a *wire.Acks) bool {
	offset, connected := a.Replicas[addr]
	if !connected {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	last, known := r.down[addr]
	if !known || last.offset != offset {
		if r.down == nil {
			r.down = map[string]acknowledged{}
		}
		last = acknowledged{offset, time.Now()}
		r.down[addr] = last
	}
	return time.Since(last.since) < viewFor
}

// mayNot reports whether this user may not run the command, or the server lacks it.
func mayNot(err error) bool {
	e, ok := errors.AsType[*wire.ServerError](err)
	return ok && (e.Code() == "NOPERM" || strings.HasPrefix(e.Text, "ERR unknown command"))
}

// lookCluster asks every primary for its replicas: those that Cluster could promote,
// because no majority has agreed that they fail.
func (c *client) lookCluster(ctx context.Context, views map[string]view) {
	if views == nil {
		return
	}
	var mu sync.Mutex
	before, found := maps.Clone(views), map[string]view{}
	done := make(chan struct{})
	go func() { // a caller's client may overrun ctx
		defer close(done)
		_ = c.cluster.ForEachMaster(ctx, func(ctx context.Context, m *redis.Client) error {
			addr, v := m.Options().Addr, view{asked: time.Now()}
			answer, err := m.ClusterNodes(ctx).Result()
			if err != nil {
				return nil // its view becomes too old
			}
			v.since, v.shard = shardOf(addr, before, v.asked)
			var primary bool
			if v.replicas, primary = replicasOf(answer, v.shard); !primary {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			found[addr] = v
			return nil
		})
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	mu.Lock()
	defer mu.Unlock()
	for _, v := range found {
		for addr := range v.replicas {
			delete(views, addr) // no longer a primary
		}
	}
	maps.Copy(views, found)
}

// shardOf returns since when a node is known as a primary, and, while it is new, the
// earlier nodes of its shard.
func shardOf(addr string, before map[string]view, now time.Time) (since time.Time, shard []string) {
	if v, known := before[addr]; known {
		if now.Sub(v.since) < youth {
			shard = v.shard
		}
		return v.since, shard
	}
	for primary, v := range before {
		if _, was := v.replicas[addr]; was {
			shard = append(slices.Collect(maps.Keys(v.replicas)), primary)
		}
	}
	return now, shard
}

// replicasOf parses the replicas of a primary out of its CLUSTER NODES. primary says
// whether the node is one. Replicas of nodes without slots and the nodes of shard count,
// too: they may follow this primary before it knows that.
func replicasOf(nodes string, shard []string) (all map[string]bool, primary bool) {
	type node struct {
		addr, master string
		flags        []string
	}
	var others []node
	self, holds := "", map[string]bool{}
	for line := range strings.Lines(nodes) {
		f := strings.Fields(line)
		if len(f) < 8 {
			continue
		}
		n := node{flags: strings.Split(f[2], ","), master: f[3]}
		holds[f[0]] = len(f) > 8 && slices.Contains(n.flags, "master")
		if slices.Contains(n.flags, "myself") {
			self, primary = f[0], slices.Contains(n.flags, "master")
			continue
		}
		addr, _, _ := strings.Cut(f[1], "@")
		colon := max(strings.LastIndexByte(addr, ':'), 0) // IPv6 is without brackets
		n.addr = net.JoinHostPort(addr[:colon], addr[min(colon+1, len(addr)):])
		others = append(others, n)
	}
	all = map[string]bool{}
	for _, n := range others {
		follows := slices.Contains(n.flags, "slave") && (n.master == self || !holds[n.master])
		if (follows || slices.Contains(shard, n.addr)) && !slices.Contains(n.flags, "nofailover") {
			all[n.addr] = !slices.Contains(n.flags, "fail")
		}
	}
	return all, primary
}
