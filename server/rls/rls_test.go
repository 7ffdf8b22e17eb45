package rls

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/server/rls/internal/rlsv1"
	"github.com/batonhq/baton/store/memstore"
)

func limiter(t testing.TB, store limits.Store, text string) *rules.Limiter {
	t.Helper()
	r, err := rules.Parse("rules.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	l, err := rules.New(store, r)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serving returns a service. It waits for the store's decision even on a busy machine,
// unless c sets a time.
func serving(t testing.TB, c Config, store limits.Store, text string) *service {
	t.Helper()
	c.Within = cmp.Or(c.Within, time.Minute)
	c.Limiter = limiter(t, store, text)
	return newService(c)
}

func TestDefault(t *testing.T) {
	t.Parallel()
	if s := newService(Config{}); s.Within != 25*time.Millisecond || s.Headers != "RateLimit-" {
		t.Errorf("%v, %q", s.Within, s.Headers)
	}
}

// asking is a request with descriptors as in "a=1,b=2 c=3".
func asking(domain, describe string) *rlsv1.RateLimitRequest {
	in := &rlsv1.RateLimitRequest{Domain: domain}
	for one := range strings.FieldsSeq(describe) {
		d := &rlsv1.RateLimitDescriptor{}
		for entry := range strings.SplitSeq(one, ",") {
			key, value, _ := strings.Cut(entry, "=")
			d.Entries = append(d.Entries, &rlsv1.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		in.Descriptors = append(in.Descriptors, d)
	}
	return in
}

// Hits that are given back can be taken again, and the others of a request are decided.
func TestNegativeHits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serving(t, Config{Headers: NoHeaders}, memstore.New(), text)
		ask := func(describe string, hits uint32, back ...int) string {
			in := asking("d", describe)
			in.HitsAddend = hits
			for _, i := range back {
				in.Descriptors[i].IsNegativeHits = true
			}
			out, err := s.shouldRateLimit(t.Context(), in)
			if err != nil {
				return err.Error()
			}
			left := ""
			for _, d := range out.GetStatuses() {
				left += fmt.Sprint(" ", d.GetLimitRemaining())
			}
			return out.GetOverallCode().String() + left
		}
		for i, c := range []struct{ got, want string }{
			{ask("hour=a", 8), "OK 2"},
			{ask("hour=a", 3, 0), "OK 5"},
			{ask("hour=a", 0, 0), "OK 6"}, // 0 is 1
			{ask("hour=a", math.MaxUint32, 0), "OK 10"},
			{ask("hour=a bucket=a", 4), "OK 6 596"},
			{ask("hour=a bucket=a", 3, 1), "OK 3 599"},
			{ask("hour=a bucket=a", 4, 1), "OVER_LIMIT 3 600"},
			{ask("hour=a bucket=a", 2, 0, 1), "OK 5 600"},
			{ask("unknown=a free=a banned=a tried=a", 2, 0, 1, 2, 3), "OK 0 4294967295 0 0"},
		} {
			if c.got != c.want {
				t.Errorf("%d: %s, want %s", i, c.got, c.want)
			}
		}
	})
}

// say is an answer in a line.
func say(out *rlsv1.RateLimitResponse) string {
	var b strings.Builder
	fmt.Fprint(&b, out.GetOverallCode())
	for _, s := range out.GetStatuses() {
		fmt.Fprintf(&b, " | %v", s.GetCode())
		if l := s.GetCurrentLimit(); l != nil {
			fmt.Fprintf(&b, " %q %d/%v left %d reset %v", l.GetName(), l.GetRequestsPerUnit(), l.GetUnit(), s.GetLimitRemaining(), time.Duration(s.GetDurationUntilReset().GetSeconds())*time.Second)
		} else if s.GetLimitRemaining() != 0 {
			fmt.Fprintf(&b, " left %d", s.GetLimitRemaining())
		}
	}
	for _, h := range out.GetResponseHeadersToAdd() {
		fmt.Fprintf(&b, " | %s: %s", h.GetKey(), h.GetValue())
	}
	return b.String()
}

const text = `
domain: d
descriptors:
- {key: minute, rate_limit: {name: per minute, unit: minute, requests_per_unit: 3}}
- {key: hour, rate_limit: {unit: hour, requests_per_unit: 10}}
- {key: day, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: month, rate_limit: {unit: month, requests_per_unit: 10}}
- {key: odd, rate_limit: {name: 'a "name"', requests: 10, period: 90s}}
- {key: bucket, rate_limit: {requests: 10, period: 1s, algorithm: token-bucket, burst: 600}}
- {key: several, rate_limit: {limits: [{requests: 10, period: 1s}, {name: long, requests: 5, period: 1h, algorithm: fixed-window}]}}
- {key: tried, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: free, rate_limit: {unlimited: true}}
- {key: banned, rate_limit: {unit: second, requests_per_unit: 0}}
- {key: large, rate_limit: {unit: second, requests_per_unit: 9000000000}}
`

// What Envoy is told.
func TestResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // it is midnight of 1 January 2000, UTC
		time.Sleep(15*time.Second + 300*time.Millisecond) // fake time
		s := serving(t, Config{Headers: "X-RateLimit-"}, memstore.New(), text)
		limit := func(in *rlsv1.RateLimitRequest, n uint32, u rlsv1.Unit) *rlsv1.RateLimitRequest {
			in.Descriptors[0].Limit = &rlsv1.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: u}
			return in
		}
		times := func(in *rlsv1.RateLimitRequest, n uint32) *rlsv1.RateLimitRequest {
			in.Descriptors[0].Limit.UnitMultiplier = &rlsv1.UInt32Value{Value: n}
			return in
		}
		hits := func(in *rlsv1.RateLimitRequest, all uint32, own ...uint64) *rlsv1.RateLimitRequest {
			in.HitsAddend = all
			for i, n := range own {
				in.Descriptors[i].HitsAddend = &rlsv1.UInt64Value{Value: n}
			}
			return in
		}
		const headers = " | X-RateLimit-Limit: %d | X-RateLimit-Remaining: %d | X-RateLimit-Reset: %d"
		for _, c := range []struct {
			in   *rlsv1.RateLimitRequest
			want string
		}{
			{asking("d", "minute=a"), `OK | OK "per minute" 3/MINUTE left 2 reset 45s` + fmt.Sprintf(headers, 3, 2, 45)},
			{hits(asking("d", "minute=a"), 2), `OK | OK "per minute" 3/MINUTE left 0 reset 45s` + fmt.Sprintf(headers, 3, 0, 45)},
			{asking("d", "hour=a minute=a"), `OVER_LIMIT | OK "" 10/HOUR left 10 reset 0s | OVER_LIMIT "per minute" 3/MINUTE left 0 reset 45s` + fmt.Sprintf(headers, 3, 0, 45) + " | Retry-After: 45"},
			{asking("d", "hour=a minute=b"), `OK | OK "" 10/HOUR left 9 reset 59m45s | OK "per minute" 3/MINUTE left 2 reset 45s` + fmt.Sprintf(headers, 3, 2, 45)},
			{hits(asking("d", "hour=a minute=b"), 7, 1, 0), `OK | OK "" 10/HOUR left 8 reset 59m45s | OK "per minute" 3/MINUTE left 2 reset 45s` + fmt.Sprintf(headers, 3, 2, 45)},
			{hits(asking("d", "minute=c"), 4), `OVER_LIMIT | OVER_LIMIT "per minute" 3/MINUTE left 3 reset 0s` + fmt.Sprintf(headers, 3, 3, 0)},
			{asking("d", "day=a month=a"), `OK | OK "" 10/DAY left 9 reset 23h59m45s | OK "" 10/MONTH left 9 reset 743h59m45s` + fmt.Sprintf(headers, 10, 9, 24*3600-15)},
			{asking("d", "odd=a"), `OK | OK "" 10/UNKNOWN left 9 reset 1m32s` + fmt.Sprintf(headers, 10, 9, 92)},
			{asking("d", "bucket=a"), `OK | OK "" 600/MINUTE left 599 reset 1s` + fmt.Sprintf(headers, 600, 599, 1)},
			{asking("d", "several=a"), `OK | OK "" 5/HOUR left 4 reset 59m45s` + fmt.Sprintf(headers, 5, 4, 59*60+45)},
			{asking("d", "tried=a"), "OK | OK"},
			{asking("d", "tried=a"), "OK | OK"},
			{asking("d", "free=a none=a"), "OK | OK left 4294967295 | OK"},
			{asking("d", "banned=a"), `OVER_LIMIT | OVER_LIMIT "" 0/SECOND left 0 reset 0s` + fmt.Sprintf(headers, 0, 0, 0)},
			{asking("d", "large=a"), `OK | OK "" 4294967295/SECOND left 4294967295 reset 1s` + fmt.Sprintf(headers, math.MaxUint32, math.MaxUint32, 1)},
			{limit(asking("d", "minute=d"), 7, rlsv1.Unit_HOUR), `OK | OK "" 7/HOUR left 6 reset 59m45s` + fmt.Sprintf(headers, 7, 6, 59*60+45)},
			{limit(asking("d", "new=d"), 7, rlsv1.Unit_WEEK), `OK | OK "" 7/WEEK left 6 reset 47h59m45s` + fmt.Sprintf(headers, 7, 6, 48*3600-15)},
			{limit(asking("d", "new=e"), 0, rlsv1.Unit_DAY), `OVER_LIMIT | OVER_LIMIT "" 0/DAY left 0 reset 0s` + fmt.Sprintf(headers, 0, 0, 0)},
			{times(limit(asking("d", "new=f"), 7, rlsv1.Unit_MINUTE), 2), `OK | OK "" 7/UNKNOWN left 6 reset 1m45s` + fmt.Sprintf(headers, 7, 6, 105)},
			{times(limit(asking("d", "new=g"), 7, rlsv1.Unit_DAY), 2), `OK | OK "" 7/UNKNOWN left 6 reset 23h59m45s` + fmt.Sprintf(headers, 7, 6, 24*3600-15)},
			{times(limit(asking("d", "new=h"), 7, rlsv1.Unit_MONTH), 1), `OK | OK "" 7/MONTH left 6 reset 743h59m45s` + fmt.Sprintf(headers, 7, 6, 31*24*3600-15)},
			{asking("nowhere", "a=b c=d"), "OK | OK | OK"},
		} {
			out, err := s.shouldRateLimit(t.Context(), c.in)
			if err != nil {
				t.Errorf("%v: %v", c.in, err)
			} else if got := say(out); got != c.want {
				t.Errorf("%v:\n     %s\nwant %s", c.in, got, c.want)
			}
		}
		s.Headers = NoHeaders
		if out, err := s.shouldRateLimit(t.Context(), asking("d", "minute=a")); err != nil || out.GetOverallCode() != rlsv1.RateLimitResponse_OVER_LIMIT || len(out.GetResponseHeadersToAdd()) > 0 {
			t.Errorf("%v, %v", out, err)
		}
	})
}

// silent is a store that does not answer before the context ends.
type silent struct{}

func (silent) Take(ctx context.Context, _ limits.Request) (limits.Taken, error) {
	<-ctx.Done()
	return limits.Taken{}, errors.Join(driver.ErrUnknown, ctx.Err())
}

// broken is a store with an error of its own.
type broken struct{ err error }

func (b broken) Take(context.Context, limits.Request) (limits.Taken, error) {
	return limits.Taken{}, b.err
}

// The answer comes in time, by what the domain says about a store that fails.
func TestSilentStore(t *testing.T) {
	for _, c := range []struct {
		mode   string
		waits  time.Duration // of the caller; 0 if it does not tell
		within time.Duration
		want   string
	}{
		{"open", 0, DefaultWithin, "OK | OK"},
		{"open", time.Second, DefaultWithin, "OK | OK"},
		{"open", 20 * time.Millisecond, 15 * time.Millisecond, "OK | OK"},
		{"closed", 0, DefaultWithin, "OVER_LIMIT | OVER_LIMIT | Retry-After: 1"},
		{"{mode: local, instances: 5}", 0, DefaultWithin, `OK | OK "" 10/HOUR left 1 reset 1h0m0s | RateLimit-Limit: 10 | RateLimit-Remaining: 1 | RateLimit-Reset: 3600`},
		{"error", 0, DefaultWithin, "unavailable: the store has not decided, and the rules do not say what to do then (on_failure)"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := serving(t, Config{Within: DefaultWithin}, silent{}, "on_failure: "+c.mode+text)
			ctx := t.Context()
			if c.waits > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.waits)
				defer cancel()
			}
			start := time.Now()
			out, err := s.shouldRateLimit(ctx, asking("d", "hour=a"))
			got := say(out)
			if err != nil {
				got = err.Error()
			}
			if took := time.Since(start); !strings.HasPrefix(got, c.want) || took != c.within {
				t.Errorf("%s, caller waits %v: %s after %v", c.mode, c.waits, got, took)
			}
			time.Sleep(time.Minute) // fake time: until the request to the store has ended
		})
	}
}

// Errors have the code that says who can mend them.
func TestErrors(t *testing.T) {
	t.Parallel()
	many := asking("d", "minute=1")
	for i := range limits.MaxTakes {
		many.Descriptors = append(many.Descriptors, asking("d", fmt.Sprintf("hour=%d", i)).GetDescriptors()...)
	}
	endless := asking("d", "hour=a")
	endless.Descriptors[0].HitsAddend = &rlsv1.UInt64Value{Value: math.MaxUint64}
	noUnit := asking("d", "hour=a")
	noUnit.Descriptors[0].Limit = &rlsv1.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1}
	endlessly, never, longly := asking("d", "hour=a"), asking("d", "hour=a"), asking("d", "hour=a")
	for in, l := range map[*rlsv1.RateLimitRequest]*rlsv1.RateLimitDescriptor_RateLimitOverride{
		endlessly: {Unit: rlsv1.Unit_WEEK, UnitMultiplier: &rlsv1.UInt32Value{Value: math.MaxUint32}},
		never:     {Unit: rlsv1.Unit_SECOND, UnitMultiplier: &rlsv1.UInt32Value{}},
		longly:    {Unit: rlsv1.Unit_MONTH, UnitMultiplier: &rlsv1.UInt32Value{Value: 2}},
	} {
		l.RequestsPerUnit, in.Descriptors[0].Limit = 1, l
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	for _, c := range []struct {
		ctx   context.Context
		store limits.Store
		in    *rlsv1.RateLimitRequest
		code  connect.Code
		want  string
	}{
		{nil, nil, asking("", "a=b"), connect.CodeInvalidArgument, "names no domain"},
		{nil, nil, asking("d", ""), connect.CodeInvalidArgument, "has no descriptors"},
		{nil, nil, &rlsv1.RateLimitRequest{Domain: "d", Descriptors: []*rlsv1.RateLimitDescriptor{{}}}, connect.CodeInvalidArgument, "description 1 has no entries"},
		{nil, nil, asking("d", strings.Repeat("x=y ", maxDescriptors+1)), connect.CodeInvalidArgument, "129 descriptors"},
		{nil, nil, many, connect.CodeInvalidArgument, "17"},
		{nil, nil, endless, connect.CodeInvalidArgument, "descriptor 1 adds 18446744073709551615 hits"},
		{nil, nil, noUnit, connect.CodeInvalidArgument, "per unit 0"},
		{nil, nil, endlessly, connect.CodeInvalidArgument, "4294967295 times WEEK"},
		{nil, nil, never, connect.CodeInvalidArgument, "0 times SECOND"},
		{nil, nil, longly, connect.CodeInvalidArgument, "2 times MONTH"},
		{nil, broken{fmt.Errorf("redis 127.0.0.1:1: %w", driver.ErrUnavailable)}, asking("d", "hour=a"), connect.CodeUnavailable, "on_failure"},
		{nil, broken{errors.New("redis 127.0.0.1:1: NOAUTH \x1b[31m")}, asking("d", "hour=a"), connect.CodeInternal, "which the log has"},
		{gone, nil, asking("d", "hour=a"), connect.CodeCanceled, "canceled"},
	} {
		if c.store == nil {
			c.store = memstore.New()
		}
		if c.ctx == nil {
			c.ctx = t.Context()
		}
		var log bytes.Buffer
		s := serving(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, c.store, text)
		out, err := s.shouldRateLimit(c.ctx, c.in)
		if connect.CodeOf(err) != c.code || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, %v", c.in, out, err)
		}
		// What the store says is for those who run it.
		_, of := c.store.(broken)
		if told := strings.Contains(err.Error(), "127.0.0.1"); told || of && !strings.Contains(log.String(), "127.0.0.1") || strings.Contains(log.String(), "\x1b") {
			t.Errorf("%v: the client is told %q, and the log %q", c.in, err, &log)
		}
		if l := s.Limiter; c.store != nil && c.code == connect.CodeInvalidArgument { // nothing was taken
			if d, err := l.Allow(t.Context(), rules.Request{Domain: "d", Descriptions: []rules.Description{rules.Describe("hour", "a")}}); err != nil || d.Remaining != 9 {
				t.Errorf("after %v: %+v, %v", c.in, d, err)
			}
		}
	}
}

// A domain without rules is told about once, and only so many of them.
func TestUnknownDomains(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := serving(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, memstore.New(), text)
	for i := range 2 * maxWarned {
		for range 2 {
			if out, err := s.shouldRateLimit(t.Context(), asking(fmt.Sprintf("evil\n%d", i), "a=b")); err != nil || say(out) != "OK | OK" {
				t.Fatal(out, err)
			}
		}
	}
	if n := strings.Count(log.String(), "\n"); n != maxWarned || !strings.Contains(log.String(), `domain="evil\n0"`) {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
}

// serve starts a handler as a server with HTTP/2 and without TLS, and returns a client.
func serve(t *testing.T, c Config) (url string, client *http.Client) {
	t.Helper()
	c.Within = cmp.Or(c.Within, time.Minute)
	mux := http.NewServeMux()
	mux.Handle(New(c))
	server := httptest.NewUnstartedServer(mux)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	two := new(http.Protocols)
	two.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: two}
	t.Cleanup(transport.CloseIdleConnections)
	return server.URL, &http.Client{Transport: transport}
}

// A caller without the right is refused before any decision.
func TestMay(t *testing.T) {
	t.Parallel()
	var asked []string
	c := Config{Limiter: limiter(t, memstore.New(), text), May: func(ctx context.Context, domain string, gives bool) error {
		info, _ := connect.CallInfoForHandlerContext(ctx)
		token := info.RequestHeader().Get("Authorization")
		asked = append(asked, fmt.Sprint(token, " ", domain, " ", gives))
		switch token {
		case "one":
			return nil
		case "two":
			return errors.New("team b has no limits here")
		}
		return connect.NewError(connect.CodeUnauthenticated, errors.New("who is that?"))
	}}
	url, client := serve(t, c)
	to := connect.NewClient[rlsv1.RateLimitRequest, rlsv1.RateLimitResponse](client, url+procedure, connect.WithGRPC())
	ask := func(token string, gives ...bool) (*rlsv1.RateLimitResponse, error) {
		in := connect.NewRequest(asking("d", "hour=a hour=b"))
		in.Msg.Descriptors[1].IsNegativeHits = len(gives) > 0
		in.Header().Set("Authorization", token)
		out, err := to.CallUnary(t.Context(), in)
		if err != nil {
			return nil, err
		}
		return out.Msg, nil
	}
	if _, err := ask("two"); connect.CodeOf(err) != connect.CodePermissionDenied || !strings.Contains(err.Error(), "team b") {
		t.Error(err)
	}
	if _, err := ask(""); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Error(err)
	}
	if out, err := ask("one"); err != nil || out.GetStatuses()[0].GetLimitRemaining() != 9 {
		t.Error(out, err)
	}
	if _, err := ask("one", true); err != nil {
		t.Error(err)
	}
	if got := strings.Join(asked, ","); got != "two d false, d false,one d false,one d true" {
		t.Errorf("asked about %s", got)
	}
}

// Only gRPC is answered, and nothing large is read.
func TestDoor(t *testing.T) {
	t.Parallel()
	url, client := serve(t, Config{Limiter: limiter(t, memstore.New(), text)})
	for _, kind := range []string{"", "application/json", "application/proto", "text/plain", "application/grpc+json", "application/grpc-web", "application/x-www-form-urlencoded", "application/grpc/x"} {
		for _, client := range []*http.Client{client, http.DefaultClient} {
			r, err := client.Post(url+procedure, kind, strings.NewReader(`{"domain":"d"}`))
			if err != nil {
				t.Fatal(err)
			}
			r.Body.Close()
			if r.StatusCode != http.StatusUnsupportedMediaType {
				t.Errorf("%q: %s", kind, r.Status)
			}
		}
	}
	to := connect.NewClient[rlsv1.RateLimitRequest, rlsv1.RateLimitResponse](client, url+procedure, connect.WithGRPC(), connect.WithSendGzip())
	in := asking("d", "hour="+strings.Repeat("x", 20*maxRequest))
	if _, err := to.CallUnary(t.Context(), connect.NewRequest(in)); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("%d bytes, compressed: %v", proto.Size(in), err)
	}
	in = asking("d", "hour="+strings.Repeat("x", maxRequest/2))
	if _, err := to.CallUnary(t.Context(), connect.NewRequest(in)); err != nil {
		t.Errorf("%d bytes: %v", proto.Size(in), err)
	}
}

// Whatever is sent, each descriptor has a status, or the error has a code.
func FuzzRequest(f *testing.F) {
	s := serving(f, Config{}, memstore.New(), text)
	for _, in := range []*rlsv1.RateLimitRequest{
		asking("d", "minute=a"), asking("d", "hour=a minute=b"), asking("", ""), asking("d", "tried=1,b=2"),
		{Domain: "d", HitsAddend: math.MaxUint32, Descriptors: []*rlsv1.RateLimitDescriptor{{
			Entries: []*rlsv1.RateLimitDescriptor_Entry{{Key: "several"}},
			Limit:   &rlsv1.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: rlsv1.Unit_YEAR}, HitsAddend: &rlsv1.UInt64Value{Value: 1},
		}}},
	} {
		wire, err := proto.Marshal(in)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		var in rlsv1.RateLimitRequest
		if proto.Unmarshal(wire, &in) != nil {
			return
		}
		out, err := s.shouldRateLimit(t.Context(), &in)
		if err != nil {
			if code := connect.CodeOf(err); code == connect.CodeInternal || code == connect.CodeUnknown || code == connect.CodeUnavailable {
				t.Errorf("%v: %v", &in, err)
			}
			return
		}
		over := false
		for _, s := range out.GetStatuses() {
			over = over || s.GetCode() == rlsv1.RateLimitResponse_OVER_LIMIT
		}
		if len(out.GetStatuses()) != len(in.GetDescriptors()) || over != (out.GetOverallCode() == rlsv1.RateLimitResponse_OVER_LIMIT) {
			t.Errorf("%v: %v", &in, out)
		}
		if _, err := proto.Marshal(out); err != nil {
			t.Error(err)
		}
	})
}
