//go:build linux

package faulttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/store/redisstore"
)

// failoverSet is a primary with two replicas that all others reach through proxies, and
// what promotes one of them.
type failoverSet struct {
	t     *testing.T
	nodes []*failoverNode
	url   string // up to its parameters

	sentinels []*testserver.RedisServer // none in Cluster
}

type failoverNode struct {
	*testserver.RedisServer
	known *faultproxy.Proxy // whose address the others know
}

// replication selects the connections of replicas: they say PING first.
func replication(first []byte) bool { return bytes.HasPrefix(first, []byte("*1\r\n$4\r\nPING\r\n")) }

// newFailoverNode starts a server. args are given the port by which others know it.
func newFailoverNode(t *testing.T, args func(port string) []string) *failoverNode {
	known := faultproxy.New(t, "127.0.0.1:1")
	known.Only(replication)
	host, port, _ := net.SplitHostPort(known.Addr)
	n := &failoverNode{testserver.Redis(t, append(args(port), "--replica-announce-ip", host, "--replica-announce-port", port)...), known}
	known.Retarget(n.Addr)
	return n
}

func (n *failoverNode) must(t *testing.T, args ...string) string {
	t.Helper()
	answer, err := n.Do(args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return answer
}

func (n *failoverNode) follow(t *testing.T, primary *failoverNode) {
	t.Helper()
	host, port, _ := net.SplitHostPort(primary.known.Addr)
	n.must(t, "REPLICAOF", host, port)
}

func sentinelFailover(t *testing.T) *failoverSet {
	s := &failoverSet{t: t}
	for range 3 {
		s.nodes = append(s.nodes, newFailoverNode(t, func(string) []string { return nil }))
	}
	for _, n := range s.nodes[1:] {
		n.follow(t, s.nodes[0])
	}
	var addrs []string
	for range 3 {
		one := testserver.Sentinel(t, "mymaster", s.nodes[0].known.Addr, 2, time.Second)
		s.sentinels, addrs = append(s.sentinels, one), append(addrs, one.Addr)
	}
	await(t, "three Sentinels that know each other and the replicas", func() bool {
		for _, one := range s.sentinels {
			answer, err := one.Do("SENTINEL", "MASTER", "mymaster")
			if err != nil || !strings.Contains(answer, "num-other-sentinels\n2\n") || !strings.Contains(answer, "num-slaves\n2\n") {
				return false
			}
		}
		return true
	})
	s.url = "redis+sentinel://" + strings.Join(addrs, ",") + "/mymaster?prefix=f:"
	return s
}

// clusterFailover makes a Cluster of three primaries. The first one has all slots but two,
// and both replicas.
func clusterFailover(t *testing.T) *failoverSet {
	s := &failoverSet{t: t}
	var all []*failoverNode
	for range 5 {
		_, bus, _ := net.SplitHostPort(testserver.FreeAddr(t))
		n := newFailoverNode(t, func(port string) []string {
			return []string{
				"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-port", bus, "--cluster-node-timeout", "1000",
				"--cluster-require-full-coverage", "no", "--cluster-allow-replica-migration", "no",
				"--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", port, "--cluster-announce-bus-port", bus,
			}
		})
		all = append(all, n)
	}
	for i, slots := range [][2]string{{"0", "16381"}, {"16382", "16382"}, {"16383", "16383"}} {
		all[i].must(t, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		all[i].must(t, "CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1])
	}
	for _, n := range all[1:] {
		host, port, _ := net.SplitHostPort(n.Addr)
		all[0].must(t, "CLUSTER", "MEET", host, port, n.must(t, "CONFIG", "GET", "cluster-port")[len("cluster-port\n"):])
	}
	known := func(want string) {
		await(t, "the Cluster", func() bool {
			for _, n := range all {
				if info, err := n.Do("CLUSTER", "INFO"); err != nil || !strings.Contains(info, want) || !strings.Contains(info, "cluster_state:ok") && want != "cluster_known_nodes:5" {
					return false
				}
			}
			return true
		})
	}
	known("cluster_known_nodes:5")
	for _, n := range all[3:] {
		await(t, "a replica", func() bool {
			_, err := n.Do("CLUSTER", "REPLICATE", all[0].must(t, "CLUSTER", "MYID"))
			return err == nil
		})
	}
	known("cluster_slots_ok:16384")
	s.nodes = []*failoverNode{all[0], all[3], all[4]}
	s.url = "redis+cluster://" + all[1].known.Addr + "," + all[2].known.Addr + "?prefix={f}:"
	return s
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// says reports whether the server says this of its replication.
func (n *failoverNode) says(lines ...string) bool {
	info, err := n.Do("INFO", "replication")
	for _, line := range lines {
		if err != nil || !strings.Contains(info, line+"\r\n") {
			return false
		}
	}
	return err == nil
}

// named is the node that every Sentinel calls the primary, if it is one. A Sentinel that has
// not ended a fail-over never ends it if the server that it promotes dies.
func (s *failoverSet) named() *failoverNode {
	at := ""
	for _, one := range s.sentinels {
		answer, err := one.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")
		if err != nil || at != "" && at != answer {
			return nil
		}
		at = answer
		state, err := one.Do("SENTINEL", "MASTER", "mymaster")
		if err != nil || strings.Contains(state, "failover_in_progress") {
			return nil
		}
	}
	host, port, _ := strings.Cut(at, "\n")
	for _, n := range s.nodes {
		if n.known.Addr == net.JoinHostPort(host, port) {
			return n
		}
	}
	return nil
}

// settled awaits that one node is the primary, and that the others follow it without delay.
func (s *failoverSet) settled() (primary *failoverNode) {
	s.t.Helper()
	await(s.t, "a primary with two replicas in sync", func() bool {
		primary = nil
		for _, n := range s.nodes {
			if n.says("role:master", "connected_slaves:2") {
				primary = n
			}
		}
		if primary == nil || s.sentinels != nil && s.named() != primary {
			return false
		}
		_, port, _ := net.SplitHostPort(primary.known.Addr)
		role, err := primary.Do("ROLE")
		if err != nil {
			return false
		}
		var first, second int64
		if f := strings.Fields(role); len(f) == 8 {
			first, _ = strconv.ParseInt(f[4], 10, 64)
			second, _ = strconv.ParseInt(f[7], 10, 64)
		}
		for _, n := range s.nodes {
			if n != primary && !n.says("role:slave", "master_port:"+port, "master_link_status:up") {
				return false
			}
		}
		return first > 0 && second > 0
	})
	return primary
}

// promoted awaits that another node than old takes writes. A promotion that was asked for
// may come to nothing, so it calls ask now and then.
func (s *failoverSet) promoted(old *failoverNode, ask func()) (next *failoverNode) {
	s.t.Helper()
	asked := time.Time{}
	await(s.t, "the fail-over", func() bool {
		if time.Since(asked) > 5*time.Second {
			ask()
			asked = time.Now()
		}
		for _, n := range s.nodes {
			if n != old && n.says("role:master") && (s.sentinels == nil || s.named() == n) {
				next = n
				return true
			}
		}
		return false
	})
	return next
}

// state tells what everybody says, to explain a failure.
func (s *failoverSet) state() string {
	var b strings.Builder
	for _, n := range s.nodes {
		role, err := n.Do("ROLE")
		fmt.Fprintf(&b, "%s, known as %s: %q %v\n", n.Addr, n.known.Addr, role, err)
	}
	for _, one := range s.sentinels {
		for _, question := range []string{"MASTER", "REPLICAS"} {
			answer, err := one.Do("SENTINEL", question, "mymaster")
			fmt.Fprintf(&b, "Sentinel %s: %s %v\n", one.Addr, strings.ReplaceAll(answer, "\n", " "), err)
		}
	}
	return b.String()
}

func upTo(rng *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(most)))
}

// failover makes one: it disturbs the replication, and kills, freezes or deposes the
// primary.
func (s *failoverSet) failover(rng *rand.Rand) (what string) {
	t, old := s.t, s.settled()
	pause := func(most time.Duration) { time.Sleep(most/5 + upTo(rng, most)) } // faults come at any time
	link := "as it is"
	switch rng.IntN(5) {
	case 0:
		link = "stopped"
		old.known.Hold(faultproxy.ToClient)
	case 1:
		link = "cut"
		old.known.Hold(faultproxy.ToClient)
		old.known.Cut()
	case 2, 3:
		d := 100*time.Millisecond + upTo(rng, 500*time.Millisecond)
		link = "delayed by " + d.String()
		old.known.Delay(faultproxy.ToClient, d)
	}
	pause(time.Second)
	how := []string{"killed", "frozen", "deposed"}[rng.IntN(3)]
	ask := func() {}
	switch how {
	case "killed":
		old.Kill()
	case "frozen":
		old.Stop()
	case "deposed":
		ask = func() { s.depose(old) }
	}
	next := s.promoted(old, ask)
	pause(300 * time.Millisecond)
	old.known.Heal()
	switch how {
	case "killed":
		old.Restart()
	case "frozen":
		old.Cont()
	}
	pause(300 * time.Millisecond)
	if s.sentinels != nil { // a Sentinel takes ten seconds for it
		old.follow(t, next)
	}
	return fmt.Sprintf("the primary was %s, its link to the replicas %s", how, link)
}

// depose asks for a replica to be promoted while the primary lives.
func (s *failoverSet) depose(old *failoverNode) {
	if s.sentinels != nil {
		_, _ = s.sentinels[0].Do("SENTINEL", "FAILOVER", "mymaster") // one may be under way
		return
	}
	for _, n := range s.nodes {
		if n != old {
			_, _ = n.Do("CLUSTER", "FAILOVER", "FORCE") // it may be the primary by now
			return
		}
	}
}

const failoverKeys = 8

// failoverJudge holds clients to what they believe.
type failoverJudge struct {
	keys    [failoverKeys]string
	holders [failoverKeys]atomic.Pointer[baton.Lease]
	last    [failoverKeys]atomic.Int64

	grants, refused          atomic.Int64
	two, fallen, gone, ended atomic.Int64

	mu  sync.Mutex
	log []string
}

func (j *failoverJudge) violations() int64 { return j.two.Load() + j.fallen.Load() + j.gone.Load() }

func (j *failoverJudge) note(n *atomic.Int64, format string, args ...any) {
	n.Add(1)
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.log) < 20 {
		j.log = append(j.log, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	}
}

// run locks and unlocks until ctx ends.
func (j *failoverJudge) run(ctx context.Context, locks *baton.Locker, rng *rand.Rand) {
	for ctx.Err() == nil {
		i := rng.IntN(len(j.keys))
		wait, cancel := context.WithTimeout(ctx, 3*time.Second)
		lease, err := locks.Lock(wait, j.keys[i])
		cancel()
		if err != nil {
			if _, short := errors.AsType[*redisstore.ReplicasError](err); short {
				j.refused.Add(1)
			}
			continue
		}
		j.grants.Add(1)
		if other := j.holders[i].Swap(lease); other != nil && other.Err() == nil && lease.Err() == nil {
			j.note(&j.two, "%s: two holders, with tokens %d and %d", j.keys[i], other.Token(), lease.Token())
		}
		if before := j.last[i].Swap(lease.Token()); before >= lease.Token() {
			j.note(&j.fallen, "%s: token %d after %d", j.keys[i], lease.Token(), before)
		}
		hold := upTo(rng, 100*time.Millisecond)
		if rng.IntN(5) == 0 { // through the next fail-over
			hold = 2*time.Second + upTo(rng, 4*time.Second)
		}
		select {
		case <-lease.Done():
		case <-time.After(hold):
		case <-ctx.Done():
		}
		if lost, ok := errors.AsType[*baton.LostError](lease.Err()); ok && lost.Cause == baton.Gone {
			j.note(&j.gone, "%s: the lease with token %d is gone: %v", j.keys[i], lease.Token(), lost)
		} else if ok {
			j.ended.Add(1)
		}
		j.holders[i].CompareAndSwap(lease, nil)
		_ = lease.Unlock() // it may be lost
	}
}

// failovers has clients lock while there are so many fail-overs, or until what was seen
// is enough.
func failovers(t *testing.T, s *failoverSet, n int, enough func(*failoverJudge) bool, open func() driver.Store) *failoverJudge {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BATON_FAILOVER_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	s.settled()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.state())
		}
	})
	j := &failoverJudge{}
	for i := range j.keys {
		j.keys[i] = fmt.Sprint("key", i)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for i := range 16 {
		locks, err := baton.New(open(), baton.Config{TTL: 4 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { j.run(ctx, locks, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	rng := rand.New(rand.NewPCG(seed, 100))
	for round := 1; round <= n && !enough(j); round++ {
		before, began := j.grants.Load(), time.Now()
		what := s.failover(rng)
		await(t, "a grant after the fail-over", func() bool { return j.grants.Load() > before })
		if testing.Verbose() {
			t.Logf("%s %d: %s: %v, %d grants, %d refused, violations %d", time.Now().Format("15:04:05.000"), round, what, time.Since(began).Round(time.Millisecond), j.grants.Load()-before, j.refused.Load(), j.violations())
		}
	}
	s.settled()
	cancel()
	wg.Wait()
	t.Logf("seed %d: %d grants, %d refused; leases that ended in time %d, that were gone %d; two holders %d, tokens that fell %d\n%s", seed,
		j.grants.Load(), j.refused.Load(), j.ended.Load(), j.gone.Load(), j.two.Load(), j.fallen.Load(), strings.Join(j.log, "\n"))
	return j
}

// failoverRounds is how many fail-overs a test makes: BATON_FAILOVERS, else 5 and, in the
// long tier, 50.
func failoverRounds() int {
	if n, err := strconv.Atoi(os.Getenv("BATON_FAILOVERS")); err == nil {
		return n
	}
	if os.Getenv("BATON_LONG") == "1" {
		return 50
	}
	return 5
}

// Fail-overs lose locks that no replica has heard of, and two clients hold them. With
// replicas=all none is lost: no two hold one, tokens rise, and no holder is told that its
// lock is gone.
func TestFailover(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *failoverSet{"Sentinel": sentinelFailover, "Cluster": clusterFailover} {
		for replicas, lost := range map[string]bool{"0": true, "all": false} {
			t.Run(name+"/"+replicas, func(t *testing.T) {
				t.Parallel()
				s := start(t)
				n := failoverRounds()
				if lost { // it ends as soon as it has seen what it looks for
					n *= 3
				}
				seen := func(j *failoverJudge) bool { return lost && j.two.Load() > 0 && j.gone.Load() > 0 }
				j := failovers(t, s, n, seen, func() driver.Store { return opened(t, s.url+"&replicas="+replicas) })
				switch {
				case lost && !seen(j):
					t.Errorf("%d fail-overs lost no lock that two clients then held: this test would find nothing", n)
				case !lost && j.violations() > 0:
					t.Errorf("%d violations", j.violations())
				}
			})
		}
	}
}

func opened(t *testing.T, url string) *redisstore.Store {
	t.Helper()
	s, err := open.Store(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	store, ok := driver.As[*redisstore.Store](s)
	if !ok {
		t.Fatalf("%T is no store of Redis", s)
	}
	return store
}

// forgetful grants without waiting for replicas, and renews as it should.
type forgetful struct {
	*redisstore.Store
	grants *redisstore.Store
}

func (f forgetful) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return f.grants.Acquire(ctx, r)
}

// The fail-overs of TestFailover find a store whose grants do not wait.
func TestFailoverFindsPlantedDefect(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	t.Parallel()
	s := sentinelFailover(t)
	j := failovers(t, s, 50, func(j *failoverJudge) bool { return j.violations() > 0 }, func() driver.Store {
		return forgetful{opened(t, s.url+"&replicas=all"), opened(t, s.url)}
	})
	if j.violations() == 0 {
		t.Error("grants did not wait for replicas, and 50 fail-overs did not show it")
	}
}
