// Package grpclimit puts a ratelimit.Limiter in front of gRPC services.
//
//	limiter, err := ratelimit.New(store, ratelimit.SlidingWindow(100, time.Minute).Named("per-minute"))
//	limit, err := grpclimit.New(limiter)
//	server := grpc.NewServer(grpc.ChainUnaryInterceptor(limit.Unary), grpc.ChainStreamInterceptor(limit.Stream))
//
// Each call is counted under a key, by default the caller's address. A refused call
// gets ResourceExhausted with the details RetryInfo, which says when to try again,
// and QuotaFailure, which names the limits; the trailer grpc-retry-pushback-ms
// tells the same to clients that retry automatically. A call that costs more than
// is ever allowed has no RetryInfo, and a pushback of -1: do not retry.
//
// NewFunc is for decisions that something else makes, such as package rules: the
// function says what a call is, and gets the caller's address.
//
// Callers' addresses are trusted as in package httplimit: the address is that of
// the connection, unless that is a proxy that you trust, and 64 bits of an IPv6
// address count.
//
// If the limiter has no policy for a store that fails, a call that the store cannot
// decide about is answered with Unavailable. With ratelimit.FailOpen it passes;
// what FailClosed or FailLocal refuses is Unavailable, too, with a RetryInfo.
// OnFallback is told of every such call; the handler gets the decision from
// ResultOf.
//
// A Limit.Shadow and a Limit.Warn change no answer; what they say is in ResultOf,
// and in ratelimit.Events: Result.WouldRefuse and Result.Near.
package grpclimit
