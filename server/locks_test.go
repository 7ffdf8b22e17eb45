package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/server/batonv1"
	"github.com/batonhq/baton/store/memstore"
)

// These tests call the services without a network, in fake time.

const secret = "a secret of all replicas"

// someone may do everything that a test does not forbid.
type someone struct {
	name   string
	forbid func(verb, key string) bool
}

func (c someone) Name() string { return c.name }

func (c someone) May(verb, key string) error {
	if c.forbid != nil && c.forbid(verb, key) {
		return fmt.Errorf("%s may not %s %q", c.name, verb, key)
	}
	return nil
}

// replica returns a server. All servers over the same store are replicas of each other.
func replica(t *testing.T, store driver.Locks, change ...func(*Config)) *Server {
	t.Helper()
	cfg := Config{Store: store, Secret: []byte(secret)}
	for _, f := range change {
		f(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// as returns the context of a call by c.
func as(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callKey{}, &call{caller: c, again: func() (Caller, error) { return c, nil }, clear: func() {}, within: func(time.Duration) {}})
}

func (s *Server) acquire(ctx context.Context, r *batonv1.AcquireRequest) (*batonv1.AcquireResponse, error) {
	if _, err := callOf(ctx); err != nil {
		ctx = as(ctx, someone{})
	}
	res, err := locksService{s}.Acquire(ctx, r)
	if err != nil {
		return nil, s.failure("Acquire", err)
	}
	return res, nil
}

// held acquires a lock, and fails the test without one.
func (s *Server) held(t *testing.T, r *batonv1.AcquireRequest) *batonv1.AcquireResponse {
	t.Helper()
	res, err := s.acquire(t.Context(), r)
	if err != nil || res.State != batonv1.AcquireResponse_HELD {
		t.Fatalf("acquire %v: %v, %v, want HELD", r, res, err)
	}
	return res
}

func (s *Server) stateOf(t *testing.T, r *batonv1.AcquireRequest) batonv1.AcquireResponse_State {
	t.Helper()
	res, err := s.acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("acquire %v: %v", r, err)
	}
	return res.State
}

func (s *Server) renews(ctx context.Context, handle string) (time.Duration, error) {
	if _, err := callOf(ctx); err != nil {
		ctx = as(ctx, someone{})
	}
	res, err := locksService{s}.Renew(ctx, &batonv1.RenewRequest{Handle: handle})
	if err != nil {
		return 0, s.failure("Renew", err)
	}
	return time.Duration(res.RemainingMs) * time.Millisecond, nil
}

func (s *Server) releases(ctx context.Context, handle string) error {
	if _, err := callOf(ctx); err != nil {
		ctx = as(ctx, someone{})
	}
	if _, err := (locksService{s}).Release(ctx, &batonv1.ReleaseRequest{Handle: handle}); err != nil {
		return s.failure("Release", err)
	}
	return nil
}

func wantCode(t *testing.T, err error, want connect.Code) {
	t.Helper()
	if err == nil || connect.CodeOf(err) != want {
		t.Errorf("%v, want %v", err, want)
	}
}

// Bad input is refused before anything is done.
func TestBadCalls(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s := replica(t, store, func(c *Config) { c.MaxTTL, c.MaxWait = time.Minute, 10*time.Second })
	long := string(make([]byte, 300))
	for _, r := range []*batonv1.AcquireRequest{
		{},
		{Key: "a\n"},
		{Key: "once/x"},
		{Key: "k", TtlMs: 60_001},
		{Key: "k", TtlMs: 1},
		{Key: "k", WaitMs: 10_001},
		{Key: "k", Op: long},
		{Key: "k", Op: "only fifteen by"},
		{Key: "k", Retry: true},
		{Key: "k", Shared: true, Permits: 1, Of: 2},
		{Key: "k", Permits: 1},
		{Key: "k", Of: 1},
		{Key: "k", Permits: 3, Of: 2},
		{Key: "k", Permits: 1, Of: 1 << 30},
		{Key: "k", Owner: "a\tb"},
		{Key: "k", Owner: long},
	} {
		_, err := s.acquire(t.Context(), r)
		if connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%v: %v, want invalid_argument", r, err)
		}
	}
	for key, err := range s.locks.List(t.Context(), "") {
		t.Errorf("there is %v, %v", key, err)
	}
	for name, err := range map[string]error{
		"handle": func() error { _, err := s.renews(t.Context(), "bh1.AAAA"); return err }(),
		"cancel": func() error {
			_, err := locksService{s}.Cancel(as(t.Context(), someone{}), &batonv1.CancelRequest{Key: "k"})
			return err
		}(),
		"list": func() error {
			_, err := locksService{s}.List(as(t.Context(), someone{}), &batonv1.ListRequest{Limit: maxList + 1})
			return err
		}(),
		"take": func() error {
			_, err := limitsService{s}.Take(as(t.Context(), someone{}), &batonv1.TakeRequest{Rule: "r"})
			return err
		}(),
	} {
		want := connect.CodeInvalidArgument
		if name == "take" {
			want = connect.CodeUnimplemented
		}
		if got := connect.CodeOf(s.failure(name, err)); got != want {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

// Locks of all kinds, and what List shows of them.
func TestKindsAndList(t *testing.T) {
	t.Parallel()
	s := replica(t, memstore.New())
	s.held(t, &batonv1.AcquireRequest{Key: "a/r", Shared: true, Owner: "one"})
	s.held(t, &batonv1.AcquireRequest{Key: "a/r", Shared: true, Owner: "two"})
	s.held(t, &batonv1.AcquireRequest{Key: "a/p", Permits: 2, Of: 3})
	s.held(t, &batonv1.AcquireRequest{Key: "b", Owner: "x"})
	if got := s.stateOf(t, &batonv1.AcquireRequest{Key: "a/p", Permits: 2, Of: 3}); got != batonv1.AcquireResponse_REFUSED {
		t.Errorf("4 of 3 permits: %v", got)
	}
	_, err := s.acquire(t.Context(), &batonv1.AcquireRequest{Key: "a/p", Permits: 1, Of: 4})
	wantCode(t, err, connect.CodeFailedPrecondition)
	list := func(r *batonv1.ListRequest) *batonv1.ListResponse {
		t.Helper()
		res, err := locksService{s}.List(as(t.Context(), someone{}), r)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	res := list(&batonv1.ListRequest{Prefix: "a/"})
	if len(res.Locks) != 2 || res.More || res.Locks[0].Key != "a/p" || res.Locks[0].Holders[0].Permits != 2 || res.Locks[0].Holders[0].Of != 3 ||
		len(res.Locks[1].Holders) != 2 || !res.Locks[1].Holders[1].Shared || res.Locks[1].Holders[0].Owner != "one" {
		t.Errorf("the list is %v", res)
	}
	if res := list(&batonv1.ListRequest{Limit: 2}); len(res.Locks) != 2 || !res.More {
		t.Errorf("a list of at most two is %v", res)
	}
	n, err := locksService{s}.Break(as(t.Context(), someone{}), &batonv1.BreakRequest{Key: "a/r", Reason: "test"})
	if err != nil || n.Holders != 2 {
		t.Errorf("break: %v, %v", n, err)
	}
	s.held(t, &batonv1.AcquireRequest{Key: "a/r"})
}

// Each verb is checked, renewals too.
func TestRoles(t *testing.T) {
	t.Parallel()
	var forbidden atomic.Value
	forbidden.Store("")
	c := someone{"team-a", func(verb, key string) bool { return forbidden.Load() == verb+" "+key }}
	s := replica(t, memstore.New(), func(c *Config) {
		c.Limits = testRules(t, c.Store)
	})
	ctx := as(t.Context(), c)
	res, err := s.acquire(ctx, &batonv1.AcquireRequest{Key: "k", Owner: "web"})
	if err != nil {
		t.Fatal(err)
	}
	attempt, err := onceService{s}.Begin(ctx, &batonv1.BeginRequest{Key: "o"})
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		may  string
		call func() error
	}{
		{"lock k", func() error { _, err := s.acquire(ctx, &batonv1.AcquireRequest{Key: "k"}); return err }},
		{"lock k", func() error { _, err := s.renews(ctx, res.Handle); return err }},
		{"list p", func() error { _, err := locksService{s}.List(ctx, &batonv1.ListRequest{Prefix: "p"}); return err }},
		{"break b", func() error { _, err := locksService{s}.Break(ctx, &batonv1.BreakRequest{Key: "b"}); return err }},
		{"limit u", func() error {
			_, err := limitsService{s}.Take(ctx, &batonv1.TakeRequest{Rule: "api", Key: "u"})
			return err
		}},
		{"once o", func() error { _, err := onceService{s}.Begin(ctx, &batonv1.BeginRequest{Key: "o"}); return err }},
		{"once o", func() error { _, err := s.renews(ctx, attempt.Handle); return err }},
	} {
		forbidden.Store(one.may)
		wantCode(t, one.call(), connect.CodePermissionDenied)
		forbidden.Store("")
		if err := one.call(); err != nil {
			t.Errorf("%s, where it is allowed: %v", one.may, err)
		}
	}
	for _, one := range []struct {
		may     string
		holders int
	}{{"", 1}, {"list k", 0}} {
		forbidden.Store(one.may)
		refused, err := s.acquire(ctx, &batonv1.AcquireRequest{Key: "k"})
		if err != nil || refused.State != batonv1.AcquireResponse_REFUSED || len(refused.Holders) != one.holders {
			t.Errorf("forbidden %q: %v, %v, want REFUSED with %d holders", one.may, refused, err, one.holders)
		}
	}
	forbidden.Store("lock k")
	if err := s.releases(ctx, res.Handle); err != nil {
		t.Errorf("who may not lock any more cannot release: %v", err)
	}
	forbidden.Store("once o")
	if _, err := (onceService{s}).Finish(ctx, &batonv1.FinishRequest{Handle: attempt.Handle}); err != nil {
		t.Errorf("what has run cannot be recorded: %v", err)
	}
}

func testRules(t *testing.T, store driver.Locks) *rules.Limiter {
	t.Helper()
	r, err := rules.Parse("rules.yaml", []byte("rules:\n  - {name: api, requests: 2, period: 1m}\n"))
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := rules.New(store.(limits.Store), r)
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"no store":       {},
		"short secret":   {Store: memstore.New(), Secret: []byte("short")},
		"negative wait":  {Store: memstore.New(), MaxWait: -1},
		"negative TTL":   {Store: memstore.New(), MaxTTL: -1},
		"negative waits": {Store: memstore.New(), MaxWaits: -1},
		"sessions":       {Store: sessions{memstore.New()}},
	} {
		_, err := New(cfg)
		if _, ok := errors.AsType[*ConfigError](err); !ok {
			t.Errorf("%s: %v, want a *ConfigError", name, err)
		}
	}
	// Without a secret each server has its own.
	store := memstore.New()
	a, err := New(Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	b, err := New(Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.renews(t.Context(), a.held(t, &batonv1.AcquireRequest{Key: "k"}).Handle)
	wantCode(t, err, connect.CodeInvalidArgument)
	if ttl := baton.DefaultTTL; a.cfg.MaxTTL < ttl {
		t.Errorf("MaxTTL is %v", a.cfg.MaxTTL)
	}
}

// sessions is a store that ties locks to processes.
type sessions struct{ driver.Locks }

func (s sessions) Traits() driver.Traits {
	t := s.Locks.Traits()
	t.Sessions = true
	return t
}

// shown is a log that is read while it is written.
type shown struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *shown) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *shown) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// A break that the store does not answer ends, and the audit has it before it is tried.
func TestBreakOfASilentStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var audit shown
		s := replica(t, &spied{Store: memstore.New()}, func(c *Config) { c.Audit = slog.New(slog.NewTextHandler(&audit, nil)) })
		ended := make(chan error, 1)
		go func() {
			_, err := locksService{s}.Break(as(t.Context(), someone{name: "ops"}), &batonv1.BreakRequest{Key: "k", Reason: "it hangs"})
			ended <- err
		}()
		synctest.Wait()
		if text := audit.String(); !strings.Contains(text, "is to be broken") || !strings.Contains(text, "caller=ops") || !strings.Contains(text, "it hangs") {
			t.Errorf("before the act the audit has %q", text)
		}
		time.Sleep(breakTimeout) // fake
		synctest.Wait()
		select {
		case err := <-ended:
			if err == nil {
				t.Error("no error")
			}
		default:
			t.Fatal("it goes on")
		}
		if text := audit.String(); !strings.Contains(text, "may have been broken") {
			t.Errorf("after it the audit has %q", text)
		}
	})
}

// A caller that is removed while it waits gets no lease any more.
func TestRolesChangeDuringAWait(t *testing.T) {
	t.Parallel()
	removed, narrowed := errors.New("nobody"), someone{name: "a", forbid: func(string, string) bool { return true }}
	for name, again := range map[string]func() (Caller, error){
		"removed":  func() (Caller, error) { return nil, removed },
		"narrowed": func() (Caller, error) { return narrowed, nil },
		"renamed":  func() (Caller, error) { return someone{name: "b"}, nil },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := replica(t, memstore.New())
			for key, call := range map[string]func(context.Context) error{
				"k": func(ctx context.Context) error {
					_, err := locksService{s}.Acquire(ctx, &batonv1.AcquireRequest{Key: "k", TtlMs: 60_000})
					return err
				},
				"once/k": func(ctx context.Context) error {
					_, err := onceService{s}.Begin(ctx, &batonv1.BeginRequest{Key: "k", TtlMs: 60_000})
					return err
				},
			} {
				ctx := as(t.Context(), someone{name: "a"})
				c, _ := callOf(ctx)
				c.again = again
				_, err := s.around(func(ctx context.Context, _ connect.AnyRequest) (connect.AnyResponse, error) {
					return connect.NewResponse(&batonv1.AcquireResponse{}), call(ctx)
				})(ctx, connect.NewRequest(&batonv1.AcquireRequest{}))
				if code := connect.CodeOf(err); code != connect.CodeUnauthenticated && code != connect.CodePermissionDenied {
					t.Errorf("%s: %s: %v", name, key, err)
				}
				if info, err := s.locks.Inspect(t.Context(), key); err != nil || len(info.Holders) > 0 {
					t.Errorf("%s: %s stays: %v, %v", name, key, info, err)
				}
			}
		})
	}
}
