package connectonce_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/connectonce"
	"github.com/batonhq/baton/once/grpconce"
	"github.com/batonhq/baton/store/memstore"
)

const (
	procedure = "/shop.Orders/Place"
	key       = "Idempotency-Key"
)

type text = wrapperspb.StringValue

// A site is a real server.
type site struct {
	t    *testing.T
	url  string
	http connect.HTTPClient
	ran  atomic.Int64
	work func(context.Context, *connect.Request[text]) (*connect.Response[text], error)
}

func newRunner(t *testing.T, store driver.Locks) *once.Runner {
	t.Helper()
	ops, err := once.New(store, once.Config{Lock: baton.Config{TTL: 2 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	return ops
}

func newSite(t *testing.T, store driver.Locks, cfg connectonce.Config, opts ...connect.HandlerOption) *site {
	t.Helper()
	cfg.Scope = func(_ context.Context, r connect.AnyRequest) string { return r.Header().Get("User") }
	calls, err := connectonce.New(newRunner(t, store), cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t}
	options := append([]connect.HandlerOption{connect.WithInterceptors(calls)}, opts...)
	mux := http.NewServeMux()
	mux.Handle(procedure, connect.NewUnaryHandler(procedure, func(ctx context.Context, r *connect.Request[text]) (*connect.Response[text], error) {
		n := s.ran.Add(1)
		if s.work != nil {
			return s.work(ctx, r)
		}
		answer := connect.NewResponse(wrapperspb.String(string('0' + byte(n))))
		answer.Header().Set("Own", "header")
		answer.Trailer().Set("Own", "trailer")
		return answer, nil
	}, options...))
	mux.Handle("/shop.Orders/Watch", connect.NewServerStreamHandler("/shop.Orders/Watch", func(_ context.Context, _ *connect.Request[text], to *connect.ServerStream[text]) error {
		return to.Send(wrapperspb.String("watched"))
	}, options...))
	server := httptest.NewUnstartedServer(mux)
	server.EnableHTTP2 = true // which gRPC needs
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	s.url, s.http = server.URL, server.Client()
	return s
}

// protocols are all that Connect serves.
var protocols = map[string][]connect.ClientOption{
	"connect": nil, "connect with JSON": {connect.WithProtoJSON()}, "gRPC": {connect.WithGRPC()}, "gRPC-Web": {connect.WithGRPCWeb()},
}

func each(t *testing.T, test func(t *testing.T, opts ...connect.ClientOption)) {
	t.Parallel()
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t, opts...) })
	}
}

// An outcome is what a caller gets.
type outcome struct {
	text     string // of the answer, or of the error
	code     connect.Code
	err      *connect.Error
	replayed bool
	header   http.Header
}

func (s *site) call(ctx context.Context, request string, opts []connect.ClientOption, fields ...string) outcome {
	r := connect.NewRequest(wrapperspb.String(request))
	for i := 0; i < len(fields); i += 2 {
		r.Header().Add(fields[i], fields[i+1])
	}
	answer, err := connect.NewClient[text, text](s.http, s.url+procedure, opts...).CallUnary(ctx, r)
	var o outcome
	if err != nil {
		o.err, _ = errors.AsType[*connect.Error](err)
		o.code, o.text, o.header = connect.CodeOf(err), o.err.Message(), o.err.Meta()
	} else {
		o.text, o.header = answer.Msg.GetValue(), answer.Header()
	}
	o.replayed = o.header.Get("Idempotency-Replayed") == "true"
	return o
}

func (s *site) want(code connect.Code, text string, replayed bool, request string, opts []connect.ClientOption, fields ...string) outcome {
	s.t.Helper()
	o := s.call(s.t.Context(), request, opts, append([]string{"User", "eve"}, fields...)...)
	if o.code != code || o.replayed != replayed || !strings.Contains(o.text, text) {
		s.t.Errorf("%v %q, sent again: %v; want %v %q, %v", o.code, o.text, o.replayed, code, text, replayed)
	}
	return o
}

func (s *site) wantRan(n int64) {
	s.t.Helper()
	if ran := s.ran.Load(); ran != n {
		s.t.Errorf("the handler ran %d times, want %d", ran, n)
	}
}

const ok = connect.Code(0)

func TestReplay(t *testing.T) {
	each(t, func(t *testing.T, opts ...connect.ClientOption) {
		s := newSite(t, memstore.New(), connectonce.Config{})
		first := s.want(ok, "1", false, "x", opts, key, "k")
		again := s.want(ok, "1", true, "x", opts, key, "k")
		if first.header.Get("Own") != "header" || again.header.Get("Own") != "" {
			t.Errorf("the header %v, then %v", first.header, again.header)
		}
		s.want(ok, "2", false, "x", opts, key, "l")
		s.want(ok, "3", false, "x", opts)
		s.want(connect.CodeFailedPrecondition, "another call", false, "y", opts, key, "k")
		s.want(connect.CodeInvalidArgument, "once", false, "x", opts, key, "a", key, "b")
		s.want(connect.CodeInvalidArgument, "not empty", false, "x", opts, key, "")
		s.want(connect.CodeInvalidArgument, "not legal", false, "x", opts, key, strings.Repeat("k", 600))
		if o := s.call(t.Context(), "x", opts, key, "k"); o.code != connect.CodeUnauthenticated {
			t.Errorf("nobody is answered %+v", o)
		}
		if o := s.call(t.Context(), "x", opts, "User", "mallory", key, "k"); o.text != "4" || o.replayed {
			t.Errorf("another user gets %+v", o)
		}
		s.wantRan(4)
		for name, other := range protocols {
			if o := s.call(t.Context(), "x", other, "User", "eve", key, "k"); o.text != "1" || !o.replayed {
				t.Errorf("by %s: %+v", name, o)
			}
		}
	})
}

func TestRequired(t *testing.T) {
	t.Parallel()
	skip := false
	s := newSite(t, memstore.New(), connectonce.Config{Required: true, Skip: func(_ context.Context, spec connect.Spec) bool {
		if spec.Procedure != procedure && !strings.HasSuffix(spec.Procedure, "/Watch") {
			t.Errorf("%+v", spec)
		}
		return skip
	}})
	s.want(connect.CodeInvalidArgument, "draw one", false, "x", nil)
	skip = true
	s.want(ok, "1", false, "x", nil, key, "k")
	s.want(ok, "2", false, "x", nil, key, "k")
	if err := s.watch(key, "k"); err != nil {
		t.Errorf("a stream that is skipped: %v", err)
	}
}

// watch calls the method that streams.
func (s *site) watch(fields ...string) error {
	r := connect.NewRequest(wrapperspb.String("x"))
	for i := 0; i < len(fields); i += 2 {
		r.Header().Add(fields[i], fields[i+1])
	}
	stream, err := connect.NewClient[text, text](s.http, s.url+"/shop.Orders/Watch").CallServerStream(s.t.Context(), r)
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
		if stream.Msg().GetValue() != "watched" {
			s.t.Errorf("%v", stream.Msg())
		}
	}
	return stream.Err()
}

// A stream with a key is refused, and not run as if it had none.
func TestStream(t *testing.T) {
	t.Parallel()
	s := newSite(t, memstore.New(), connectonce.Config{Required: true})
	if err := s.watch(); err != nil {
		t.Error(err)
	}
	if err := s.watch(key, "k"); connect.CodeOf(err) != connect.CodeUnimplemented || !strings.Contains(err.Error(), "takes no idempotency-key") {
		t.Error(err)
	}
}

// Which errors are recorded, with what they say and their details; the metadata is not.
func TestFailures(t *testing.T) {
	each(t, func(t *testing.T, opts ...connect.ClientOption) {
		var code connect.Code
		s := newSite(t, memstore.New(), connectonce.Config{})
		s.work = func(context.Context, *connect.Request[text]) (*connect.Response[text], error) {
			err := connect.NewError(code, errors.New("sorry"))
			d, e := connect.NewErrorDetail(&errdetails.ErrorInfo{Reason: "WHY"})
			err.AddDetail(d)
			err.Meta().Set("Own", "yes")
			return nil, errors.Join(e, err)
		}
		for code = connect.CodeCanceled; code <= connect.CodeUnauthenticated; code++ {
			for i := range 2 {
				o := s.want(code, "sorry", connectonce.Recorded(code) && i == 1, "x", opts, key, code.String())
				if o.err == nil || len(o.err.Details()) != 1 || o.err.Details()[0].Type() != "google.rpc.ErrorInfo" {
					t.Errorf("%+v", o)
				} else if d, err := o.err.Details()[0].Value(); err != nil || d.(*errdetails.ErrorInfo).Reason != "WHY" {
					t.Errorf("%v, %v", d, err)
				}
				if (o.header.Get("Own") == "yes") == o.replayed {
					t.Errorf("%v: %v", code, o.header)
				}
			}
		}
		for _, c := range []connect.Code{connect.CodeNotFound, connect.CodePermissionDenied, connect.CodeInvalidArgument, connect.CodeAlreadyExists} {
			if !connectonce.Recorded(c) {
				t.Errorf("%v is not recorded", c)
			}
		}
	})
}

// An error without a code is unknown to clients, and recorded only if Record wants it.
func TestFailureWithoutCode(t *testing.T) {
	t.Parallel()
	s := newSite(t, memstore.New(), connectonce.Config{Record: func(c connect.Code) bool { return c == connect.CodeUnknown }})
	s.work = func(context.Context, *connect.Request[text]) (*connect.Response[text], error) { return nil, io.EOF }
	s.want(connect.CodeUnknown, "EOF", false, "x", nil, key, "k")
	s.want(connect.CodeUnknown, "EOF", true, "x", nil, key, "k")
	s.wantRan(1)
}

// A panic is not recorded, whether Connect recovers inside or outside.
func TestPanics(t *testing.T) {
	t.Parallel()
	recovers := connect.WithRecover(func(context.Context, connect.Spec, http.Header, any) error {
		return connect.NewError(connect.CodeInternal, errors.New("recovered"))
	})
	for _, opts := range [][]connect.HandlerOption{nil, {recovers}} {
		s := newSite(t, memstore.New(), connectonce.Config{}, opts...)
		s.work = func(context.Context, *connect.Request[text]) (*connect.Response[text], error) {
			panic(http.ErrBodyNotAllowed)
		}
		for range 2 {
			if o := s.call(t.Context(), "x", nil, "User", "eve", key, "k"); o.err == nil || o.replayed || opts != nil && o.code != connect.CodeInternal {
				t.Errorf("%+v", o)
			}
		}
		s.wantRan(2)
	}
}

// While a handler runs, others with its key are told when to come again; it goes on without
// its client.
func TestBusy(t *testing.T) {
	each(t, func(t *testing.T, opts ...connect.ClientOption) {
		begun, goOn := make(chan struct{}), make(chan struct{})
		s := newSite(t, memstore.New(), connectonce.Config{})
		s.work = func(ctx context.Context, _ *connect.Request[text]) (*connect.Response[text], error) {
			close(begun)
			<-goOn
			if _, ok := ctx.Deadline(); ok || ctx.Err() != nil {
				t.Error("the handler ends with its caller")
			}
			a, ok := connectonce.AttemptOf(ctx)
			if !ok || a.Lease == nil || a.Token == 0 || a.Key != "connect/eve/k" {
				t.Errorf("%+v", a)
			}
			return connect.NewResponse(wrapperspb.String("done")), nil
		}
		ctx, hangUp := context.WithTimeout(t.Context(), time.Minute)
		ended := make(chan outcome, 1)
		go func() { ended <- s.call(ctx, "x", opts, "User", "eve", key, "k") }()
		<-begun
		o := s.want(connect.CodeAborted, "under way", false, "x", opts, key, "k")
		if o.header.Get("Retry-After") != "1" {
			t.Errorf("%v", o.header)
		}
		if d, err := o.err.Details()[0].Value(); err != nil || d.(*errdetails.RetryInfo).RetryDelay.AsDuration() != time.Second {
			t.Errorf("%v, %v", d, err)
		}
		hangUp()
		if o := <-ended; o.code != connect.CodeCanceled {
			t.Errorf("%+v", o)
		}
		close(goOn)
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) { // nobody tells that it is recorded
			o := s.call(t.Context(), "x", opts, "User", "eve", key, "k")
			if o.code == ok {
				if o.text != "done" || !o.replayed {
					t.Errorf("%+v", o)
				}
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%+v", o)
			}
		}
		s.wantRan(1)
	})
}

func TestWhatCannotBeKept(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s := newSite(t, store, connectonce.Config{})
	s.work = func(context.Context, *connect.Request[text]) (*connect.Response[text], error) {
		return connect.NewResponse(wrapperspb.String(strings.Repeat("x", check.MaxResult))), nil
	}
	s.want(connect.CodeOutOfRange, "has taken effect", false, "x", nil, key, "k")
	s.want(connect.CodeOutOfRange, "has taken effect", true, "x", nil, key, "k")
	s.wantRan(1)
	if _, err := newRunner(t, store).Do(t.Context(), "connect/eve/text", func(context.Context, once.Attempt) ([]byte, error) { return []byte("hello"), nil }); err != nil {
		t.Fatal(err)
	}
	s.want(connect.CodeInternal, "another program", false, "x", nil, key, "text")
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	o := s.want(connect.CodeUnavailable, "not begun", false, "x", nil, key, "l")
	if o.header.Get("Retry-After") != "1" {
		t.Errorf("%v", o.header)
	}
	s.wantRan(1)
}

// A server of grpc-go and one of Connect know each other's calls.
func TestWithGRPCOnce(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s := newSite(t, store, connectonce.Config{Prefix: "grpc/"})
	s.want(ok, "1", false, "x", nil, key, "k")
	calls, err := grpconce.New(newRunner(t, store), grpconce.Config{Scope: func(context.Context) string { return "eve" }})
	if err != nil {
		t.Fatal(err)
	}
	ctx := func(k string) context.Context {
		return metadata.NewIncomingContext(t.Context(), metadata.Pairs(key, k))
	}
	info := &grpc.UnaryServerInfo{FullMethod: procedure}
	got, err := calls.Unary(ctx("k"), wrapperspb.String("x"), info, func(context.Context, any) (any, error) {
		t.Error("it has run")
		return nil, nil
	})
	if m, ok := got.(proto.Message); err != nil || !ok || !proto.Equal(m, wrapperspb.String("1")) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := calls.Unary(ctx("l"), wrapperspb.String("x"), info, func(context.Context, any) (any, error) { return wrapperspb.String("of gRPC"), nil }); err != nil {
		t.Fatal(err)
	}
	s.want(ok, "of gRPC", true, "x", nil, key, "l")
}

// A client with the interceptor calls as if it had none.
func TestClient(t *testing.T) {
	t.Parallel()
	s := newSite(t, memstore.New(), connectonce.Config{})
	calls, err := connectonce.New(newRunner(t, memstore.New()), connectonce.Config{Required: true, Scope: func(context.Context, connect.AnyRequest) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	s.want(ok, "1", false, "x", []connect.ClientOption{connect.WithInterceptors(calls)})
	stream, err := connect.NewClient[text, text](s.http, s.url+"/shop.Orders/Watch", connect.WithInterceptors(calls)).CallServerStream(t.Context(), connect.NewRequest(wrapperspb.String("x")))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Receive() {
		t.Error(stream.Err())
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	ops := newRunner(t, memstore.New())
	for field, cfg := range map[string]connectonce.Config{
		"Scope": {},
		"Wait":  {Scope: func(context.Context, connect.AnyRequest) string { return "x" }, Wait: -1},
	} {
		_, err := connectonce.New(ops, cfg)
		if wrong := new(baton.ConfigError); !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := connectonce.New(nil, connectonce.Config{Scope: func(context.Context, connect.AnyRequest) string { return "x" }}); err == nil {
		t.Error("there is no runner")
	}
}
