package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/testserver"
)

// A slot that moves from server to server under load takes its locks along.
// While its keys are apart the servers say so, and nothing has happened.
func TestSlotMoves(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	t.Parallel()
	cluster := testserver.RedisCluster(t) // others would meet the moving slot
	s := mustNew(t, dialCluster(t, cluster))
	const tagged = "{moving}"
	at := slot(tagged)
	from, to := owners(t, cluster, at)

	holder, granted := take(t, s, claimOf(tagged+"held", "holder"), time.Minute, false)
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	defer load.Wait()
	defer stop()
	// passing is what may be told while the slot moves.
	passing := func(err error) bool {
		return err == nil || errors.Is(err, driver.ErrUnavailable) || ctx.Err() != nil
	}
	load.Go(func() {
		last := int64(0)
		for ctx.Err() == nil {
			c := claimOf(tagged+"busy", "passer-by")
			g, err := s.Acquire(ctx, driver.Request{Claim: c, TTL: time.Minute})
			if !passing(err) {
				t.Errorf("acquire while the slot moves: %v", err)
				return
			}
			if err != nil {
				continue
			}
			if g.Token <= last {
				t.Errorf("token %d after %d", g.Token, last)
				return
			}
			last, c.Ticket = g.Token, g.Ticket
			for {
				err := s.Release(ctx, c)
				if err == nil || ctx.Err() != nil {
					break
				}
				if !passing(err) {
					t.Errorf("release while the slot moves: %v", err)
					return
				}
			}
		}
	})
	together := 0
	load.Go(func() {
		for ctx.Err() == nil {
			r := several("passer-by", tagged+"one", tagged+"two", tagged+"three")
			grants, err := s.AcquireAll(ctx, r)
			if !passing(err) {
				t.Errorf("acquire several while the slot moves: %v", err)
				return
			}
			for i, g := range grants {
				c := r[i].Claim
				c.Ticket = g.Ticket
				for {
					err := s.Release(ctx, c)
					if err == nil || ctx.Err() != nil {
						break
					}
					if !passing(err) {
						t.Errorf("release one of several while the slot moves: %v", err)
						return
					}
				}
			}
			together += len(grants)
		}
	})
	for range 10 {
		move(t, at, from, to)
		agree(t, cluster)
		from, to = to, from
		eventually(t, "an answer about the holder", 10*time.Second, func() bool {
			r := renewOne(t, s, holder, time.Minute)
			if r.State == driver.Unknown && passing(r.Err) {
				return false
			}
			if r.State != driver.Held || r.Grant.Token != granted.Token {
				t.Fatalf("the holder is %v (%v) after its slot has moved", r.State, r.Err)
			}
			return true
		})
	}
	stop()
	load.Wait()
	mustRelease(t, s, holder)
	if together == 0 {
		t.Error("several were never acquired")
	}
}

// While a slot is being moved, whatever is held there is renewed and released, for as long
// as the move takes.
func TestHeldWhileASlotMoves(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	cluster := testserver.RedisCluster(t) // others would meet the moving slot
	s := mustNew(t, dialCluster(t, cluster))
	const tagged = "{moving}"
	from, to := owners(t, cluster, slot(tagged))
	var held []driver.Claim
	for i, kind := range [][2]int64{{driver.Whole, driver.Whole}, {1, driver.Whole}, {1, driver.Whole}, {2, 5}, {3, 5}} {
		c := claimOf(fmt.Sprint(tagged, kind[1]), "holder")
		if kind[0] == driver.Whole {
			c.Key = tagged + "exclusive"
		}
		c.Weight, c.Capacity = kind[0], kind[1]
		c, _ = take(t, s, c, time.Minute, false)
		held = append(held, c)
		if i == 2 {
			c.Key, c.ID, c.Ticket = tagged+"alone", driver.NewID(), 0
			c, _ = take(t, s, c, time.Minute, false)
			held = append(held, c)
		}
	}
	n, err := s.names.of(held[0].Key)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the counter is gone", 10*time.Second, func() bool {
		left, err := from.Do("EXISTS", n.counter)
		return err == nil && left == "0"
	})
	beginMove(t, slot(tagged), from, to)
	for i, r := range s.Renew(t.Context(), held, time.Minute) {
		if r.State != driver.Held || r.Grant.Token != -held[i].Ticket {
			t.Errorf("claim %d: %+v, want it held", i, r)
		}
	}
	for i, c := range held {
		if err := s.Release(t.Context(), c); err != nil {
			t.Errorf("release claim %d: %v", i, err)
		}
		if err := s.Release(t.Context(), c); err == nil {
			t.Errorf("claim %d was released twice", i)
		}
	}
	for _, server := range []*testserver.RedisServer{from, to} {
		if _, err := server.Do("CLUSTER", "SETSLOT", strconv.Itoa(int(slot(tagged))), "STABLE"); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range held {
		c.ID, c.Ticket, c.Weight, c.Capacity = driver.NewID(), 0, driver.Whole, driver.Whole
		c, _ = take(t, s, c, time.Minute, false)
		mustRelease(t, s, c)
	}
}

// owners finds the server of a slot, and another one. After earlier moves the
// servers may need a moment to agree.
func owners(t *testing.T, c *testserver.Cluster, at uint16) (owner, other *testserver.RedisServer) {
	t.Helper()
	eventually(t, "an owner of slot "+strconv.Itoa(int(at)), 10*time.Second, func() bool {
		for i, n := range c.Nodes {
			if _, err := n.Do("GET", "{moving}"); err == nil {
				owner, other = n, c.Nodes[(i+1)%len(c.Nodes)]
				return true
			} else if !strings.HasPrefix(err.Error(), "MOVED "+strconv.Itoa(int(at))+" ") {
				t.Fatal(err)
			}
		}
		return false
	})
	return owner, other
}

// agree waits until all servers have heard of the latest epoch. One that moved
// a slot before that would draw an epoch that another has, and might lose the
// slot again when they settle it.
func agree(t *testing.T, c *testserver.Cluster) {
	t.Helper()
	eventually(t, "one epoch on all servers", 10*time.Second, func() bool {
		epochs := map[string]bool{}
		for _, n := range c.Nodes {
			info, err := n.Do("CLUSTER", "INFO")
			if err != nil {
				t.Fatal(err)
			}
			_, rest, _ := strings.Cut(info, "cluster_current_epoch:")
			epoch, _, _ := strings.Cut(rest, "\r")
			epochs[epoch] = true
		}
		return len(epochs) == 1
	})
}

// move moves a slot as redis-cli does.
func move(t *testing.T, at uint16, from, to *testserver.RedisServer) {
	t.Helper()
	do := func(n *testserver.RedisServer, args ...string) string { return mustDo(t, n, args...) }
	number, target := strconv.Itoa(int(at)), beginMove(t, at, from, to)
	host, port, _ := net.SplitHostPort(to.Addr)
	for {
		keys := do(from, "CLUSTER", "GETKEYSINSLOT", number, "100")
		if keys == "" {
			break
		}
		for key := range strings.Lines(keys) { // one by one, so that they are apart for a while
			do(from, "MIGRATE", host, port, strings.TrimSuffix(key, "\n"), "0", "5000")
		}
	}
	do(to, "CLUSTER", "SETSLOT", number, "NODE", target)
	do(from, "CLUSTER", "SETSLOT", number, "NODE", target)
}

// beginMove is the first step of move. It returns the name of the server to which the slot
// moves.
func beginMove(t *testing.T, at uint16, from, to *testserver.RedisServer) (target string) {
	t.Helper()
	number := strconv.Itoa(int(at))
	source, target := mustDo(t, from, "CLUSTER", "MYID"), mustDo(t, to, "CLUSTER", "MYID")
	mustDo(t, to, "CLUSTER", "SETSLOT", number, "IMPORTING", source)
	mustDo(t, from, "CLUSTER", "SETSLOT", number, "MIGRATING", target)
	return target
}

func mustDo(t *testing.T, n *testserver.RedisServer, args ...string) string {
	t.Helper()
	reply, err := n.Do(args...)
	if err != nil {
		t.Fatalf("move a slot: %s: %v", strings.Join(args, " "), err)
	}
	return reply
}

// Limits that one request asks for lie on one slot.
func TestLimitsOnSeveralSlots(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	cluster := testserver.SharedRedisCluster(t)
	dial := func() redis.UniversalClient { return dialCluster(t, cluster) }
	s := mustNew(t, dial(), Config{Prefix: "several:"})
	r := asking("a", windows(5, 100_000*time.Hour), 1)
	r.Takes = append(r.Takes, limits.Take{Key: "b", Limit: windows(5, 100_000*time.Hour), Cost: 1})
	_, err := s.Take(t.Context(), r)
	e, ok := errors.AsType[*limits.Error](err)
	if !ok || e.Key != "a" || !strings.Contains(err.Error(), `"b"`) || !strings.Contains(err.Error(), "{user1}") {
		t.Errorf("on two slots: %v, want a *limits.Error that names both keys and says what to do", err)
	}
	for i, tagged := range [][2]string{{"{x}a", "{x}b"}, {"a{x}", "{x}{b}"}} {
		r.Takes[0].Key, r.Takes[1].Key = tagged[0], tagged[1]
		r.ID, r.Keep = driver.NewID(), time.Hour
		if d, err := s.Take(t.Context(), r); err != nil || !d.OK {
			t.Errorf("%d, with a common tag: %+v, %v", i, d, err)
		}
	}
	s = mustNew(t, dial(), Config{Prefix: "{several}:"})
	r.Takes[0].Key, r.Takes[1].Key = "a", "b"
	if d, err := s.Take(t.Context(), r); err != nil || !d.OK {
		t.Errorf("with a tag in the prefix: %+v, %v", d, err)
	}
}

// A slot that moves under load takes its limits along.
func TestLimitsWhileTheirSlotMoves(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	t.Parallel()
	cluster := testserver.RedisCluster(t)
	s := mustNew(t, dialCluster(t, cluster))
	const tagged = "{moving}"
	at := slot(tagged)
	from, to := owners(t, cluster, at)
	const capacity = 1_000_000
	r := asking(tagged+"a", windows(capacity, 100_000*time.Hour), 1)
	r.Takes = append(r.Takes, limits.Take{Key: tagged + "b", Limit: windows(capacity, 99_000*time.Hour), Cost: 1})
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	defer load.Wait()
	defer stop()
	taken := int64(0)
	load.Go(func() {
		r := r
		for ctx.Err() == nil {
			r.ID, r.Keep = driver.NewID(), 10*time.Second
			for {
				d, err := s.Take(t.Context(), r)
				if err == nil {
					if !d.OK {
						t.Errorf("refused: %+v", d)
					}
					taken++
					break
				}
				if !errors.Is(err, driver.ErrUnavailable) {
					t.Errorf("while the slot moves: %v", err)
					return
				}
			}
		}
	})
	for range 6 {
		move(t, at, from, to)
		agree(t, cluster)
		from, to = to, from
	}
	stop()
	load.Wait()
	r.Takes[0].Cost, r.Takes[1].Cost = 0, 0
	d, err := s.Take(t.Context(), r)
	if err != nil || taken == 0 || d.Limits[0].Remaining != capacity-taken || d.Limits[1].Remaining != capacity-taken {
		t.Errorf("%d were taken: %+v, %v", taken, d, err)
	}
}

// One claim on each of several nodes of a fresh Cluster.
func (l *lab) oneOnEach(s *Store, nodes int) (claims []driver.Claim) {
	l.Helper()
	for n := range nodes {
		key := l.key
		for i := 0; int(slot(key))*3/slots != n; i++ {
			key = fmt.Sprint(l.key, i)
		}
		c, _ := take(l, s, claimOf(key, "a"), time.Minute, false)
		claims = append(claims, c)
	}
	for i, r := range s.Renew(l.Context(), claims, time.Minute) { // the nodes know the script now
		if r.State != driver.Held {
			l.Fatalf("claim %d: %+v", i, r)
		}
	}
	return claims
}

// Slots without a node cost the leases on others nothing.
func TestRenewalBesideSlotsWithoutANode(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	cluster := testserver.RedisCluster(t)
	s := mustNew(t, dialCluster(t, cluster))
	claims := (&lab{T: t, key: "job"}).oneOnEach(s, 2)
	for _, n := range cluster.Nodes {
		for _, set := range [][]string{{"cluster-require-full-coverage", "no"}, {"cluster-node-timeout", "1000"}} {
			if _, err := n.Do(append([]string{"CONFIG", "SET"}, set...)...); err != nil {
				t.Fatal(err)
			}
		}
	}
	cluster.Nodes[0].Kill()
	eventually(t, "no node for the slots of the one that is gone", 30*time.Second, func() bool {
		reply, err := cluster.Nodes[1].Do("CLUSTER", "SHARDS")
		return err == nil && strings.Contains(reply, "fail")
	})
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		r := s.Renew(ctx, claims, time.Minute)
		cancel()
		if r[0].State != driver.Unknown || r[1].State != driver.Held {
			t.Errorf("on the node that is gone %v, on one that is there %v, %v, want unknown and held", r[0].State, r[1].State, r[1].Err)
		}
		s.client.(*client).cluster.ReloadState(t.Context())
	}
}
