// Package httplimit puts a ratelimit.Limiter in front of HTTP handlers.
//
//	limiter, err := ratelimit.New(store, ratelimit.SlidingWindow(100, time.Minute).Named("per-minute"))
//	limit, err := httplimit.New(limiter)
//	http.ListenAndServe(addr, limit(handler))
//
// Each request is counted under a key, by default the client's address. A refused
// request gets 429 with a problem document (RFC 9457) and Retry-After; every client
// is told how it stands, by the fields RateLimit-Policy and RateLimit of the IETF's
// draft or by older ones (Headers). Limiters that share a store share the keys too,
// so name the limits (Limit.Named) unless they shall count together.
//
// NewFunc is for decisions that something else makes, such as package rules: the
// function says what a request is, and gets the client's address.
//
// # Whom to believe
//
// The address is that of the connection. A header that names another address is
// believed only from proxies that you name (TrustForwarded, TrustXForwardedFor),
// and is read from its end: the client wrote what stands before the last of your
// proxies. Of an IPv6 address the first 64 bits count, because a client that has
// one address has all with the same 64 bits.
//
// A key that the client can choose, such as a header that nothing has verified, is
// no limit: the client chooses another.
//
// # When the store fails
//
// If the limiter has no policy for a store that fails, a request that the store
// cannot decide about is answered with 503. With ratelimit.FailOpen it passes, with
// FailClosed it is answered with 503, and with FailLocal, too, if the share of this
// process is used up. The RateLimit fields contain nothing that the store did not
// say. OnFallback is told of every such request: nothing else shows that a limiter
// with FailOpen limits nothing. The handler gets the decision from ResultOf.
//
// # Limits on trial
//
// A Limit.Shadow and a Limit.Warn change no answer. Clients are told nothing of a
// shadow, and of a limit that warns what they are told of any. What both say is in
// ResultOf, and in ratelimit.Events: Result.WouldRefuse and Result.Near.
//
// # What is not done
//
// The handler gets the http.ResponseWriter unwrapped: the fields are set before the
// handler is called, so that flushing, hijacking and everything else works. What
// was taken is not given back if the handler fails.
//
// docs/web.md has it in chi, gin, echo, fiber and Connect.
package httplimit
