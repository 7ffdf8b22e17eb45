package grpconce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	rpc "google.golang.org/genproto/googleapis/rpc/status"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/internal/front"
)

// Config says which calls take effect once. Only Scope must be set.
type Config struct {
	// Scope says who calls: a user, a tenant. Keys of different scopes never meet. "" is
	// nobody: the call is refused as Unauthenticated.
	Scope func(context.Context) string

	// Skip lets calls pass to the handler, such as those that change nothing. Many calls
	// use it at once. Defaults to none.
	Skip func(ctx context.Context, fullMethod string) bool

	// Required refuses calls without a key. Otherwise they pass to the handler, which then
	// finds no AttemptOf.
	Required bool

	// Wait is how long a call waits for another one with its key that is under way.
	// Defaults to 0: it is refused at once.
	Wait time.Duration

	// Record says which outcomes are recorded. The next call after another one runs the
	// handler again. Defaults to Recorded.
	Record func(codes.Code) bool

	// Prefix is put before the keys of the operations in the store. Programs that are to
	// know each other's calls agree on it. Defaults to "grpc/".
	Prefix string

	// Logger gets what callers are not told: errors of the store as warnings, answers that
	// could not be recorded as errors. Defaults to silence.
	Logger *slog.Logger
}

// Recorded is what Config.Record defaults to: success, and failures that another try does
// not change.
func Recorded(c codes.Code) bool {
	switch c {
	case codes.Aborted, codes.Canceled, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Unavailable,
		codes.Internal, codes.Unknown, codes.DataLoss, codes.Unimplemented:
		return false
	}
	return true
}

// An Interceptor is for the calls of servers. It is safe for concurrent use.
type Interceptor struct {
	ops *once.Runner
	cfg Config
}

// New makes an Interceptor of a Runner. It refuses a Config that cannot be honoured with a
// *baton.ConfigError.
func New(ops *once.Runner, cfg Config) (*Interceptor, error) {
	switch {
	case ops == nil:
		return nil, errors.New("grpconce: there is no runner")
	case cfg.Scope == nil:
		return nil, &baton.ConfigError{Field: "Scope", Reason: "is missing: it says whose keys they are"}
	case cfg.Wait < 0:
		return nil, &baton.ConfigError{Field: "Wait", Reason: "is below 0"}
	}
	if cfg.Record == nil {
		cfg.Record = Recorded
	}
	if cfg.Prefix == "" {
		cfg.Prefix = "grpc/"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Interceptor{ops, cfg}, nil
}

// AttemptOf is the attempt that runs a handler, from its context, for its token and its
// lease. There is none if the call has no key.
func AttemptOf(ctx context.Context) (once.Attempt, bool) { return front.AttemptOf(ctx) }

const field = "idempotency-key"

// Unary is a grpc.UnaryServerInterceptor.
func (i *Interceptor) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if i.cfg.Skip != nil && i.cfg.Skip(ctx, info.FullMethod) {
		return handler(ctx, req)
	}
	keys := metadata.ValueFromIncomingContext(ctx, field)
	switch {
	case len(keys) == 0 && i.cfg.Required:
		return nil, status.Error(codes.InvalidArgument, "the call has no idempotency-key: draw one at random for each operation, and send it again with each repetition")
	case len(keys) == 0:
		return handler(ctx, req)
	case len(keys) > 1 || keys[0] == "":
		return nil, status.Error(codes.InvalidArgument, "idempotency-key is there once, and not empty")
	}
	scope := i.cfg.Scope(ctx)
	if scope == "" {
		return nil, status.Error(codes.Unauthenticated, "it is not known who calls: a key belongs to its user")
	}
	message, ok := req.(proto.Message)
	if !ok {
		return nil, status.Errorf(codes.Internal, "grpconce: a %T is no message of protobuf", req)
	}
	request, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return nil, status.Error(codes.Internal, "the request cannot be compared")
	}
	return i.once(ctx, req, handler, front.Key(i.cfg.Prefix, scope, keys[0]), once.Fingerprint(info.FullMethod, string(request)))
}

// Stream is a grpc.StreamServerInterceptor. It refuses streams with a key as Unimplemented:
// what is sent piece by piece could not be sent again. All others pass.
func (i *Interceptor) Stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	skip := i.cfg.Skip != nil && i.cfg.Skip(s.Context(), info.FullMethod)
	if !skip && len(metadata.ValueFromIncomingContext(s.Context(), field)) > 0 {
		return status.Error(codes.Unimplemented, "a stream takes no idempotency-key: it could not be sent again")
	}
	return handler(srv, s)
}

// once runs the handler for the operation, or returns what is recorded.
func (i *Interceptor) once(ctx context.Context, req any, handler grpc.UnaryHandler, key string, of once.Option) (any, error) {
	ran := false
	var answer any
	var failure error
	record, err := front.Do(ctx, i.ops, key, i.cfg.Wait, func(ctx context.Context, _ once.Attempt) ([]byte, error) {
		answer, failure = handler(ctx, req)
		ran = true
		if !i.cfg.Record(status.Code(failure)) {
			return nil, front.ErrNotRecorded
		}
		text, err := encode(answer, failure)
		if len(text) > check.MaxResult {
			i.cfg.Logger.ErrorContext(ctx, "an answer is too long to be recorded", "key", driver.Printable(key), "bytes", len(text))
			answer, failure = nil, status.Errorf(codes.OutOfRange, "the call has taken effect; its answer is longer than can be kept, %d bytes", check.MaxResult)
			text, err = encode(answer, failure)
		}
		return text, err
	}, of)
	later, superseded := front.Later(err)
	switch {
	case ran && (err == nil || errors.Is(err, front.ErrNotRecorded)):
		return answer, failure
	case err == nil:
		return i.replay(ctx, key, record)
	case superseded:
		return i.replay(ctx, key, later)
	case ran && !errors.Is(err, driver.ErrSuperseded):
		// What it says is true, also if the next call runs the handler again.
		i.cfg.Logger.ErrorContext(ctx, "an answer could not be recorded", "key", driver.Printable(key), "error", driver.Printable(err.Error()))
		return answer, failure
	}
	return nil, i.refusal(ctx, err)
}

// encode writes an outcome as a google.rpc.Status, whose only detail is the answer if it
// is a success.
func encode(answer any, failure error) ([]byte, error) {
	if failure != nil {
		s := status.Convert(failure).Proto()
		s.Message = strings.ToValidUTF8(s.Message, "\uFFFD") // as grpc sends it; others cannot be encoded
		return proto.Marshal(s)
	}
	message, ok := answer.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("grpconce: a %T is no message of protobuf", answer)
	}
	detail, err := anypb.New(message)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(&rpc.Status{Details: []*anypb.Any{detail}})
}

func (i *Interceptor) replay(ctx context.Context, key string, record []byte) (any, error) {
	var s rpc.Status
	err := proto.Unmarshal(record, &s)
	if err == nil && s.Code == int32(codes.OK) && len(s.Details) != 1 {
		err = errors.New("it has no answer")
	}
	var answer proto.Message
	if err == nil && s.Code == int32(codes.OK) {
		answer, err = s.Details[0].UnmarshalNew()
	}
	if err != nil { // another program uses the key
		i.cfg.Logger.ErrorContext(ctx, "what is recorded is no answer", "key", driver.Printable(key), "error", driver.Printable(err.Error()))
		return nil, status.Error(codes.Internal, foreign)
	}
	_ = grpc.SetHeader(ctx, metadata.Pairs("idempotency-replayed", "true")) // fails only outside of a server
	if s.Code != int32(codes.OK) {
		return nil, status.ErrorProto(&s)
	}
	return answer, nil
}

const foreign = "what is recorded is no answer: another program has used the key"

// refusal is the error of a call whose handler did not run, or whose answer does not count.
func (i *Interceptor) refusal(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, once.ErrOtherRequest):
		return status.Error(codes.FailedPrecondition, "the key was used for another call: draw another key for another operation")
	case errors.As(err, new(*baton.KeyError)):
		return status.Error(codes.InvalidArgument, "the idempotency-key is not legal: it has a few hundred bytes at most, and no characters that cannot be seen")
	case errors.Is(err, baton.ErrHeld), errors.Is(err, front.ErrWaited), errors.Is(err, driver.ErrSuperseded):
		s := status.New(codes.Aborted, "another call with this key is under way: come again for its answer")
		if with, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)}); err == nil {
			s = with
		}
		return s.Err()
	case errors.Is(err, once.ErrFinal): // of another program
		return status.Error(codes.Internal, foreign)
	case errors.Is(err, baton.ErrNested):
		return status.Error(codes.Internal, "the call waits for itself: its handler has asked for its own operation")
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	}
	i.cfg.Logger.WarnContext(ctx, "the store has not answered", "error", driver.Printable(err.Error()))
	return status.Error(codes.Unavailable, "the call was not begun: the store of idempotency keys does not answer")
}
