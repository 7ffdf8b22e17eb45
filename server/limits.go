package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/roles"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/server/batonv1"
	"github.com/batonhq/baton/server/internal/codec"
)

// limitsService answers the calls of batonv1.Limits.
type limitsService struct{ *Server }

// takeTimeout bounds a decision. What a rule says about a store that fails comes sooner.
const takeTimeout = 5 * time.Second

// Take implements batonv1connect.LimitsHandler.
func (s limitsService) Take(ctx context.Context, r *batonv1.TakeRequest) (*batonv1.TakeResponse, error) {
	c, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	res, d, err := s.take(ctx, c, r)
	if err != nil || res.Ok {
		return res, err
	}
	refusal := connect.NewError(connect.CodeResourceExhausted, errors.New(refusalText(d)))
	if d.RetryAfter != ratelimit.Never {
		refusal.Meta().Set("Retry-After", retrySeconds(d))
		refusal.Meta().Set("Grpc-Retry-Pushback-Ms", strconv.FormatInt(res.RetryMs, 10))
	} else {
		refusal.Meta().Set("Grpc-Retry-Pushback-Ms", "-1") // gRPC's way to say never
	}
	if detail, err := connect.NewErrorDetail(res); err == nil {
		refusal.AddDetail(detail)
	}
	return nil, refusal
}

// take asks the rules.
func (s *Server) take(ctx context.Context, c *call, r *batonv1.TakeRequest) (*batonv1.TakeResponse, rules.Decision, error) {
	limiter := s.cfg.Limits
	if limiter == nil {
		return nil, rules.Decision{}, fmt.Errorf("this server has no rules: start it with --rules FILE (%w)", errors.ErrUnsupported)
	}
	if err := s.may(c, roles.Limit, r.Key); err != nil {
		return nil, rules.Decision{}, err
	}
	if r.Rule == "" {
		return nil, rules.Decision{}, bad("it names no rule")
	}
	call, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	d, err := limiter.Allow(call, rules.Request{Rule: r.Rule, Key: r.Key, Tier: r.Tier, Cost: r.Cost})
	switch {
	case err != nil:
		return nil, d, err
	case !d.OK && d.By == ratelimit.ByClosed:
		return nil, d, fmt.Errorf("%w: and nothing is allowed without it", driver.ErrUnavailable)
	}
	res := &batonv1.TakeResponse{
		Ok: d.OK, Limit: d.Limit, Remaining: max(d.Remaining, 0), ResetMs: ceil(d.ResetAfter), WaitMs: ceil(d.Wait),
	}
	if !d.OK && d.RetryAfter != ratelimit.Never {
		res.RetryMs = max(1, ceil(d.RetryAfter))
	}
	return res, d, nil
}

func refusalText(d rules.Decision) string {
	if d.RetryAfter == ratelimit.Never {
		return fmt.Sprintf("the limit never allows that much: at most %d", d.Limit)
	}
	return "the limit is used up: try again in " + retrySeconds(d) + " s"
}

// retrySeconds is what Retry-After says: whole seconds, so that no client comes too early.
func retrySeconds(d rules.Decision) string {
	return strconv.FormatInt(max(1, (ceil(d.RetryAfter)+999)/1000), 10)
}

// ceil rounds up to milliseconds.
func ceil(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > time.Duration(ms)*time.Millisecond {
		ms++
	}
	return ms
}

// The header fields by which /v1/limit is asked without a body. The end user of a proxy
// cannot set them if the proxy does, and neither can the web page of another site.
const (
	limitPath = "/v1/limit"
	fieldRule = "Baton-Rule"
	fieldKey  = "Baton-Key"
	fieldTier = "Baton-Tier"
	fieldCost = "Baton-Cost"
	fieldDeny = "Baton-Deny"
)

// Proxied reports whether a request is a question of a proxy to /v1/limit, which may have
// in its header what the browser of the proxy's user has sent. The page of another site
// cannot set the field: a browser would ask first whether it may, and is told no.
func Proxied(r *http.Request) bool {
	return r.URL.Path == limitPath && len(r.Header.Values(fieldRule)) > 0
}

// limit answers /v1/limit, which is Take for clients that read the status only: 200, or 429
// with Retry-After. Baton-Deny: 403 is for nginx, whose auth_request knows no 429.
func (s *Server) limit(w http.ResponseWriter, r *http.Request) {
	c, err := callOf(r.Context())
	var q *batonv1.TakeRequest
	deny := http.StatusTooManyRequests
	if err == nil {
		q, deny, err = takeRequest(r)
	}
	var d rules.Decision
	var res *batonv1.TakeResponse
	if err == nil {
		res, d, err = s.take(r.Context(), c, q)
	}
	w.Header().Set("Cache-Control", "no-store")
	if err != nil {
		err = s.failure("/v1/limit", err)
		if deny == http.StatusForbidden && connect.CodeOf(err) == connect.CodePermissionDenied {
			// To who asked for 403, that is a limit that is used up.
			err = connect.NewError(connect.CodeInternal, errors.New(err.Error()))
		}
		s.writeError(w, r, err)
		return
	}
	status := http.StatusOK
	if !res.Ok {
		status = deny
		if d.RetryAfter != ratelimit.Never {
			w.Header().Set("Retry-After", retrySeconds(d))
		}
	}
	text, err := codec.JSON{}.Marshal(res)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(text) // a client that is gone needs no answer
	}
}

// takeRequest reads what is asked: from a body of JSON, or from the header. The two are
// not mixed, and a proxy may use any method without a body.
func takeRequest(r *http.Request) (q *batonv1.TakeRequest, deny int, err error) {
	deny = http.StatusTooManyRequests
	if r.URL.RawQuery != "" {
		return nil, 0, bad("/v1/limit has no query: keys do not belong into addresses, which are logged and decoded on the way. Use the header %s", fieldKey)
	}
	fields := make(map[string]string)
	for _, name := range []string{fieldRule, fieldKey, fieldTier, fieldCost, fieldDeny} {
		values := r.Header.Values(name)
		switch {
		case len(values) > 1:
			return nil, 0, bad("the header has %s twice", name)
		case len(values) == 1 && !utf8.ValidString(values[0]):
			return nil, 0, bad("%s is not UTF-8", name)
		case len(values) == 1:
			fields[name] = values[0]
		}
	}
	switch fields[fieldDeny] {
	case "", "429":
	case "403":
		deny = http.StatusForbidden
	default:
		return nil, 0, bad("%s is 403 or 429", fieldDeny)
	}
	delete(fields, fieldDeny)
	q = &batonv1.TakeRequest{Rule: fields[fieldRule], Key: fields[fieldKey], Tier: fields[fieldTier]}
	if len(fields) == 0 {
		return takeBody(r, deny)
	}
	if cost, ok := fields[fieldCost]; ok {
		if q.Cost, err = strconv.ParseInt(cost, 10, 64); err != nil || q.Cost < 1 {
			return nil, 0, bad("%s is a whole number above 0", fieldCost)
		}
	}
	return q, deny, nil
}

func takeBody(r *http.Request, deny int) (*batonv1.TakeRequest, int, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if r.Method != http.MethodPost || err != nil || !slices.Contains([]string{"application/json"}, kind) {
		return nil, 0, bad("it asks for nothing: set the header fields %s and %s, or post JSON", fieldRule, fieldKey)
	}
	text, err := io.ReadAll(io.LimitReader(r.Body, MaxBody+1))
	if err != nil {
		return nil, 0, bad("the body has not come: %v", err)
	}
	if len(text) > MaxBody {
		return nil, 0, bad("the body has more than %d bytes", MaxBody)
	}
	q := &batonv1.TakeRequest{}
	if err := (codec.JSON{}).Unmarshal(text, q); err != nil {
		return nil, 0, bad("the body is not what /v1/limit takes: %v", err)
	}
	return q, deny, nil
}
