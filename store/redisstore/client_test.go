package redisstore

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

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/bound"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

func TestMain(m *testing.M) {
	logging.Disable() // it reports each connection that a test cuts
	os.Exit(m.Run())
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
	s, err := New(client, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()

	warm := claimOf("warm", "a")
	if _, err := s.Acquire(t.Context(), driver.Request{Claim: warm, TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	c := claimOf("job", "a")
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
	s, err := New(client, Config{Prefix: rand.Text() + ":"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	proxy.Hold(faultproxy.ToClient)
	defer proxy.Heal()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = s.Acquire(ctx, driver.Request{Claim: claimOf("job", "a"), TTL: time.Minute})
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
	s, err := New(client, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var claims []driver.Claim
	for _, n := range cluster.Nodes[:2] {
		c := claimOf("job", "a")
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
		try      bool // the deadline bounds one try
	}{
		"no deadline":                        {here: true},
		"no deadline, no timeout":            {options: redis.Options{ReadTimeout: -1}},
		"no deadline, a long timeout":        {options: redis.Options{ReadTimeout: time.Minute}},
		"a deadline later than the timeout":  {options: redis.Options{ReadTimeout: time.Second}, deadline: time.Minute, here: true},
		"a deadline sooner than the timeout": {deadline: 3 * time.Second},
		"deadlines are obeyed":               {options: redis.Options{ContextTimeoutEnabled: true}, deadline: 3 * time.Second, here: true},
		"the bound of one try":               {deadline: 3 * time.Second, try: true, here: true},
		"a short bound of one try":           {deadline: time.Second, try: true},
		"a long timeout, the bound of a try": {options: redis.Options{ReadTimeout: time.Minute}, deadline: 3 * time.Second, try: true},
	} {
		c.options.Addr = addr
		client := redis.NewClient(&c.options)
		t.Cleanup(func() { client.Close() })
		s, err := New(client, Config{Prefix: rand.Text() + ":"})
		if err != nil {
			t.Fatal(err)
		}
		var on []string
		client.AddHook(onProcess{f: func() { on = append(on, goroutine()) }})
		ctx, cancel := context.WithCancel(t.Context())
		if c.deadline > 0 {
			ctx, cancel = context.WithTimeout(t.Context(), c.deadline)
		}
		if c.try {
			var b bound.Contexts
			of := b.Within(t.Context(), time.Now(), c.deadline)
			ctx, cancel = of, of.Release
		}
		_, err = s.Acquire(ctx, driver.Request{Claim: claimOf("job", "a"), TTL: time.Minute})
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
	s, err := New(client, Config{Prefix: rand.Text() + ":"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	acquire := func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		_, err := s.Acquire(ctx, driver.Request{Claim: claimOf(rand.Text(), "a"), TTL: time.Minute})
		return time.Since(began), err
	}
	if _, err := acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.Hold(faultproxy.ToClient)
	for i, least := range []time.Duration{900 * time.Millisecond, 0, 0} {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(200*time.Millisecond, cancel)
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
	s, err := New(client, Config{Prefix: rand.Text() + ":"})
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
	if _, err := New(ring, Config{}); err == nil {
		t.Error("a ring was accepted, which loses locks when a shard is away")
	}
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
		s, err := New(client, Config{})
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
