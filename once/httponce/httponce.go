package httponce

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/internal/front"
)

// Config says which requests take effect once. Only Scope is required.
type Config struct {
	// Scope is the caller: a user, a tenant, the name of a sender. Keys of different
	// scopes are different. "" is no caller: the request is refused with 401.
	Scope func(*http.Request) string

	// Source is the place of the key. Defaults to IdempotencyKey.
	Source *Source

	// Required refuses requests without a key. Otherwise they pass to the handler,
	// without an AttemptOf.
	Required bool

	// Methods are the methods that it applies to; others pass. Defaults to POST and
	// PATCH.
	Methods []string

	// Wait is how long a request waits for another one with its key that is under way.
	// Defaults to 0: it is refused at once.
	Wait time.Duration

	// Record says which answers are recorded. After another one the next request runs the
	// handler again. Defaults to Recorded.
	Record func(status int) bool

	// Header are the recorded header fields. Defaults to DefaultHeader.
	Header []string

	// Compare are the header fields that belong to what a request asks for, beside its
	// method, path, query and body: a repetition with another value is refused. A server
	// of several sites adds "Host", which is not a default: a client may repeat a request
	// at another address of the same site. Defaults to DefaultCompare.
	Compare []string

	// MaxBody is the greatest length of a request's body in bytes: the body is read
	// before the handler runs. Defaults to 1 MiB.
	MaxBody int64

	// Prefix begins the keys of the operations in the store, to separate them from other
	// uses of package once. Programs must agree on it to share their requests. Defaults
	// to "http/".
	Prefix string

	// Logger gets what clients do not see: errors of the store as warnings, answers that
	// could not be recorded as errors. Defaults to silence.
	Logger *slog.Logger
}

// DefaultHeader is the default of Config.Header.
func DefaultHeader() []string {
	return []string{
		"Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Location", "Content-Type",
		"Etag", "Last-Modified", "Link", "Location", "Vary",
	}
}

// DefaultCompare is the default of Config.Compare.
func DefaultCompare() []string {
	return []string{
		"Content-Encoding", "Content-Range", "Content-Type", "If-Match", "If-Modified-Since", "If-None-Match",
		"If-Unmodified-Since", "Range",
	}
}

// Recorded is the default of Config.Record: all statuses but those that another try may
// change, perhaps with other credentials, conditions or expectations: 401, 407, 408, 409,
// 412, 417, 425, 428, 429 and 500 and above.
func Recorded(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusProxyAuthRequired, http.StatusRequestTimeout, http.StatusConflict,
		http.StatusPreconditionFailed, http.StatusExpectationFailed, http.StatusTooEarly, http.StatusPreconditionRequired,
		http.StatusTooManyRequests:
		return false
	}
	return status < 500
}

// New makes a middleware of a Runner. The middleware, and the handlers that it returns, are
// safe for concurrent use. It refuses a Config that cannot be honoured with a
// *baton.ConfigError.
func New(ops *once.Runner, cfg Config) (func(http.Handler) http.Handler, error) {
	switch {
	case ops == nil:
		return nil, errors.New("httponce: there is no runner")
	case cfg.Scope == nil:
		return nil, &baton.ConfigError{Field: "Scope", Reason: "is missing: it says whose keys they are"}
	case cfg.Wait < 0:
		return nil, &baton.ConfigError{Field: "Wait", Reason: "is below 0"}
	case cfg.MaxBody < 0:
		return nil, &baton.ConfigError{Field: "MaxBody", Reason: "is below 0"}
	}
	if cfg.Source == nil {
		source := IdempotencyKey()
		cfg.Source = &source
	}
	if cfg.Source.key == nil {
		return nil, &baton.ConfigError{Field: "Source", Reason: "is none: see IdempotencyKey"}
	}
	if cfg.Methods == nil {
		cfg.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if cfg.Record == nil {
		cfg.Record = Recorded
	}
	if cfg.Header == nil {
		cfg.Header = DefaultHeader()
	}
	if cfg.Compare == nil {
		cfg.Compare = DefaultCompare()
	}
	if cfg.MaxBody == 0 {
		cfg.MaxBody = 1 << 20
	}
	if cfg.Prefix == "" {
		cfg.Prefix = "http/"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	m := &middleware{ops, cfg}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}, nil
}

// AttemptOf returns the attempt that runs a handler, for its token and its lease, from
// the context of its request. There is none if the request has no key.
func AttemptOf(ctx context.Context) (once.Attempt, bool) { return front.AttemptOf(ctx) }

type middleware struct {
	ops *once.Runner
	cfg Config
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if !slices.Contains(m.cfg.Methods, r.Method) {
		next.ServeHTTP(w, r)
		return
	}
	r = r.WithContext(r.Context()) // a copy: it gets another body
	var body []byte
	var err error
	if m.cfg.Source.body {
		if body, err = m.read(w, r); err != nil {
			m.refuse(w, r, err)
			return
		}
	}
	key, err := m.cfg.Source.key(r, body)
	switch {
	case err != nil:
		m.refuse(w, r, &refusal{http.StatusBadRequest, "The key is not legal", err.Error()})
		return
	case key == "" && m.cfg.Required:
		m.refuse(w, r, &refusal{http.StatusBadRequest, "A key is required", "The request has no Idempotency-Key, or what takes its place: draw one at random for each operation, and send it again with each repetition."})
		return
	case key == "":
		next.ServeHTTP(w, r)
		return
	}
	scope := m.cfg.Scope(r)
	if scope == "" {
		m.refuse(w, r, &refusal{http.StatusUnauthorized, "It is not known whose request this is", "A key belongs to its user."})
		return
	}
	if body == nil {
		if body, err = m.read(w, r); err != nil {
			m.refuse(w, r, err)
			return
		}
	}
	if m.cfg.Source.anyone { // each endpoint must have the event
		key = front.Part(path(r.URL)) + "/" + key
	}
	m.once(w, r, next, front.Key(m.cfg.Prefix, scope, key), body)
}

// path is a path in one spelling: %68ook is hook, and a%2Fb is another path than a/b.
func path(u *url.URL) string {
	parts := strings.Split(u.EscapedPath(), "/")
	for i, part := range parts {
		if text, err := url.PathUnescape(part); err == nil {
			parts[i] = url.PathEscape(text)
		}
	}
	return strings.Join(parts, "/")
}

// read reads the body, for the handler to read again.
func (m *middleware) read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, m.cfg.MaxBody))
	if long := new(http.MaxBytesError); errors.As(err, &long) {
		return nil, &refusal{http.StatusRequestEntityTooLarge, "The body is too long", fmt.Sprintf("At most %d bytes are allowed.", long.Limit)}
	} else if err != nil {
		return nil, &refusal{http.StatusBadRequest, "The body cannot be read", "It ended early."}
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body, nil
}

// once runs the handler for the operation, or sends the recorded answer.
func (m *middleware) once(w http.ResponseWriter, r *http.Request, next http.Handler, key string, body []byte) {
	var ran *answer
	ctx := r.Context()
	record, err := front.Do(ctx, m.ops, key, m.cfg.Wait, func(ctx context.Context, _ once.Attempt) ([]byte, error) {
		to := newRecorder(w)
		to.run(next, r.WithContext(ctx))
		got := to.whole()
		if to.short(r.Method) {
			m.cfg.Logger.ErrorContext(ctx, "an answer ended before its Content-Length and is not recorded", "key", driver.Printable(key), "status", got.status)
			ran = &got
			return nil, front.ErrNotRecorded
		}
		recorded := m.cfg.Record(got.status)
		var text []byte
		var err error
		if recorded {
			text, err = got.encode(m.cfg.Header)
		}
		if to.long || errors.Is(err, ErrTooLong) {
			m.cfg.Logger.ErrorContext(ctx, "an answer is too long to be recorded", "key", driver.Printable(key), "status", got.status)
			got = got.tooLong(recorded)
			text, err = got.encode(m.cfg.Header)
		}
		ran = &got
		if !recorded {
			return nil, fmt.Errorf("%w: %d %s", front.ErrNotRecorded, got.status, http.StatusText(got.status))
		}
		return text, err
	}, m.fingerprint(r, body)...)
	later, superseded := front.Later(err)
	switch {
	case ran != nil && (err == nil || errors.Is(err, front.ErrNotRecorded)):
		ran.send(w)
	case err == nil:
		m.replay(w, r, key, record)
	case superseded:
		m.replay(w, r, key, later)
	case ran != nil && (!errors.Is(err, driver.ErrSuperseded) || front.Forgotten(err)):
		// The answer is true, even if the next request runs the handler again.
		m.cfg.Logger.ErrorContext(ctx, "an answer could not be recorded", "key", driver.Printable(key), "error", driver.Printable(err.Error()))
		ran.send(w)
	default:
		m.refuse(w, r, err)
	}
}

// fingerprint is what each request with a key must have in common.
func (m *middleware) fingerprint(r *http.Request, body []byte) []once.Option {
	if m.cfg.Source.anyone {
		return nil
	}
	parts := []string{r.Method, path(r.URL), r.URL.RawQuery, string(body)}
	for _, name := range m.cfg.Compare {
		value := strings.Join(r.Header.Values(name), ", ")
		if strings.EqualFold(name, "Host") { // net/http keeps it elsewhere
			value = strings.ToLower(r.Host)
		}
		parts = append(parts, value)
	}
	if len(r.PostForm) > 0 { // another middleware has read the body
		parts = append(parts, r.PostForm.Encode())
	}
	return []once.Option{once.Fingerprint(parts...)}
}

func (m *middleware) replay(w http.ResponseWriter, r *http.Request, key string, record []byte) {
	a, err := decode(record)
	if err != nil { // another program uses the key
		m.cfg.Logger.ErrorContext(r.Context(), "what is recorded is no answer", "key", driver.Printable(key), "error", driver.Printable(err.Error()))
		m.refuse(w, r, foreign)
		return
	}
	w.Header().Set("Idempotency-Replayed", "true")
	a.send(w)
}

// A refusal is an answer of this package.
type refusal struct {
	status        int
	title, detail string
}

func (e *refusal) Error() string { return e.title }

var foreign = &refusal{http.StatusInternalServerError, "What is recorded is no answer", "Another program has used the key."}

func (e *refusal) answer() answer {
	body, err := json.Marshal(map[string]any{"title": e.title, "status": e.status, "detail": e.detail})
	if err != nil {
		panic(err) // cannot happen: it is text
	}
	h := http.Header{"Content-Type": {"application/problem+json"}, "Cache-Control": {"no-store"}}
	if e.status == http.StatusConflict || e.status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	return answer{e.status, h, append(body, '\n')}
}

// refuse answers a request whose handler did not run, or whose answer does not count.
func (m *middleware) refuse(w http.ResponseWriter, r *http.Request, err error) {
	known := new(refusal)
	switch {
	case errors.As(err, &known):
	case errors.Is(err, once.ErrOtherRequest):
		known = &refusal{http.StatusUnprocessableEntity, "The key was used for another request", "Draw another key for another operation. Method, path, query, body and conditions of a repetition are those of the first request."}
	case errors.As(err, new(*baton.KeyError)):
		known = &refusal{http.StatusBadRequest, "The key is not legal", "It has a few hundred bytes at most, and no characters that cannot be seen."}
	case errors.Is(err, baton.ErrHeld), errors.Is(err, front.ErrWaited), errors.Is(err, driver.ErrSuperseded):
		known = &refusal{http.StatusConflict, "The request is under way", "Another request with this key has not been answered yet. Come again for its answer."}
	case errors.Is(err, once.ErrFinal): // of another program
		m.cfg.Logger.ErrorContext(r.Context(), "what is recorded is no answer", "error", driver.Printable(err.Error()))
		known = foreign
	case errors.Is(err, baton.ErrNested):
		m.cfg.Logger.ErrorContext(r.Context(), "a handler has sent its own request again", "error", driver.Printable(err.Error()))
		known = &refusal{http.StatusInternalServerError, "The request waits for itself", "Its handler has asked for its own operation."}
	default:
		if r.Context().Err() == nil {
			m.cfg.Logger.WarnContext(r.Context(), "the store has not answered", "error", driver.Printable(err.Error()))
		}
		known = &refusal{http.StatusServiceUnavailable, "The request was not begun", "The store of idempotency keys does not answer. Come again."}
	}
	known.answer().send(w)
}
