package guard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"

	"github.com/batonhq/baton/driver"
)

// The header fields of a request's pass. The token is decimal, the holder escaped with
// percent signs as in a path.
const (
	TokenHeader  = "X-Fence-Token"
	HolderHeader = "X-Fence-Holder"
)

// SetHeader writes p into the header fields of a request.
func SetHeader(h http.Header, p Pass) {
	h.Set(TokenHeader, strconv.FormatInt(p.Token, 10))
	h.Del(HolderHeader)
	if p.Holder != "" {
		h.Set(HolderHeader, url.PathEscape(p.Holder))
	}
}

// FromHeader parses the pass of a request. ok is false if it has none; the error is a
// *PassError if its pass is illegal.
func FromHeader(h http.Header) (p Pass, ok bool, err error) {
	tokens, holders := h.Values(TokenHeader), h.Values(HolderHeader)
	if len(tokens) == 0 && len(holders) == 0 {
		return p, false, nil
	}
	if len(tokens) != 1 || len(holders) > 1 {
		return p, true, &PassError{fmt.Sprintf("%s stands there %d times and %s %d times", TokenHeader, len(tokens), HolderHeader, len(holders))}
	}
	if p.Token, err = strconv.ParseInt(tokens[0], 10, 64); err != nil {
		return p, true, &PassError{fmt.Sprintf("%s is not a number of 64 bits", TokenHeader)}
	}
	if strconv.FormatInt(p.Token, 10) != tokens[0] { // writers of tokens do not, and other programs may parse another number
		return Pass{}, true, &PassError{fmt.Sprintf("%s has a sign or zeros before its digits", TokenHeader)}
	}
	if len(holders) == 1 {
		if p.Holder, err = url.PathUnescape(holders[0]); err != nil {
			return p, true, &PassError{fmt.Sprintf("%s has a percent sign that stands for nothing", HolderHeader)}
		}
	}
	return p, true, p.check()
}

// Transport adds the pass in a request's context (With) to the request. Without one it
// sends the request unchanged.
type Transport struct {
	Base http.RoundTripper // defaults to http.DefaultTransport
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	p, ok := From(r.Context())
	if !ok {
		return base.RoundTrip(r)
	}
	if err := p.check(); err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	r = r.Clone(r.Context())
	SetHeader(r.Header, p)
	return base.RoundTrip(r)
}

// HTTP lets a request through only if g admits its pass for the resource that the
// function names; "" leaves a request unguarded. The name must follow from the content of
// the request, not from what the client says about its lock.
//
// The handler runs within g.Do: no earlier write with a lower token is under way in this
// process then. It finds the pass with From, for databases that check it again with the
// write. Work that continues after its return is not guarded.
//
// A refused request gets a problem document (RFC 9457): 412 for a stale token, 428 for
// none, 400 for an illegal pass or resource name, 503 if the marks cannot be read or an
// earlier write does not end. A client that may send a token can shut out all others with
// a high one: authenticate clients first.
func HTTP(g *Gate, resource func(*http.Request) string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			name := resource(r)
			if name == "" {
				next.ServeHTTP(w, r)
				return
			}
			p, ok, err := FromHeader(r.Header)
			switch {
			case err != nil:
				answer(w, err)
				return
			case !ok:
				problem{Title: "A fencing token is required.", Status: http.StatusPreconditionRequired, Detail: "Send the token of your lease as " + TokenHeader + "."}.write(w)
				return
			}
			if err := g.Do(r.Context(), name, p, func() error {
				next.ServeHTTP(w, r.WithContext(With(r.Context(), p)))
				return nil
			}); err != nil {
				answer(w, err)
			}
		})
	}
}

// staleType is the problem type of a stale token.
const staleType = "https://github.com/batonhq/baton/blob/main/docs/fencing.md#stale"

type problem struct {
	Type     string `json:"type,omitempty"` // if empty the status says it all
	Title    string `json:"title"`
	Status   int    `json:"status"`
	Detail   string `json:"detail,omitempty"`
	Resource string `json:"resource,omitempty"`
	Token    int64  `json:"token,omitempty,string"` // a string: other languages would round a number
	Last     int64  `json:"last,omitempty,string"`
}

func answer(w http.ResponseWriter, err error) {
	if stale, ok := errors.AsType[*StaleError](err); ok {
		problem{
			staleType, "The fencing token is stale.", http.StatusPreconditionFailed,
			"The resource has seen a later holder of the lock. Nothing was changed.", stale.Resource, stale.Token, stale.Last,
		}.write(w)
		return
	}
	_, badPass := errors.AsType[*PassError](err)
	if _, badKey := errors.AsType[*driver.KeyError](err); badPass || badKey {
		problem{Title: "The fencing token cannot be used.", Status: http.StatusBadRequest, Detail: err.Error()}.write(w)
		return
	}
	problem{Title: "The fencing token cannot be checked at present.", Status: http.StatusServiceUnavailable}.write(w)
}

func (p problem) write(w http.ResponseWriter) {
	body, err := json.Marshal(p)
	if err != nil { // cannot happen: it contains nothing that JSON cannot encode
		panic(err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // a client that has gone needs no answer
}

// maxProblem is more than the length of the longest problem document of this package, in
// bytes.
const maxProblem = 8 << 10

// Refused is the *StaleError in an answer of HTTP, or nil. It may be called for every
// answer; the body can be read afterwards.
func Refused(r *http.Response) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); r.StatusCode != http.StatusPreconditionFailed || err != nil || kind != "application/problem+json" {
		return nil
	}
	body, _ := io.ReadAll(io.LimitReader(r.Body, maxProblem)) // a longer body is not from this package
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), r.Body), r.Body}
	var p problem
	if json.Unmarshal(body, &p) != nil || p.Type != staleType {
		return nil
	}
	return &StaleError{p.Resource, p.Token, p.Last}
}
