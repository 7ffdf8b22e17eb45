// Package calls makes calls with protobuf messages take effect once, for any library that
// serves them.
package calls

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpc "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/internal/front"
)

const (
	// Field is the metadata, or the header field, with the key.
	Field = "Idempotency-Key"

	// Replayed is "true" in a replayed answer.
	Replayed = "Idempotency-Replayed"

	// NoStream is the reason for refusing a stream with a key.
	NoStream = "a stream takes no idempotency-key: it could not be sent again"
)

// Calls says which calls take effect once.
type Calls struct {
	Ops      *once.Runner
	Required bool
	Wait     time.Duration
	Record   func(failure *rpc.Status) bool // nil is a success
	Prefix   string
	Logger   *slog.Logger
}

// New checks and completes what all libraries share.
func New(c Calls) (*Calls, error) {
	switch {
	case c.Ops == nil:
		return nil, errors.New("there is no runner")
	case c.Wait < 0:
		return nil, &baton.ConfigError{Field: "Wait", Reason: "is below 0"}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &c, nil
}

// Recorded is the default of Record: success, and failures that another try does not
// change.
func Recorded(c code.Code) bool {
	switch c {
	case code.Code_ABORTED, code.Code_CANCELLED, code.Code_DEADLINE_EXCEEDED, code.Code_RESOURCE_EXHAUSTED, code.Code_UNAVAILABLE,
		code.Code_INTERNAL, code.Code_UNKNOWN, code.Code_DATA_LOSS, code.Code_UNIMPLEMENTED, code.Code_UNAUTHENTICATED:
		return false
	}
	return true
}

// A Call is a call that a server received.
type Call struct {
	Method  string // "/shop.Orders/Place"
	Keys    []string
	Scope   func() string
	Request any

	// Run runs the handler. failure is nil after a success.
	Run func(context.Context) (answer any, failure *rpc.Status)
}

// An Outcome is the result for the caller.
type Outcome struct {
	Ran      bool          // the result of Run; the other fields are zero
	Answer   proto.Message // nil after a failure
	Failure  *rpc.Status
	Replayed bool
}

func failed(c code.Code, text string) Outcome {
	return Outcome{Failure: &rpc.Status{Code: int32(c), Message: text}}
}

// Do runs a call or returns its recorded outcome.
func (c *Calls) Do(ctx context.Context, call Call) Outcome {
	switch {
	case len(call.Keys) == 0 && c.Required:
		return failed(code.Code_INVALID_ARGUMENT, "the call has no idempotency-key: draw one at random for each operation, and send it again with each repetition")
	case len(call.Keys) == 0:
		call.Run(ctx)
		return Outcome{Ran: true}
	case len(call.Keys) > 1 || call.Keys[0] == "":
		return failed(code.Code_INVALID_ARGUMENT, "idempotency-key is there once, and not empty")
	}
	scope := call.Scope()
	if scope == "" {
		return failed(code.Code_UNAUTHENTICATED, "it is not known who calls: a key belongs to its user")
	}
	message, ok := call.Request.(proto.Message)
	if !ok {
		return failed(code.Code_INTERNAL, fmt.Sprintf("a %T is no message of protobuf", call.Request))
	}
	request, err := canonical(message)
	if err != nil {
		return failed(code.Code_INTERNAL, "the request cannot be compared")
	}
	return c.once(ctx, call.Run, front.Key(c.Prefix, scope, call.Keys[0]), once.Fingerprint(call.Method, string(request)))
}

func (c *Calls) once(ctx context.Context, run func(context.Context) (any, *rpc.Status), key string, of once.Option) Outcome {
	var own Outcome // of this attempt; zero: it has not run
	record, err := front.Do(ctx, c.Ops, key, c.Wait, func(ctx context.Context, _ once.Attempt) ([]byte, error) {
		answer, failure := run(ctx)
		own.Ran = true
		if !c.Record(failure) {
			return nil, fmt.Errorf("%w: %v", front.ErrNotRecorded, code.Code(failure.GetCode()))
		}
		text, err := encode(answer, failure)
		if len(text) > check.MaxResult {
			c.Logger.ErrorContext(ctx, "an answer is too long to be recorded", "key", driver.Printable(key), "bytes", len(text))
			own = failed(code.Code_OUT_OF_RANGE, fmt.Sprintf("the call has taken effect; its answer is longer than can be kept, %d bytes", check.MaxResult))
			text, err = encode(nil, own.Failure)
		}
		return text, err
	}, of)
	later, superseded := front.Later(err)
	ran := own.Ran || own.Failure != nil
	switch {
	case ran && (err == nil || errors.Is(err, front.ErrNotRecorded)):
		return own
	case err == nil:
		return c.replay(ctx, key, record)
	case superseded:
		return c.replay(ctx, key, later)
	case ran && (!errors.Is(err, driver.ErrSuperseded) || front.Forgotten(err)):
		// The outcome is true, even if the next call runs the handler again.
		c.Logger.ErrorContext(ctx, "an answer could not be recorded", "key", driver.Printable(key), "error", driver.Printable(err.Error()))
		return own
	}
	return c.refusal(ctx, err)
}

// encode encodes an outcome as a google.rpc.Status, whose only detail is the answer of a
// success.
func encode(answer any, failure *rpc.Status) ([]byte, error) {
	if failure != nil {
		return proto.Marshal(&rpc.Status{
			Code: failure.Code, Details: failure.Details,
			Message: strings.ToValidUTF8(failure.Message, "\uFFFD"), // as it is sent; others cannot be encoded
		})
	}
	message, ok := answer.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("a %T is no message of protobuf", answer)
	}
	detail, err := anypb.New(message)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(&rpc.Status{Details: []*anypb.Any{detail}})
}

func (c *Calls) replay(ctx context.Context, key string, record []byte) Outcome {
	var s rpc.Status
	err := proto.Unmarshal(record, &s)
	if err == nil && s.Code != int32(code.Code_OK) {
		return Outcome{Failure: &s, Replayed: true}
	}
	if err == nil && len(s.Details) != 1 {
		err = errors.New("it has no answer")
	}
	var answer proto.Message
	if err == nil {
		answer, err = s.Details[0].UnmarshalNew()
	}
	if err != nil { // another program uses the key
		c.Logger.ErrorContext(ctx, "what is recorded is no answer", "key", driver.Printable(key), "error", driver.Printable(err.Error()))
		return failed(code.Code_INTERNAL, foreign)
	}
	return Outcome{Answer: answer, Replayed: true}
}

const foreign = "what is recorded is no answer: another program has used the key"

// refusal is the outcome of a call whose handler did not run, or whose answer does not
// count.
func (c *Calls) refusal(ctx context.Context, err error) Outcome {
	switch {
	case errors.Is(err, once.ErrOtherRequest):
		return failed(code.Code_FAILED_PRECONDITION, "the key was used for another call: draw another key for another operation")
	case errors.As(err, new(*baton.KeyError)):
		return failed(code.Code_INVALID_ARGUMENT, "the idempotency-key is not legal: it has a few hundred bytes at most, and no characters that cannot be seen")
	case errors.Is(err, baton.ErrHeld), errors.Is(err, front.ErrWaited), errors.Is(err, driver.ErrSuperseded):
		busy := failed(code.Code_ABORTED, "another call with this key is under way: come again for its answer")
		if detail, err := anypb.New(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)}); err == nil {
			busy.Failure.Details = []*anypb.Any{detail}
		}
		return busy
	case errors.Is(err, once.ErrFinal): // of another program
		return failed(code.Code_INTERNAL, foreign)
	case errors.Is(err, baton.ErrNested):
		return failed(code.Code_INTERNAL, "the call waits for itself: its handler has asked for its own operation")
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return failed(code.Code_DEADLINE_EXCEEDED, ctx.Err().Error())
	case ctx.Err() != nil:
		return failed(code.Code_CANCELLED, ctx.Err().Error())
	}
	c.Logger.WarnContext(ctx, "the store has not answered", "error", driver.Printable(err.Error()))
	return failed(code.Code_UNAVAILABLE, "the call was not begun: the store of idempotency keys does not answer")
}
