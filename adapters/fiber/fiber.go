// Package batonfiber makes middleware of github.com/gofiber/fiber/v3 out of middleware of
// net/http: limits (package httplimit) and the header Idempotency-Key (package httponce).
//
//	app.Post("/shops/:shop/payments",
//		batonfiber.Middleware(limit),      // of httplimit.New
//		batonfiber.Middleware(idempotent), // of httponce.New
//		payments)
//
// fiber's own adaptor.HTTPMiddleware runs the later handlers when the middleware has
// returned, so httponce would record an empty answer, and it passes only one value of
// each header field.
//
// If the middleware is part of a route, as above, it knows the route:
// http.Request.Pattern is fiber's FullPath, and PathValue has fiber's parameters. With
// App.Use it has no pattern, and the parameters of its own path.
//
// Values that the middleware adds to the context of the request are in c.Context(), for
// httponce.AttemptOf and httplimit.ResultOf, not in fiber.Ctx as a context.
//
// # Answers
//
// Behind httponce the app's ErrorHandler answers an error of a handler at once, so that
// the recorded answer is that of the client; middleware outside sees no error. Behind
// httplimit errors continue outwards. recover.New may be on either side.
//
// A handler can stream behind httplimit. Behind httponce its stream is read to its end,
// or to httponce.MaxAnswer, and sent as a whole. If it ends early, with an error or
// before its declared size, the app's ErrorHandler answers that error, and it is not
// recorded.
//
// # Limits of fiber
//
// fasthttp does not tell when a client hangs up: a request that waits for another one or
// for its turn waits for as long as it may. fiber parses forms of several parts before
// its handlers run, and drops their bytes: behind httponce such a request fails with
// ErrForm, unless fiber.Config.DisablePreParseMultipartForm is set.
package batonfiber

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"
)

// ErrForm says that a middleware needs the bytes of a form of several parts.
var ErrForm = errors.New("batonfiber: fiber has parsed the form: set fiber.Config.DisablePreParseMultipartForm")

// Middleware is m as middleware of fiber. If m does not call the next handler, later
// handlers of fiber do not run. m may call it at most once, within its own call.
func Middleware(m func(http.Handler) http.Handler) fiber.Handler {
	return func(c fiber.Ctx) (failed error) {
		body := &lazy{c: c}
		r, err := request(c, body)
		if err != nil {
			return fiber.NewError(fiber.StatusBadRequest, err.Error())
		}
		out, passed := &writer{to: c.Response(), header: http.Header{}}, false
		read(out.header, out.to)
		var broke error // a stream ended early: fasthttp would end the connection
		defer func() {
			if broke != nil {
				_ = recover()
				out.to.Reset()
				failed = broke
			}
		}()
		m(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer c.SetContext(c.Context())
			c.SetContext(r.Context())
			if passed = true; r.Body != body && c.Request().IsBodyStream() {
				text, _ := io.ReadAll(r.Body) // the body that m has read
				body.finish()
				c.Request().SetBody(text)
			}
			write(out.to, w.Header())
			if failed = c.Next(); w == out {
				return // the handler's answer is in place
			}
			if failed != nil && c.App().ErrorHandler(c, failed) != nil {
				_ = c.SendStatus(fiber.StatusInternalServerError) // never fails
			}
			failed = nil
			read(w.Header(), out.to)
			if !out.to.IsBodyStream() {
				w.Header().Del("Content-Length") // fasthttp sends that of the body
				w.WriteHeader(out.to.StatusCode())
				_ = out.to.BodyWriteTo(w) // w knows if it was too long
				return
			}
			w.WriteHeader(out.to.StatusCode())
			from := &stream{from: out.to.BodyStream(), left: int64(out.to.Header.ContentLength())}
			_, _ = io.Copy(w, from)
			_ = out.to.CloseBodyStream()
			if broke = from.broke; broke != nil {
				panic(http.ErrAbortHandler) // m must not take the rest for an answer
			}
		})).ServeHTTP(out, r)
		if !passed {
			body.finish()
		}
		if body.err == ErrForm {
			return ErrForm
		}
		return failed
	}
}

// request is the request of net/http. It contains no memory that fasthttp reuses.
func request(c fiber.Ctx, body *lazy) (*http.Request, error) {
	from, conn := c.Request(), c.RequestCtx()
	uri := string(from.Header.RequestURI()) // fiber's other forms are decoded
	u, err := url.ParseRequestURI(uri)
	if err != nil {
		return nil, err
	}
	r := &http.Request{
		Method: string(from.Header.Method()), URL: u, RequestURI: uri, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Host: string(from.Host()), RemoteAddr: conn.RemoteAddr().String(), TLS: conn.TLSConnectionState(),
		Body: body, ContentLength: max(int64(from.Header.ContentLength()), -1),
	}
	for name, value := range from.Header.All() {
		if string(name) != "Host" {
			r.Header.Add(string(name), string(value))
		}
	}
	if c.Matched() {
		r.Pattern = strings.Clone(c.FullPath())
	}
	for _, name := range c.Route().Params {
		r.SetPathValue(name, strings.Clone(c.Params(name)))
	}
	return r.WithContext(context.WithValue(c.Context(), http.LocalAddrContextKey, conn.LocalAddr())), nil
}

// lazy is the body of a request.
type lazy struct {
	c    fiber.Ctx
	from io.Reader
	err  error // of the last Read
}

func (l *lazy) Close() error { return nil }

func (l *lazy) Read(p []byte) (n int, err error) {
	r := l.c.Request()
	switch {
	case l.err != nil:
		return 0, l.err
	case l.from != nil:
	case len(r.Header.MultipartFormBoundary()) > 0 && !l.c.App().Config().DisablePreParseMultipartForm:
		l.err = ErrForm
		return 0, l.err
	case r.IsBodyStream():
		l.from = r.BodyStream()
	default:
		l.from = bytes.NewReader(r.Body())
	}
	n, l.err = l.from.Read(p)
	return n, l.err
}

// finish reads the rest of a stream, as net/http does, or ends the connection: fasthttp
// would take the rest for the next request.
func (l *lazy) finish() {
	if l.c.Request().IsBodyStream() && l.err != io.EOF {
		if _, err := io.CopyN(io.Discard, l, 256<<10); err != io.EOF {
			l.c.Response().SetConnectionClose()
		}
	}
}

// A stream is the body of a streamed answer.
type stream struct {
	from  io.Reader
	left  int64 // of its Content-Length; below 0: none
	broke error // why it ended early
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.from.Read(p)
	sized := s.left >= 0
	if s.left -= int64(n); err == io.EOF && sized && s.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil && err != io.EOF {
		s.broke = err
	}
	return n, err
}

type writer struct {
	to     *fasthttp.Response
	header http.Header
	wrote  bool
}

func (w *writer) Header() http.Header { return w.header }

func (w *writer) WriteHeader(status int) {
	if !w.wrote && status >= 200 {
		w.wrote = true
		write(w.to, w.header)
		w.to.SetStatusCode(status)
		w.to.ResetBody()
	}
}

func (w *writer) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.to.AppendBody(b)
	return len(b), nil
}

// read sets header to that of from.
func read(header http.Header, from *fasthttp.Response) {
	clear(header)
	for name, value := range from.Header.All() {
		header.Add(string(name), string(value))
	}
}

// write sets the header of to. It does not touch equal fields, such as the default
// Content-Type.
func write(to *fasthttp.Response, header http.Header) {
	old := http.Header{}
	read(old, to)
	for name, values := range old {
		if !slices.Equal(values, header[name]) {
			to.Header.Del(name)
		}
	}
	for name, values := range header {
		if !slices.Equal(values, old[name]) {
			for _, value := range values {
				to.Header.Add(name, value)
			}
		}
	}
}
