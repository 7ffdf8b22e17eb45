package rls

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/server/rls/internal/rlsv1"
)

// request returns the request for the rules.
func request(in *rlsv1.RateLimitRequest) (r rules.Request, err error) {
	refuse := func(format string, args ...any) (rules.Request, error) {
		return r, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
	}
	switch {
	case in.GetDomain() == "":
		return refuse("the request names no domain")
	case len(in.GetDescriptors()) == 0:
		return refuse("the request has no descriptors")
	case len(in.GetDescriptors()) > maxDescriptors:
		return refuse("the request has %d descriptors: at most %d are matched", len(in.GetDescriptors()), maxDescriptors)
	}
	r = rules.Request{Domain: in.GetDomain(), Cost: int64(in.GetHitsAddend()), Descriptions: make([]rules.Description, len(in.GetDescriptors()))}
	for i, from := range in.GetDescriptors() {
		to := &r.Descriptions[i]
		to.Entries = make([]rules.Entry, len(from.GetEntries()))
		for k, e := range from.GetEntries() {
			to.Entries[k] = rules.Entry{Key: e.GetKey(), Value: e.GetValue()}
		}
		if own := from.GetHitsAddend(); own != nil {
			if own.GetValue() > math.MaxInt64 {
				return refuse("descriptor %d adds %d hits: at most %d can be counted", i+1, own.GetValue(), int64(math.MaxInt64))
			}
			cost := int64(own.GetValue())
			to.Cost = &cost
		}
		if own := from.GetLimit(); own != nil {
			if to.Limit, err = limitOf(own); err != nil {
				return refuse("the limit of descriptor %d %w", i+1, err)
			}
		}
	}
	return r, nil
}

// limitOf returns the limit that a request brings along. It counts as one in the rules
// with the same unit.
func limitOf(own *rlsv1.RateLimitDescriptor_RateLimitOverride) (*rules.Limit, error) {
	l := &rules.Limit{N: int64(own.GetRequestsPerUnit()), Algorithm: limits.FixedWindow}
	n := time.Duration(1)
	if m := own.GetUnitMultiplier(); m != nil {
		n = time.Duration(m.GetValue())
	}
	calendar, length := rules.Calendar(0), time.Duration(0)
	switch own.GetUnit() {
	case rlsv1.Unit_SECOND:
		length = time.Second
	case rlsv1.Unit_MINUTE:
		length = time.Minute
	case rlsv1.Unit_HOUR:
		length = time.Hour
	case rlsv1.Unit_DAY:
		calendar, length = rules.Day, 24*time.Hour
	case rlsv1.Unit_WEEK:
		calendar, length = rules.Week, 7*24*time.Hour
	case rlsv1.Unit_MONTH:
		calendar = rules.Month
	case rlsv1.Unit_YEAR:
		calendar = rules.Year
	default:
		return nil, fmt.Errorf("is per unit %d, which is not known", own.GetUnit())
	}
	switch {
	case n == 1 && calendar != 0:
		l.Calendar = calendar
	case n < 1 || length == 0 || n > math.MaxInt64/length:
		return nil, fmt.Errorf("is per %d times %v: that cannot be counted", n, own.GetUnit())
	default:
		l.Period = n * length
	}
	return l, nil
}

// free returns the response that allows n descriptors without rules.
func free(n int) *rlsv1.RateLimitResponse {
	out := &rlsv1.RateLimitResponse{OverallCode: rlsv1.RateLimitResponse_OK, Statuses: make([]*rlsv1.RateLimitResponse_DescriptorStatus, n)}
	for i := range out.Statuses {
		out.Statuses[i] = &rlsv1.RateLimitResponse_DescriptorStatus{Code: rlsv1.RateLimitResponse_OK}
	}
	return out
}

// response returns the response for Envoy.
func (s *service) response(d rules.Decision) *rlsv1.RateLimitResponse {
	out := free(len(d.Matches))
	if !d.OK {
		out.OverallCode = rlsv1.RateLimitResponse_OVER_LIMIT
	}
	var one *rlsv1.RateLimitResponse_DescriptorStatus // the tightest
	for i, m := range d.Matches {
		status := out.Statuses[i]
		if !m.OK {
			status.Code = rlsv1.RateLimitResponse_OVER_LIMIT
		}
		if m.Unlimited {
			status.LimitRemaining = math.MaxUint32
			continue
		}
		k := m.Tightest()                                                    // shadow limits are not shown
		if k < 0 || d.By == ratelimit.ByOpen || d.By == ratelimit.ByClosed { // the state of the limit is not known
			continue
		}
		l, set := &m.Limits[k], m.Set[k]
		status.CurrentLimit = &rlsv1.RateLimitResponse_RateLimit{RequestsPerUnit: clamp(l.Limit), Unit: unit(l, set), Name: quotable(m.Name)}
		status.LimitRemaining = clamp(l.Remaining)
		status.DurationUntilReset = &rlsv1.Duration{Seconds: reset(l)}
		if one == nil || tighter(status, one) {
			one = status
		}
	}
	if s.Headers == NoHeaders {
		return out
	}
	add := func(key string, value int64) {
		out.ResponseHeadersToAdd = append(out.ResponseHeadersToAdd, &rlsv1.HeaderValue{Key: key, Value: strconv.FormatInt(value, 10)})
	}
	if one != nil {
		add(s.Headers+"Limit", int64(one.GetCurrentLimit().GetRequestsPerUnit()))
		add(s.Headers+"Remaining", int64(one.GetLimitRemaining()))
		add(s.Headers+"Reset", one.GetDurationUntilReset().GetSeconds())
	}
	if !d.OK && d.RetryAfter != ratelimit.Never {
		add("Retry-After", seconds(d.RetryAfter))
	}
	return out
}

func tighter(a, b *rlsv1.RateLimitResponse_DescriptorStatus) bool {
	over := a.GetCode() == rlsv1.RateLimitResponse_OVER_LIMIT
	if over != (b.GetCode() == rlsv1.RateLimitResponse_OVER_LIMIT) {
		return over
	}
	if over && a.GetDurationUntilReset().GetSeconds() != b.GetDurationUntilReset().GetSeconds() {
		return a.GetDurationUntilReset().GetSeconds() > b.GetDurationUntilReset().GetSeconds()
	}
	return a.GetLimitRemaining() < b.GetLimitRemaining()
}

// reset returns, in seconds, when a refused caller can retry, or when all hits are back.
func reset(l *ratelimit.LimitResult) int64 {
	if !l.OK && l.RetryAfter != ratelimit.Never {
		return seconds(l.RetryAfter)
	}
	return seconds(l.ResetAfter)
}

// seconds rounds up, so that clients, which Envoy tells whole seconds, do not come too
// early.
func seconds(d time.Duration) int64 {
	n := int64(d / time.Second)
	if d%time.Second > 0 {
		n++
	}
	return n
}

// unit returns the period of a limit, or UNKNOWN if Envoy has no name for it.
func unit(l *ratelimit.LimitResult, set rules.Limit) rlsv1.Unit {
	switch set.Calendar {
	case rules.Day:
		return rlsv1.Unit_DAY
	case rules.Week:
		return rlsv1.Unit_WEEK
	case rules.Month:
		return rlsv1.Unit_MONTH
	case rules.Year:
		return rlsv1.Unit_YEAR
	}
	switch l.Period {
	case time.Second:
		return rlsv1.Unit_SECOND
	case time.Minute:
		return rlsv1.Unit_MINUTE
	case time.Hour:
		return rlsv1.Unit_HOUR
	case 24 * time.Hour:
		return rlsv1.Unit_DAY
	case 7 * 24 * time.Hour:
		return rlsv1.Unit_WEEK
	}
	return rlsv1.Unit_UNKNOWN
}

// quotable returns a name that Envoy can write into a header between quotes, and else "".
func quotable(name string) string {
	for i := range len(name) {
		if c := name[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return ""
		}
	}
	return name
}

func clamp(n int64) uint32 { return uint32(max(min(n, math.MaxUint32), 0)) }
