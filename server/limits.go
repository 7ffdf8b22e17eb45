package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
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

// takeTimeout bounds one call. The answer by a rule's on_failure comes earlier.
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
		refusal.Meta().Set("Grpc-Retry-Pushback-Ms", "-1") // never, in gRPC
	}
	if detail, err := connect.NewErrorDetail(res); err == nil {
		refusal.AddDetail(detail)
	}
	return nil, refusal
}

// maxParts is the largest number of rules in one call.
const maxParts = 16

func (s *Server) take(ctx context.Context, c *call, r *batonv1.TakeRequest) (*batonv1.TakeResponse, rules.Decision, error) {
	limiter := s.cfg.Limits
	if limiter == nil {
		return nil, rules.Decision{}, errNoRules
	}
	if len(r.Also) >= maxParts {
		return nil, rules.Decision{}, bad("it asks %d rules, at most %d are decided together", len(r.Also)+1, maxParts)
	}
	cost := func(own *int64) int64 {
		if own == nil {
			return 1
		}
		return *own
	}
	q := rules.Request{Rule: r.Rule, Key: r.Key, Tier: r.Tier, Cost: cost(r.Cost)}
	for _, p := range r.Also {
		q.Also = append(q.Also, rules.Part{Rule: p.Rule, Key: p.Key, Tier: p.Tier, Cost: cost(p.Cost)})
	}
	var keys []string
	for _, p := range append([]rules.Part{{Key: q.Key, Cost: q.Cost}}, q.Also...) {
		if err := s.mayTake(c, p.Key, p.Cost < 0); err != nil {
			return nil, rules.Decision{}, err
		}
		keys = append(keys, p.Key)
	}
	if r.Rule == "" {
		return nil, rules.Decision{}, bad("it names no rule")
	}
	call, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	d, receipt, err := limiter.Take(call, q, r.Reserve)
	switch {
	case err != nil:
		return nil, d, err
	case !d.OK && d.By == ratelimit.ByClosed:
		return nil, d, fmt.Errorf("%w: and nothing is allowed without it", driver.ErrUnavailable)
	}
	res := &batonv1.TakeResponse{
		Ok: d.OK, Limit: d.Limit, Remaining: max(d.Remaining, 0), ResetMs: ceil(d.ResetAfter), WaitMs: ceil(d.Wait), RetryMs: retryMs(d.OK, d.RetryAfter),
	}
	if len(keys) > 1 {
		res.Each = each(d.Matches)
	}
	if r.Reserve && d.OK {
		if res.Reservation, err = s.keys.Load().SealReservation(c.caller.Name(), reservation{keys, receipt}); err != nil {
			return nil, d, err
		}
	}
	return res, d, nil
}

// each returns the state of each of several rules.
func each(all []rules.Match) []*batonv1.TakeStanding {
	told := make([]*batonv1.TakeStanding, len(all))
	for i, m := range all {
		told[i] = &batonv1.TakeStanding{Rule: m.Rule, Ok: m.OK, Limit: math.MaxInt64, Remaining: math.MaxInt64}
		if k := m.Tightest(); k >= 0 {
			l := m.Limits[k]
			told[i].Limit, told[i].Remaining, told[i].ResetMs, told[i].RetryMs = l.Limit, max(l.Remaining, 0), ceil(l.ResetAfter), retryMs(l.OK, l.RetryAfter)
		}
	}
	return told
}

// retryMs returns 0 if the take is allowed, or never will be.
func retryMs(ok bool, after time.Duration) int64 {
	if ok || after == ratelimit.Never {
		return 0
	}
	return max(1, ceil(after))
}

var errNoRules = fmt.Errorf("this server has no rules: start it with --rules FILE (%w)", errors.ErrUnsupported)

// A reservation is what a client keeps, sealed, until it settles.
type reservation struct {
	Keys    []string          `json:"keys"` // to check the caller's roles
	Receipt ratelimit.Receipt `json:"receipt"`
}

// Settle implements batonv1connect.LimitsHandler.
func (s limitsService) Settle(ctx context.Context, r *batonv1.SettleRequest) (*batonv1.SettleResponse, error) {
	c, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	if s.cfg.Limits == nil {
		return nil, errNoRules
	}
	var held reservation
	if err := s.keys.Load().OpenReservation(c.caller.Name(), r.Reservation, &held); err != nil {
		s.cfg.Audit.Warn("a call was denied", "caller", c.caller.Name(), "remote", c.remote, "reason", err.Error())
		return nil, err
	}
	for _, key := range held.Keys {
		if err := s.may(c, roles.Limit, key); err != nil {
			return nil, err
		}
	}
	// The request does not end with the client: half a settlement would count as a whole
	// one.
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeTimeout)
	defer cancel()
	switch err := s.cfg.Limits.Settle(call, held.Receipt, r.Cost); {
	case errors.Is(err, ratelimit.ErrSettled):
		return &batonv1.SettleResponse{Before: true}, nil
	case errors.Is(err, ratelimit.ErrLate):
		return nil, connect.NewError(connect.CodeNotFound, ratelimit.ErrLate)
	case err != nil:
		return nil, err
	}
	return &batonv1.SettleResponse{}, nil
}

func refusalText(d rules.Decision) string {
	if d.RetryAfter == ratelimit.Never {
		return fmt.Sprintf("the limit never allows that much: at most %d", d.Limit)
	}
	return "the limit is used up: try again in " + retrySeconds(d) + " s"
}

// retrySeconds returns the value of Retry-After, rounded up so that no client comes too
// early.
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

// The header fields of a request to /v1/limit without a body. A proxy that sets them
// overrides those of its user, and the web page of another site cannot set them.
const (
	limitPath = "/v1/limit"
	fieldRule = "Baton-Rule"
	fieldKey  = "Baton-Key"
	fieldTier = "Baton-Tier"
	fieldCost = "Baton-Cost"
	fieldDeny = "Baton-Deny"
)

// Proxied reports whether a request is a proxy's question to /v1/limit. Such a request may
// repeat headers of the proxy's user, and so look like one by the page of another site.
// That page cannot set Baton-Rule: the browser first asks for permission, and this server
// refuses it.
func Proxied(r *http.Request) bool {
	return r.URL.Path == limitPath && len(r.Header.Values(fieldRule)) > 0
}

// limit answers /v1/limit, which is Take for clients that read only the status: 200, or
// 429 with Retry-After. Baton-Deny: 403 is for nginx: its auth_request does not know 429.
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
			// The client would take a 403 for a limit that is used up.
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

// takeRequest reads the request from the header, with any method, or else from a body of
// JSON. They do not mix.
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
		n, err := strconv.ParseInt(cost, 10, 64)
		if err != nil {
			return nil, 0, bad("%s is a whole number", fieldCost)
		}
		q.Cost = &n
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
