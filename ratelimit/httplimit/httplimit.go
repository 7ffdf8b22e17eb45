package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/batonhq/baton/internal/remote"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/internal/front"
)

// An Option is one of New or NewFunc.
type Option func(*limit)

// By sets the key that requests are counted under. Defaults to the client's address,
// which also replaces a missing key.
func By(k Key) Option { return func(l *limit) { l.key = k } }

// Cost sets the cost of a request. A cost below 1 passes uncounted. Defaults to 1. f must
// be safe for concurrent use.
func Cost(f func(*http.Request) int64) Option { return func(l *limit) { l.cost = f } }

// Skip lets requests pass uncounted, without any RateLimit field. Preflight is one such
// function. f must be safe for concurrent use.
func Skip(f func(*http.Request) bool) Option { return func(l *limit) { l.skip = f } }

// Preflight reports whether a browser asks whether a request from another origin is
// allowed (CORS). A browser does not repeat that after a refusal.
func Preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// Networks sets how many bits of a client's address count, by default 32 of IPv4
// and 64 of IPv6. A customer's site often has 56 or 48 bits of IPv6: its owner has
// 256 or 65,536 networks of 64, each with a budget of its own. Networks(32, 48)
// gives the owner one budget, which all addresses in the same 48 bits share.
func Networks(ipv4, ipv6 int) Option {
	return func(l *limit) { l.addresses.V4, l.addresses.V6 = ipv4, ipv6 }
}

// TrustXForwardedFor trusts X-Forwarded-For if proxies in these networks wrote it. They
// must append to it, or replace it, and never forward it unchanged. It is read from the
// end, past trusted proxies. If a proxy's entry is no address, the client is the
// connection's peer. Name only the proxies' own addresses: every host in these networks
// can claim any address.
func TrustXForwardedFor(proxies ...netip.Prefix) Option {
	return func(l *limit) { l.trust(remote.XForwardedFor, proxies) }
}

// TrustForwarded is TrustXForwardedFor for the header Forwarded (RFC 7239).
func TrustForwarded(proxies ...netip.Prefix) Option {
	return func(l *limit) { l.trust(remote.Forwarded, proxies) }
}

// TrustSocket also trusts every peer that connects by a Unix socket.
func TrustSocket() Option { return func(l *limit) { l.addresses.Socket = true } }

func (l *limit) trust(form remote.Form, proxies []netip.Prefix) {
	if l.addresses.Form != remote.NotForwarded && l.addresses.Form != form {
		l.err = errors.New("one of X-Forwarded-For and Forwarded can be believed: proxies that set the one pass on the other as the client wrote it")
	}
	l.addresses.Form = form
	l.addresses.Trusted = append(l.addresses.Trusted, proxies...)
}

// MaxWait bounds how long a request waits for its turn under a LeakyBucket: a request
// that would wait longer is refused. With 0 no request waits. Defaults to the bound of
// the LeakyBucket. A request whose context ends sooner is refused at once. The requests
// of this process wait in one local queue for each key: see ratelimit.Limiter.WaitWithin.
func MaxWait(d time.Duration) Option { return func(l *limit) { l.ask.MaxWait = max(d, 0) } }

// Headers sets the fields that tell a client its state. Defaults to Draft; without
// arguments there are none. Retry-After is set in any case.
func Headers(f ...Fields) Option {
	return func(l *limit) {
		l.fields = 0
		for _, f := range f {
			l.fields |= f
		}
	}
}

// OnRefused answers refused requests, in place of the problem document. The fields of
// RateLimit, Retry-After and Cache-Control: no-store are set. f sets the status: usually
// 429, or 503 if Result.By is a Fallback.
func OnRefused(f func(http.ResponseWriter, *http.Request, ratelimit.Result)) Option {
	return func(l *limit) { l.refused = f }
}

// OnError answers requests that the limiter cannot decide, in place of 503. It may call
// the next handler, which lets the request pass. err names the key: do not send it to the
// client.
func OnError(f func(w http.ResponseWriter, r *http.Request, next http.Handler, err error)) Option {
	return func(l *limit) { l.failed = f }
}

// OnFallback is called for each request that the store did not decide, because it failed
// or was too slow, before the request is answered: Result.By says what decided, and
// Result.OK whether the request passes. Count these and alert on them, because a limiter
// with FailOpen limits nothing meanwhile. f must be safe for concurrent use.
func OnFallback(f func(*http.Request, ratelimit.Result)) Option {
	return func(l *limit) { l.fallback = f }
}

// ResultOf returns the decision that let a request pass, from the context of the
// handler's request. There is none if the request was not counted (Skip, Cost), or passed
// by OnError. With nested middlewares it is that of the innermost.
func ResultOf(ctx context.Context) (ratelimit.Result, bool) { return front.ResultOf(ctx) }

type limit struct {
	ask       front.Ask
	decide    func(r *http.Request, client string) (ratelimit.Result, error) // replaces ask
	key       Key
	cost      func(*http.Request) int64
	skip      func(*http.Request) bool
	addresses remote.Addresses
	fields    Fields
	refused   func(http.ResponseWriter, *http.Request, ratelimit.Result)
	failed    func(http.ResponseWriter, *http.Request, http.Handler, error)
	fallback  func(*http.Request, ratelimit.Result)
	err       error
}

// New makes a middleware of a limiter. The middleware, and the handlers that it returns,
// are safe for concurrent use and share only the limiter.
func New(limiter *ratelimit.Limiter, opts ...Option) (func(next http.Handler) http.Handler, error) {
	l := &limit{ask: front.Ask{Limiter: limiter, MaxWait: -1}}
	if limiter == nil {
		l.err = errors.New("there is no limiter")
	}
	return l.middleware(opts)
}

// NewFunc is New with a function that decides about each request: for rules
// (rules.Limiter.Allow), or another source of a ratelimit.Result. client is the client's
// address as a Key. decide must be safe for concurrent use. OnError gets its error. An
// allowed request with a Result.Wait waits for that long; if its context ends meanwhile
// it fails, and its turn is lost.
//
// decide also chooses the key, the cost and the longest wait: By, Cost and MaxWait are
// refused.
func NewFunc(decide func(r *http.Request, client string) (ratelimit.Result, error), opts ...Option) (func(next http.Handler) http.Handler, error) {
	l := &limit{ask: front.Ask{MaxWait: -1}, decide: decide}
	if decide == nil {
		l.err = errors.New("there is no function")
	}
	return l.middleware(opts)
}

func (l *limit) middleware(opts []Option) (func(next http.Handler) http.Handler, error) {
	l.addresses, l.fields, l.failed = remote.Addresses{V4: 32, V6: 64}, Draft, fail
	for _, o := range opts {
		o(l)
	}
	if l.decide != nil && (l.key.of != nil || l.cost != nil || l.ask.MaxWait >= 0) {
		l.err = errors.New("By, Cost and MaxWait go with a limiter: here the function decides")
	}
	err := errors.Join(l.err, l.fields.check(), l.addresses.Check())
	if err != nil {
		return nil, fmt.Errorf("httplimit: %w", err)
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.serve(w, r, next) })
	}, nil
}

func (l *limit) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if l.skip != nil && l.skip(r) {
		next.ServeHTTP(w, r)
		return
	}
	cost := int64(1)
	if l.cost != nil {
		if cost = l.cost(r); cost < 1 {
			next.ServeHTTP(w, r)
			return
		}
	}
	a, err := l.answer(r, cost)
	if err != nil {
		l.failed(w, r, next, err)
		return
	}
	if a.By.Fallback() && l.fallback != nil {
		l.fallback(r, a.Result)
	}
	l.fields.set(w.Header(), a, time.Now())
	if a.OK {
		next.ServeHTTP(w, r.WithContext(front.WithResult(r.Context(), a.Result)))
		return
	}
	if s := retryAfter(a.Result); s != "" {
		w.Header().Set("Retry-After", s)
	}
	w.Header().Set("Cache-Control", "no-store")
	if l.refused != nil {
		l.refused(w, r, a.Result)
		return
	}
	refuse(w, a)
}

func (l *limit) answer(r *http.Request, cost int64) (front.Answer, error) {
	if l.decide != nil {
		d, err := l.decide(r, l.client(r))
		if err != nil {
			return front.Answer{}, err
		}
		return front.Decided(r.Context(), d)
	}
	client := func() string { return l.client(r) }
	key := l.key.call(r, client)
	if key == "" {
		key = client()
	}
	return l.ask.Do(r.Context(), front.Join(key), cost)
}

// client is the client's address as a part of a key.
func (l *limit) client(r *http.Request) string {
	peer, _ := remote.Node(r.RemoteAddr)
	socket := false
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		socket = local.Network() == "unix"
	}
	var lines []string
	switch l.addresses.Form {
	case remote.XForwardedFor:
		lines = r.Header["X-Forwarded-For"]
	case remote.Forwarded:
		lines = r.Header["Forwarded"]
	}
	return l.addresses.Key(l.addresses.Of(peer, socket, lines))
}
