// Package httponce makes HTTP requests that are sent twice take effect once: it is
// middleware for the header Idempotency-Key, and for the identities of webhook
// deliveries.
//
//	ops, err := once.New(store, once.Config{})
//	…
//	idempotent, err := httponce.New(ops, httponce.Config{
//		Scope: func(r *http.Request) string { return userOf(r) },
//	})
//	…
//	mux.Handle("POST /payments", idempotent(payments))
//
// The first request with a key runs the handler, and its answer is recorded. Every later
// one with that key gets this answer, with the field Idempotency-Replayed, from any
// process on the same store. It follows the IETF's draft of the field
// (draft-ietf-httpapi-idempotency-key-header).
//
// # What is promised
//
// The promises of package once for an operation whose key is the scope and the key of the
// request: exactly one answer is recorded for it, for once.Config.Keep, and all later
// requests get that one. The handler runs at least once: if its process ends before its
// answer is recorded, the next request with the key runs it again. So an effect happens
// exactly once if it is made in the transaction that checks the lease (InTx of a SQL
// store, with the lease of AttemptOf), or if its target refuses the same operation twice.
//
// # What is recorded
//
// The status, the body, and the header fields of Config.Header. By default the statuses
// that another try may change are not recorded, so that the next request runs the handler
// again: see Recorded. Neither is a panic, nor an answer that ends before its
// Content-Length: its client's connection ends early, as without this package. An answer
// that would be recorded and is longer than MaxAnswer is replaced by a 500 that says so,
// and that is recorded: the effect has happened, and must not happen again.
//
// The first client gets all header fields of the answer, later ones only the recorded
// fields. Set-Cookie is not among these by default: everyone who may read the store can
// read the record.
//
// # Who gets which answer
//
//	400  the key is required and missing, is not legal, or is there twice
//	401  Config.Scope does not know whose request it is
//	409  another request with this key is under way; Retry-After says when to come again
//	413  the body is longer than Config.MaxBody
//	422  the key was used for another request: method, path, query, body or a field of
//	     Config.Compare differ (a form of several parts differs if it has another boundary:
//	     what is sent again has the same bytes)
//	503  the store does not answer; the handler has not run
//
// They are problem documents (RFC 9457). None of them is recorded.
//
// # A client that hangs up
//
// A request that waits for another one ends with its client. A handler that runs does
// not: its work continues, its answer is recorded, and the client gets it when it comes
// again. The handler's context ends with the lease: after once.Config.Lock.MaxHold or
// when the store could give the operation to another process. It does not end with
// http.Server.BaseContext or with the time of an http.TimeoutHandler around it.
//
// # What a handler cannot do
//
// It cannot stream, flush, take the connection over, or send trailers: a stream could not
// be replayed. Flush and Hijack of http.ResponseController return an error that says so,
// and the writer is no http.Flusher. Compress outside of this middleware, or the recorded
// answer has the coding of the first client.
//
// # Its place in the chain
//
// Behind authentication, which provides the scope, and behind the check of a webhook's
// signature: a client that can send a request with a key can occupy that key. Limits may
// be on either side; outside, a repeated request is counted again. Middleware that reads
// the body comes behind it, or bodies are not compared, only the fields of a parsed form.
//
// A framework that answers errors after its middleware has returned must answer them
// before, or an empty answer is recorded: docs/web.md shows it in chi, gin, echo and
// fiber.
package httponce
