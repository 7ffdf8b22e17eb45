// Package batongin makes middleware of github.com/gin-gonic/gin out of middleware of
// net/http: limits (package httplimit) and the header Idempotency-Key (package httponce).
//
//	r := gin.New()
//	r.Use(batongin.Middleware(limit))                             // of httplimit.New
//	r.POST("/payments", batongin.Middleware(idempotent), payments) // of httponce.New
//
// The middleware knows gin's route: http.Request.Pattern is gin's FullPath, and PathValue
// has gin's parameters. So httplimit.Route counts each route by itself, and
// httplimit.Func can use a parameter.
//
// Values that the middleware adds to the context of the request are in
// c.Request.Context(), for httponce.AttemptOf and httplimit.ResultOf.
//
// # Its place in the chain
//
// Handlers that answer c.Errors belong behind httponce, so that the recorded answer is
// that of the client. Without them a handler that has left an error and has written
// nothing has failed: the answer is 500, which is not recorded. gin.Recovery may be on
// either side.
//
// A handler can stream behind httplimit, for example by c.Stream. Behind httponce its
// answer is sent as a whole, when it returns: a flush has no effect.
package batongin

import (
	"bufio"
	"context"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"
)

// Middleware is m as middleware of gin. If m does not call the next handler, later
// handlers of gin do not run. m may call it at most once, within its own call.
func Middleware(m func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		outer, request, errs, passed := c.Writer, c.Request, len(c.Errors), false
		r := request.WithContext(request.Context()) // a copy: it gets another route
		r.Pattern = c.FullPath()
		for _, p := range c.Params {
			r.SetPathValue(p.Key, p.Value)
		}
		m(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() { c.Writer, c.Request = outer, request }() // even after a panic
			passed, c.Request = true, r
			if w == outer {
				c.Next()
				return
			}
			inner := &writer{w, r.Context(), http.StatusOK, -1}
			c.Writer = inner
			c.Next()
			if len(c.Errors) > errs && !inner.Written() && inner.status == http.StatusOK {
				inner.status = http.StatusInternalServerError
			}
			inner.WriteHeaderNow()
		})).ServeHTTP(outer, r)
		if !passed {
			c.Abort()
		}
	}
}

// A writer is gin's way to write to w. Like gin's own it sends a status with the first
// byte.
type writer struct {
	http.ResponseWriter
	ctx    context.Context
	status int
	size   int // -1: no byte was sent
}

func (w *writer) Status() int                           { return w.status }
func (w *writer) Size() int                             { return w.size }
func (w *writer) Written() bool                         { return w.size >= 0 }
func (w *writer) Unwrap() http.ResponseWriter           { return w.ResponseWriter }
func (w *writer) WriteString(s string) (n int, e error) { return w.Write([]byte(s)) }

func (w *writer) WriteHeader(status int) {
	if status > 0 && !w.Written() {
		w.status = status
	}
}

func (w *writer) WriteHeaderNow() {
	if !w.Written() {
		w.size = 0
		w.ResponseWriter.WriteHeader(w.status)
	}
}

func (w *writer) Write(b []byte) (int, error) {
	w.WriteHeaderNow()
	n, err := w.ResponseWriter.Write(b)
	w.size += n
	return n, err
}

func (w *writer) Flush() {
	w.WriteHeaderNow()
	_ = http.NewResponseController(w.ResponseWriter).Flush() // gin's own reports no error
}

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

// CloseNotify reports the end of the handler's context: the handler continues without a
// client.
func (w *writer) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	context.AfterFunc(w.ctx, func() { gone <- true })
	return gone
}

func (w *writer) Pusher() http.Pusher {
	p, _ := w.ResponseWriter.(http.Pusher)
	return p
}
