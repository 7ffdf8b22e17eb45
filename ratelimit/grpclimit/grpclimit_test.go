package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/grpclimit"
	"github.com/batonhq/baton/store/memstore"
)

func limiter(t *testing.T, store limits.Store, limit ratelimit.Limit, more ...ratelimit.Option) *ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.New(store, limit, more...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// service counts what reaches it.
type service struct {
	pb.UnimplementedTestServiceServer
	calls, messages atomic.Int64
	careless        bool // hides errors of a stream

	mu      sync.Mutex
	results []string // what the handlers found in their contexts
}

func (s *service) look(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := grpclimit.ResultOf(ctx); ok {
		s.results = append(s.results, fmt.Sprint(r.By, " ", r.OK, " ", r.Remaining))
	}
}

func (s *service) found() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.results
}

func (s *service) EmptyCall(ctx context.Context, _ *pb.Empty) (*pb.Empty, error) {
	s.calls.Add(1)
	s.look(ctx)
	return new(pb.Empty), nil
}

func (s *service) FullDuplexCall(stream pb.TestService_FullDuplexCallServer) error {
	s.calls.Add(1)
	for {
		if _, err := stream.Recv(); err == io.EOF || err != nil && s.careless {
			return nil
		} else if err != nil {
			return err
		}
		s.messages.Add(1)
		if err := stream.Send(new(pb.StreamingOutputCallResponse)); err != nil {
			return err
		}
	}
}

func (s *service) StreamingOutputCall(_ *pb.StreamingOutputCallRequest, stream pb.TestService_StreamingOutputCallServer) error {
	s.calls.Add(1)
	s.look(stream.Context())
	return stream.Send(new(pb.StreamingOutputCallResponse))
}

// start is a client of a server that is limited.
func start(t *testing.T, s *service, l *ratelimit.Limiter, opts ...grpclimit.Option) pb.TestServiceClient {
	t.Helper()
	return startOn(t, "tcp", "127.0.0.1:0", "", s, l, opts...)
}

func startOn(t *testing.T, network, address, config string, s *service, l *ratelimit.Limiter, opts ...grpclimit.Option) pb.TestServiceClient {
	t.Helper()
	limit, err := grpclimit.New(l, opts...)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(limit.Unary), grpc.ChainStreamInterceptor(limit.Stream))
	pb.RegisterTestServiceServer(server, s)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	target := "passthrough:///" + listener.Addr().String()
	if network == "unix" {
		target = "unix:" + listener.Addr().String()
	}
	dial := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if config != "" {
		dial = append(dial, grpc.WithDefaultServiceConfig(config))
	}
	conn, err := grpc.NewClient(target, dial...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return pb.NewTestServiceClient(conn)
}

const ages = 10_000 * time.Hour

// refusal is what a caller learns from a refusal.
type refusal struct {
	code     codes.Code
	retry    time.Duration // -1: nothing
	names    []string
	pushback string
}

func read(err error, trailer metadata.MD) refusal {
	s := status.Convert(err)
	r := refusal{code: s.Code(), retry: -1, pushback: strings.Join(trailer.Get("grpc-retry-pushback-ms"), "+")}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.RetryInfo:
			r.retry = d.RetryDelay.AsDuration()
		case *errdetails.QuotaFailure:
			for _, v := range d.Violations {
				r.names = append(r.names, v.QuotaId)
			}
		default:
			r.names = append(r.names, fmt.Sprintf("unknown detail %T", d))
		}
	}
	return r
}

func TestUnary(t *testing.T) {
	t.Parallel()
	s := new(service)
	c := start(t, s, limiter(t, memstore.New(), ratelimit.FixedWindow(2, ages).Named("few"), ratelimit.FixedWindow(99, ages).Named("many")))
	for range 2 {
		if _, err := c.EmptyCall(t.Context(), new(pb.Empty)); err != nil {
			t.Fatal(err)
		}
	}
	var trailer metadata.MD
	_, err := c.EmptyCall(t.Context(), new(pb.Empty), grpc.Trailer(&trailer))
	r := read(err, trailer)
	if r.code != codes.ResourceExhausted || r.retry <= 0 || !slices.Equal(r.names, []string{"few"}) {
		t.Errorf("%+v, %v", r, err)
	}
	if ms, err := strconv.ParseInt(r.pushback, 10, 32); err != nil || ms != min(int64((r.retry+time.Millisecond-1)/time.Millisecond), 1<<31-1) {
		t.Errorf("pushback %q for %v", r.pushback, r.retry)
	}
	if s.calls.Load() != 2 {
		t.Errorf("%d calls reached the service", s.calls.Load())
	}
}

// A client that retries automatically does so when it was told to, and not if a
// retry can never help.
func TestPushback(t *testing.T) {
	t.Parallel()
	const config = `{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":5,"initialBackoff":"3600s","maxBackoff":"3600s","backoffMultiplier":1,"retryableStatusCodes":["RESOURCE_EXHAUSTED"]}}]}`
	s := new(service)
	cost := grpclimit.Cost(func(ctx context.Context, _ string, _ any) int64 {
		if md, _ := metadata.FromIncomingContext(ctx); md.Get("cost") != nil {
			return 2
		}
		return 1
	})
	var asked atomic.Int64
	counted := grpclimit.Func("", func(context.Context, string) string {
		asked.Add(1)
		return "all"
	})
	c := startOn(t, "tcp", "127.0.0.1:0", config, s, limiter(t, memstore.New(), ratelimit.TokenBucket(1, 300*time.Millisecond, 1)), cost, grpclimit.By(counted))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // long before the client's own backoff
	defer cancel()
	for range 3 {
		if _, err := c.EmptyCall(ctx, new(pb.Empty)); err != nil {
			t.Error(err)
		}
	}
	before := asked.Load()
	if before < 3 {
		t.Errorf("the server was asked %d times", before)
	}
	var trailer metadata.MD
	_, err := c.EmptyCall(metadata.AppendToOutgoingContext(ctx, "cost", "2"), new(pb.Empty), grpc.Trailer(&trailer))
	if r := read(err, trailer); r.code != codes.ResourceExhausted || r.retry != -1 || r.pushback != "-1" || len(r.names) != 1 || asked.Load() != before+1 {
		t.Errorf("never: %+v, asked %d times", r, asked.Load()-before)
	}
}

func TestStream(t *testing.T) {
	t.Parallel()
	s := new(service)
	c := start(t, s, limiter(t, memstore.New(), ratelimit.FixedWindow(1, ages)))
	stream, err := c.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := exchange(stream); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Errorf("%v", err)
	}
	if stream, err = c.FullDuplexCall(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	if r := read(err, stream.Trailer()); r.code != codes.ResourceExhausted || r.retry <= 0 || r.pushback == "" || !slices.Equal(r.names, []string{"default"}) {
		t.Errorf("%+v", r)
	}
	if s.calls.Load() != 1 || s.messages.Load() != 5 {
		t.Errorf("%d streams and %d messages reached the service", s.calls.Load(), s.messages.Load())
	}
}

func exchange(stream pb.TestService_FullDuplexCallClient) error {
	if err := stream.Send(new(pb.StreamingOutputCallRequest)); err != nil {
		return err
	}
	_, err := stream.Recv()
	return err
}

// A handler that hides the error does not hide the refusal.
func TestPerMessage(t *testing.T) {
	t.Parallel()
	for _, careless := range []bool{false, true} {
		s := &service{careless: careless}
		c := start(t, s, limiter(t, memstore.New(), ratelimit.FixedWindow(4, ages)), grpclimit.PerMessage())
		if out, err := c.StreamingOutputCall(t.Context(), new(pb.StreamingOutputCallRequest)); err != nil {
			t.Error(err)
		} else if _, err := out.Recv(); err != nil {
			t.Error(err) // the one message that it receives is counted
		}
		stream, err := c.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := exchange(stream); err != nil {
				t.Fatal(err)
			}
		}
		err = exchange(stream)
		if r := read(err, stream.Trailer()); r.code != codes.ResourceExhausted || r.retry <= 0 || r.pushback == "" || len(r.names) != 1 {
			t.Errorf("careless: %v: %+v", careless, r)
		}
		if s.messages.Load() != 3 {
			t.Errorf("%d messages reached the service", s.messages.Load())
		}
	}
}

// Of all that come at once exactly as many are let in as the limit allows.
func TestMany(t *testing.T) {
	t.Parallel()
	s := new(service)
	c := start(t, s, limiter(t, memstore.New(), ratelimit.FixedWindow(50, ages)))
	var passed, refused atomic.Int64
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 10 {
				switch _, err := c.EmptyCall(t.Context(), new(pb.Empty)); status.Code(err) {
				case codes.OK:
					passed.Add(1)
				case codes.ResourceExhausted:
					refused.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if passed.Load() != 50 || refused.Load() != 150 || s.calls.Load() != 50 {
		t.Errorf("%d passed, %d were refused, %d reached the service", passed.Load(), refused.Load(), s.calls.Load())
	}
}

// recorder remembers the last key that was asked about.
type recorder struct {
	limits.Store
	last atomic.Value
}

func (r *recorder) Take(ctx context.Context, q limits.Request) (limits.Taken, error) {
	r.last.Store(q.Takes[0].Key)
	return r.Store.Take(ctx, q)
}

func (r *recorder) key() string {
	key, _ := r.last.Load().(string)
	return key
}

func TestKeys(t *testing.T) {
	t.Parallel()
	local := netip.MustParsePrefix("127.0.0.0/8")
	tenant := grpclimit.Metadata("Tenant")
	user := grpclimit.Func("user", func(ctx context.Context, _ string) string {
		return strings.Join(metadata.ValueFromIncomingContext(ctx, "user"), "")
	})
	for _, c := range []struct {
		name     string
		opts     []grpclimit.Option
		metadata []string
		want     string
	}{
		{"nothing said", nil, []string{"x-forwarded-for", "198.51.100.1"}, "127.0.0.1"},
		{"a network", []grpclimit.Option{grpclimit.Networks(8, 64)}, nil, "127.0.0.0/8"},
		{"proxy", []grpclimit.Option{grpclimit.TrustXForwardedFor(local)}, []string{"x-forwarded-for", "198.51.100.1, 2001:db8::7"}, "2001:db8::/64"},
		{"two values", []grpclimit.Option{grpclimit.TrustXForwardedFor(local)}, []string{"x-forwarded-for", "198.51.100.1", "x-forwarded-for", "192.0.2.1"}, "192.0.2.1"},
		{"Forwarded", []grpclimit.Option{grpclimit.TrustForwarded(local)}, []string{"forwarded", "for=198.51.100.1, for=192.0.2.1", "x-forwarded-for", "198.51.100.1"}, "192.0.2.1"},
		{"garbage", []grpclimit.Option{grpclimit.TrustXForwardedFor(local)}, []string{"x-forwarded-for", "198.51.100.1, me"}, "127.0.0.1"},
		{"no proxy", []grpclimit.Option{grpclimit.TrustXForwardedFor(netip.MustParsePrefix("10.0.0.0/8"))}, []string{"x-forwarded-for", "198.51.100.1"}, "127.0.0.1"},
		{"metadata", []grpclimit.Option{grpclimit.By(tenant)}, []string{"tenant", "acme", "tenant", "other"}, "tenant=acme"},
		{"no metadata", []grpclimit.Option{grpclimit.By(tenant)}, nil, "127.0.0.1"},
		{"something else then", []grpclimit.Option{grpclimit.By(tenant.Or(grpclimit.Method()))}, nil, "/grpc.testing.TestService/EmptyCall"},
		{"not then", []grpclimit.Option{grpclimit.By(tenant.Or(grpclimit.Method()))}, []string{"tenant", "acme"}, "tenant=acme"},
		{"an address as value", []grpclimit.Option{grpclimit.By(tenant)}, []string{"tenant", "127.0.0.1"}, "tenant=127.0.0.1"},
		{"a delimiter as value", []grpclimit.Option{grpclimit.By(grpclimit.Join(tenant, user))}, []string{"tenant", "a|user=7", "user", "8"}, "tenant=a%7Cuser%3D7|user=8"},
		{"what is missing", []grpclimit.Option{grpclimit.By(grpclimit.Join(grpclimit.Method(), tenant))}, nil, "/grpc.testing.TestService/EmptyCall|127.0.0.1"},
		{"zero", []grpclimit.Option{grpclimit.By(grpclimit.Key{})}, nil, "127.0.0.1"},
		{"secret", []grpclimit.Option{grpclimit.By(grpclimit.SecretMetadata("key"))}, []string{"key", "hunter2"}, "key=#"},
		{"authorization", []grpclimit.Option{grpclimit.By(grpclimit.Metadata("Authorization"))}, []string{"authorization", "Bearer hunter2"}, "authorization=#"},
	} {
		store := &recorder{Store: memstore.New()}
		client := start(t, new(service), limiter(t, store, ratelimit.FixedWindow(9, ages)), c.opts...)
		if _, err := client.EmptyCall(metadata.AppendToOutgoingContext(t.Context(), c.metadata...), new(pb.Empty)); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := store.key(); got != c.want && (!strings.HasSuffix(c.want, "#") || !strings.HasPrefix(got, c.want) || strings.Contains(got, "hunter2")) {
			t.Errorf("%s: counted under %q, want %q", c.name, got, c.want)
		}
	}
}

func TestUnixSocket(t *testing.T) {
	t.Parallel()
	for want, opts := range map[string][]grpclimit.Option{
		"unknown":   {grpclimit.TrustXForwardedFor(netip.MustParsePrefix("10.0.0.0/8"))},
		"192.0.2.1": {grpclimit.TrustXForwardedFor(), grpclimit.TrustSocket()},
	} {
		store := &recorder{Store: memstore.New()}
		c := startOn(t, "unix", filepath.Join(t.TempDir(), "s"), "", new(service), limiter(t, store, ratelimit.FixedWindow(9, ages)), opts...)
		if _, err := c.EmptyCall(metadata.AppendToOutgoingContext(t.Context(), "x-forwarded-for", "198.51.100.1, 192.0.2.1"), new(pb.Empty)); err != nil {
			t.Error(err)
		}
		if got := store.key(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestSkipAndCost(t *testing.T) {
	t.Parallel()
	s := new(service)
	c := start(t, s, limiter(t, memstore.New(), ratelimit.FixedWindow(5, ages)),
		grpclimit.Skip(func(_ context.Context, method string) bool { return strings.HasSuffix(method, "/StreamingOutputCall") }),
		grpclimit.Cost(func(_ context.Context, method string, message any) int64 {
			if _, empty := message.(*pb.Empty); !empty {
				return 0
			}
			return 3
		}))
	if _, err := c.EmptyCall(t.Context(), new(pb.Empty)); err != nil {
		t.Error(err)
	}
	if _, err := c.EmptyCall(t.Context(), new(pb.Empty)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v", err)
	}
	out, err := c.StreamingOutputCall(t.Context(), new(pb.StreamingOutputCallRequest))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Recv(); err != nil {
		t.Errorf("skipped: %v", err)
	}
	stream, err := c.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := exchange(stream); err != nil {
		t.Errorf("costs nothing: %v", err)
	}
}

// broken is a store out of reach.
type broken struct{}

func (broken) Take(context.Context, limits.Request) (limits.Taken, error) {
	return limits.Taken{}, fmt.Errorf("dial redis.internal: %w", driver.ErrUnavailable)
}

func TestStoreFails(t *testing.T) {
	t.Parallel()
	few := ratelimit.TokenBucket(1, time.Hour, 1).Named("few")
	for _, c := range []struct {
		name   string
		policy []ratelimit.Option
		opts   []grpclimit.Option
		want   refusal
	}{
		{"error", nil, nil, refusal{codes.Unavailable, -1, nil, ""}},
		{"open", []ratelimit.Option{ratelimit.FailOpen(time.Minute)}, nil, refusal{codes.OK, -1, nil, ""}},
		{"closed", []ratelimit.Option{ratelimit.FailClosed(2500 * time.Millisecond)}, nil, refusal{codes.Unavailable, 2500 * time.Millisecond, nil, "2500"}},
		{"own refusal", []ratelimit.Option{ratelimit.FailClosed(2500 * time.Millisecond)}, []grpclimit.Option{
			grpclimit.OnRefused(func(_ context.Context, _ string, r ratelimit.Result) error {
				return status.Error(codes.Aborted, r.By.String())
			}),
		}, refusal{codes.Aborted, -1, nil, "2500"}},
		{"only looked at", []ratelimit.Option{ratelimit.FailClosed(time.Minute)}, []grpclimit.Option{
			grpclimit.OnRefused(func(context.Context, string, ratelimit.Result) error { return nil }),
		}, refusal{codes.OK, -1, nil, ""}},
		{"own error", nil, []grpclimit.Option{
			grpclimit.OnError(func(_ context.Context, _ string, err error) error {
				if errors.Is(err, ratelimit.ErrUnavailable) {
					return nil
				}
				return err
			}),
		}, refusal{codes.OK, -1, nil, ""}},
	} {
		client := start(t, new(service), limiter(t, broken{}, few, c.policy...), c.opts...)
		var trailer metadata.MD
		_, err := client.EmptyCall(t.Context(), new(pb.Empty), grpc.Trailer(&trailer))
		if r := read(err, trailer); fmt.Sprint(r) != fmt.Sprint(c.want) || err != nil && strings.Contains(err.Error(), "redis.internal") {
			t.Errorf("%s: %+v, %v", c.name, r, err)
		}
	}
}

// An interceptor that limits nothing while the store fails is visible: to a
// callback, and to the handler.
func TestFallbackIsSeen(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		store  limits.Store
		policy ratelimit.Option
		seen   string
		found  []string // by a handler and by one of a stream
	}{
		{memstore.New(), ratelimit.FailOpen(time.Minute), "", []string{"store true 4", "store true 3"}},
		{broken{}, ratelimit.FailOpen(time.Minute), "/grpc.testing.TestService/EmptyCall open true;/grpc.testing.TestService/StreamingOutputCall open true;", []string{"open true 0", "open true 0"}},
		{broken{}, ratelimit.FailClosed(time.Minute), "/grpc.testing.TestService/EmptyCall closed false;/grpc.testing.TestService/StreamingOutputCall closed false;", nil},
	} {
		var mu sync.Mutex
		var seen string
		s := new(service)
		client := start(t, s, limiter(t, c.store, ratelimit.TokenBucket(1, time.Hour, 5), c.policy), grpclimit.OnFallback(func(_ context.Context, method string, r ratelimit.Result) {
			mu.Lock()
			defer mu.Unlock()
			seen += fmt.Sprint(method, " ", r.By, " ", r.OK, ";")
		}))
		_, err := client.EmptyCall(t.Context(), new(pb.Empty))
		if (err == nil) != (c.found != nil) {
			t.Error(err)
		}
		out, err := client.StreamingOutputCall(t.Context(), new(pb.StreamingOutputCallRequest))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.Recv(); (err == nil) != (c.found != nil) {
			t.Error(err)
		}
		mu.Lock()
		if seen != c.seen {
			t.Errorf("the callback saw %q, want %q", seen, c.seen)
		}
		mu.Unlock()
		if found := s.found(); !slices.Equal(found, c.found) {
			t.Errorf("the handlers found %q, want %q", found, c.found)
		}
	}
}

// Under a LeakyBucket a call waits for its turn; one whose deadline comes sooner is
// refused at once.
func TestTurns(t *testing.T) {
	t.Parallel()
	l := limiter(t, memstore.New(), ratelimit.LeakyBucket(1, 50*time.Millisecond, ages))
	c := start(t, new(service), l)
	begin := time.Now()
	for range 4 {
		if _, err := c.EmptyCall(t.Context(), new(pb.Empty)); err != nil {
			t.Error(err)
		}
	}
	if took := time.Since(begin); took < 150*time.Millisecond-time.Millisecond {
		t.Errorf("four calls took %v", took)
	}
	l = limiter(t, memstore.New(), ratelimit.LeakyBucket(1, time.Hour, ages))
	c = start(t, new(service), l)
	if _, err := c.EmptyCall(t.Context(), new(pb.Empty)); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 2 { // the first has given its turn back
		var trailer metadata.MD
		_, err := c.EmptyCall(ctx, new(pb.Empty), grpc.Trailer(&trailer))
		if r := read(err, trailer); r.code != codes.ResourceExhausted || r.retry < 30*time.Minute || r.retry > time.Hour || r.pushback == "" {
			t.Errorf("%+v", r)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	l := limiter(t, memstore.New(), ratelimit.FixedWindow(9, time.Hour))
	ten := netip.MustParsePrefix("10.0.0.0/8")
	for name, opts := range map[string][]grpclimit.Option{
		"both":       {grpclimit.TrustXForwardedFor(ten), grpclimit.TrustForwarded(ten)},
		"no proxies": {grpclimit.TrustForwarded()},
		"no bits":    {grpclimit.Networks(33, 64)},
	} {
		if _, err := grpclimit.New(l, opts...); err == nil || !strings.HasPrefix(err.Error(), "grpclimit: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := grpclimit.New(nil); err == nil {
		t.Error("no limiter is accepted")
	}
}

// Shadows and warnings change no answer.
func TestShadowsAndWarningsAreSilent(t *testing.T) {
	t.Parallel()
	real := ratelimit.FixedWindow(2, ages).Named("real")
	alone := start(t, new(service), limiter(t, memstore.New(), real))
	beside := start(t, new(service), limiter(t, memstore.New(), ratelimit.FixedWindow(1, ages).Named("shadow").Shadow(), real.Warn(0.5)))
	for i := range 4 {
		var wantTrailer, gotTrailer metadata.MD
		_, want := alone.EmptyCall(t.Context(), new(pb.Empty), grpc.Trailer(&wantTrailer))
		_, got := beside.EmptyCall(t.Context(), new(pb.Empty), grpc.Trailer(&gotTrailer))
		w, g := read(want, wantTrailer), read(got, gotTrailer)
		if g.code != w.code || !slices.Equal(g.names, w.names) || (g.pushback == "") != (w.pushback == "") || (g.code == codes.OK) != (i < 2) {
			t.Errorf("number %d: %+v, without shadows %+v", i, g, w)
		}
	}
	only := start(t, new(service), limiter(t, memstore.New(), ratelimit.FixedWindow(1, ages).Shadow()))
	down := start(t, new(service), limiter(t, broken{}, ratelimit.FixedWindow(1, ages).Shadow()))
	for range 3 {
		for _, c := range []pb.TestServiceClient{only, down} {
			if _, err := c.EmptyCall(t.Context(), new(pb.Empty)); err != nil {
				t.Error(err)
			}
		}
	}
}
