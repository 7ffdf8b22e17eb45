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

// Replicas says how many replicas must have acknowledged a grant, a renewal, a move or a
// downgrade before it counts. A positive number is that many, whichever they are. More
// than are there refuse every lock.
type Replicas int

const (
	// NoReplicas waits for none: a fail-over may lose the locks that were granted last.
	NoReplicas Replicas = 0

	// AllReplicas are all that Sentinel or Cluster could promote now. One that they call
	// down does not count, one that is cut off from the primary alone does.
	AllReplicas Replicas = -1

	// AutoReplicas is one replica, if any is connected.
	AutoReplicas Replicas = -2
)

// String is how URLs write it.
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
	// ackPatience is the longest wait for replicas. A short lease waits a quarter of its TTL.
	ackPatience = time.Second

	// A view is asked for every lookEvery, for at most lookPatience, and serves for
	// viewFor: those who do not answer any more say nothing. After a refusal it is asked
	// for sooner.
	lookEvery    = time.Second
	lookPatience = 700 * time.Millisecond
	viewFor      = 2 * time.Second
	leastLook    = 100 * time.Millisecond
)

// replicas knows what Config.Replicas asks for.
type replicas struct {
	want      Replicas
	who       bool     // the view is that of one primary: ask the server which one it is
	connected sync.Map // node → how many replicas its primary had when it was last asked

	look  func(context.Context, map[string]view) // asks for all views anew
	views atomic.Pointer[map[string]view]        // by node
	kick  chan struct{}
	stop  context.CancelFunc
	done  chan struct{}
}

// view is what is known of the replicas of one primary.
type view struct {
	asked    time.Time
	server   string          // run_id of the primary, "" in Cluster
	replicas map[string]bool // by address: whether it could be promoted

	// In Cluster: when the node was first seen as a primary, and what was of its shard
	// until then.
	since time.Time
	shard []string
}

// youth is how long a new primary of Cluster may not know some of its replicas. They know
// it by gossip, which takes up to half of cluster-node-timeout, 15 s by default.
const youth = 10 * time.Second

// follow takes Config.Replicas, and begins to ask who could be promoted if that matters. at
// is nil with a client of the caller's.
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
	switch {
	case want != AllReplicas:
		return nil
	case c.cluster != nil:
		r.look = c.lookCluster
	case at != nil && at.Master != "":
		r.who, r.look = true, newSentinels(*at).look
	default:
		r.want = NoReplicas
		return fmt.Errorf("redis: only Sentinel (redis+sentinel://) and Cluster tell which replicas are all: say how many, as in replicas=1: %w", errors.ErrUnsupported)
	}
	r.refresh(ctx)
	ctx, r.stop = context.WithCancel(context.Background())
	go r.run(ctx)
	return nil
}

func (r *replicas) run(ctx context.Context) {
	defer close(r.done)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-r.kick:
			select {
			case <-time.After(leastLook):
			case <-ctx.Done():
			}
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			r.look(ctx, nil) // it closes what it has
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

// view returns what is known of the replicas of a primary, nil if that is too old.
func (r *replicas) view(node string) *view {
	all := r.views.Load()
	if all == nil {
		return nil
	}
	if v, ok := (*all)[node]; ok && time.Since(v.asked) < viewFor {
		return &v
	}
	return nil
}

// ask makes the question for a call that grants something for ttl, nil if there is none.
func (r *replicas) ask(ttl time.Duration) *wire.Acks {
	if r.want == NoReplicas {
		return nil
	}
	return &wire.Acks{Await: r.await, Within: min(ackPatience, ttl/4), Who: r.who, Err: errNotAsked}
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

// missing returns why what was granted or renewed does not count, nil if it does.
func (r *replicas) missing(a *wire.Acks, key string) error {
	if a == nil {
		return nil
	}
	e := &ReplicasError{Key: key, Asked: r.want}
	if a.Err != nil {
		e.Err = failure(a.Err)
		return e
	}
	r.connected.Store(a.Node, len(a.Replicas))
	late := func(addr string) bool {
		offset, connected := a.Replicas[addr]
		return !connected || offset < a.Offset
	}
	for addr := range a.Replicas {
		if !late(addr) {
			e.Acknowledged++
		} else if r.want != AllReplicas {
			e.Missing = append(e.Missing, addr)
		}
	}
	switch r.want {
	case AllReplicas:
		v := r.view(a.Node)
		switch {
		case v == nil:
			e.Err = errors.New("no answer about the replicas that could be promoted within the last " + viewFor.String())
		case v.server != a.Server:
			e.Err = errors.New("the server is not the primary that the Sentinels name")
		default:
			for addr, could := range v.replicas {
				if could && late(addr) {
					e.Missing = append(e.Missing, addr)
				}
			}
			// Sentinels hear of a new replica within ten seconds. In Cluster what the
			// primary does not know as a node is not promoted.
			for addr := range a.Replicas {
				if _, known := v.replicas[addr]; r.who && !known && late(addr) {
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

// lookCluster asks every primary for its replicas. They are those that could be promoted
// unless a majority has agreed that they fail.
func (c *client) lookCluster(ctx context.Context, views map[string]view) {
	if views == nil {
		return
	}
	var mu sync.Mutex
	before, found := maps.Clone(views), map[string]view{}
	done := make(chan struct{})
	go func() { // a caller's client may take longer than ctx
		defer close(done)
		_ = c.cluster.ForEachMaster(ctx, func(ctx context.Context, m *redis.Client) error {
			addr, v := m.Options().Addr, view{asked: time.Now()}
			answer, err := m.ClusterNodes(ctx).Result()
			if err != nil {
				return nil // its view becomes old
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
			delete(views, addr) // a primary once
		}
	}
	maps.Copy(views, found)
}

// shardOf returns since when a node is known as a primary, and, while it is a new one, the
// nodes that were of its shard before.
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

// replicasOf reads the replicas of a primary out of its CLUSTER NODES, and whether the node
// is one. What was replica of a node without slots counts, and so do the nodes of shard:
// they may follow this primary by now, and the primary does not know it yet.
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
		colon := max(strings.LastIndexByte(addr, ':'), 0) // no brackets are around IPv6
		n.addr = net.JoinHostPort(addr[:colon], addr[min(colon+1, len(addr)):])
		others = append(others, n)
	}
	all = map[string]bool{}
	for _, n := range others {
		follows := slices.Contains(n.flags, "slave") && (n.master == self || !holds[n.master])
		if follows || slices.Contains(shard, n.addr) {
			all[n.addr] = !slices.Contains(n.flags, "fail") && !slices.Contains(n.flags, "nofailover")
		}
	}
	return all, primary
}
