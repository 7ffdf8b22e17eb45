// Package grpclimit puts a ratelimit.Limiter in front of gRPC services.
//
//	limiter, err := ratelimit.New(store, ratelimit.SlidingWindow(100, time.Minute).Named("per-minute"))
//	limit, err := grpclimit.New(limiter)
//	server := grpc.NewServer(grpc.ChainUnaryInterceptor(limit.Unary), grpc.ChainStreamInterceptor(limit.Stream))
//
// Each call is counted under a key, by default the caller's address. A refused call gets
// ResourceExhausted with the details RetryInfo, the time to try again, and QuotaFailure,
// the names of the limits. The trailer grpc-retry-pushback-ms is for clients that retry
// automatically. A call that costs more than is ever allowed has no RetryInfo, and a
// pushback of -1: do not retry.
//
// NewFunc is for decisions from elsewhere, such as package rules: its function gets the
// call and the caller's address.
//
// Callers' addresses are found as in package httplimit: the address is that of the
// connection, unless that is a proxy that you trust, and 64 bits of an IPv6 address
// count.
//
// Without a policy for a store that fails, a call that the store cannot decide is
// answered with Unavailable. With ratelimit.FailOpen it passes; what FailClosed or
// FailLocal refuses is Unavailable, too, with a RetryInfo. OnFallback is called for every
// such call; the handler gets the decision from ResultOf.
//
// A Limit.Shadow and a Limit.Warn change no answer. Their results are in ResultOf and in
// ratelimit.Events: Result.WouldRefuse and Result.Near.
package grpclimit
