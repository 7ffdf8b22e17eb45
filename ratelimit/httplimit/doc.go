// Package httplimit puts a ratelimit.Limiter in front of HTTP handlers.
//
//	limiter, err := ratelimit.New(store, ratelimit.SlidingWindow(100, time.Minute).Named("per-minute"))
//	limit, err := httplimit.New(limiter)
//	http.ListenAndServe(addr, limit(handler))
//
// Each request is counted under a key, by default the client's address. A refused request
// gets 429 with a problem document (RFC 9457) and Retry-After. Every client gets its
// state in the fields RateLimit-Policy and RateLimit of the IETF's draft, or in older
// ones (Headers). Limiters that share a store share the keys too: name the limits
// (Limit.Named) unless they shall count together.
//
// NewFunc is for decisions from elsewhere, such as package rules: its function gets the
// request and the client's address.
//
// # The client's address
//
// The address is that of the connection. A header that names another address is trusted
// only from proxies that you name (TrustForwarded, TrustXForwardedFor), and is read from
// its end: what precedes the entries of your proxies is the client's own text. Of an IPv6
// address the first 64 bits count, because a client that has one address has all with the
// same 64 bits.
//
// A key that the client can choose, such as a header without verification, is no limit:
// the client chooses another.
//
// # When the store fails
//
// Without a policy for a store that fails, a request that the store cannot decide is
// answered with 503. With ratelimit.FailOpen it passes, with FailClosed it is answered
// with 503, and with FailLocal, too, if the share of this process is used up. The
// RateLimit fields have only figures of the store. OnFallback is called for every such
// request: there is no other sign that a limiter with FailOpen limits nothing. The
// handler gets the decision from ResultOf.
//
// # Limits on trial
//
// A Limit.Shadow and a Limit.Warn change no answer. Clients see nothing of a shadow, and
// a limit that warns like any other. Their results are in ResultOf and in
// ratelimit.Events: Result.WouldRefuse and Result.Near.
//
// # What is not done
//
// The handler gets the http.ResponseWriter unwrapped: the fields are set before the
// handler is called, so flushing, hijacking and everything else works. What was taken is
// not given back if the handler fails.
//
// docs/web.md shows it in chi, gin, echo, fiber and Connect.
package httplimit
