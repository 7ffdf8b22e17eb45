package httplimit_test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/httplimit"
	"github.com/batonhq/baton/store/memstore"
)

// ask sends a request through a middleware, in fake time.
func ask(ctx context.Context, h http.Handler, path string) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil))
	return w.Result()
}

// until sleeps, in fake time, to that offset of the present minute.
func until(offset time.Duration) {
	now := time.Now()
	time.Sleep(now.Truncate(time.Minute).Add(offset).Sub(now)) // fake time: this is the timeline
}

func fields(t *testing.T, resp *http.Response, status int, want map[string]string) {
	t.Helper()
	if resp.StatusCode != status {
		t.Errorf("status %d, want %d", resp.StatusCode, status)
	}
	for _, name := range append([]string{"Retry-After"}, none...) {
		if got := resp.Header.Get(name); got != want[name] {
			t.Errorf("%s: %q, want %q", name, got, want[name])
		}
	}
}

// 60 at 0:50 and 60 at 1:10 under 100 per minute.
func TestFieldsOverTime(t *testing.T) {
	for _, c := range []struct {
		limit                  ratelimit.Limit
		fields                 []httplimit.Fields
		first, second, refused map[string]string // of the 60th, the 100th and the next
	}{
		{
			ratelimit.SlidingLog(100, time.Minute).Named("perMin"),
			[]httplimit.Fields{httplimit.Draft},
			map[string]string{"RateLimit-Policy": `"perMin";q=100;w=60`, "RateLimit": `"perMin";r=40;t=60`},
			map[string]string{"RateLimit-Policy": `"perMin";q=100;w=60`, "RateLimit": `"perMin";r=0;t=40`},
			map[string]string{"RateLimit-Policy": `"perMin";q=100;w=60`, "RateLimit": `"perMin";r=0;t=40`, "Retry-After": "40"},
		},
		{
			ratelimit.SlidingWindow(100, time.Minute), nil,
			map[string]string{"RateLimit-Policy": `"default";q=100;w=60`, "RateLimit": `"default";r=40;t=61`},
			map[string]string{"RateLimit-Policy": `"default";q=100;w=60`, "RateLimit": `"default";r=0;t=41`},
			map[string]string{"RateLimit-Policy": `"default";q=100;w=60`, "RateLimit": `"default";r=0;t=41`, "Retry-After": "41"},
		},
		{ // a token every 0.6 s: rounded up
			ratelimit.TokenBucket(100, time.Minute, 20),
			[]httplimit.Fields{httplimit.Draft, httplimit.XRateLimit},
			map[string]string{
				"RateLimit-Policy": `"default";q=20;w=12`, "RateLimit": `"default";r=0;t=1`, "Retry-After": "1",
				"X-RateLimit-Limit": "20", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "12",
			},
			nil,
			map[string]string{
				"RateLimit-Policy": `"default";q=20;w=12`, "RateLimit": `"default";r=0;t=1`, "Retry-After": "1",
				"X-RateLimit-Limit": "20", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "12",
			},
		},
		{
			ratelimit.SlidingLog(100, time.Minute),
			[]httplimit.Fields{httplimit.Legacy, httplimit.XRateLimitEpoch},
			map[string]string{
				"RateLimit-Limit": "100", "RateLimit-Remaining": "40", "RateLimit-Reset": "60",
				"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "40", "X-RateLimit-Reset": "946684910", // 1 January 2000, 0:01:50
			},
			map[string]string{
				"RateLimit-Limit": "100", "RateLimit-Remaining": "0", "RateLimit-Reset": "60",
				"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "946684930",
			},
			map[string]string{
				"RateLimit-Limit": "100", "RateLimit-Remaining": "0", "RateLimit-Reset": "60", "Retry-After": "40",
				"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "946684930",
			},
		},
		{
			ratelimit.SlidingLog(100, time.Minute),
			[]httplimit.Fields{},
			nil, nil,
			map[string]string{"Retry-After": "40"},
		},
	} {
		t.Run(c.limit.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var opts []httplimit.Option
				if c.fields != nil {
					opts = append(opts, httplimit.Headers(c.fields...))
				}
				h := middleware(t, limiter(t, memstore.New(), c.limit), opts...)(ok)
				until(50 * time.Second)
				var last *http.Response
				for range 60 {
					last = ask(t.Context(), h, "/")
				}
				fields(t, last, last.StatusCode, c.first)
				until(70 * time.Second)
				for i := range 60 {
					last = ask(t.Context(), h, "/")
					if i == 39 && c.second != nil {
						fields(t, last, 200, c.second)
					}
				}
				fields(t, last, 429, c.refused)
			})
		})
	}
}

// A client that one limit refuses is not told to wait for another.
func TestSeveralLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := middleware(t, limiter(t, memstore.New(), ratelimit.SlidingLog(1, 1500*time.Millisecond).Named("burst"), ratelimit.FixedWindow(3, time.Hour).Named("hour")),
			httplimit.Headers(httplimit.Draft, httplimit.Legacy))(ok)
		const policy = `"burst";q=1;w=2, "hour";q=3;w=3600`
		legacy := func(m map[string]string, limit, remaining, reset string) map[string]string {
			m["RateLimit-Limit"], m["RateLimit-Remaining"], m["RateLimit-Reset"] = limit, remaining, reset
			return m
		}
		fields(t, ask(t.Context(), h, "/"), 200, legacy(map[string]string{"RateLimit-Policy": policy, "RateLimit": `"burst";r=0;t=2, "hour";r=2;t=3600`}, "1", "0", "2"))
		fields(t, ask(t.Context(), h, "/"), 429, legacy(map[string]string{"RateLimit-Policy": policy, "RateLimit": `"burst";r=0;t=2, "hour";r=2`, "Retry-After": "2"}, "1", "0", "2"))
		for range 2 {
			time.Sleep(2 * time.Second)
			ask(t.Context(), h, "/")
		}
		time.Sleep(time.Second)
		fields(t, ask(t.Context(), h, "/"), 429, legacy(map[string]string{"RateLimit-Policy": policy, "RateLimit": `"burst";r=0;t=1, "hour";r=0;t=3595`, "Retry-After": "3595"}, "3", "0", "3595"))
	})
}

var ts = regexp.MustCompile(`;t=(\d+)`)

// Retry-After is never early: a client that waits for it gets in. It is never
// before a t of RateLimit, and less than a second late.
func TestRetryAfter(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		ratelimit.FixedWindow(7, 1700*time.Millisecond), ratelimit.SlidingWindow(7, 3*time.Second), ratelimit.SlidingWindow(7, 3*time.Second).Classic(),
		ratelimit.SlidingLog(7, 1234567*time.Microsecond), ratelimit.TokenBucket(7, 3*time.Second, 7), ratelimit.EstimatedWindow(7, 3*time.Second),
		ratelimit.LeakyBucket(7, 3*time.Second, 3*time.Second).Ahead(7),
	} {
		t.Run(limit.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(1, 2))
				l := limiter(t, memstore.New(), limit.Named("a"), ratelimit.SlidingLog(40, 20*time.Second).Named("b"))
				var result ratelimit.Result
				h := middleware(t, l, httplimit.OnRefused(func(w http.ResponseWriter, _ *http.Request, r ratelimit.Result) {
					result = r
					w.WriteHeader(429)
				}), httplimit.Cost(func(r *http.Request) int64 {
					n, _ := strconv.ParseInt(r.URL.Path[1:], 10, 64)
					return n
				}))(ok)
				refused := 0
				for range 500 {
					path := "/" + strconv.FormatInt(1+random.Int64N(7), 10)
					time.Sleep(time.Duration(random.Int64N(int64(time.Second))))
					resp := ask(t.Context(), h, path)
					if resp.StatusCode == 200 {
						continue
					}
					refused++
					after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
					if err != nil || after < 1 {
						t.Fatalf("%v", resp.Header)
					}
					for _, m := range ts.FindAllStringSubmatch(resp.Header.Get("RateLimit"), -1) {
						if n, _ := strconv.Atoi(m[1]); n > after {
							t.Errorf("Retry-After %d, RateLimit %s", after, resp.Header.Get("RateLimit"))
						}
					}
					if late := time.Duration(after)*time.Second - result.RetryAfter; late < 0 || late >= time.Second && after > 1 {
						t.Errorf("Retry-After %d for %v", after, result.RetryAfter)
					}
					time.Sleep(time.Duration(after) * time.Second)
					if resp := ask(t.Context(), h, path); resp.StatusCode != 200 {
						t.Fatalf("refused after %d s: %v", after, resp.Header)
					}
				}
				if refused == 0 {
					t.Error("nobody was refused")
				}
			})
		})
	}
}

// Under a LeakyBucket a request waits for its turn, and is told the figures of that
// time.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &backCounter{Store: memstore.New()}
		l := limiter(t, store, ratelimit.LeakyBucket(1, 10*time.Second, 30*time.Second))
		h := middleware(t, l, httplimit.Headers(httplimit.Draft, httplimit.Legacy))(ok)
		start := time.Now()
		fields(t, ask(t.Context(), h, "/"), 200, map[string]string{
			"RateLimit-Policy": `"default";q=3;w=30`, "RateLimit": `"default";r=2;t=10`, "RateLimit-Limit": "3", "RateLimit-Remaining": "2", "RateLimit-Reset": "10",
		})
		resp := ask(t.Context(), h, "/")
		if waited := time.Since(start); waited != 10*time.Second {
			t.Errorf("the second is let in after %v", waited)
		}
		fields(t, resp, 200, map[string]string{ // the figures of the decision, ten seconds ago
			"RateLimit-Policy": `"default";q=3;w=30`, "RateLimit": `"default";r=1`, "RateLimit-Limit": "3", "RateLimit-Remaining": "1", "RateLimit-Reset": "10",
		})

		// A client with too little time is refused at once, and takes nothing that
		// would have to be given back.
		ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
		defer cancel()
		start = time.Now()
		fields(t, ask(ctx, h, "/"), 429, map[string]string{"RateLimit-Policy": `"default";q=3;w=30`, "Retry-After": "1"})
		// A client that hangs up while it waits has taken nothing yet.
		gone, leave := context.WithCancel(t.Context())
		done := make(chan int)
		go func() { done <- ask(gone, h, "/").StatusCode }()
		synctest.Wait()
		leave()
		if status := <-done; status != 503 {
			t.Errorf("status %d for who is gone", status)
		}
		if time.Since(start) != 0 || store.back != 0 {
			t.Errorf("after %v, %d turns were given back", time.Since(start), store.back)
		}
		if resp := ask(t.Context(), h, "/"); resp.StatusCode != 200 || time.Since(start) != 10*time.Second {
			t.Errorf("the next: %d after %v", resp.StatusCode, time.Since(start))
		}
	})
}

// Clients that hang up while they wait cost the others nothing: the queue serves at
// its rate, and after they have gone no client waits for their turns.
func TestClientsWhoHangUp(t *testing.T) {
	for _, longest := range []time.Duration{10 * time.Second, time.Second} {
		t.Run(longest.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, memstore.New(), ratelimit.LeakyBucket(10, time.Second, longest))
				h := middleware(t, l)(ok)
				var served, refused atomic.Int64
				var wg sync.WaitGroup
				end := time.Now().Add(20 * time.Second)
				for i := range 40 {
					wg.Go(func() {
						random := rand.New(rand.NewPCG(1, uint64(i)))
						for time.Now().Before(end) {
							ctx, cancel := context.WithCancel(t.Context())
							stop := time.AfterFunc(500*time.Millisecond, cancel)
							switch resp := ask(ctx, h, "/"); resp.StatusCode {
							case 200:
								served.Add(1)
							case 429:
								refused.Add(1)
							}
							stop.Stop()
							cancel()
							time.Sleep(time.Duration(10+random.IntN(50)) * time.Millisecond) // fake time: until it comes again
						}
					})
				}
				wg.Wait()
				if n := served.Load(); n < 190 || n > 205 {
					t.Errorf("%d were served in 20 s at 10/s", n)
				}
				if (refused.Load() > 0) != (longest == time.Second) {
					t.Errorf("%d were refused by a queue of %v", refused.Load(), longest)
				}
				start := time.Now()
				if resp := ask(t.Context(), h, "/"); resp.StatusCode != 200 || time.Since(start) > 200*time.Millisecond {
					t.Errorf("%d after %v, when all have gone", resp.StatusCode, time.Since(start))
				}
			})
		})
	}
}

// backCounter counts what is given back.
type backCounter struct {
	limits.Store
	back int
}

func (b *backCounter) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	if r.Mode == limits.GiveBack {
		b.back++
	}
	return b.Store.Take(ctx, r)
}

func TestMaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, memstore.New(), ratelimit.LeakyBucket(1, 10*time.Second, time.Hour).Named("queue"), ratelimit.FixedWindow(100, time.Hour).Named("hour"))
		impatient := middleware(t, l, httplimit.MaxWait(0))(ok)
		patient := middleware(t, l, httplimit.MaxWait(10*time.Second))(ok)
		start := time.Now()
		if resp := ask(t.Context(), impatient, "/"); resp.StatusCode != 200 {
			t.Errorf("nothing to wait for: %v", resp)
		}
		const policy = `"queue";q=360;w=3600, "hour";q=100;w=3600`
		for range 2 {
			resp := ask(t.Context(), impatient, "/")
			fields(t, resp, 429, map[string]string{"RateLimit-Policy": policy, "Retry-After": "10"})
		}
		time.Sleep(time.Second)
		go ask(t.Context(), patient, "/")
		synctest.Wait()
		resp := ask(t.Context(), patient, "/")
		fields(t, resp, 429, map[string]string{"RateLimit-Policy": policy, "Retry-After": "9"})
		if time.Since(start) != time.Second {
			t.Errorf("refused after %v", time.Since(start))
		}
		time.Sleep(9 * time.Second)
		if resp := ask(t.Context(), patient, "/"); resp.StatusCode != 200 || time.Since(start) != 20*time.Second {
			t.Errorf("%v after %v", resp, time.Since(start))
		}
		r, err := l.Peek(t.Context(), "192.0.2.1")
		if err != nil || r.Limits()[1].Remaining != 97 {
			t.Errorf("what was refused was counted: %+v, %v", r, err)
		}
	})
}
