// Package frameworks serves real requests with the web frameworks of docs/web.md, by the code
// of that page.
package frameworks

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/httponce"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/httplimit"
	"github.com/batonhq/baton/store/memstore"
)

// A shop is what the frameworks serve: POST /shops/:shop/:what behind the limit and behind
// httponce, GET and HEAD /shops/:shop and GET /shops/:shop/live behind the limit.
type shop struct {
	limit, idempotent func(http.Handler) http.Handler
	recovers          place

	runs    atomic.Int64
	entered chan bool // gets a value when "slow" has begun
	leave   chan bool // "slow" returns, and "live" goes on, when it gets one
}

// place says where a framework's middleware for panics is.
type place string

const (
	outside place = "recovers outside"
	inside  place = "recovers inside"
)

// errSecret is a failure that clients are told nothing of.
var errSecret = errors.New("the password of the database")

// errNoMoney is a failure of the customer, which each framework answers with 422.
var errNoMoney = errors.New("no money")

// handle is what the handlers of all frameworks do. They write text with 201 and Location,
// or answer err in their own way.
func (s *shop) handle(ctx context.Context, shop, what, body string) (text string, err error) {
	n := s.runs.Add(1)
	if _, ok := httplimit.ResultOf(ctx); !ok {
		return "", errors.New("no result in the context")
	}
	a, ok := httponce.AttemptOf(ctx)
	if !ok || a.Token == 0 || a.Lease.Err() != nil {
		if what != "free" {
			return "", errors.New("no attempt in the context")
		}
	}
	switch what {
	case "broken":
		return "", errSecret
	case "poor":
		return "", errNoMoney
	case "panics":
		panic("a handler panics")
	case "slow":
		s.entered <- true
		select {
		case <-s.leave:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	return fmt.Sprintf(`{"run": %d, "shop": %q, "body": %q}`, n, shop, body), nil
}

// A framework serves a shop and returns the address.
type framework struct {
	name  string
	serve func(t *testing.T, s *shop) string
}

func overHTTP(serve func(t *testing.T, s *shop) http.Handler) func(*testing.T, *shop) string {
	return func(t *testing.T, s *shop) string {
		server := httptest.NewServer(serve(t, s))
		t.Cleanup(server.Close)
		return server.URL
	}
}

var frameworks = []framework{
	{name: "chi", serve: overHTTP(serveChi)},
	{name: "echo v4", serve: overHTTP(serveEcho4)},
	{name: "echo v5", serve: overHTTP(serveEcho5)},
	{name: "fiber", serve: serveFiber},
	{name: "gin", serve: overHTTP(serveGin)},
}

// each runs a test with each framework.
func each(t *testing.T, recovers []place, test func(t *testing.T, f framework, s *shop, url string)) {
	t.Parallel()
	for _, f := range frameworks {
		for _, p := range recovers {
			t.Run(f.name+" "+string(p), func(t *testing.T) {
				t.Parallel()
				s := newShop(t, p)
				test(t, f, s, f.serve(t, s))
			})
		}
	}
}

const perShop = 30 // requests of a shop

func newShop(t *testing.T, recovers place) *shop {
	t.Helper()
	store := memstore.New()
	limiter, err := ratelimit.New(store, ratelimit.FixedWindow(perShop, 1000*time.Hour).Named("shop"))
	if err != nil {
		t.Fatal(err)
	}
	limit, err := httplimit.New(limiter, // any *ratelimit.Limiter
		httplimit.By(httplimit.Join(httplimit.Route(), httplimit.Func("shop", func(r *http.Request) string { return r.PathValue("shop") }))))
	if err != nil {
		t.Fatal(err)
	}
	ops, err := once.New(store, once.Config{})
	if err != nil {
		t.Fatal(err)
	}
	idempotent, err := httponce.New(ops, httponce.Config{ // ops is a *once.Runner
		Scope: func(r *http.Request) string { return r.PathValue("shop") }, // whose keys they are: what authentication has found
	})
	if err != nil {
		t.Fatal(err)
	}
	return &shop{limit: limit, idempotent: idempotent, recovers: recovers, entered: make(chan bool, 1), leave: make(chan bool)}
}

// An answer is what a client gets.
type answer struct {
	status int
	header http.Header
	body   string
}

func ask(ctx context.Context, method, url, key, body string, fields ...string) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(text)}, err
}

func post(t *testing.T, url, key, body string, fields ...string) answer {
	t.Helper()
	a, err := ask(t.Context(), http.MethodPost, url, key, body, fields...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// A limit counts by gin's, chi's … route and by its parameter, and tells clients how they stand.
func TestLimit(t *testing.T) {
	testserver.Long(t)
	each(t, []place{outside}, func(t *testing.T, _ framework, s *shop, url string) {
		for n := range perShop {
			a := post(t, url+"/shops/7/free", "", "")
			if a.status != http.StatusCreated || a.header.Get("RateLimit-Policy") == "" {
				t.Fatalf("number %d: %+v", n, a)
			}
		}
		ran := s.runs.Load()
		a := post(t, url+"/shops/7/free", "", "")
		if a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" || !strings.Contains(a.header.Get("RateLimit"), "r=0") ||
			a.header.Get("Content-Type") != "application/problem+json" || !strings.Contains(a.body, `"status":429`) {
			t.Errorf("%+v", a)
		}
		if a := post(t, url+"/shops/7/slow", "key", ""); a.status != http.StatusTooManyRequests {
			t.Errorf("with a key: %+v", a) // the limit is outside
		}
		if s.runs.Load() != ran {
			t.Error("a handler has run")
		}
		if a := post(t, url+"/shops/8/free", "", ""); a.status != http.StatusCreated {
			t.Errorf("another shop: %+v", a)
		}
		for n, method := range []string{http.MethodGet, http.MethodHead} { // another route; HEAD counts as GET
			a, err := ask(t.Context(), method, url+"/shops/7", "", "")
			if err != nil || a.status != http.StatusOK || !strings.Contains(a.header.Get("RateLimit"), fmt.Sprintf(";r=%d;", perShop-1-n)) || (a.body == "") != (method == http.MethodHead) {
				t.Errorf("%s: %+v, %v", method, a, err)
			}
		}
	})
}

// What comes again gets the answer of the first: status, body, and the recorded fields.
func TestReplay(t *testing.T) {
	testserver.Long(t)
	each(t, []place{outside, inside}, func(t *testing.T, _ framework, s *shop, url string) {
		first := post(t, url+"/shops/7/pay", "key", "5 euros")
		if first.status != http.StatusCreated || first.body != `{"run": 1, "shop": "7", "body": "5 euros"}` || first.header.Get("Location") != "/payments/1" ||
			!strings.HasPrefix(first.header.Get("Content-Type"), "application/json") || first.header.Get("Idempotency-Replayed") != "" {
			t.Fatalf("%+v", first)
		}
		if len(first.header.Values("RateLimit")) != 1 || len(first.header.Values("Set-Cookie")) != 2 || first.header.Get("Outer") != "yes" {
			t.Errorf("the fields: %v", first.header)
		}
		again := post(t, url+"/shops/7/pay", "key", "5 euros")
		if again.status != first.status || again.body != first.body || again.header.Get("Idempotency-Replayed") != "true" ||
			again.header.Get("Location") != first.header.Get("Location") || again.header.Get("Content-Type") != first.header.Get("Content-Type") {
			t.Errorf("the second time %+v, the first time %+v", again, first)
		}
		if again.header.Get("Outer") != "yes" || len(again.header.Values("RateLimit")) != 1 || again.header.Get("Set-Cookie") != "" {
			t.Errorf("the fields: %v", again.header)
		}
		if s.runs.Load() != 1 {
			t.Errorf("run %d times", s.runs.Load())
		}
		if a := post(t, url+"/shops/7/pay", "key", "6 euros"); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, "another request") {
			t.Errorf("another body: %+v", a)
		}
		if a := post(t, url+"/shops/8/pay", "key", "5 euros"); a.status != http.StatusCreated || !strings.Contains(a.body, `"shop": "8"`) {
			t.Errorf("another shop: %+v", a)
		}
		if a := post(t, url+"/shops/7/pay", "", "5 euros", "Idempotency-Key", "a", "Idempotency-Key", "b"); a.status != http.StatusBadRequest {
			t.Errorf("two keys: %+v", a)
		}
	})
}

// An answer without a body is recorded with its status.
func TestNoBody(t *testing.T) {
	testserver.Long(t)
	each(t, []place{outside}, func(t *testing.T, _ framework, s *shop, url string) {
		for n := range 2 {
			a := post(t, url+"/shops/7/empty", "key", "")
			if a.status != http.StatusNoContent || a.body != "" || (n == 1) != (a.header.Get("Idempotency-Replayed") == "true") {
				t.Errorf("number %d: %+v", n, a)
			}
		}
	})
}

// A failure that the framework answers is that answer; whether it is recorded depends on
// its status, as if the handler had written it.
func TestErrors(t *testing.T) {
	testserver.Long(t)
	each(t, []place{outside, inside}, func(t *testing.T, _ framework, s *shop, url string) {
		for n := range 2 {
			a := post(t, url+"/shops/7/broken", "broken", "")
			if a.status != http.StatusInternalServerError || strings.Contains(a.body, errSecret.Error()) || !strings.Contains(a.body, "Internal Server Error") || a.header.Get("Idempotency-Replayed") != "" {
				t.Errorf("number %d: %+v", n, a)
			}
			if s.runs.Load() != int64(n+1) {
				t.Errorf("run %d times", s.runs.Load())
			}
		}
		s.runs.Store(0)
		first := post(t, url+"/shops/7/poor", "poor", "")
		again := post(t, url+"/shops/7/poor", "poor", "")
		if first.status != http.StatusUnprocessableEntity || !strings.Contains(first.body, "no money") || first.header.Get("Idempotency-Replayed") != "" {
			t.Errorf("%+v", first)
		}
		if again.status != first.status || again.body != first.body || again.header.Get("Content-Type") != first.header.Get("Content-Type") || again.header.Get("Idempotency-Replayed") != "true" || s.runs.Load() != 1 {
			t.Errorf("the second time %+v, the first time %+v", again, first)
		}
	})
}

// A panic is not recorded, wherever the framework recovers from it.
func TestPanics(t *testing.T) {
	testserver.Long(t)
	each(t, []place{outside, inside}, func(t *testing.T, _ framework, s *shop, url string) {
		for n := range 2 {
			if a := post(t, url+"/shops/7/panics", "key", ""); a.status != http.StatusInternalServerError || a.header.Get("Idempotency-Replayed") != "" {
				t.Errorf("number %d: %+v", n, a)
			}
			if s.runs.Load() != int64(n+1) {
				t.Errorf("run %d times", s.runs.Load())
			}
		}
		if a := post(t, url+"/shops/7/pay", "next", ""); a.status != http.StatusCreated {
			t.Errorf("what comes next: %+v", a)
		}
	})
}

// Of requests that come at once one has an effect.
func TestAtOnce(t *testing.T) {
	testserver.Long(t)
	each(t, []place{outside}, func(t *testing.T, _ framework, s *shop, url string) {
		const others = perShop - 2
		var all sync.WaitGroup
		var first answer
		all.Go(func() {
			var err error
			if first, err = ask(t.Context(), http.MethodPost, url+"/shops/7/slow", "key", ""); err != nil {
				t.Error(err)
			}
		})
		<-s.entered
		var busy sync.WaitGroup
		for range others {
			busy.Go(func() {
				a, err := ask(t.Context(), http.MethodPost, url+"/shops/7/slow", "key", "")
				if err != nil || a.status != http.StatusConflict || a.header.Get("Retry-After") == "" {
					t.Errorf("%+v, %v", a, err)
				}
			})
		}
		busy.Wait()
		s.leave <- true
		all.Wait()
		again := post(t, url+"/shops/7/slow", "key", "")
		if first.status != http.StatusCreated || again.body != first.body || again.status != first.status || s.runs.Load() != 1 {
			t.Errorf("first %+v, then %+v; run %d times", first, again, s.runs.Load())
		}
	})
}

// A client that hangs up does not end the handler, and finds its answer when it comes again.
func TestHangUp(t *testing.T) {
	testserver.Long(t)
	each(t, []place{inside}, func(t *testing.T, f framework, s *shop, url string) {
		ctx, hangUp := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			_, err := ask(ctx, http.MethodPost, url+"/shops/7/slow", "key", "")
			gone <- err
		}()
		<-s.entered
		hangUp()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		s.leave <- true
		for {
			a := post(t, url+"/shops/7/slow", "key", "")
			if a.status == http.StatusConflict { // the first has not returned yet
				continue
			}
			if a.status != http.StatusCreated || a.header.Get("Idempotency-Replayed") != "true" || s.runs.Load() != 1 {
				t.Errorf("%+v; run %d times", a, s.runs.Load())
			}
			return
		}
	})
}

// What is written piece by piece comes as a whole, now and when it comes again.
func TestStream(t *testing.T) {
	testserver.Long(t)
	each(t, []place{outside}, func(t *testing.T, _ framework, s *shop, url string) {
		for n := range 2 {
			a := post(t, url+"/shops/7/stream", "key", "")
			if a.status != http.StatusOK || a.body != "one\ntwo\n" || (n == 1) != (a.header.Get("Idempotency-Replayed") == "true") {
				t.Errorf("number %d: %+v", n, a)
			}
		}
	})
}

// Behind the limit alone what is flushed is with the client while the handler goes on.
func TestLive(t *testing.T) {
	testserver.Long(t)
	each(t, []place{outside}, func(t *testing.T, _ framework, s *shop, url string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/shops/7/live", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept-Encoding", "identity")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		lines := bufio.NewReader(res.Body)
		first, err := lines.ReadString('\n')
		if err != nil || first != "one\n" || res.Header.Get("RateLimit") == "" {
			t.Fatalf("%q, %v, %v", first, res.Header, err)
		}
		s.leave <- true
		if rest, err := io.ReadAll(lines); err != nil || string(rest) != "two\n" {
			t.Errorf("%q, %v", rest, err)
		}
	})
}
