package rls

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/server/rls/internal/rlsv1"
)

// DefaultWithin is the default of Config.Within.
const DefaultWithin = 25 * time.Millisecond

// NoHeaders is a value of Config.Headers: no headers.
const NoHeaders = "-"

const (
	procedure = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

	// maxRequest is the largest message, in bytes: more than the headers that Envoy lets
	// through.
	maxRequest = 256 << 10

	// minCompress is larger than an answer about a few descriptors: to compress that would
	// take longer than the decision.
	minCompress = 1024

	// maxDescriptors is more than proxies send, and few enough to match quickly. At most
	// limits.MaxTakes of the matches are decided at once.
	maxDescriptors = 128

	// maxWarned bounds the remembered domains, which callers can invent.
	maxWarned = 100

	// writeTimeout is how long a caller may take to read the answer. It counts from the
	// request, because connect writes the whole answer before it returns.
	writeTimeout = 30 * time.Second
)

// Config says what a service decides by. Only Limiter is required.
type Config struct {
	// Limiter decides, by the domains of its rules. Required.
	Limiter *rules.Limiter

	// Within is the longest time from a request's arrival to its answer, if the rules have
	// an OnFailure. Callers with a deadline get the answer after three quarters of their
	// time, if that is sooner. Envoy sends a deadline, 20 ms by default. Defaults to
	// DefaultWithin.
	Within time.Duration

	// Headers is the prefix of the headers that Envoy is asked to add to its response,
	// such as "X-RateLimit-". The names end in Limit, Remaining and Reset, as those of
	// envoyproxy/ratelimit. A refusal also has Retry-After. With NoHeaders there are none.
	// Defaults to "RateLimit-".
	Headers string

	// May refuses callers. ctx is that of the request; gives says that the request gives
	// back hits. The caller gets the error, with its code if it is a *connect.Error, and
	// else as PermissionDenied. Several goroutines call May. Defaults to nil: all may.
	May func(ctx context.Context, domain string, gives bool) error

	// Logger gets warnings about domains without rules, and about errors of the store if
	// there is no decision; callers do not see those. Defaults to silence.
	Logger *slog.Logger
}

// New returns a handler and its path. The handler speaks gRPC, so its server needs HTTP/2:
// without TLS, http.Protocols.SetUnencryptedHTTP2.
func New(c Config) (path string, handler http.Handler) {
	s := newService(c)
	answer := connect.NewUnaryHandlerSimple(procedure, s.shouldRateLimit, connect.WithReadMaxBytes(maxRequest), connect.WithCompressMinBytes(minCompress))
	return procedure, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Connect would also read JSON, which any page in a browser can send, and would
		// ignore unknown fields.
		kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if err != nil || kind != "application/grpc" && kind != "application/grpc+proto" {
			http.Error(w, "this is a service for gRPC", http.StatusUnsupportedMediaType)
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
		answer.ServeHTTP(atOnce{w}, r)
	})
}

// atOnce hides Flush from connect, so that the parts of an answer leave together.
type atOnce struct{ http.ResponseWriter }

type service struct {
	Config

	mu     sync.Mutex
	warned map[string]bool // domains with a warning
}

func newService(c Config) *service {
	if c.Within <= 0 {
		c.Within = DefaultWithin
	}
	c.Headers = cmp.Or(c.Headers, "RateLimit-")
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &service{Config: c, warned: make(map[string]bool)}
}

func (s *service) shouldRateLimit(ctx context.Context, in *rlsv1.RateLimitRequest) (*rlsv1.RateLimitResponse, error) {
	began := time.Now()
	if s.May != nil {
		gives := slices.ContainsFunc(in.GetDescriptors(), (*rlsv1.RateLimitDescriptor).GetIsNegativeHits)
		if err := s.May(ctx, in.GetDomain(), gives); err != nil {
			if as, ok := errors.AsType[*connect.Error](err); ok {
				return nil, as
			}
			return nil, connect.NewError(connect.CodePermissionDenied, err)
		}
	}
	r, err := request(in)
	if err != nil {
		return nil, err
	}
	r.Within = s.within(ctx, began)
	d, err := s.decide(ctx, in, r)
	if err != nil {
		if unknown, ok := errors.AsType[*rules.UnknownError](err); ok && unknown.Kind == "domain" {
			s.warn(ctx, unknown)
			return free(len(in.GetDescriptors())), nil
		}
		return nil, s.failed(ctx, err)
	}
	return s.response(d), nil
}

// decide gives back hits, and then decides about the other descriptors. Each status is the
// one after that.
func (s *service) decide(ctx context.Context, in *rlsv1.RateLimitRequest, r rules.Request) (rules.Decision, error) {
	if r.Cost == 0 {
		r.Cost = 1
	}
	back, which := r, []int(nil)
	back.Descriptions = nil
	for i, from := range in.GetDescriptors() {
		if from.GetIsNegativeHits() {
			which, back.Descriptions = append(which, i), append(back.Descriptions, r.Descriptions[i])
			r.Descriptions[i].Cost = new(int64)
		}
	}
	if len(which) == 0 {
		return s.Limiter.Allow(ctx, r)
	}
	given, err := s.Limiter.GiveBack(ctx, back)
	if err != nil || len(which) == len(r.Descriptions) {
		return given, err
	}
	d, err := s.Limiter.Allow(ctx, r)
	if err == nil {
		for k, i := range which {
			d.Matches[i] = given.Matches[k]
		}
	}
	return d, err
}

// within returns how long the decision may take.
func (s *service) within(ctx context.Context, began time.Time) time.Duration {
	due := s.Within
	if deadline, ok := ctx.Deadline(); ok {
		due = max(min(due, deadline.Sub(began)*3/4), 1)
	}
	return due
}

// warn logs once that the rules do not have a domain.
func (s *service) warn(ctx context.Context, unknown *rules.UnknownError) {
	s.mu.Lock()
	known := s.warned[unknown.Name] || len(s.warned) == maxWarned
	if !known {
		s.warned[unknown.Name] = true
	}
	s.mu.Unlock()
	if !known {
		s.Logger.WarnContext(ctx, "a request to a domain without rules is allowed", "domain", unknown.Name, "error", unknown)
	}
}

// failed returns the caller's error if there is no decision. The text of a store's error
// may show the store's address, so only the log gets it.
func (s *service) failed(ctx context.Context, err error) error {
	as := func(code connect.Code, text string) error {
		return connect.NewError(code, errors.New(driver.Printable(text)))
	}
	_, request := errors.AsType[*rules.RequestError](err)
	_, unknown := errors.AsType[*rules.UnknownError](err)
	_, limit := errors.AsType[*ratelimit.LimitError](err)
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return as(connect.CodeDeadlineExceeded, "there was no decision in time")
	case ctx.Err() != nil:
		return as(connect.CodeCanceled, "the call was ended by its client")
	case request, unknown, limit:
		return as(connect.CodeInvalidArgument, err.Error())
	}
	s.Logger.WarnContext(ctx, "the store has not decided", "error", driver.Printable(err.Error()))
	switch {
	case errors.Is(err, ratelimit.ErrUnavailable), errors.Is(err, ratelimit.ErrUnknown), errors.Is(err, context.DeadlineExceeded):
		return as(connect.CodeUnavailable, "the store has not decided, and the rules do not say what to do then (on_failure)")
	}
	return as(connect.CodeInternal, "the store has answered with an error, which the log has")
}
