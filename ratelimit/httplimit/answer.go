package httplimit

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/internal/front"
)

// Fields are the header fields that tell clients how they stand.
type Fields uint8

const (
	// Draft are the fields RateLimit-Policy and RateLimit of
	// draft-ietf-httpapi-ratelimit-headers, about each limit: how much is allowed
	// within how many seconds, how much remains and in how many seconds that grows.
	// A limit without a name is called "default".
	Draft Fields = 1 << iota

	// Legacy are RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset, of
	// earlier drafts, about the tightest limit. Reset is the number of seconds
	// until all has come back.
	Legacy

	// XRateLimit are X-RateLimit-Limit, X-RateLimit-Remaining and
	// X-RateLimit-Reset, which say the same as Legacy.
	XRateLimit

	// XRateLimitEpoch are those of XRateLimit, but Reset is when all will have
	// come back, in seconds since 1970, by the clock of this machine.
	XRateLimitEpoch
)

func (f Fields) check() error {
	if f&XRateLimit != 0 && f&XRateLimitEpoch != 0 {
		return errors.New("X-RateLimit-Reset can be a delay or a time, not both")
	}
	return nil
}

// set sets the fields of an answer. A field that the store knows nothing of, or
// that is no longer true, is left out, and so are all if there is no limit but
// shadows.
func (f Fields) set(h http.Header, a front.Answer, now time.Time) {
	if a.By.Fallback() || len(a.Limits) == 0 {
		return
	}
	if f&Draft != 0 {
		h.Add("RateLimit-Policy", policies(a.Limits))
		if !a.Late {
			h.Add("RateLimit", standing(a))
		}
	}
	if a.Late || f&^Draft == 0 {
		return
	}
	reset := tightest(a).ResetAfter
	set := func(prefix, reset string) {
		h.Set(prefix+"Limit", strconv.FormatInt(a.Limit, 10))
		h.Set(prefix+"Remaining", strconv.FormatInt(a.Remaining, 10))
		h.Set(prefix+"Reset", reset)
	}
	delta := strconv.FormatInt(front.Up(reset, time.Second), 10)
	if f&Legacy != 0 {
		set("RateLimit-", delta)
	}
	if f&XRateLimit != 0 {
		set("X-RateLimit-", delta)
	}
	if f&XRateLimitEpoch != 0 {
		at := now.Add(reset)
		s := at.Unix()
		if at.Nanosecond() > 0 {
			s++
		}
		set("X-RateLimit-", strconv.FormatInt(s, 10))
	}
}

func tightest(a front.Answer) ratelimit.LimitResult {
	for _, l := range a.Limits {
		if l.Name == a.Name {
			return l
		}
	}
	return ratelimit.LimitResult{ResetAfter: a.ResetAfter}
}

// policies describes the limits: "per-minute";q=100;w=60.
func policies(limits []ratelimit.LimitResult) string {
	b := make([]byte, 0, 32*len(limits))
	for i, l := range limits {
		b = appendItem(b, i, clientName(l))
		b = appendParameter(b, "q", l.Limit)
		b = appendParameter(b, "w", front.Up(l.Period, time.Second))
	}
	return string(b)
}

// standing describes what remains: "per-minute";r=40;t=10. A refused client gets no t of
// limits that did not refuse: that could be longer than Retry-After.
func standing(a front.Answer) string {
	b := make([]byte, 0, 32*len(a.Limits))
	for i, l := range a.Limits {
		b = appendItem(b, i, clientName(l))
		b = appendParameter(b, "r", max(l.Remaining, 0))
		if next := l.NextAfter; next > 0 && (a.OK || !l.OK) {
			b = appendParameter(b, "t", front.Up(next, time.Second))
		}
	}
	return string(b)
}

// clientName is a limit's name for clients: bytes that a string of structured fields (RFC
// 9651) cannot contain become question marks.
func clientName(l ratelimit.LimitResult) string {
	text := []byte(front.Name(l.Name))
	for i, c := range text {
		if c < ' ' || c > '~' {
			text[i] = '?'
		}
	}
	return string(text)
}

// appendItem begins an item, a string, of a list of structured fields.
func appendItem(b []byte, i int, name string) []byte {
	if i > 0 {
		b = append(b, ", "...)
	}
	b = append(b, '"')
	for i := range len(name) {
		if c := name[i]; c == '"' || c == '\\' {
			b = append(b, '\\')
		}
		b = append(b, name[i])
	}
	return append(b, '"')
}

// maxInteger is the largest integer of structured fields.
const maxInteger = 999_999_999_999_999

func appendParameter(b []byte, name string, n int64) []byte {
	b = append(b, ';')
	b = append(b, name...)
	b = append(b, '=')
	return strconv.AppendInt(b, min(n, maxInteger), 10)
}

// retryAfter is the time in whole seconds until a refused request may be sent again; ""
// if never.
func retryAfter(r ratelimit.Result) string {
	if r.RetryAfter == ratelimit.Never {
		return ""
	}
	return strconv.FormatInt(max(front.Up(r.RetryAfter, time.Second), 1), 10)
}

// Types of problems in the draft.
const (
	quotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	reducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)

type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail,omitempty"`
	Violated []string `json:"violated-policies,omitempty"`
}

func (p problem) write(w http.ResponseWriter) {
	body, err := json.Marshal(p)
	if err != nil { // cannot happen: it contains nothing that JSON cannot encode
		panic(err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // a client that has gone needs no answer
}

func refuse(w http.ResponseWriter, r front.Answer) {
	p := problem{Type: quotaExceeded, Title: "The request exceeds the quota.", Status: http.StatusTooManyRequests}
	switch {
	case r.By.Fallback():
		p = problem{Type: reducedCapacity, Title: "The quota is reduced at present.", Status: http.StatusServiceUnavailable}
	case r.RetryAfter == ratelimit.Never:
		p.Detail = "It costs more than is ever allowed at once."
	}
	for _, l := range r.Violated() {
		p.Violated = append(p.Violated, clientName(l))
	}
	p.write(w)
}

func fail(w http.ResponseWriter, _ *http.Request, _ http.Handler, _ error) {
	w.Header().Set("Cache-Control", "no-store")
	problem{Type: reducedCapacity, Title: "The quota cannot be checked at present.", Status: http.StatusServiceUnavailable}.write(w)
}
