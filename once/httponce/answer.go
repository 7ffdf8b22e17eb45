package httponce

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/batonhq/baton/driver/check"
)

// MaxAnswer is the length of the longest answer that can be recorded, in bytes, with its
// status and its recorded header fields.
const MaxAnswer = check.MaxResult

// ErrTooLong is the error for a handler that writes more than MaxAnswer bytes.
var ErrTooLong = fmt.Errorf("httponce: an answer that is recorded has at most %d bytes", MaxAnswer)

var errStreams = errors.New("httponce: an answer that is recorded is sent as a whole, when the handler returns")

// An answer is a handler's answer.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// encode encodes an answer as HTTP/1.1, with the header fields of names.
func (a answer) encode(names []string) ([]byte, error) {
	r := http.Response{
		StatusCode: a.status, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
		ContentLength: int64(len(a.body)), Body: io.NopCloser(bytes.NewReader(a.body)),
	}
	for _, name := range names {
		for _, value := range a.header.Values(name) {
			r.Header.Add(name, sendable(value))
		}
	}
	var text bytes.Buffer
	if err := r.Write(&text); err != nil {
		return nil, err
	}
	if text.Len() > MaxAnswer {
		return nil, ErrTooLong
	}
	return text.Bytes(), nil
}

// sendable replaces bytes of a header field's value that are illegal, and that decode
// refuses.
func sendable(value string) string {
	b := []byte(value)
	for i, c := range b {
		if c < ' ' && c != '\t' || c == 0x7f {
			b[i] = ' '
		}
	}
	return string(b)
}

func decode(text []byte) (answer, error) {
	r, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(text)), nil)
	if err != nil {
		return answer{}, err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	r.Header.Del("Content-Length")
	return answer{r.StatusCode, r.Header, body}, err
}

// send answers a client. Header fields of outer handlers stay unless a has them, too.
func (a answer) send(w http.ResponseWriter) {
	for name, values := range a.header {
		w.Header()[name] = values
	}
	if _, has := w.Header()["Content-Type"]; !has {
		w.Header()["Content-Type"] = nil // prevents net/http's guess
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // a client that has gone comes again
}

// A recorder is the handler's ResponseWriter. It keeps the rules of net/http about what
// an answer is, because the client of another process sees only the record.
type recorder struct {
	to       http.ResponseWriter
	header   http.Header
	answer   answer // status 0: nothing was written
	declared int64  // its Content-Length; -1: it has none
	written  int64  // with refused bytes
	long     bool
}

func newRecorder(w http.ResponseWriter) *recorder {
	return &recorder{to: w, header: w.Header().Clone(), declared: -1}
}

// run runs the handler for a request.
func (r *recorder) run(next http.Handler, req *http.Request) {
	if req.MultipartForm == nil {
		defer func() {
			if req.MultipartForm != nil {
				_ = req.MultipartForm.RemoveAll() // the server knows only its own request
			}
		}()
	}
	defer func() {
		// httputil.ReverseProxy aborts when Write fails: its target has acted.
		if r.long {
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				panic(p)
			}
		}
	}()
	next.ServeHTTP(r, req)
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("httponce: status %d", status)) // like net/http
	}
	if r.answer.status == 0 && status >= 200 { // informational answers are not part of it
		r.answer.status, r.answer.header = status, r.header.Clone()
		if n, err := strconv.ParseInt(r.header.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
			r.declared = n
		}
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	r.written += int64(len(b))
	switch {
	case len(b) == 0:
		return 0, nil
	case !hasBody(r.answer.status):
		return 0, http.ErrBodyNotAllowed
	case r.declared >= 0 && r.written > r.declared:
		return 0, http.ErrContentLength
	case r.long || len(r.answer.body)+len(b) > MaxAnswer:
		r.long = true
		return 0, ErrTooLong
	}
	r.answer.body = append(r.answer.body, b...)
	return len(b), nil
}

func hasBody(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}

// short reports whether the answer ended before its Content-Length: net/http ends the
// connection then, so that the client notices.
func (r *recorder) short(method string) bool {
	return method != http.MethodHead && hasBody(r.answer.status) && !r.long && int64(len(r.answer.body)) < r.declared
}

// Settings of the connection, for http.ResponseController.

func (r *recorder) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(r.to).SetReadDeadline(t)
}

func (r *recorder) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(r.to).SetWriteDeadline(t)
}

func (r *recorder) EnableFullDuplex() error {
	return http.NewResponseController(r.to).EnableFullDuplex()
}

// FlushError refuses, for http.ResponseController.
func (r *recorder) FlushError() error { return errStreams }

// Hijack refuses. An http.Hijacker looks at its error.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, errStreams }

// whole is the answer after the return of the handler.
func (r *recorder) whole() answer {
	r.WriteHeader(http.StatusOK)
	a := r.answer
	if a.header == nil {
		a.header = http.Header{}
	}
	if _, has := a.header["Content-Type"]; !has && len(a.body) > 0 && a.header.Get("Content-Encoding") == "" {
		a.header.Set("Content-Type", http.DetectContentType(a.body)) // as net/http would, now and at a replay
	}
	for name := range r.to.Header() {
		if _, has := a.header[name]; !has {
			a.header[name] = nil // the handler has removed it
		}
	}
	return a
}

// tooLong replaces an answer that is too long. A recorded one must not ask for another
// try.
func (a answer) tooLong(recorded bool) answer {
	if recorded {
		return (&refusal{http.StatusInternalServerError, "The answer is too long", fmt.Sprintf("The request was handled, with status %d. Its answer is longer than can be kept.", a.status)}).answer()
	}
	short := (&refusal{a.status, "The answer is too long", "It is longer than can be sent as a whole, and not recorded."}).answer()
	for _, name := range []string{"Content-Length", "Content-Encoding", "Content-Disposition", "Etag"} {
		delete(a.header, name)
	}
	a.header.Set("Content-Type", short.header.Get("Content-Type"))
	a.body = short.body
	return a
}
