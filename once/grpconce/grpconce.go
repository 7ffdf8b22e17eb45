package grpconce

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	rpc "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/internal/calls"
	"github.com/batonhq/baton/once/internal/front"
)

// Config says which calls take effect once. Only Scope is required.
type Config struct {
	// Scope is the caller: a user, a tenant. Keys of different scopes are different. ""
	// is no caller: the call is refused as Unauthenticated.
	Scope func(context.Context) string

	// Skip lets calls pass to the handler, such as those that change nothing. It must be
	// safe for concurrent use. Defaults to none.
	Skip func(ctx context.Context, fullMethod string) bool

	// Required refuses calls without a key. Otherwise they pass to the handler, without
	// an AttemptOf.
	Required bool

	// Wait is how long a call waits for another one with its key that is under way.
	// Defaults to 0: it is refused at once.
	Wait time.Duration

	// Record says which outcomes are recorded. After another one the next call runs the
	// handler again. Defaults to Recorded.
	Record func(codes.Code) bool

	// Prefix begins the keys of the operations in the store. Programs must agree on it to
	// share their calls. Defaults to "grpc/".
	Prefix string

	// Logger gets what callers do not see: errors of the store as warnings, answers that
	// could not be recorded as errors. Defaults to silence.
	Logger *slog.Logger
}

// Recorded is the default of Config.Record: success, and failures that another try does
// not change.
func Recorded(c codes.Code) bool { return calls.Recorded(code.Code(c)) }

// An Interceptor is for the calls of servers. It is safe for concurrent use.
type Interceptor struct {
	cfg   Config
	calls *calls.Calls
}

// New makes an Interceptor of a Runner. It refuses a Config that cannot be honoured with a
// *baton.ConfigError.
func New(ops *once.Runner, cfg Config) (*Interceptor, error) {
	if cfg.Scope == nil {
		return nil, &baton.ConfigError{Field: "Scope", Reason: "is missing: it says whose keys they are"}
	}
	if cfg.Record == nil {
		cfg.Record = Recorded
	}
	if cfg.Prefix == "" {
		cfg.Prefix = "grpc/"
	}
	c, err := calls.New(calls.Calls{
		Ops: ops, Required: cfg.Required, Wait: cfg.Wait, Prefix: cfg.Prefix, Logger: cfg.Logger,
		Record: func(failure *rpc.Status) bool { return cfg.Record(codes.Code(failure.GetCode())) },
	})
	if err != nil {
		return nil, fmt.Errorf("grpconce: %w", err)
	}
	return &Interceptor{cfg, c}, nil
}

// AttemptOf returns the attempt that runs a handler, for its token and its lease, from
// the handler's context. There is none if the call has no key.
func AttemptOf(ctx context.Context) (once.Attempt, bool) { return front.AttemptOf(ctx) }

// Unary is a grpc.UnaryServerInterceptor.
func (i *Interceptor) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if i.cfg.Skip != nil && i.cfg.Skip(ctx, info.FullMethod) {
		return handler(ctx, req)
	}
	var answer any
	var failure error
	out := i.calls.Do(ctx, calls.Call{
		Method: info.FullMethod, Request: req,
		Keys:  metadata.ValueFromIncomingContext(ctx, calls.Field),
		Scope: func() string { return i.cfg.Scope(ctx) },
		Run: func(ctx context.Context) (any, *rpc.Status) {
			if answer, failure = handler(ctx, req); failure != nil {
				return nil, status.Convert(failure).Proto()
			}
			return answer, nil
		},
	})
	if out.Ran {
		return answer, failure
	}
	if out.Replayed {
		_ = grpc.SetHeader(ctx, metadata.Pairs(calls.Replayed, "true")) // fails only outside of a server
	}
	if out.Failure != nil {
		return nil, status.ErrorProto(out.Failure)
	}
	return out.Answer, nil
}

// Stream is a grpc.StreamServerInterceptor. It refuses streams with a key as
// Unimplemented: a stream could not be replayed. Others pass.
func (i *Interceptor) Stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	skip := i.cfg.Skip != nil && i.cfg.Skip(s.Context(), info.FullMethod)
	if !skip && len(metadata.ValueFromIncomingContext(s.Context(), calls.Field)) > 0 {
		return status.Error(codes.Unimplemented, calls.NoStream)
	}
	return handler(srv, s)
}
