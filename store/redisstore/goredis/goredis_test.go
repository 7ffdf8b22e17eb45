package goredis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore"
)

func TestMain(m *testing.M) {
	logging.Disable() // it reports each connection that a test cuts
	os.Exit(m.Run())
}

// A dialer makes a client, as a process of its own would have it.
type dialer func() redis.UniversalClient

func single(t *testing.T) dialer {
	testserver.NeedRedis(t)
	t.Parallel()
	server := testserver.SharedRedis(t)
	return func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: server.Addr}) }
}

func sentinel(t *testing.T) dialer {
	testserver.NeedRedis(t)
	t.Parallel()
	set := testserver.RedisSentinel(t)
	return func() redis.UniversalClient {
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: set.Name, SentinelAddrs: []string{set.Sentinel.Addr}})
	}
}

func cluster(t *testing.T) dialer {
	testserver.NeedRedis(t)
	t.Parallel()
	cluster := testserver.SharedRedisCluster(t)
	return func() redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()})
	}
}

// open returns n stores with one fresh prefix.
func (dial dialer) open(t drivertest.T, n int) []*redisstore.Store {
	prefix := rand.Text() + ":"
	stores := make([]*redisstore.Store, n)
	for i := range stores {
		client := dial()
		t.Cleanup(func() { client.Close() })
		s, err := New(client, redisstore.Config{Prefix: prefix})
		if err != nil {
			t.Fatalf("new store: %v", err)
		}
		t.Cleanup(func() { s.Close() })
		stores[i] = s
	}
	return stores
}

// The store is one, and has passed the whole contract with its own client on every
// topology. What this client may change of that is the way of a request and of its
// answer. On a single server all cases go that way; behind Sentinel and in Cluster
// those do in which it differs: how a client finds the server of a key, what it makes
// of requests for several servers, how it lists them, and where it listens.
var (
	onSentinel = []string{
		// One script, of one key or several, and several scripts in a pipeline.
		"exclusion", "first come, first served", "several are granted at once", "one bad key does not spoil a batch", "a large batch",
		// The primary is asked for what it holds, and read for what it publishes.
		"list shows what is held or waited for", "all handles see one life of the server", "a hand-over is hinted", "a downgrade is hinted",
	}
	inCluster = append([]string{
		// The client computes slots, too, and sends several keys to one.
		"odd keys are different locks", "odd keys have queues of their own", "odd keys have readers and permits of their own", "odd keys can be broken",
		"several or none", "several at once, wanted by many", "bad requests for several are refused", "a crowd is served one at a time",
		// Pipelines to several nodes.
		"a batch may hold waiters and holders", "a batch may hold all kinds of claims", "an illegal claim does not spoil a batch",
		"a batch renews every claim for the whole TTL",
		// All primaries are asked, and a node repeats what another one publishes.
		"a prefix is compared byte by byte", "list shows many keys", "giving up a granted place is hinted", "nobody is woken after the end of a watch",
	}, onSentinel...)
)

// TestContractSingle runs on miniredis where tests may start no server.
func TestContractSingle(t *testing.T) {
	if os.Getenv("BATON_REQUIRE_SERVERS") == "1" {
		contract(t, single(t), nil)
		return
	}
	t.Parallel()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	contract(t, func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: m.Addr()}) }, nil)
}

func TestContractSentinel(t *testing.T) {
	testserver.Long(t)
	contract(t, sentinel(t), onSentinel)
}

func TestContractCluster(t *testing.T) {
	testserver.Long(t)
	contract(t, cluster(t), inCluster)
}

func contract(t *testing.T, dial dialer, only []string) {
	drivertest.Locks(t, drivertest.Harness{
		Only: only,
		Open: func(t drivertest.T, n int) (locks []driver.Locks) {
			for _, s := range dial.open(t, n) {
				locks = append(locks, s)
			}
			return locks
		},
	})
}

func TestLimitsSingle(t *testing.T) { limitCases(t, single(t), nil) }
func TestLimitsSentinel(t *testing.T) {
	testserver.Long(t)
	limitCases(t, sentinel(t), []string{"all or nothing", "a repeated request is taken once"})
}

func TestLimitsCluster(t *testing.T) {
	testserver.Long(t)
	limitCases(t, cluster(t), []string{
		"all or nothing", "sixteen limits, each with its cost", "exactly the capacity", "opposite orders",
		"odd keys are different limits", "locks and limits do not meet", "bad requests", "forget",
		"a repeated request is taken once", "an ID belongs to its key", "one key, several kinds of limits",
	})
}

func limitCases(t *testing.T, dial dialer, only []string) {
	drivertest.Limits(t, drivertest.LimitHarness{
		Only:     only,
		SameSlot: func(key string) string { return "{same}" + key },
		Open: func(t drivertest.T, n int) (limits []limits.Store) {
			for _, s := range dial.open(t, n) {
				limits = append(limits, s)
			}
			return limits
		},
	})
}

func TestRecordsSingle(t *testing.T) { records(t, single(t), nil) }
func TestRecordsSentinel(t *testing.T) {
	testserver.Long(t)
	records(t, sentinel(t), []string{"begin and finish", "repeated calls"})
}

func TestRecordsCluster(t *testing.T) {
	testserver.Long(t)
	records(t, cluster(t), []string{
		"begin and finish", "repeated calls", "odd keys are different operations", "locks and records do not meet",
		"many operations at once", "many attempts race", "forget",
	})
}

func records(t *testing.T, dial dialer, only []string) {
	drivertest.Records(t, drivertest.RecordHarness{
		Only: only,
		Open: func(t drivertest.T, n int) (all []driver.Records) {
			for _, s := range dial.open(t, n) {
				all = append(all, s)
			}
			return all
		},
	})
}

// go-redis sends a command again when the answer to it was cut off. A script
// must not be: the store says that it does not know, and the caller asks with
// Retry.
func TestScriptsAreNotSentAgain(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	server := testserver.Redis(t)
	proxy := faultproxy.New(t, server.Addr)
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr, MaxRetries: 3})
	defer client.Close()
	s, err := New(client, redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()

	warm := claim("warm")
	if _, err := s.Acquire(t.Context(), driver.Request{Claim: warm, TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	c := claim("job")
	if _, err := server.Do("CONFIG", "RESETSTAT"); err != nil {
		t.Fatal(err)
	}
	cut := proxy.CutAfterRequest(func(request []byte) bool { return strings.Contains(string(request), c.ID) })
	_, err = s.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute})
	if !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("the answer was cut off: %v, want driver.ErrUnknown", err)
	}
	<-cut
	stats, err := server.Do("INFO", "commandstats")
	if err != nil || !strings.Contains(stats, "cmdstat_evalsha:calls=1,") {
		t.Errorf("want one script, got %v\n%s", err, stats)
	}
	if g, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute, Retry: true}); err != nil || g.Waiting {
		t.Errorf("asked again: %+v, %v, want the grant", g, err)
	}
}

// go-redis waits for its own timeouts, not for the context's.
func TestContextIsObeyed(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	proxy := faultproxy.New(t, testserver.SharedRedis(t).Addr)
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr, ReadTimeout: time.Minute})
	defer client.Close()
	s, err := New(client, redisstore.Config{Prefix: rand.Text() + ":"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	proxy.Hold(faultproxy.ToClient)
	defer proxy.Heal()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = s.Acquire(ctx, driver.Request{Claim: claim("job"), TTL: time.Minute})
	if !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer in time: %v, want driver.ErrUnknown and the context's error", err)
	}
	if waited := time.Since(start); waited > 30*time.Second {
		t.Errorf("waited for %v, the context allowed 100 ms", waited)
	}
}

// A node of the Cluster that hangs costs the leases of the others nothing, also if
// these do not know the script: they may have become primaries just now.
func TestRenewalBesideANodeThatHangs(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	cluster := testserver.RedisCluster(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()})
	defer client.Close()
	s, err := New(client, redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var claims []driver.Claim
	for _, n := range cluster.Nodes[:2] {
		c := claim("job")
		for i := 0; ; i++ {
			c.Key = fmt.Sprint("job ", i)
			if m, err := client.MasterForKey(t.Context(), c.Key); err != nil {
				t.Fatal(err)
			} else if m.Options().Addr == n.Addr {
				break
			}
		}
		g, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		c.Ticket = g.Ticket
		claims = append(claims, c)
	}
	for i, r := range s.Renew(t.Context(), claims, time.Minute) {
		if r.State != driver.Held {
			t.Fatalf("claim %d: %+v", i, r)
		}
	}
	cluster.Nodes[0].Stop()
	for _, flush := range []bool{false, true} {
		if flush {
			if _, err := cluster.Nodes[1].Do("SCRIPT", "FLUSH"); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		r := s.Renew(ctx, claims, time.Minute)
		cancel()
		if r[0].State != driver.Unknown || r[1].State != driver.Held {
			t.Errorf("flushed is %v: on the node that hangs %v, on the other one %v, %v, want unknown and held", flush, r[0].State, r[1].State, r[1].Err)
		}
	}
}

// stall is a hook that keeps the first script until it is opened.
type stall struct {
	kept atomic.Bool
	open chan struct{}
}

func (s *stall) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *stall) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *stall) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" && !s.kept.Swap(true) {
			<-s.open
		}
		return next(ctx, cmd)
	}
}

// onProcess is a hook that runs before each script.
type onProcess struct {
	*stall
	f func()
}

func (o onProcess) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		o.f()
		return next(ctx, cmd)
	}
}

// goroutine is the number of this goroutine.
func goroutine() string {
	b := make([]byte, 64)
	number, _, _ := strings.Cut(strings.TrimPrefix(string(b[:runtime.Stack(b, false)]), "goroutine "), " ")
	return number
}

// A call runs on its caller's goroutine wherever the client ends it with its context's
// deadline: that halves the time of a call. The client's hooks see it, also those that
// were added after New.
func TestCallsRunOnTheirCallersGoroutine(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	addr := testserver.SharedRedis(t).Addr
	for name, c := range map[string]struct {
		options  redis.Options
		deadline time.Duration // 0: none
		here     bool
	}{
		"no deadline":                        {redis.Options{}, 0, true},
		"no deadline, no timeout":            {redis.Options{ReadTimeout: -1}, 0, false},
		"no deadline, a long timeout":        {redis.Options{ReadTimeout: time.Minute}, 0, false},
		"a deadline later than the timeout":  {redis.Options{ReadTimeout: time.Second}, time.Minute, true},
		"a deadline sooner than the timeout": {redis.Options{}, 3 * time.Second, false},
		"deadlines are obeyed":               {redis.Options{ContextTimeoutEnabled: true}, 3 * time.Second, true},
	} {
		c.options.Addr = addr
		client := redis.NewClient(&c.options)
		t.Cleanup(func() { client.Close() })
		s, err := New(client, redisstore.Config{Prefix: rand.Text() + ":"})
		if err != nil {
			t.Fatal(err)
		}
		var on []string
		client.AddHook(onProcess{f: func() { on = append(on, goroutine()) }})
		ctx, cancel := context.WithCancel(t.Context())
		if c.deadline > 0 {
			ctx, cancel = context.WithTimeout(t.Context(), c.deadline)
		}
		_, err = s.Acquire(ctx, driver.Request{Claim: claim("job"), TTL: time.Minute})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if len(on) == 0 {
			t.Errorf("%s: a hook did not see the call", name)
		}
		for _, number := range on {
			if (number == goroutine()) != c.here {
				t.Errorf("%s: the call ran on its caller's goroutine: %v, want %v", name, !c.here, c.here)
			}
		}
	}
}

// A caller cancels its context while the server falls silent. Its call ends within
// ReadTimeout, and those after it at once, until the server answers.
func TestCancelledWhileTheServerFallsSilent(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	proxy := faultproxy.New(t, testserver.SharedRedis(t).Addr)
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr, ReadTimeout: time.Second})
	defer client.Close()
	s, err := New(client, redisstore.Config{Prefix: rand.Text() + ":"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	acquire := func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		_, err := s.Acquire(ctx, driver.Request{Claim: claim(rand.Text()), TTL: time.Minute})
		return time.Since(began), err
	}
	if _, err := acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.Hold(faultproxy.ToClient)
	for i, least := range []time.Duration{900 * time.Millisecond, 0, 0} {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		took, err := acquire(ctx)
		if !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.Canceled) {
			t.Errorf("call %d: %v, want driver.ErrUnknown and context.Canceled", i, err)
		}
		if took < least || took > least+700*time.Millisecond {
			t.Errorf("call %d took %v", i, took)
		}
	}
	proxy.Heal()
	if _, err := acquire(t.Context()); err != nil {
		t.Errorf("when the server answers: %v", err)
	}
}

// Decisions about a limit do not wait for one that was abandoned.
func TestDecisionsBesideOneThatHangs(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: testserver.SharedRedis(t).Addr})
	defer client.Close()
	s, err := New(client, redisstore.Config{Prefix: rand.Text() + ":"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	hook := &stall{open: make(chan struct{})}
	client.AddHook(hook)
	defer close(hook.open)
	ask := func(patience time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		limit := limits.Limit{Algorithm: limits.TokenBucket, N: 1, Period: time.Hour, Burst: 10}
		_, err := s.Take(ctx, limits.Request{Takes: []limits.Take{{Key: "k", Limit: limit, Cost: 1}}})
		return err
	}
	if err := ask(50 * time.Millisecond); !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("over a connection that hangs: %v, want driver.ErrUnknown and the context's error", err)
	}
	if err := ask(5 * time.Second); err != nil {
		t.Errorf("beside it: %v", err)
	}
}

func TestOtherClientsAreRefused(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	if _, err := New(ring, redisstore.Config{}); err == nil {
		t.Error("a ring was accepted, which loses locks when a shard is away")
	}
}

func claim(key string) driver.Claim {
	return driver.Claim{Key: key, ID: driver.NewID(), Owner: "test", Weight: driver.Whole, Capacity: driver.Whole}
}

// A client that waits too long on a connection that has fallen silent is found.
func TestExamineTimeouts(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	server := testserver.SharedRedis(t)
	for name, c := range map[string]struct {
		timeout time.Duration
		found   bool
	}{"two seconds": {2 * time.Second, false}, "ten": {10 * time.Second, true}, "none": {-1, true}} {
		client := redis.NewClient(&redis.Options{Addr: server.Addr, ReadTimeout: c.timeout})
		t.Cleanup(func() { client.Close() })
		s, err := New(client, redisstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		all, err := s.Examine(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		found := slices.ContainsFunc(all, func(f driver.Finding) bool {
			return f.Name == "silent-connections" && f.Severity == driver.Unsafe
		})
		if found != c.found {
			t.Errorf("%s: found %v, want %v", name, found, c.found)
		}
	}
}

func TestClosedClient(t *testing.T) {
	client := single(t)()
	s, err := New(client, redisstore.Config{Prefix: rand.Text() + ":"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	drivertest.ClosedClient(t, s, func() { client.Close() })
}
