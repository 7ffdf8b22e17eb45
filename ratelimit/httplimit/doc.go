// Package httplimit puts a ratelimit.Limiter in front of HTTP handlers.
//
//	limiter, err := ratelimit.New(store, ratelimit.SlidingWindow(100, time.Minute).Named("per-minute"))
//	limit, err := httplimit.New(limiter)
//	http.ListenAndServe(addr, limit(handler))
//
// Each request is counted under a key, by default the client's address. Who is
// refused gets 429 with a problem document (RFC 9457) and Retry-After; everybody is
// told how he stands, by the fields RateLimit-Policy and RateLimit of the
// IETF's draft or by older ones (Headers). Limiters that share a store share the
// keys too, so name the limits (Limit.Named) unless they shall count together.
//
// # Whom to believe
//
// The address is that of the connection. A header that names another is believed
// from proxies that you name alone (TrustForwarded, TrustXForwardedFor), and is read
// from its end: what stands before the last proxy of yours is what the client
// wrote. Of an IPv6 address the first 64 bits count, because whoever has one has
// all of them.
//
// A key that the client can choose, such as a header that nothing has verified, is
// no limit: he chooses another.
//
// # When the store fails
//
// Without a policy of the limiter's, a request that the store cannot decide about
// is answered with 503. With ratelimit.FailOpen it passes, with FailClosed it is
// answered with 503, and with FailLocal, too, if the share of this process
// is used up. Whatever the store did not say, no field of RateLimit says.
// OnFallback is told of every such request: nothing else shows that a limiter with FailOpen
// limits nothing. The handler finds the decision by ResultOf.
//
// # What is not done
//
// The http.ResponseWriter is passed on as it is: the fields are set before
// the handler is called, so that flushing, hijacking and everything else works. What
// was taken is not given back if the handler fails.
package httplimit
