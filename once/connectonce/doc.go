// Package connectonce makes unary calls of Connect (connectrpc.com/connect) that are sent
// twice take effect once, in each protocol of Connect. Its promises are those of package
// httponce.
//
//	calls, err := connectonce.New(ops, connectonce.Config{
//		Scope: func(ctx context.Context, r connect.AnyRequest) string { return userOf(ctx) },
//	})
//	…
//	path, handler := ordersconnect.NewOrdersHandler(orders, connect.WithInterceptors(calls))
//
// Middleware of net/http, such as httponce, is wrong around a handler of Connect: in gRPC
// a failure is 200 with a trailer, which it would record as a success without an answer.
//
// The client draws a key for each operation and sends it in the header field
// Idempotency-Key. The first call with a key runs the handler; every later one gets the
// recorded outcome, with Idempotency-Replayed in the header, or in the metadata of the
// error.
//
// Recorded are the answer, and code, message and details of an error, not the header and
// the trailer. By default an error that another try may change is not recorded: see
// Recorded. Records have the form of package grpconce: with the same Prefix and scopes,
// servers of both share calls.
//
// A call whose handler does not run fails with invalid_argument (the key is missing or
// illegal), unauthenticated (Config.Scope does not know the caller), aborted (another
// call with this key is under way; Retry-After and a RetryInfo say when to come again),
// failed_precondition (the key was used for another call: method or request differ) or
// unavailable (the store does not answer).
//
// A handler that has begun continues if its caller hangs up or its deadline passes, so
// that the answer is there when the call comes again. Its context ends with the lease.
//
// Requests are compared by their encoding as protobuf, as in package grpconce, so JSON
// and binary are the same. Messages are of generated types, which a process that replays
// an answer must know. Streams with a key are refused as unimplemented.
//
// Interceptors outside of this one see a replayed answer as a connect.AnyResponse of
// another type: its message is in Any.
package connectonce
