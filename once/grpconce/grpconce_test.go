package grpconce_test

import (
	"context"
	"errors"
	"net"
	"strings"
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

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/grpconce"
	"github.com/batonhq/baton/store/memstore"
)

type service struct {
	pb.UnimplementedTestServiceServer
	ran  atomic.Int64
	work func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error)
}

func (s *service) UnaryCall(ctx context.Context, r *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	n := s.ran.Add(1)
	if s.work != nil {
		return s.work(ctx, r)
	}
	return answer(string('0' + byte(n))), nil
}

func answer(text string) *pb.SimpleResponse { return &pb.SimpleResponse{Username: text} }

// A site is a real server and its client.
type site struct {
	*service
	t *testing.T
	c pb.TestServiceClient
}

func newSite(t *testing.T, store driver.Locks, cfg grpconce.Config, work func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error)) *site {
	t.Helper()
	ops, err := once.New(store, once.Config{Lock: baton.Config{TTL: 2 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Scope = func(ctx context.Context) string {
		return strings.Join(metadata.ValueFromIncomingContext(ctx, "user"), ",")
	}
	calls, err := grpconce.New(ops, cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, service: &service{work: work}}
	server := grpc.NewServer(grpc.UnaryInterceptor(calls.Unary), grpc.StreamInterceptor(calls.Stream))
	pb.RegisterTestServiceServer(server, s.service)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); server.Stop(); <-ended })
	s.c = pb.NewTestServiceClient(conn)
	return s
}

// call calls with metadata in pairs, and returns the answer or the status, and whether it
// was sent again.
func (s *site) call(request string, md ...string) (string, *status.Status, bool) {
	ctx := metadata.AppendToOutgoingContext(s.t.Context(), md...)
	var header metadata.MD
	r, err := s.c.UnaryCall(ctx, &pb.SimpleRequest{Payload: &pb.Payload{Body: []byte(request)}}, grpc.Header(&header))
	return r.GetUsername(), status.Convert(err), len(header.Get("idempotency-replayed")) == 1
}

func (s *site) want(code codes.Code, text string, replayed bool, request string, md ...string) *status.Status {
	s.t.Helper()
	got, st, again := s.call(request, append([]string{"user", "eve"}, md...)...)
	if st.Code() != code || again != replayed || !strings.Contains(got+st.Message(), text) {
		s.t.Errorf("%v %q, sent again: %v; want %v %q, %v", st, got, again, code, text, replayed)
	}
	return st
}

func (s *site) wantRan(n int64) {
	s.t.Helper()
	if ran := s.ran.Load(); ran != n {
		s.t.Errorf("the handler ran %d times, want %d", ran, n)
	}
}

// TestStream: a stream with a key is refused, and not run as if it had none.
func TestStream(t *testing.T) {
	t.Parallel()
	s := newSite(t, memstore.New(), grpconce.Config{Required: true}, nil)
	for _, md := range [][]string{{key, "k"}, nil} {
		stream, err := s.c.StreamingOutputCall(metadata.AppendToOutgoingContext(t.Context(), md...), new(pb.StreamingOutputCallRequest))
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv() // the service itself has no such method
		if refused := strings.Contains(status.Convert(err).Message(), "takes no idempotency-key"); refused != (md != nil) {
			t.Errorf("%q: %v", md, err)
		}
	}
}

// TestFailureThatIsNoText: a failure whose message cannot be encoded is recorded all the same.
func TestFailureThatIsNoText(t *testing.T) {
	t.Parallel()
	s := newSite(t, memstore.New(), grpconce.Config{}, func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		return nil, status.Error(codes.NotFound, "no account \xff")
	})
	s.want(codes.NotFound, "no account", false, "x", key, "k")
	s.want(codes.NotFound, "no account", true, "x", key, "k")
	s.wantRan(1)
}

const key = "idempotency-key"

func TestReplay(t *testing.T) {
	t.Parallel()
	s := newSite(t, memstore.New(), grpconce.Config{}, nil)
	s.want(codes.OK, "1", false, "x", key, "k")
	s.want(codes.OK, "1", true, "x", key, "k")
	s.want(codes.OK, "2", false, "x", key, "l")
	s.want(codes.OK, "3", false, "x")
	s.want(codes.FailedPrecondition, "another call", false, "y", key, "k")
	s.want(codes.InvalidArgument, "once", false, "x", key, "a", key, "b")
	s.want(codes.InvalidArgument, "not empty", false, "x", key, "")
	s.want(codes.InvalidArgument, "not legal", false, "x", key, strings.Repeat("k", 600))
	if _, st, _ := s.call("x", key, "k"); st.Code() != codes.Unauthenticated {
		t.Errorf("nobody is answered %v", st)
	}
	if got, st, again := s.call("x", "user", "mallory", key, "k"); got != "4" || again {
		t.Errorf("another user gets %q, %v", got, st)
	}
	s.wantRan(4)
	required := newSite(t, memstore.New(), grpconce.Config{Required: true, Skip: func(_ context.Context, method string) bool {
		return strings.HasSuffix(method, "/EmptyCall")
	}}, nil)
	required.want(codes.InvalidArgument, "draw one", false, "x")
	if _, err := required.c.EmptyCall(t.Context(), new(pb.Empty)); status.Code(err) != codes.Unimplemented {
		t.Errorf("what is skipped: %v", err)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	var code codes.Code
	s := newSite(t, memstore.New(), grpconce.Config{}, func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		st, err := status.New(code, "sorry").WithDetails(&errdetails.ErrorInfo{Reason: "WHY"})
		return nil, errors.Join(err, st.Err())
	})
	for code = codes.Canceled; code <= codes.Unauthenticated; code++ {
		recorded := grpconce.Recorded(code)
		for i := range 2 {
			st := s.want(code, "sorry", recorded && i == 1, "x", key, code.String())
			if len(st.Details()) != 1 {
				t.Errorf("%v has the details %v", code, st.Details())
			}
		}
	}
	for _, c := range []codes.Code{codes.OK, codes.NotFound, codes.PermissionDenied, codes.InvalidArgument} {
		if !grpconce.Recorded(c) {
			t.Errorf("%v is not recorded", c)
		}
	}
}

func TestBusy(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	s := newSite(t, memstore.New(), grpconce.Config{}, func(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		close(begun)
		<-goOn
		if _, ok := ctx.Deadline(); ok || ctx.Err() != nil {
			t.Error("the handler ends with its caller")
		}
		a, ok := grpconce.AttemptOf(ctx)
		if !ok || a.Lease == nil || a.Key != "grpc/eve/k" {
			t.Errorf("%+v", a)
		}
		return answer("done"), nil
	})
	ctx, hangUp := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "user", "eve", key, "k"), time.Minute)
	ended := make(chan error, 1)
	request := &pb.SimpleRequest{Payload: &pb.Payload{Body: []byte("x")}}
	go func() {
		_, err := s.c.UnaryCall(ctx, request)
		ended <- err
	}()
	<-begun
	st := s.want(codes.Aborted, "under way", false, "x", key, "k")
	if d, ok := st.Details()[0].(*errdetails.RetryInfo); !ok || d.RetryDelay.AsDuration() != time.Second {
		t.Errorf("%v", st.Details())
	}
	hangUp()
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	close(goOn)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) { // nobody tells that it is recorded
		got, st, again := s.call("x", "user", "eve", key, "k")
		if st.Code() == codes.OK {
			if got != "done" || !again {
				t.Errorf("%q, sent again: %v", got, again)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatal(st)
		}
	}
	s.wantRan(1)
}

func TestWait(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	store := memstore.New()
	first := newSite(t, store, grpconce.Config{}, func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		close(begun)
		<-goOn
		return answer("done"), nil
	})
	soon := newSite(t, store, grpconce.Config{Wait: 50 * time.Millisecond}, nil)
	patient := newSite(t, store, grpconce.Config{Wait: time.Minute}, nil)
	ended := make(chan string, 2)
	go func() { got, _, _ := first.call("x", "user", "eve", key, "k"); ended <- got }()
	<-begun
	soon.want(codes.Aborted, "under way", false, "x", key, "k")
	go func() {
		got, _, again := patient.call("x", "user", "eve", key, "k")
		ended <- got + map[bool]string{true: " again"}[again]
	}()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) { // until it waits
		info, err := store.Inspect(t.Context(), "once/grpc/eve/k")
		if err != nil || time.Now().After(end) {
			t.Fatal("it does not wait", err)
		}
		if len(info.Waiters) > 0 {
			break
		}
	}
	close(goOn)
	if a, b := <-ended, <-ended; a+b != "donedone again" && a+b != "done againdone" {
		t.Errorf("%q, %q", a, b)
	}
	soon.wantRan(0)
	patient.wantRan(0)
}

func TestWhatCannotBeKept(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s := newSite(t, store, grpconce.Config{}, func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		return answer(strings.Repeat("x", check.MaxResult)), nil
	})
	s.want(codes.OutOfRange, "has taken effect", false, "x", key, "k")
	s.want(codes.OutOfRange, "has taken effect", true, "x", key, "k")
	s.wantRan(1)
	ops, err := once.New(store, once.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for key, fn := range map[string]func(context.Context, once.Attempt) ([]byte, error){
		"text":  func(context.Context, once.Attempt) ([]byte, error) { return []byte("hello"), nil },
		"empty": func(context.Context, once.Attempt) ([]byte, error) { return nil, nil },
		"final": func(context.Context, once.Attempt) ([]byte, error) { return nil, once.Final(errors.New("no")) },
	} {
		_, _ = ops.Do(t.Context(), "grpc/eve/"+key, fn)
		s.want(codes.Internal, "another program", false, "x", "idempotency-key", key)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	s.want(codes.Unavailable, "not begun", false, "x", key, "l")
	s.wantRan(1)
}

func TestConfig(t *testing.T) {
	t.Parallel()
	ops, err := once.New(memstore.New(), once.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for field, cfg := range map[string]grpconce.Config{
		"Scope": {},
		"Wait":  {Scope: func(context.Context) string { return "x" }, Wait: -1},
	} {
		_, err := grpconce.New(ops, cfg)
		if wrong := new(baton.ConfigError); !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := grpconce.New(nil, grpconce.Config{}); err == nil {
		t.Error("there is no runner")
	}
}

// Of an outcome that is not recorded the store keeps the code, for people who look, and no
// other caller gets more of it.
func TestFailuresLeakNothing(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s := newSite(t, store, grpconce.Config{}, func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		return nil, status.Error(codes.Internal, "secret")
	})
	s.want(codes.Internal, "secret", false, "x", key, "k")
	keys := 0
	for rec, err := range store.ListRecords(t.Context(), "") {
		keys++
		if text := string(rec.Result); err != nil || !rec.Retry || !strings.Contains(text, "INTERNAL") || strings.Contains(text, "secret") {
			t.Errorf("the store keeps %+v (%q), %v", rec, text, err)
		}
	}
	if keys != 1 {
		t.Errorf("the store has %d records", keys)
	}
	if st := s.want(codes.FailedPrecondition, "another call", false, "y", key, "k"); strings.Contains(st.Message(), "secret") {
		t.Errorf("another call gets %v", st)
	}
}
