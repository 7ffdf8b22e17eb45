// Package grpconce makes unary calls of gRPC that are sent twice take effect once. Its
// promises are those of package httponce.
//
//	calls, err := grpconce.New(ops, grpconce.Config{
//		Scope: func(ctx context.Context) string { return userOf(ctx) },
//	})
//	…
//	server := grpc.NewServer(grpc.UnaryInterceptor(calls.Unary), grpc.StreamInterceptor(calls.Stream))
//
// The client draws a key for each operation and sends it as the metadata
// "idempotency-key". The first call with a key runs the handler; every later one gets the
// recorded outcome, with "idempotency-replayed" in the header.
//
// Recorded are the answer and the status with its details, not the header and the
// trailer. By default a status that another try may change is not recorded: Aborted,
// Canceled, DeadlineExceeded, ResourceExhausted, Unauthenticated, Unavailable, Internal,
// Unknown, DataLoss and Unimplemented.
//
// A call whose handler does not run fails with InvalidArgument (the key is missing or
// illegal), Unauthenticated (Config.Scope does not know the caller), Aborted (another
// call with this key is under way; a RetryInfo says when to come again),
// FailedPrecondition (the key was used for another call: method or request differ) or
// Unavailable (the store does not answer).
//
// A handler that has begun continues if its caller hangs up or its deadline passes, so
// that the answer is there when the call comes again. Its context ends with the lease.
//
// Requests are compared by their encoding, with the fields in the order of their numbers,
// even fields unknown to a server. So old and new servers agree during the rollout of a
// new field, if clients encode the field in that order, as Google's do, and it has no
// map. Stream refuses streams with a key.
package grpconce
