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
	// MaxBody is the largest body of a request, also when uncompressed, in bytes. The
	// largest result of an operation fits in, as JSON.
	MaxBody = 512 << 10

	headerTimeout = 5 * time.Second
	bodyTimeout   = 5 * time.Second
	writeTimeout  = 30 * time.Second
)

// HTTPServer returns an http.Server for h that suits long waits: it speaks HTTP/1 and
// HTTP/2, also without TLS, has no deadline for a request as a whole, and notices clients
// that have gone.
func HTTPServer(h http.Handler) *http.Server {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	fresh := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor > 1 {
			quick.Stack() // this goroutine is new
		} else {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // resets that of the connection's previous answer
		}
		h.ServeHTTP(w, r)
		// The server sends the rest of the answer now. An HTTP/2 client may stay connected
		// and not read it.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	})
	return &http.Server{
		Handler: fresh, Protocols: &p,
		ReadHeaderTimeout: headerTimeout, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1000, SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second, WriteByteTimeout: writeTimeout},
	}
}

// A Caller is who calls, and what it may do. Its methods must be safe for concurrent use.
type Caller interface {
	// Name identifies the caller. It is printable. All callers have the name "" where
	// there are no roles.
	Name() string

	// May returns nil if the caller may do what verb says with a key, and else an error
	// for the client. The verbs are "lock", for elections as well; "list", with a prefix
	// as the key; "break"; "limit", and "giveback" as well for a cost below zero; and
	// "once", with the key of an operation.
	May(verb, key string) error
}

type anyone struct{}

func (anyone) Name() string               { return "" }
func (anyone) May(verb, key string) error { return nil }

// A call is one request.
type call struct {
	caller Caller
	again  func() (Caller, error) // authenticates the call again
	remote string
	clear  func()              // ends the time for the body
	within func(time.Duration) // bounds the time of further writes; 0: no bound
	undo   []func()            // releases what the call got, if the client cannot have it
}

type callKey struct{}

func callOf(ctx context.Context) (*call, error) {
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return nil, errNoCaller
	}
	return c, nil
}

// Guard passes to next the requests that this server would answer: those that no web page
// of another site made, of a caller that Config.Caller accepts, and with a body that is
// not too long and comes in time. Use it for other handlers on the same port. Where all
// callers may do everything, the listener must also refuse foreign host names: a web page
// can point one to this server.
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
				if reading.end() { // the server may continue to read after the answer
					_ = deadlines.SetReadDeadline(time.Now().Add(bodyTimeout))
				}
			}()
			c.clear = func() { reading.end() } // the deadline would also end the wait for an answer
			r.Body = &body{r.Body, c.clear}
		}
		if err := s.enters(r, c); err != nil { // the rest of the body keeps its deadline
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
// which over HTTP/2 is a message to the connection's goroutine.
type bound struct {
	mu    sync.Mutex
	timer *time.Timer // nil once reached or ended
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

// end ends the bound. It reports whether it was still running. After end, late is not
// called.
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

// enters authenticates the caller, or refuses the request.
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

// unknown returns the error for an unknown caller, and tells the audit.
func (s *Server) unknown(c *call, err error) error {
	s.cfg.Audit.Warn("a call was refused", "remote", c.remote, "reason", driver.Printable(err.Error()))
	return connect.NewError(connect.CodeUnauthenticated, errors.New(driver.Printable(err.Error())))
}

// stillMay authenticates and checks the caller again, after a wait.
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

// MayTake returns nil if the caller of a request that Guard has passed may take by a rule
// with a key, and may also give back if gives is set. ctx is that of the request. Otherwise
// the error is for the client, and Audit gets the denial.
func (s *Server) MayTake(ctx context.Context, key string, gives bool) error {
	c, err := callOf(ctx)
	if err != nil {
		return err
	}
	return s.mayTake(c, key, gives)
}

func (s *Server) mayTake(c *call, key string, gives bool) error {
	err := s.may(c, roles.Limit, key)
	if err == nil && gives {
		err = s.may(c, roles.GiveBack, key)
	}
	return err
}

func (s *Server) may(c *call, verb, key string) error {
	err := c.caller.May(verb, key)
	if err == nil {
		if verb == roles.GiveBack && c.caller.Name() != "" { // a warning, as denials are: clients can cause any number
			s.cfg.Audit.Warn("a limit is given back", "caller", c.caller.Name(), "remote", c.remote, "key", driver.Printable(key))
		}
		return nil
	}
	s.cfg.Audit.Warn("a call was denied", "caller", c.caller.Name(), "remote", c.remote, "verb", verb, "key", driver.Printable(key))
	return connect.NewError(connect.CodePermissionDenied, errors.New(driver.Printable(err.Error())))
}

// body calls clear at the end of the body.
type body struct {
	io.ReadCloser
	clear func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF { // after another error the server does not wait for the rest
		b.clear()
	}
	return n, err
}

// errTooLong is an error that no code of connect expresses.
var errTooLong = fmt.Errorf("the body has more than %d bytes", MaxBody)

// writeError answers a request with an error outside of connect.
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
	if err != nil { // cannot be: all values have a JSON form
		panic(err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = w.Write(text) // a client that is gone needs no answer
}

// statusOf returns the HTTP status of a code in the Connect protocol.
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

// around wraps each unary call of the services.
func (s *Server) around(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		c, err := callOf(ctx)
		if err != nil {
			return nil, err
		}
		c.clear() // a client may have sent the whole message, but not its end
		res, err := next(ctx, r)
		err = c.settle(ctx, err)
		c.within(writeTimeout)
		if err != nil {
			return nil, s.failure(r.Spec().Procedure, err)
		}
		return res, nil
	}
}

// settle calls undo if the call has failed, or if the client has ended it and cannot
// repeat it. Then the client gets an error instead of the answer: an answer under way
// could still arrive.
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
