package connectonce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/code"
	rpc "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/internal/calls"
	"github.com/batonhq/baton/once/internal/front"
)

// Config says which calls take effect once. Only Scope is required.
type Config struct {
	// Scope is the caller: a user, a tenant. Keys of different scopes are different. ""
	// is no caller: the call is refused as unauthenticated.
	Scope func(context.Context, connect.AnyRequest) string

	// Skip lets calls pass to the handler, such as those that change nothing. It must be
	// safe for concurrent use. Defaults to none.
	Skip func(context.Context, connect.Spec) bool

	// Required refuses calls without a key. Otherwise they pass to the handler, without
	// an AttemptOf.
	Required bool

	// Wait is how long a call waits for another one with its key that is under way.
	// Defaults to 0: it is refused at once.
	Wait time.Duration

	// Record says which errors are recorded; success always is. After another error the
	// next call runs the handler again. Defaults to Recorded.
	Record func(connect.Code) bool

	// Prefix begins the keys of the operations in the store. Programs must agree on it to
	// share their calls. Defaults to "connect/".
	Prefix string

	// Logger gets what callers do not see: errors of the store as warnings, answers that
	// could not be recorded as errors. Defaults to silence.
	Logger *slog.Logger
}

// Recorded is the default of Config.Record: errors that another try does not change.
// These are all but aborted, canceled, deadline_exceeded, resource_exhausted,
// unauthenticated, unavailable, internal, unknown, data_loss and unimplemented. An error
// without a code is unknown.
func Recorded(c connect.Code) bool { return calls.Recorded(code.Code(c)) }

// An Interceptor is for the handlers of servers. It is safe for concurrent use.
type Interceptor struct {
	cfg   Config
	calls *calls.Calls
}

var _ connect.Interceptor = (*Interceptor)(nil)

// New makes an Interceptor of a Runner. It refuses a Config that cannot be honoured with
// a *baton.ConfigError.
func New(ops *once.Runner, cfg Config) (*Interceptor, error) {
	if cfg.Scope == nil {
		return nil, &baton.ConfigError{Field: "Scope", Reason: "is missing: it says whose keys they are"}
	}
	if cfg.Record == nil {
		cfg.Record = Recorded
	}
	if cfg.Prefix == "" {
		cfg.Prefix = "connect/"
	}
	c, err := calls.New(calls.Calls{
		Ops: ops, Required: cfg.Required, Wait: cfg.Wait, Prefix: cfg.Prefix, Logger: cfg.Logger,
		Record: func(failure *rpc.Status) bool { return failure == nil || cfg.Record(connect.Code(failure.Code)) },
	})
	if err != nil {
		return nil, fmt.Errorf("connectonce: %w", err)
	}
	return &Interceptor{cfg, c}, nil
}

// AttemptOf returns the attempt that runs a handler, for its token and its lease, from
// the handler's context. There is none if the call has no key.
func AttemptOf(ctx context.Context) (once.Attempt, bool) { return front.AttemptOf(ctx) }

// WrapUnary makes the calls of a handler take effect once. It does not change clients.
func (i *Interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		if r.Spec().IsClient || i.cfg.Skip != nil && i.cfg.Skip(ctx, r.Spec()) {
			return next(ctx, r)
		}
		var answer connect.AnyResponse
		var failure error
		out := i.calls.Do(ctx, calls.Call{
			Method: r.Spec().Procedure, Request: r.Any(), Keys: r.Header().Values(calls.Field),
			Scope: func() string { return i.cfg.Scope(ctx, r) },
			Run: func(ctx context.Context) (any, *rpc.Status) {
				if answer, failure = next(ctx, r); failure != nil {
					return nil, statusOf(failure)
				}
				return answer.Any(), nil
			},
		})
		switch {
		case out.Ran:
			return answer, failure
		case out.Failure != nil:
			return nil, errorOf(out)
		}
		again := &replay{connect.NewResponse(new(emptypb.Empty)), out.Answer}
		again.Header().Set(calls.Replayed, "true")
		return again, nil
	}
}

// WrapStreamingClient returns next.
func (i *Interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler refuses streams with a key as unimplemented: a stream could not be
// replayed. Others pass.
func (i *Interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, s connect.StreamingHandlerConn) error {
		skip := i.cfg.Skip != nil && i.cfg.Skip(ctx, s.Spec())
		if !skip && len(s.RequestHeader().Values(calls.Field)) > 0 {
			return connect.NewError(connect.CodeUnimplemented, errors.New(calls.NoStream))
		}
		return next(ctx, s)
	}
}

// A replay is an answer whose type only its record knows.
type replay struct {
	*connect.Response[emptypb.Empty]
	message proto.Message
}

func (r *replay) Any() any { return r.message }

// statusOf is the status to record for an error.
func statusOf(err error) *rpc.Status {
	s := &rpc.Status{Code: int32(connect.CodeOf(err)), Message: err.Error()}
	if e, ok := errors.AsType[*connect.Error](err); ok {
		s.Message = e.Message()
		for _, d := range e.Details() {
			s.Details = append(s.Details, &anypb.Any{TypeUrl: "type.googleapis.com/" + d.Type(), Value: d.Bytes()})
		}
	}
	return s
}

func errorOf(out calls.Outcome) error {
	err := connect.NewError(connect.Code(out.Failure.Code), errors.New(out.Failure.Message))
	for _, a := range out.Failure.Details {
		if d, e := connect.NewErrorDetail(a); e == nil { // it keeps an Any as it is
			err.AddDetail(d)
		}
	}
	switch {
	case out.Replayed:
		err.Meta().Set(calls.Replayed, "true")
	case err.Code() == connect.CodeAborted || err.Code() == connect.CodeUnavailable:
		err.Meta().Set("Retry-After", "1")
	}
	return err
}
