package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/batonhq/baton/internal/remote"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/internal/front"
)

// An Option is one of New or NewFunc.
type Option func(*Interceptor)

// By sets the key that calls are counted under. Defaults to the caller's address, which
// also replaces a missing key.
func By(k Key) Option { return func(i *Interceptor) { i.key = k } }

// Cost sets the cost of a call; with PerMessage, the cost of a message of a stream. The
// message is nil for a stream that is counted as a whole. A cost below 1 passes
// uncounted. Defaults to 1. f must be safe for concurrent use.
func Cost(f func(ctx context.Context, fullMethod string, message any) int64) Option {
	return func(i *Interceptor) { i.cost = f }
}

// Skip lets calls pass uncounted, such as health checks. f must be safe for concurrent
// use.
func Skip(f func(ctx context.Context, fullMethod string) bool) Option {
	return func(i *Interceptor) { i.skip = f }
}

// PerMessage counts each message that a stream receives, instead of the stream. A refused
// message ends the stream, with any result of the handler.
func PerMessage() Option { return func(i *Interceptor) { i.messages = true } }

// Networks sets how many bits of a caller's address count, by default 32 of IPv4
// and 64 of IPv6. A customer's site often has 56 or 48 bits of IPv6: its owner has
// 256 or 65,536 networks of 64, each with a budget of its own. Networks(32, 48)
// gives the owner one budget, which all addresses in the same 48 bits share.
func Networks(ipv4, ipv6 int) Option {
	return func(i *Interceptor) { i.addresses.V4, i.addresses.V6 = ipv4, ipv6 }
}

// TrustXForwardedFor trusts x-forwarded-for if proxies in these networks wrote it. They
// must append to it, or replace it, and never forward it unchanged. It is read from the
// end, past trusted proxies. If a proxy's entry is no address, the caller is the
// connection's peer. Name only the proxies' own addresses: every host in these networks
// can claim any address.
func TrustXForwardedFor(proxies ...netip.Prefix) Option {
	return func(i *Interceptor) { i.trust(remote.XForwardedFor, proxies) }
}

// TrustForwarded is TrustXForwardedFor for forwarded (RFC 7239).
func TrustForwarded(proxies ...netip.Prefix) Option {
	return func(i *Interceptor) { i.trust(remote.Forwarded, proxies) }
}

// TrustSocket also trusts every peer that connects by a Unix socket.
func TrustSocket() Option { return func(i *Interceptor) { i.addresses.Socket = true } }

func (i *Interceptor) trust(form remote.Form, proxies []netip.Prefix) {
	if i.addresses.Form != remote.NotForwarded && i.addresses.Form != form {
		i.err = errors.New("one of x-forwarded-for and forwarded can be believed: proxies that set the one pass on the other as the caller wrote it")
	}
	i.addresses.Form = form
	i.addresses.Trusted = append(i.addresses.Trusted, proxies...)
}

// MaxWait bounds how long a call waits for its turn under a LeakyBucket: a call that
// would wait longer is refused. With 0 no call waits. Defaults to the bound of the
// LeakyBucket. A call whose deadline comes sooner is refused at once. The calls of this
// process wait in one local queue for each key: see ratelimit.Limiter.WaitWithin.
func MaxWait(d time.Duration) Option { return func(i *Interceptor) { i.ask.MaxWait = max(d, 0) } }

// OnRefused sets the error of refused calls, in place of ResourceExhausted and
// Unavailable with their details; nil lets the call pass. The trailer is set with every
// error.
func OnRefused(f func(ctx context.Context, fullMethod string, r ratelimit.Result) error) Option {
	return func(i *Interceptor) { i.refused = f }
}

// OnError sets the error of calls that the limiter cannot decide, in place of
// Unavailable; nil lets the call pass. err names the key: do not send it to the caller.
func OnError(f func(ctx context.Context, fullMethod string, err error) error) Option {
	return func(i *Interceptor) { i.failed = f }
}

// OnFallback is called for each call that the store did not decide, because it failed or
// was too slow, before the call is answered: Result.By says what decided, and Result.OK
// whether the call passes. Count these and alert on them, because a limiter with FailOpen
// limits nothing meanwhile. f must be safe for concurrent use.
func OnFallback(f func(ctx context.Context, fullMethod string, r ratelimit.Result)) Option {
	return func(i *Interceptor) { i.fallback = f }
}

// ResultOf returns the decision that let a call pass, from the handler's context. There
// is none if the call was not counted (Skip, Cost), passed by OnError, or is a stream
// with PerMessage.
func ResultOf(ctx context.Context) (ratelimit.Result, bool) { return front.ResultOf(ctx) }

// An Interceptor limits the calls of servers. It is safe for concurrent use.
type Interceptor struct {
	ask       front.Ask
	decide    func(context.Context, Call) (ratelimit.Result, error) // replaces ask
	key       Key
	cost      func(context.Context, string, any) int64
	skip      func(context.Context, string) bool
	messages  bool
	addresses remote.Addresses
	refused   func(context.Context, string, ratelimit.Result) error
	failed    func(context.Context, string, error) error
	fallback  func(context.Context, string, ratelimit.Result)
	err       error
}

// New makes an Interceptor of a limiter.
func New(limiter *ratelimit.Limiter, opts ...Option) (*Interceptor, error) {
	i := &Interceptor{ask: front.Ask{Limiter: limiter, MaxWait: -1}}
	if limiter == nil {
		i.err = errors.New("there is no limiter")
	}
	return i.with(opts)
}

// A Call is a call to decide about.
type Call struct {
	Method  string // its full name: "/shop.Orders/Place"
	Message any    // nil for a stream that is counted as a whole
	Client  string // the caller's address, as a Key
}

// NewFunc is New with a function that decides about each call, or with PerMessage about
// each message of a stream: for rules (rules.Limiter.Allow), or another source of a
// ratelimit.Result. decide must be safe for concurrent use. OnError gets its error. An
// allowed call with a Result.Wait waits for that long; if its context ends meanwhile it
// fails, and its turn is lost.
//
// decide also chooses the key, the cost and the longest wait: By, Cost and MaxWait are
// refused.
func NewFunc(decide func(context.Context, Call) (ratelimit.Result, error), opts ...Option) (*Interceptor, error) {
	i := &Interceptor{ask: front.Ask{MaxWait: -1}, decide: decide}
	if decide == nil {
		i.err = errors.New("there is no function")
	}
	return i.with(opts)
}

func (i *Interceptor) with(opts []Option) (*Interceptor, error) {
	i.addresses, i.failed = remote.Addresses{V4: 32, V6: 64}, fail
	for _, o := range opts {
		o(i)
	}
	if i.decide != nil && (i.key.of != nil || i.cost != nil || i.ask.MaxWait >= 0) {
		i.err = errors.New("By, Cost and MaxWait go with a limiter: here the function decides")
	}
	if err := errors.Join(i.err, i.addresses.Check()); err != nil {
		return nil, fmt.Errorf("grpclimit: %w", err)
	}
	return i, nil
}

// Unary is a grpc.UnaryServerInterceptor.
func (i *Interceptor) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if i.skip == nil || !i.skip(ctx, info.FullMethod) {
		trailer := func(md metadata.MD) { _ = grpc.SetTrailer(ctx, md) } // fails only outside of a server
		r, err := i.admit(ctx, info.FullMethod, req, trailer)
		if err != nil {
			return nil, err
		}
		if r != nil {
			ctx = front.WithResult(ctx, *r)
		}
	}
	return handler(ctx, req)
}

// Stream is a grpc.StreamServerInterceptor.
func (i *Interceptor) Stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	switch {
	case i.skip != nil && i.skip(s.Context(), info.FullMethod):
	case i.messages:
		counted := &stream{ServerStream: s, i: i, method: info.FullMethod}
		err := handler(srv, counted)
		if refused := counted.refused.Load(); refused != nil {
			return *refused
		}
		return err
	default:
		r, err := i.admit(s.Context(), info.FullMethod, nil, s.SetTrailer)
		if err != nil {
			return err
		}
		if r != nil {
			s = admitted{s, front.WithResult(s.Context(), *r)}
		}
	}
	return handler(srv, s)
}

// admitted is a stream whose context has the decision.
type admitted struct {
	grpc.ServerStream
	ctx context.Context
}

func (a admitted) Context() context.Context { return a.ctx }

// stream counts the messages that it receives.
type stream struct {
	grpc.ServerStream
	i       *Interceptor
	method  string
	refused atomic.Pointer[error]
}

func (s *stream) RecvMsg(m any) error {
	if refused := s.refused.Load(); refused != nil {
		return *refused
	}
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	_, err := s.i.admit(s.Context(), s.method, m, s.SetTrailer)
	if err != nil {
		s.refused.Store(&err)
	}
	return err
}

// admit returns no error if the call may continue, and the decision, if there was one.
func (i *Interceptor) admit(ctx context.Context, method string, message any, trailer func(metadata.MD)) (*ratelimit.Result, error) {
	cost := int64(1)
	if i.cost != nil {
		if cost = i.cost(ctx, method, message); cost < 1 {
			return nil, nil
		}
	}
	a, err := i.answer(ctx, method, message, cost)
	if err != nil {
		return nil, i.failed(ctx, method, err)
	}
	if a.By.Fallback() && i.fallback != nil {
		i.fallback(ctx, method, a.Result)
	}
	if a.OK {
		return &a.Result, nil
	}
	if i.refused == nil {
		err = refuse(a)
	} else if err = i.refused(ctx, method, a.Result); err == nil {
		return &a.Result, nil
	}
	trailer(metadata.Pairs("grpc-retry-pushback-ms", pushback(a.Result)))
	return nil, err
}

func (i *Interceptor) answer(ctx context.Context, method string, message any, cost int64) (front.Answer, error) {
	if i.decide != nil {
		d, err := i.decide(ctx, Call{method, message, i.client(ctx)})
		if err != nil {
			return front.Answer{}, err
		}
		return front.Decided(ctx, d)
	}
	c := call{ctx: ctx, method: method, client: func() string { return i.client(ctx) }}
	key := i.key.call(c)
	if key == "" {
		key = c.client()
	}
	return i.ask.Do(ctx, front.Join(key), cost)
}

// client is the caller's address as a part of a key.
func (i *Interceptor) client(ctx context.Context) string {
	var addr netip.Addr
	socket := false
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		addr, _ = remote.Node(p.Addr.String())
		socket = p.Addr.Network() == "unix"
	}
	var lines []string
	switch i.addresses.Form {
	case remote.XForwardedFor:
		lines = metadata.ValueFromIncomingContext(ctx, "x-forwarded-for")
	case remote.Forwarded:
		lines = metadata.ValueFromIncomingContext(ctx, "forwarded")
	}
	return i.addresses.Key(i.addresses.Of(addr, socket, lines))
}
