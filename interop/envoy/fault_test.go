package envoy

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/server/rls"
)

const (
	answers = 1000

	// slack is what the machine may add, beside what it adds to requests that ask no
	// store.
	slack = 50 * time.Millisecond
)

// askAll asks for one hit of a user so many times, by several clients, and reports how
// often each answer came. None may be late. Before each request a client asks about a
// domain without rules: those requests show how busy the machine is.
func askAll(t *testing.T, to ratelimitv3.RateLimitServiceClient, clients int) map[string]int {
	t.Helper()
	got := make(map[string]int)
	var took, idle []time.Duration
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for range answers / clients {
				begin := time.Now()
				_, failed := to.ShouldRateLimit(t.Context(), asking("nowhere", "user=a"))
				start := time.Now()
				out, err := to.ShouldRateLimit(t.Context(), asking("d", "user=a"))
				end := time.Now()
				word := said(out)
				if err != nil {
					word = status.Code(err).String()
				}
				mu.Lock()
				got[word]++
				took, idle = append(took, end.Sub(start)), append(idle, start.Sub(begin))
				if failed != nil {
					t.Error(failed)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	slices.Sort(idle)
	worst, noise := took[len(took)-1], idle[len(idle)-1]
	t.Logf("%d answers: p50 %v, p99 %v, the slowest %v; without a store %v, %v, %v",
		len(took), took[len(took)/2], took[len(took)*99/100], worst, idle[len(idle)/2], idle[len(idle)*99/100], noise)
	if p50 := took[len(took)/2]; p50 > rls.DefaultWithin+slack {
		t.Errorf("half of the answers took more than %v", p50)
	}
	if worst > rls.DefaultWithin+slack+2*noise {
		t.Errorf("an answer took %v, and without a store none more than %v", worst, noise)
	}
	return got
}

// awaitStore returns when the store decides: it has more left than a share.
func awaitStore(t *testing.T, left func() uint32) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); left() < 3000; {
		if time.Now().After(deadline) {
			t.Fatal("the store works, and does not decide")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// domain has a limit of 4000, and says what to do when the store fails.
func domain(mode string) string {
	return fmt.Sprintf("domain: d\non_failure: %s\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 4000}}]", mode)
}

// A store that is silent, or dead, is answered for in time, as the rules say.
func TestStoreFails(t *testing.T) {
	testserver.Long(t)
	for _, c := range []struct {
		name, mode string
		want       string
	}{
		{"open", "open", "map[free:1000]"},
		{"closed", "closed", "map[refused:1000]"},
		{"local share", "{mode: local, instances: 10}", "map[ok:400 refused:600]"},
		{"error", "error", "map[" + codes.Unavailable.String() + ":1000]"},
	} {
		for _, fault := range []string{"silent", "dead"} {
			t.Run(c.name+"/"+fault, func(t *testing.T) {
				redis := testserver.Redis(t)
				to := serve(t, rls.Config{Within: rls.DefaultWithin, Limiter: limiter(t, store(t, "redis://"+redis.Addr), domain(c.mode))})
				left := func() uint32 {
					out, err := to.ShouldRateLimit(t.Context(), asking("d", "user=other"))
					if err != nil {
						return 0
					}
					return out.GetStatuses()[0].GetLimitRemaining()
				}
				awaitStore(t, left)
				if fault == "silent" {
					redis.Stop()
				} else {
					redis.Kill()
				}
				if got := fmt.Sprint(askAll(t, to, 8)); got != c.want {
					t.Errorf("the answers were %s, want %s", got, c.want)
				}
				if fault == "silent" {
					redis.Cont()
				} else {
					redis.Restart()
				}
				awaitStore(t, left)
			})
		}
	}
}

// The client of a store may give a request up late, as that of PostgreSQL does: the
// answer does not wait for that either.
func TestClientOfAStoreIsLate(t *testing.T) {
	testserver.Long(t)
	postgres := testserver.Postgres(t)
	for _, c := range []struct{ name, mode, want string }{
		{"local share", "{mode: local, instances: 10}", "map[ok:400 refused:600]"},
		{"error", "error", "map[" + codes.Unavailable.String() + ":1000]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			counts := store(t, postgres.URL(postgres.Database(t)))
			to := serve(t, rls.Config{Within: rls.DefaultWithin, Limiter: limiter(t, counts, domain(c.mode))})
			awaitStore(t, func() uint32 {
				out, err := to.ShouldRateLimit(t.Context(), asking("d", "user=other"))
				if err != nil {
					return 0
				}
				return out.GetStatuses()[0].GetLimitRemaining()
			})
			postgres.Stop()
			defer postgres.Cont()
			if got := fmt.Sprint(askAll(t, to, 8)); got != c.want {
				t.Errorf("the answers were %s, want %s", got, c.want)
			}
		})
	}
}

// A store that answers too late counts what it was not waited for.
func TestSlowStore(t *testing.T) {
	testserver.Long(t)
	redis := testserver.Redis(t)
	proxy := faultproxy.New(t, redis.Addr)
	to := serve(t, rls.Config{Within: rls.DefaultWithin, Limiter: limiter(t, store(t, "redis://"+proxy.Addr), domain("{mode: local, instances: 2, after: 10s}"))})
	proxy.Delay(faultproxy.ToClient, 4*rls.DefaultWithin)
	if got := fmt.Sprint(askAll(t, to, 20)); got != "map[ok:1000]" {
		t.Errorf("the answers were %s", got)
	}
	direct := limiter(t, store(t, "redis://"+redis.Addr), domain("error"))
	left := func() int64 {
		d, err := direct.Peek(context.Background(), rules.Request{Domain: "d", Descriptions: []rules.Description{rules.Describe("user", "a")}})
		if err != nil {
			t.Fatal(err)
		}
		return d.Remaining
	}
	for deadline := time.Now().Add(10 * time.Second); left() != 3000; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of 4000 remain after 1000 requests", left())
		}
		time.Sleep(time.Millisecond)
	}
}
