package envoy

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/envoyexamples"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/server/rls"
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

// store opens a store of limits.
func store(t testing.TB, url string) limits.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, err := open.Limits(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// serve serves the limiter, and returns Envoy's client of the service. Unless c says
// how long an answer may take, the store decides, however busy the machine is.
func serve(t testing.TB, c rls.Config) ratelimitv3.RateLimitServiceClient {
	t.Helper()
	c.Within = cmp.Or(c.Within, time.Minute)
	mux := http.NewServeMux()
	mux.Handle(rls.New(c))
	server := &http.Server{Handler: mux, Protocols: new(http.Protocols), ReadHeaderTimeout: time.Second}
	server.Protocols.SetUnencryptedHTTP2(true)
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(at) }() // it returns an error when it is closed
	t.Cleanup(func() { _ = server.Close() })
	return client(t, at.Addr().String())
}

func client(t testing.TB, addr string) ratelimitv3.RateLimitServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return ratelimitv3.NewRateLimitServiceClient(conn)
}

// asking is a request with descriptors as in "a=1,b=2 c=3".
func asking(domain, describe string) *ratelimitv3.RateLimitRequest {
	in := &ratelimitv3.RateLimitRequest{Domain: domain}
	for _, entries := range envoyexamples.Descriptors(describe) {
		d := &common.RateLimitDescriptor{}
		for _, e := range entries {
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: e.Key, Value: e.Value})
		}
		in.Descriptors = append(in.Descriptors, d)
	}
	return in
}

func ask(t testing.TB, to ratelimitv3.RateLimitServiceClient, in *ratelimitv3.RateLimitRequest) *ratelimitv3.RateLimitResponse {
	t.Helper()
	out, err := to.ShouldRateLimit(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if len(out.GetStatuses()) != len(in.GetDescriptors()) {
		t.Fatalf("%d descriptors have %d statuses", len(in.GetDescriptors()), len(out.GetStatuses()))
	}
	return out
}

// said is a response in a word, as the examples say it.
func said(out *ratelimitv3.RateLimitResponse) string {
	if out.GetOverallCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT {
		return "refused"
	}
	for _, s := range out.GetStatuses() {
		if s.GetCurrentLimit() != nil {
			return "ok"
		}
	}
	return "free"
}

func header(out *ratelimitv3.RateLimitResponse, name string) string {
	for _, h := range out.GetResponseHeadersToAdd() {
		if strings.EqualFold(h.GetKey(), name) {
			return h.GetValue()
		}
	}
	return ""
}
