package httplimit_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/httplimit"
	"github.com/batonhq/baton/store/memstore"
)

// Shadows and warnings change no byte of what a client gets; the handler finds what
// they say.
func TestShadowsAndWarningsAreSilent(t *testing.T) {
	t.Parallel()
	fields := httplimit.Headers(httplimit.Draft, httplimit.Legacy, httplimit.XRateLimit)
	for name, limit := range map[string]ratelimit.Limit{
		"window": ratelimit.FixedWindow(3, 10_000*time.Hour).Named("real"),
		"queue":  ratelimit.LeakyBucket(1, 10_000*time.Hour, 30_000*time.Hour).Ahead(3).Named("real"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var found []string
			seen := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				res, _ := httplimit.ResultOf(r.Context())
				found = append(found, fmt.Sprint(res.WouldRefuse, " ", res.Near))
			})
			alone := serve(t, middleware(t, limiter(t, memstore.New(), limit), fields)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
			beside := serve(t, middleware(t, limiter(t, memstore.New(),
				ratelimit.SlidingLog(1, 10_000*time.Hour).Named("shadow").Shadow(), limit.Warn(0.9),
				ratelimit.LeakyBucket(1, 10_000*time.Hour, 0).Named("queue").Shadow()), fields)(seen))
			for i := range 5 {
				want, wanted := get(t, alone, "/")
				got, body := get(t, beside, "/")
				if got.StatusCode != want.StatusCode || body != wanted || (got.StatusCode == 200) != (i < 3) || got.Header.Get("RateLimit-Policy") == "" {
					t.Errorf("number %d: %v %s, without shadows %v %s", i, got, body, want, wanted)
				}
				for _, h := range []http.Header{got.Header, want.Header} {
					h.Del("Date")
					for _, name := range []string{"RateLimit", "RateLimit-Reset", "X-RateLimit-Reset", "Retry-After"} { // they count down
						if v := h.Get(name); v != "" {
							h.Set(name, strings.TrimRight(v, "0123456789"))
						}
					}
				}
				if fmt.Sprint(got.Header) != fmt.Sprint(want.Header) {
					t.Errorf("number %d: %v, without shadows %v", i, got.Header, want.Header)
				}
			}
			if want := "[false false true false true true]"; fmt.Sprint(found) != want {
				t.Errorf("the handler found %v, want %s", found, want)
			}
		})
	}
	only := serve(t, middleware(t, limiter(t, memstore.New(), ratelimit.FixedWindow(1, time.Hour).Shadow()), fields)(ok))
	for range 3 {
		resp, body := get(t, only, "/")
		if noFields(t, resp.Header); resp.StatusCode != 200 || body != "ok" {
			t.Errorf("%v %s", resp, body)
		}
	}
	down := serve(t, middleware(t, limiter(t, broken{}, ratelimit.FixedWindow(1, time.Hour).Shadow()), fields)(ok))
	if resp, body := get(t, down, "/"); resp.StatusCode != 200 {
		t.Errorf("a shadow without its store: %v %s", resp, body)
	}
}
