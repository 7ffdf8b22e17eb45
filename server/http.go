package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/quick"
	"github.com/batonhq/baton/internal/roles"
)

const (
	// MaxBody is how long the body of a request may be, also once it is uncompressed, in
	// bytes. A result of an operation of the greatest size fits in, as JSON.
	MaxBody = 512 << 10

	headerTimeout = 5 * time.Second
	bodyTimeout   = 5 * time.Second
	writeTimeout  = 30 * time.Second
)

// HTTPServer is an http.Server for h, with the bounds that a server of long waits needs:
// it speaks HTTP/1 and HTTP/2, also without TLS, has no deadline for the whole of a
// request, and notices clients that have gone.
func HTTPServer(h http.Handler) *http.Server {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	fresh := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor > 1 {
			quick.Stack() // this goroutine is new
		} else {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // of an earlier answer on this connection
		}
		h.ServeHTTP(w, r)
		// What is left of the answer is sent now. A client of HTTP/2 may be there and not
		// take it.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	})
	return &http.Server{
		Handler: fresh, Protocols: &p,
		ReadHeaderTimeout: headerTimeout, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1000, SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second, WriteByteTimeout: writeTimeout},
	}
}

// A Caller is who calls, and what the caller may do. Its methods are safe for concurrent
// use.
type Caller interface {
	// Name tells callers apart. It is printable; "" is the name of all callers where there
	// are no roles.
	Name() string

	// May returns nil if the caller may do what verb says with a key, else an error that
	// tells the client so. Verbs are "lock", for elections, too, "list" with a prefix as the key, "break",
	// "limit", "giveback" beside it for a cost below zero, and "once" with the key of an
	// operation.
	May(verb, key string) error
}

// anyone may do everything.
type anyone struct{}

func (anyone) Name() string               { return "" }
func (anyone) May(verb, key string) error { return nil }

// A call is one request.
type call struct {
	caller Caller
	again  func() (Caller, error) // who calls, by what is known now
	remote string
	clear  func()              // the body was read
	within func(time.Duration) // for so long what is written from now on may take; 0: no bound
	undo   []func()            // what a client has got that the call does not give it
}

type callKey struct{}

func callOf(ctx context.Context) (*call, error) {
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return nil, errNoCaller
	}
	return c, nil
}

// Guard lets requests through to next that this server would answer: not made by the web
// page of another site, of a caller that Config.Caller knows, and with a body that is not
// too long and comes in time. It is for what is served beside Handler on the same port.
// Where all callers may do everything, who listens must also refuse names of the server
// that are not its own: a web page can have one.
func (s *Server) Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		deadlines := http.NewResponseController(w)
		c := &call{remote: r.RemoteAddr, clear: func() {}}
		c.within = func(d time.Duration) {
			until := time.Time{}
			if d > 0 {
				until = time.Now().Add(d)
			}
			_ = deadlines.SetWriteDeadline(until)
		}
		if r.ContentLength != 0 && r.Body != nil && r.Body != http.NoBody {
			var reading bound
			reading.begin(bodyTimeout, func() { _ = deadlines.SetReadDeadline(time.Unix(1, 0)) })
			defer func() {
				if reading.end() { // the server may read on after the answer
					_ = deadlines.SetReadDeadline(time.Now().Add(bodyTimeout))
				}
			}()
			c.clear = func() { reading.end() } // it would end the wait for an answer, too
			r.Body = &body{r.Body, c.clear}
		}
		if err := s.enters(r, c); err != nil { // the rest of the body still has its deadline
			s.writeError(w, r, err)
			return
		}
		name := c.caller.Name()
		if most := 2 * s.cfg.MaxWaits; !s.under.enter(name, most) {
			s.writeError(w, r, s.failure(r.URL.Path, &busyError{fmt.Sprintf("as many calls of this caller are under way as may be, %d: call later", most)}))
			return
		}
		defer s.under.leave(name)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callKey{}, c)))
	})
}

// A bound ends something that takes too long. It costs less than a deadline of net/http,
// which over HTTP/2 is a message to the goroutine of the connection.
type bound struct {
	mu    sync.Mutex
	timer *time.Timer // nil once it has ended
}

func (b *bound) begin(d time.Duration, late func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer = time.AfterFunc(d, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.timer != nil {
			b.timer = nil
			late()
		}
	})
}

// end reports whether the bound was neither reached nor ended before. Once it has returned
// nothing happens any more.
func (b *bound) end() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	running := b.timer != nil
	if running {
		b.timer.Stop()
		b.timer = nil
	}
	return running
}

// enters finds who calls, or refuses the request.
func (s *Server) enters(r *http.Request, c *call) error {
	if err := s.origins.Check(r); err != nil && !Proxied(r) {
		return connect.NewError(connect.CodePermissionDenied, errors.New("a web page of another site may not call this server"))
	}
	if r.ContentLength > MaxBody {
		return errTooLong
	}
	c.again = func() (Caller, error) { return s.cfg.Caller(r) }
	caller, err := c.again()
	if err != nil {
		return s.unknown(c, err)
	}
	c.caller = caller
	return nil
}

// unknown is the answer to who is no caller.
func (s *Server) unknown(c *call, err error) error {
	s.cfg.Audit.Warn("a call was refused", "remote", c.remote, "reason", driver.Printable(err.Error()))
	return connect.NewError(connect.CodeUnauthenticated, errors.New(driver.Printable(err.Error())))
}

// stillMay checks again, after a wait, what the caller wants to do.
func (s *Server) stillMay(c *call, verb, key string) error {
	caller, err := c.again()
	switch {
	case err != nil:
		return s.unknown(c, err)
	case caller.Name() != c.caller.Name():
		return s.unknown(c, errors.New("the caller has another name now: call again"))
	}
	c.caller = caller
	return s.may(c, verb, key)
}

// May returns nil if the caller of the request with this context, which Guard has let
// through, may do what verb says with a key. Else the denial is in the audit, and the error
// is for the client.
func (s *Server) May(ctx context.Context, verb, key string) error {
	c, err := callOf(ctx)
	if err != nil {
		return err
	}
	return s.may(c, verb, key)
}

// may checks what the caller wants to do.
func (s *Server) may(c *call, verb, key string) error {
	err := c.caller.May(verb, key)
	if err == nil {
		if verb == roles.GiveBack && c.caller.Name() != "" { // as often as clients like: a warning, as denials
			s.cfg.Audit.Warn("a limit is given back", "caller", c.caller.Name(), "remote", c.remote, "key", driver.Printable(key))
		}
		return nil
	}
	s.cfg.Audit.Warn("a call was denied", "caller", c.caller.Name(), "remote", c.remote, "verb", verb, "key", driver.Printable(key))
	return connect.NewError(connect.CodePermissionDenied, errors.New(driver.Printable(err.Error())))
}

// body clears the deadline for reading when all was read.
type body struct {
	io.ReadCloser
	clear func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF { // after any other error the rest is not waited for
		b.clear()
	}
	return n, err
}

// errTooLong is what connect has no code for.
var errTooLong = fmt.Errorf("the body has more than %d bytes", MaxBody)

// writeError answers a request that no handler sees.
func (s *Server) writeError(w http.ResponseWriter, r *http.Request, err error) {
	status, known := 0, new(connect.Error)
	switch {
	case errors.Is(err, errTooLong):
		status, known = http.StatusRequestEntityTooLarge, connect.NewError(connect.CodeResourceExhausted, err)
	case !errors.As(err, &known):
		known = connect.NewError(connect.CodeInternal, err)
	}
	if known.Code() == connect.CodeUnauthenticated {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if binary := !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json"); binary && s.errors.IsSupported(r) {
		_ = s.errors.Write(w, r, known) // a client that is gone needs no answer
		return
	}
	if status == 0 {
		status = statusOf(known.Code())
	}
	for name, values := range known.Meta() {
		w.Header()[name] = values
	}
	writeJSON(w, status, map[string]string{"code": known.Code().String(), "message": known.Message()})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	text, err := json.Marshal(v)
	if err != nil { // of no value that is passed here
		panic(err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = w.Write(text) // a client that is gone needs no answer
}

// statusOf is the status that the connect protocol has for a code.
func statusOf(c connect.Code) int {
	switch c {
	case connect.CodeInvalidArgument, connect.CodeFailedPrecondition:
		return http.StatusBadRequest
	case connect.CodeUnauthenticated:
		return http.StatusUnauthorized
	case connect.CodePermissionDenied:
		return http.StatusForbidden
	case connect.CodeNotFound:
		return http.StatusNotFound
	case connect.CodeAborted:
		return http.StatusConflict
	case connect.CodeResourceExhausted:
		return http.StatusTooManyRequests
	case connect.CodeUnimplemented:
		return http.StatusNotImplemented
	case connect.CodeUnavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// around is around each call of the services.
func (s *Server) around(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		c, err := callOf(ctx)
		if err != nil {
			return nil, err
		}
		c.clear() // a client may have sent everything and not its end
		res, err := next(ctx, r)
		err = c.settle(ctx, err)
		c.within(writeTimeout)
		if err != nil {
			return nil, s.failure(r.Spec().Procedure, err)
		}
		return res, nil
	}
}

// settle takes back what the client cannot have, because the call has failed, or because
// the client has ended it and cannot ask again. It does so instead of the answer: one that
// is being written may still arrive.
func (c *call) settle(ctx context.Context, err error) error {
	if err == nil && ctx.Err() != nil && len(c.undo) > 0 {
		err = errGone
	}
	if err != nil {
		for _, undo := range c.undo {
			undo()
		}
	}
	return err
}
