package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/server/batonv1"
	"github.com/batonhq/baton/server/batonv1/batonv1connect"
	"github.com/batonhq/baton/store/memstore"
)

// These tests call real servers over real connections.

// serve serves s on a free port until the test ends, and returns the address.
func serve(t *testing.T, s *Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := HTTPServer(s.Handler())
	h.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	ended := make(chan error, 1)
	go func() { ended <- h.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := h.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		<-ended
	})
	return l.Addr().String()
}

// post calls by JSON, and returns the answer.
func post(t *testing.T, url, body string, header ...string) (status int, answer map[string]any, fields http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	return do(t, r, header...)
}

func do(t *testing.T, r *http.Request, header ...string) (status int, answer map[string]any, fields http.Header) {
	t.Helper()
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 0 && json.Unmarshal(text, &answer) != nil {
		answer = map[string]any{"text": string(text)}
	}
	return res.StatusCode, answer, res.Header
}

// stores are those over which the tests run that need several processes, by the way that
// each replica has its own connections.
var stores = []struct {
	name string
	url  func(t *testing.T) string
}{
	{"sqlite", func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "locks.db") }},
	{"redis", func(t *testing.T) string { return "redis://" + testserver.SharedRedis(t).Addr }},
	{"etcd", func(t *testing.T) string { return "etcd://" + testserver.SharedEtcd(t).Addr }},
	{"mysql", func(t *testing.T) string { return "mysql://root@" + testserver.SharedMariaDB(t).Addr + "/baton" }},
	{"postgres", func(t *testing.T) string {
		server := testserver.SharedPostgres(t)
		return server.URL(server.Database(t))
	}},
}

// eachStore runs f with a function that opens the store once more.
func eachStore(t *testing.T, f func(t *testing.T, open func() driver.Store)) {
	t.Helper()
	for _, c := range stores {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			url := c.url(t)
			f(t, func() driver.Store {
				t.Helper()
				store, err := open.Store(t.Context(), url)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = store.Close() })
				return store
			})
		})
	}
}

// A client that takes gzip gets a long answer so, and a short one plain.
func TestOnlyLongAnswersAreCompressed(t *testing.T) {
	t.Parallel()
	url := "http://" + serve(t, replica(t, memstore.New()))
	encoding := func(procedure, body string) string {
		t.Helper()
		status, answer, fields := post(t, url+"/baton.v1.Locks/"+procedure, body, "Accept-Encoding", "gzip")
		if status != http.StatusOK {
			t.Fatal(status, answer)
		}
		return fields.Get("Content-Encoding")
	}
	for i := range 2 {
		if got := encoding("Acquire", fmt.Sprintf(`{"key":"%d%s"}`, i, strings.Repeat("k", 500))); got != "" {
			t.Errorf("a short answer is compressed by %s", got)
		}
	}
	if got := encoding("List", `{}`); got != "gzip" {
		t.Errorf("a long answer is compressed by %q", got)
	}
}

// Two replicas serve one client: what it got at one it has at the other, by JSON and by
// gRPC.
func TestReplicas(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open func() driver.Store) {
		var urls []string
		var clients []batonv1connect.LocksClient
		for range 2 {
			url := "http://" + serve(t, replica(t, open()))
			urls = append(urls, url)
			clients = append(clients, batonv1connect.NewLocksClient(http.DefaultClient, url))
		}
		ctx := t.Context()
		key := t.Name() + driver.NewID() // the server may be shared with an earlier run
		status, first, _ := post(t, urls[0]+"/baton.v1.Locks/Acquire", fmt.Sprintf(`{"key":%q,"op":"op x of 16 bytes","ttl_ms":10000,"owner":"me"}`, key))
		if status != http.StatusOK || first["state"] != "HELD" {
			t.Fatal(status, first)
		}
		again, err := clients[1].Acquire(ctx, &batonv1.AcquireRequest{Key: key, Op: "op x of 16 bytes", TtlMs: 10_000, Owner: "me", Retry: true})
		if err != nil || again.State != batonv1.AcquireResponse_HELD {
			t.Fatalf("repeated at the other: %v, %v", again, err)
		}
		if token, err := strconv.ParseInt(first["token"].(string), 10, 64); err != nil || again.Token < token {
			t.Errorf("the token fell from %v to %d", first["token"], again.Token)
		}
		handle := first["handle"].(string)
		asked := time.Now()
		renewed, err := clients[1].Renew(ctx, &batonv1.RenewRequest{Handle: handle})
		// Its client counts it from when it asked, which may be long before the server asks the store.
		if most := 9*time.Second + time.Since(asked); err != nil || time.Duration(renewed.RemainingMs)*time.Millisecond > most || renewed.RemainingMs < 5000 {
			t.Errorf("renewed at the other: %v, %v", renewed, err)
		}
		refused, err := clients[1].Acquire(ctx, &batonv1.AcquireRequest{Key: key})
		if err != nil || refused.State != batonv1.AcquireResponse_REFUSED || len(refused.Holders) != 1 || refused.Holders[0].Owner != "me" {
			t.Errorf("another client: %v, %v", refused, err)
		}

		// A position survives the change from one to the other.
		waiting, err := clients[0].Acquire(ctx, &batonv1.AcquireRequest{Key: key, Op: "op y of 16 bytes", WaitMs: 300, TtlMs: 5000})
		if err != nil || waiting.State != batonv1.AcquireResponse_WAITING {
			t.Fatalf("a short wait: %v, %v", waiting, err)
		}
		got := make(chan error, 1)
		go func() {
			res, err := clients[1].Acquire(ctx, &batonv1.AcquireRequest{Key: key, Op: "op y of 16 bytes", Retry: true, WaitMs: 20_000, TtlMs: 5000})
			if err == nil && res.State != batonv1.AcquireResponse_HELD {
				err = fmt.Errorf("%v", res)
			}
			got <- err
		}()
		if _, err := clients[1].Release(ctx, &batonv1.ReleaseRequest{Handle: handle}); err != nil {
			t.Errorf("released at the other: %v", err)
		}
		if err := <-got; err != nil {
			t.Error(err)
		}
		if _, err := clients[0].Release(ctx, &batonv1.ReleaseRequest{Handle: handle}); connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("released twice: %v", err)
		}
		if _, err := clients[0].Cancel(ctx, &batonv1.CancelRequest{Key: key, Op: "op y of 16 bytes", TtlMs: 5000}); err != nil {
			t.Error(err)
		}
		if res, err := clients[0].Acquire(ctx, &batonv1.AcquireRequest{Key: key}); err != nil || res.State != batonv1.AcquireResponse_HELD {
			t.Errorf("after all: %v, %v", res, err)
		}
	})
}

// A client whose connection breaks asks again with the same op, here or elsewhere. What
// it is given then must stay: the first call, which has lost its client at about the
// moment of the grant, must not release it.
func TestRetryIsNotReleased(t *testing.T) {
	t.Parallel()
	const rounds = 40
	eachStore(t, func(t *testing.T, open func() driver.Store) {
		store := open()
		var clients []batonv1connect.LocksClient
		for range 2 {
			clients = append(clients, batonv1connect.NewLocksClient(&http.Client{Transport: &http.Transport{}}, "http://"+serve(t, replica(t, open()))))
		}
		locks, err := baton.New(store, baton.Config{})
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		taken := 0
		var wg sync.WaitGroup
		var mu sync.Mutex
		for worker := range 4 {
			wg.Go(func() {
				for i := range rounds / 4 {
					key := fmt.Sprintf("%s/%d/%d", driver.NewID(), worker, i)
					holder, err := locks.Lock(ctx, key)
					if err != nil {
						t.Error(err)
						return
					}
					first, hangUp := context.WithCancel(ctx)
					ended := make(chan struct{})
					r := func(retry bool) *batonv1.AcquireRequest {
						return &batonv1.AcquireRequest{Key: key, Op: "op x of 16 bytes", TtlMs: 5000, WaitMs: 10_000, Retry: retry}
					}
					go func() {
						defer close(ended)
						_, _ = clients[0].Acquire(first, r(false)) // its answer is lost
					}()
					waitFor(t, locks, key, 1)
					// The three come in any order.
					go func() { _ = holder.Unlock() }()
					time.AfterFunc(rand.N(3*time.Millisecond), hangUp)
					second := clients[i%2] // another server, or the same
					res, err := second.Acquire(ctx, r(true))
					<-ended
					if err != nil || res.State != batonv1.AcquireResponse_HELD {
						t.Errorf("asked again: %v, %v", res, err)
						return
					}
					mu.Lock()
					taken++
					mu.Unlock()
					time.Sleep(30 * time.Millisecond) // what the first replica does about its client's end
					if info, err := locks.Inspect(ctx, key); err != nil || len(info.Holders) != 1 {
						t.Errorf("the lease was taken away: %v, %v", info, err)
					}
					if _, err := second.Release(ctx, &batonv1.ReleaseRequest{Handle: res.Handle}); err != nil {
						t.Errorf("the lease was taken away: %v", err)
					}
				}
			})
		}
		wg.Wait()
		if taken != rounds {
			t.Errorf("%d of %d rounds", taken, rounds)
		}
	})
}

// waitFor waits until so many wait for key.
func waitFor(t *testing.T, locks *baton.Locker, key string, waiters int) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		info, err := locks.Inspect(t.Context(), key)
		if err == nil && len(info.Waiters) >= waiters {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%d wait for %q, want %d (%v)", len(info.Waiters), key, waiters, err)
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// A client without an op that hangs up while it waits leaves nothing.
func TestHangUp(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s := replica(t, store)
	addr := serve(t, s)
	for _, kind := range []string{"json", "grpc"} {
		t.Run(kind, func(t *testing.T) {
			first := s.held(t, &batonv1.AcquireRequest{Key: kind})
			ctx, hangUp := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				var opts []connect.ClientOption
				client := http.DefaultClient
				if kind == "grpc" {
					var p http.Protocols
					p.SetUnencryptedHTTP2(true)
					opts, client = append(opts, connect.WithGRPC()), &http.Client{Transport: &http.Transport{Protocols: &p}}
				}
				_, _ = batonv1connect.NewLocksClient(client, "http://"+addr, opts...).Acquire(ctx, &batonv1.AcquireRequest{Key: kind, WaitMs: 60_000})
			}()
			waitFor(t, s.locks, kind, 1)
			hangUp()
			<-ended
			deadline := time.Now().Add(10 * time.Second)
			for {
				info, err := s.locks.Inspect(t.Context(), kind)
				if err != nil {
					t.Fatal(err)
				}
				if len(info.Waiters) == 0 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("the position stays")
				}
				time.Sleep(time.Millisecond)
			}
			if err := s.releases(t.Context(), first.Handle); err != nil {
				t.Error(err)
			}
		})
	}
}

// The stock client of gRPC works without TLS, and gets codes and hints that it knows.
func TestGRPC(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s := replica(t, store, func(c *Config) { c.Limits = testRules(t, c.Store) })
	conn, err := grpc.NewClient("passthrough:///"+serve(t, s), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := t.Context()
	var held batonv1.AcquireResponse
	if err := conn.Invoke(ctx, "/baton.v1.Locks/Acquire", &batonv1.AcquireRequest{Key: "k"}, &held); err != nil || held.State != batonv1.AcquireResponse_HELD {
		t.Fatalf("%v, %v", &held, err)
	}
	err = conn.Invoke(ctx, "/baton.v1.Locks/Renew", &batonv1.RenewRequest{Handle: "x"}, &batonv1.RenewResponse{})
	if status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
	if err := conn.Invoke(ctx, "/baton.v1.Locks/Release", &batonv1.ReleaseRequest{Handle: held.Handle}, &batonv1.ReleaseResponse{}); err != nil {
		t.Error(err)
	}
	err = conn.Invoke(ctx, "/baton.v1.Locks/Release", &batonv1.ReleaseRequest{Handle: held.Handle}, &batonv1.ReleaseResponse{})
	if status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	take := func() (*batonv1.TakeResponse, metadata.MD, error) {
		var res batonv1.TakeResponse
		var md metadata.MD
		err := conn.Invoke(ctx, "/baton.v1.Limits/Take", &batonv1.TakeRequest{Rule: "api", Key: "u"}, &res, grpc.Trailer(&md))
		return &res, md, err
	}
	for i := range 2 {
		if res, _, err := take(); err != nil || !res.Ok || res.Limit != 2 || res.Remaining != int64(1-i) {
			t.Errorf("%v, %v", res, err)
		}
	}
	_, md, err := take()
	if status.Code(err) != codes.ResourceExhausted || len(md.Get("grpc-retry-pushback-ms")) != 1 {
		t.Errorf("%v with %v, want resource_exhausted, and when to try again", err, md)
	}
	long := strings.Repeat("x", MaxBody+1)
	err = conn.Invoke(ctx, "/baton.v1.Locks/Acquire", &batonv1.AcquireRequest{Key: long}, &held)
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a body that is too long: %v", err)
	}
}

// /v1/limit, as curl, nginx and Caddy ask it.
func TestLimit(t *testing.T) {
	t.Parallel()
	s := replica(t, memstore.New(), func(c *Config) { c.Limits = testRules(t, c.Store) })
	url := "http://" + serve(t, s) + "/v1/limit"
	get := func(header ...string) (int, map[string]any, http.Header) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		return do(t, r, header...)
	}
	for i := range 3 {
		status, answer, fields := post(t, url, `{"rule":"api","key":"a"}`)
		if i < 2 && (status != http.StatusOK || answer["ok"] != true || answer["remaining"] != fmt.Sprint(1-i)) {
			t.Errorf("%d, %v", status, answer)
		}
		if i == 2 && (status != http.StatusTooManyRequests || answer["ok"] != false || fields.Get("Retry-After") == "") {
			t.Errorf("%d, %v, %v: want 429 with Retry-After", status, answer, fields)
		}
	}
	for i := range 4 {
		header := []string{"Baton-Rule", "api", "Baton-Key", "b"}
		if i == 3 {
			header = append(header, "Baton-Deny", "403")
		}
		status, _, fields := get(header...)
		want := []int{200, 200, 429, 403}[i]
		if status != want || (fields.Get("Retry-After") == "") != (i < 2) {
			t.Errorf("%d with %v, want %d", status, fields, want)
		}
	}
	// A proxy passes on what a browser has sent, as it did for the page of another site.
	for _, field := range []string{"Origin", "Sec-Fetch-Site"} {
		value := map[string]string{"Origin": "https://shop.example", "Sec-Fetch-Site": "cross-site"}[field]
		if status, answer, _ := post(t, url, "", "Baton-Rule", "api", "Baton-Key", field, field, value); status != http.StatusOK {
			t.Errorf("asked by a proxy, with %s: %d, %v", field, status, answer)
		}
		if status, answer, _ := post(t, url, `{"rule":"api","key":"a"}`, field, value); status != http.StatusForbidden {
			t.Errorf("asked by a page, with %s: %d, %v", field, status, answer)
		}
	}
	if status, _, _ := get("Baton-Rule", "api", "Baton-Key", "c", "Baton-Cost", "3"); status != http.StatusTooManyRequests {
		t.Errorf("a cost above the limit: %d", status)
	}
	for _, c := range []struct {
		name   string
		status int
		header []string
	}{
		{"nothing", 400, nil},
		{"no key", 400, []string{"Baton-Rule", "api"}},
		{"no rule", 400, []string{"Baton-Key", "a"}},
		{"an unknown rule", 400, []string{"Baton-Rule", "apo", "Baton-Key", "a"}},
		{"no cost", 400, []string{"Baton-Rule", "api", "Baton-Key", "a", "Baton-Cost", "x"}},
		{"another refusal", 400, []string{"Baton-Rule", "api", "Baton-Key", "a", "Baton-Deny", "200"}},
		{"bytes", 400, []string{"Baton-Rule", "api", "Baton-Key", "\xff"}},
	} {
		if status, answer, _ := get(c.header...); status != c.status {
			t.Errorf("%s: %d, %v, want %d", c.name, status, answer, c.status)
		}
	}
	// To a proxy that asks for 403, a caller without the right is no limit that is used up.
	url = "http://" + serve(t, replica(t, memstore.New(), func(c *Config) {
		c.Limits = testRules(t, c.Store)
		c.Caller = func(*http.Request) (Caller, error) {
			return someone{"edge", func(_, key string) bool { return key == "b" }}, nil
		}
	})) + "/v1/limit"
	for _, c := range []struct{ key, deny, want string }{{"a", "403", "200"}, {"b", "429", "403"}, {"b", "403", "500"}} {
		status, answer, _ := get("Baton-Rule", "api", "Baton-Key", c.key, "Baton-Deny", c.deny)
		if fmt.Sprint(status) != c.want || status != 200 && !strings.Contains(fmt.Sprint(answer["message"]), "edge may not limit") {
			t.Errorf("%+v: %d, %v", c, status, answer)
		}
	}
	url = "http://" + serve(t, s) + "/v1/limit"
	for _, text := range []string{`{"rule":"api","key":"a","kex":1}`, `{"rule":"api","key":"a","key":"b"}`, `{`, ``} {
		if status, answer, _ := post(t, url, text); status != http.StatusBadRequest {
			t.Errorf("%s: %d, %v", text, status, answer)
		}
	}
	if status, _, _ := post(t, url+"?key=a", `{"rule":"api","key":"a"}`); status != http.StatusBadRequest {
		t.Errorf("a key in the address: %d", status)
	}
}

// One process begins an operation at one replica and finishes it at another; a Runner of
// the library sees it.
func TestOnceElsewhere(t *testing.T) {
	t.Parallel()
	eachStore(t, testOnce)
}
