package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/roles"
	"github.com/batonhq/baton/internal/testserver"
)

// An attack runs against a server on loopback with access tokens.
var attacks = []struct {
	name string
	run  func(*testing.T, *servedProcess)
}{
	{"a handle that another team has stolen", func(t *testing.T, s *servedProcess) {
		a := s.held(tokenA, `{"key":"both/stolen","ttl_ms":20000}`)
		stolen := fmt.Sprintf(`{"handle":%q}`, a.Handle)
		s.wants(http.StatusBadRequest, tokenB, "Locks/Renew", stolen)
		s.wants(http.StatusBadRequest, tokenB, "Locks/Release", stolen)
		s.wants(http.StatusBadRequest, tokenWhole, "Locks/Release", stolen)
		s.wrote("denied", `"caller":"team-b"`, `"remote":"127.0.0.1:`, "another caller")
		s.wants(http.StatusOK, tokenA, "Locks/Renew", stolen)
	}},
	{"a handle that was changed", func(t *testing.T, s *servedProcess) {
		a := s.held(tokenA, `{"key":"both/forged","ttl_ms":20000}`)
		for i := range len(a.Handle) {
			if i%7 != 0 {
				continue
			}
			other := byte('A')
			if a.Handle[i] == other {
				other = 'B'
			}
			s.wants(http.StatusBadRequest, tokenA, "Locks/Release", fmt.Sprintf(`{"handle":%q}`, a.Handle[:i]+string(other)+a.Handle[i+1:]))
		}
		for _, forged := range []string{"", "bh1.", "x", strings.Repeat("A", 100_000), a.Handle + "A", a.Handle[:len(a.Handle)-2]} {
			s.wants(http.StatusBadRequest, tokenA, "Locks/Release", fmt.Sprintf(`{"handle":%q}`, forged))
		}
		s.wants(http.StatusOK, tokenA, "Locks/Release", fmt.Sprintf(`{"handle":%q}`, a.Handle))
	}},
	{"an op that was guessed", func(t *testing.T, s *servedProcess) {
		a := s.held(tokenA, `{"key":"both/op","op":"job-42 of 16 bytes","ttl_ms":20000}`)
		if b := s.wants(http.StatusOK, tokenB, "Locks/Acquire", `{"key":"both/op","op":"job-42 of 16 bytes","ttl_ms":20000,"retry":true}`); b.State == "HELD" || b.Handle != "" {
			t.Errorf("team-b has the lease of team-a: %v", b)
		}
		s.call(tokenB, "Locks/Cancel", `{"key":"both/op","op":"job-42 of 16 bytes","ttl_ms":20000}`)
		again := s.held(tokenA, `{"key":"both/op","op":"job-42 of 16 bytes","ttl_ms":20000,"retry":true}`)
		s.wants(http.StatusOK, tokenA, "Locks/Renew", fmt.Sprintf(`{"handle":%q}`, a.Handle))
		s.wants(http.StatusOK, tokenA, "Locks/Release", fmt.Sprintf(`{"handle":%q}`, again.Handle))
	}},
	{"a key that looks like one below the prefix", func(t *testing.T, s *servedProcess) {
		for _, key := range []string{"b/x", "a%2Fx", "A/x", "/a/x", " a/x", "./a/x", "a", "ab/x", "b/../a/x", "ａ/x", "а/x" /* Cyrillic */, "a\u200b/x", `\u0062/x`, "a/secret/x", "b/a/x"} {
			s.wants(http.StatusForbidden, tokenA, "Locks/Acquire", `{"key":"`+key+`"}`)
		}
		for _, key := range []string{`a/x\u0000`, `a/\ud800`, "a/\xff", "a/\xc0\xaf", `a/\n`, "a/" + strings.Repeat("x", 511)} {
			s.wants(http.StatusBadRequest, tokenA, "Locks/Acquire", `{"key":"`+key+`"}`)
		}
		for _, key := range []string{`a/x`, `\u0061/y`, `a/../b`, `a/%2e%2e/b`} { // names like any others
			s.held(tokenA, `{"key":"`+key+`"}`)
		}
		s.held(tokenB, `{"key":"b/x"}`)
	}},
	{"a field that is there twice, or unknown", func(t *testing.T, s *servedProcess) {
		for _, body := range []string{
			`{"key":"a/t","key":"b/t"}`, `{"key":"b/t","key":"a/t"}`, `{"key":"a/t","Key":"b/t"}`, `{"key":"a/t","KEY":"b/t"}`,
			`{"key":"a/t","wait":1}`, `{"key":["a/t"]}`, `[{"key":"a/t"}]`, `{"key":"a/t"}{"key":"b/t"}`, `{"key":"a/t"`, ``, `null`, `"a/t"`,
		} {
			s.wants(http.StatusBadRequest, tokenA, "Locks/Acquire", body)
		}
	}},
	{"a key in the path", func(t *testing.T, s *servedProcess) {
		for _, path := range []string{"Locks/Acquire/a%2Fx", "Locks/Acquire/a/x", "Locks/Acquire/../Break", "Locks/Acquire%2F..%2FBreak", "Locks/acquire"} {
			if a := s.call(tokenA, path, `{"key":"a/path"}`); a.Status/100 == 2 || a.State != "" {
				t.Errorf("%s: %v", path, a)
			}
		}
	}},
	{"an operation that is blocked by a lock", func(t *testing.T, s *servedProcess) {
		if a := s.call(tokenWhole, "Locks/Acquire", `{"key":"once/op"}`); a.Status/100 != 4 {
			t.Errorf("it is locked: %v", a)
		}
		s.wants(http.StatusForbidden, tokenA, "Once/Begin", `{"key":"a/op"}`)
	}},
	{"listing above the own prefix", func(t *testing.T, s *servedProcess) {
		s.held(tokenB, `{"key":"b/listed"}`)
		for _, prefix := range []string{"", "b", "b/", "a", "a/", "a/s", "a/secret/"} {
			s.wants(http.StatusForbidden, tokenA, "Locks/List", fmt.Sprintf(`{"prefix":%q}`, prefix))
		}
		s.wants(http.StatusOK, tokenA, "Locks/List", `{"prefix":"a/x"}`)
		s.wants(http.StatusOK, tokenOps, "Locks/List", `{"prefix":""}`)
	}},
	{"breaking without the verb", func(t *testing.T, s *servedProcess) {
		a := s.held(tokenA, `{"key":"a/broken","ttl_ms":20000}`)
		s.wants(http.StatusForbidden, tokenA, "Locks/Break", `{"key":"a/broken"}`)
		s.wants(http.StatusForbidden, tokenB, "Locks/Break", `{"key":"a/broken"}`)
		s.wants(http.StatusOK, tokenA, "Locks/Renew", fmt.Sprintf(`{"handle":%q}`, a.Handle))
		s.wants(http.StatusOK, tokenOps, "Locks/Break", `{"key":"a/broken","reason":"it hangs"}`)
		s.wrote("denied", `"caller":"team-b"`, `"verb":"break"`, `"key":"a/broken"`)
		s.wrote("broken", `"caller":"ops"`, `"key":"a/broken"`, "it hangs")
		s.wants(http.StatusNotFound, tokenA, "Locks/Renew", fmt.Sprintf(`{"handle":%q}`, a.Handle))
	}},
	{"an access token in the wrong place", func(t *testing.T, s *servedProcess) {
		const body = `{"key":"a/place"}`
		for name, header := range map[string]http.Header{
			"none":        {},
			"unknown":     {"Authorization": {"Bearer nobody"}},
			"empty":       {"Authorization": {"Bearer "}},
			"the hash":    {"Authorization": {"Bearer " + roles.Credential(tokenA)}},
			"longer":      {"Authorization": {"Bearer " + tokenA + "x"}},
			"other case":  {"Authorization": {"Bearer " + strings.ToUpper(tokenA)}},
			"two":         {"Authorization": {"Bearer " + tokenA, "Bearer " + tokenB}},
			"basic":       {"Authorization": {"Basic dGVhbS1hOnRva2VuLW9mLXRlYW0tYQ=="}},
			"a user":      {"Authorization": {"Bearer uid:" + strconv.Itoa(os.Getuid())}},
			"a cookie":    {"Cookie": {"Authorization=Bearer " + tokenA}},
			"proxy":       {"Proxy-Authorization": {"Bearer " + tokenA}},
			"forwarded":   {"X-Forwarded-User": {"team-a"}, "X-Forwarded-For": {"127.0.0.1"}},
			"certificate": {"X-Ssl-Client-Cert": {"CN=team-a"}},
		} {
			r := s.request("", "Locks/Acquire", body)
			for k, v := range header {
				r.Header[k] = v
			}
			if a := s.do(r); a.Status != http.StatusUnauthorized || a.Code != "unauthenticated" || !strings.HasPrefix(a.Header.Get("WWW-Authenticate"), "Bearer") {
				t.Errorf("%s: %v", name, a)
			}
		}
		r := s.request("", "Locks/Acquire", body)
		r.URL.RawQuery = "token=" + tokenA + "&access_token=" + tokenA
		if a := s.do(r); a.Status != http.StatusUnauthorized {
			t.Errorf("in the query: %v", a)
		}
		for _, path := range []string{"/healthz/../baton.v1.Locks/List", "/healthz/%2e%2e/baton.v1.Locks/List", "//healthz", "/readyz/", "/metrics", "/nowhere", "/baton.v1.Locks/List;/healthz", "/baton.v1.Locks/List?/healthz"} {
			back, _ := s.raw(s.dial(), "POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
			if !strings.HasPrefix(back, "HTTP/1.1 401 ") {
				t.Errorf("%s without an access token: %.200q", path, back)
			}
		}
		s.wrote("refused", `"remote":"127.0.0.1:`)
		if text := s.audit() + s.errs.String(); strings.Contains(text, tokenA) {
			t.Errorf("an access token is shown:\n%s", text)
		}
	}},
	{"a time of 46 days, and of a millisecond", func(t *testing.T, s *servedProcess) {
		for _, ms := range []string{"4000000000", "1", "-1", "4294967296", "1e3000"} {
			s.wants(http.StatusBadRequest, tokenA, "Locks/Acquire", `{"key":"a/ttl","ttl_ms":`+ms+`}`)
		}
	}},
	{"a header that comes slowly", func(t *testing.T, s *servedProcess) {
		t.Parallel()
		conn := s.dial()
		done := make(chan struct{})
		defer close(done)
		go func() { // a byte at a time, as long as the server listens
			tick := time.NewTicker(200 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					if _, err := io.WriteString(conn, "X: x\r\n"); err != nil {
						return
					}
				case <-done:
					return
				}
			}
		}()
		if _, took := s.raw(conn, "POST /baton.v1.Locks/List HTTP/1.1\r\nHost: x\r\n"); took < time.Second || took > 15*time.Second {
			t.Errorf("it was closed after %v", took)
		}
	}},
	{"a body that does not come", func(t *testing.T, s *servedProcess) {
		t.Parallel()
		for name, of := range map[string]struct {
			header string
			quick  bool
		}{
			"of a caller":                  {"Authorization: Bearer " + tokenA + "\r\nContent-Length: 100\r\n", false},
			"of unknown length":            {"Authorization: Bearer " + tokenA + "\r\nTransfer-Encoding: chunked\r\n", false},
			"of nobody":                    {"Content-Length: 100\r\n", true},
			"of nobody, too":               {"Transfer-Encoding: chunked\r\n", true},
			"of a length that is too long": {"Authorization: Bearer " + tokenA + "\r\nContent-Length: 1000000\r\n", true},
			"of another site":              {"Authorization: Bearer " + tokenA + "\r\nOrigin: http://evil.example\r\nContent-Length: 100\r\n", true},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				back, took := s.raw(s.dial(), "POST /baton.v1.Locks/List HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+of.header+"\r\n")
				if took > 15*time.Second || of.quick && took > 3*time.Second || of.quick && !strings.HasPrefix(back, "HTTP/1.1 4") {
					t.Errorf("it was closed after %v: %.300q", took, back)
				}
			})
		}
		t.Run("to a path for all", func(t *testing.T) {
			t.Parallel()
			if _, took := s.raw(s.dial(), "GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"); took > 3*time.Second {
				t.Errorf("it was closed after %v", took)
			}
		})
	}},
	{"a body that is too long", func(t *testing.T, s *servedProcess) {
		long := `{"key":"a/` + strings.Repeat("x", 1<<20) + `"}`
		if a := s.call(tokenA, "Locks/Acquire", long); a.Status != http.StatusRequestEntityTooLarge {
			t.Errorf("got %d", a.Status)
		}
		r := s.request(tokenA, "Locks/Acquire", "")
		r.Body, r.ContentLength = io.NopCloser(io.LimitReader(endless{}, 64<<20)), -1
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		res, err := s.http.Do(r.WithContext(ctx))
		if err == nil { // else the server closed the connection on the way
			res.Body.Close()
			if res.StatusCode/100 != 4 {
				t.Errorf("without a length it got %d", res.StatusCode)
			}
		}
	}},
	{"a body that is small, and large once it is uncompressed", func(t *testing.T, s *servedProcess) {
		var b bytes.Buffer
		z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(z, io.LimitReader(endless{}, 100<<20)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		before := s.memory()
		r := s.request(tokenA, "Locks/Acquire", "")
		r.Body, r.ContentLength = io.NopCloser(&b), int64(b.Len())
		r.Header.Set("Content-Encoding", "gzip")
		if a := s.do(r); a.Status/100 != 4 {
			t.Errorf("got %v", a)
		}
		if grown := s.memory() - before; grown > 32<<20 {
			t.Errorf("the server has grown by %d MB", grown>>20)
		}
	}},
	{"a header that is too long", func(t *testing.T, s *servedProcess) {
		r := s.request(tokenA, "Locks/List", "{}")
		r.Header.Set("X-Long", strings.Repeat("x", 64<<10))
		res, err := s.http.Do(r)
		if err == nil { // else the server closed the connection on the way
			res.Body.Close()
			if res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
				t.Errorf("got %d", res.StatusCode)
			}
		}
	}},
	{"the page of another site", func(t *testing.T, s *servedProcess) {
		for name, header := range map[string]http.Header{
			"an origin":      {"Origin": {"http://evil.example"}},
			"no origin":      {"Origin": {"null"}},
			"another port":   {"Origin": {"http://127.0.0.1:1"}},
			"a site":         {"Sec-Fetch-Site": {"cross-site"}},
			"a neighbour":    {"Sec-Fetch-Site": {"same-site"}},
			"a frame":        {"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"iframe"}},
			"two":            {"Origin": {s.url, "http://evil.example"}},
			"the beginning":  {"Origin": {s.url + ".evil.example"}},
			"not quite ours": {"Origin": {"http://evil.example@" + s.addr}},
		} {
			if name == "not quite ours" { // a URL parser may take that for our host; browsers never send it
				continue
			}
			r := s.request(tokenA, "Locks/List", `{"prefix":"a/x"}`)
			for k, v := range header {
				r.Header[k] = v
			}
			if a := s.do(r); a.Status != http.StatusForbidden {
				t.Errorf("%s: %v", name, a)
			}
		}
		r := s.request(tokenA, "Locks/List", `{"prefix":"a/x"}`)
		r.Header.Set("Origin", s.url)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		if a := s.do(r); a.Status != http.StatusOK {
			t.Errorf("our own page: %v", a)
		}
		r = s.request(tokenA, "Locks/Acquire", `{"key":"a/form"}`)
		r.Header.Set("Content-Type", "text/plain") // a form can send that without a question before
		if a := s.do(r); a.Status != http.StatusUnsupportedMediaType {
			t.Errorf("a form: %v", a)
		}
	}},
	{"the page of the server, by a caller without the verb", func(t *testing.T, s *servedProcess) {
		page := func(token, path, body string) answer {
			r := s.request(token, "x", body)
			r.URL.Path = path
			return s.do(r)
		}
		if a := page("", "/page/watch", "{}"); a.Status != http.StatusUnauthorized {
			t.Errorf("without an access token: %v", a)
		}
		s.held(tokenA, `{"key":"a/page","ttl_ms":20000}`)
		for _, token := range []string{tokenA, tokenB, tokenShop} {
			if a := page(token, "/page/break", `{"key":"a/page","reason":"x","grants":[]}`); a.Status != http.StatusForbidden {
				t.Errorf("%s breaks: %v", token, a)
			}
		}
		r := s.request("", "x", "")
		r.Method, r.URL.Path, r.Body = http.MethodGet, "/", nil
		if a := s.do(r); a.Status != http.StatusOK || strings.Contains(a.Text, "a/page") || a.Header.Get("Content-Security-Policy") == "" {
			t.Errorf("the document: %d %v", a.Status, a.Header)
		}
		s.wrote("denied", `"a/page"`, `"team-a"`)
	}},
	{"calls that wait without an end", func(t *testing.T, s *servedProcess) {
		s.held(tokenB, `{"key":"both/wait","ttl_ms":20000}`)
		if a := s.call(tokenA, "Locks/Acquire", `{"key":"both/wait","wait_ms":4000000000}`); a.Status != http.StatusBadRequest {
			t.Errorf("a wait of 46 days: %v", a)
		}
	}},
	{"a request that two parsers read differently", func(t *testing.T, s *servedProcess) {
		head := "POST /baton.v1.Locks/List HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer " + tokenA + "\r\n"
		for _, more := range []string{
			"Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}",
			"Content-Length: 2x\r\n\r\n{}",
			"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
			"Content-Length : 2\r\n\r\n{}",
		} {
			if back, _ := s.raw(s.dial(), head+more); !regexp.MustCompile(`^HTTP/1\.1 (400|501) `).MatchString(back) {
				t.Errorf("%q: %.200q", more, back)
			}
		}
	}},
	{"denials that hide a break", func(t *testing.T, s *servedProcess) {
		for range 3 * maxDenials {
			s.wants(http.StatusForbidden, tokenB, "Locks/Acquire", `{"key":"flood"}`)
		}
		s.held(tokenA, `{"key":"a/flood"}`)
		s.wants(http.StatusOK, tokenOps, "Locks/Break", `{"key":"a/flood"}`)
		s.wrote("broken", `"key":"a/flood"`)
	}},
}

// endless is a text without an end, as the beginning of a JSON string.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// Each attack of docs/security.md runs against a real process.
func TestServeAttacks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	process := startServe(t, dir, "--roles", writeRoles(t, dir, ""))
	t.Run("attacks", func(t *testing.T) {
		for _, attack := range attacks {
			t.Run(attack.name, func(t *testing.T) {
				s := *process
				s.t = t
				attack.run(t, &s)
			})
		}
	})
	// After all that it does what it is for.
	a := process.held(tokenA, `{"key":"a/after"}`)
	process.wants(http.StatusOK, tokenA, "Locks/Release", fmt.Sprintf(`{"handle":%q}`, a.Handle))
}

// Without access tokens a server on loopback serves every program, and no web page.
func TestServeAttacksOfWebPages(t *testing.T) {
	t.Parallel()
	s := startServe(t, t.TempDir(), "--host", "locks.internal")
	s.errs.await(t, "every user of this machine may do everything")
	_, port, _ := net.SplitHostPort(s.addr)
	for host, want := range map[string]int{
		s.addr: 200, "localhost": 200, "localhost:" + port: 200, "LOCALHOST": 200, "[::1]:" + port: 200, "127.0.0.2": 200, "locks.internal": 200, "locks.internal:80": 200,
		"evil.example": 403, "evil.example:" + port: 403, "127.0.0.1.evil.example": 403, "localhost.evil.example:" + port: 403,
		"evil.localhost": 403, "10.0.0.1": 403, "[::2]": 403, "127.0.0.1@evil.example": 403, "xlocalhost": 403, "0.0.0.0": 403,
	} {
		r := s.request("", "Locks/List", "{}")
		r.Host = host
		if a := s.do(r); a.Status != want && !(want == 403 && a.Status == 400) {
			t.Errorf("Host %s: %v, want %d", host, a, want)
		}
	}
	r := s.request("", "Locks/List", "{}")
	r.Header.Set("Origin", "http://evil.example")
	if a := s.do(r); a.Status != http.StatusForbidden {
		t.Errorf("Origin: %v", a)
	}
	r = s.request("", "Locks/List", "{}")
	r.Host, r.Header = "evil.example", http.Header{"Content-Type": {"application/json"}, "Origin": {"http://evil.example"}, "Sec-Fetch-Site": {"same-origin"}}
	if a := s.do(r); a.Status != http.StatusForbidden {
		t.Errorf("a name that was pointed here: %v", a)
	}
	s.wrote("refused", "evil.example")

	// A proxy calls the host as it likes, by a protocol that no browser speaks.
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	s.http = &http.Client{Transport: transport}
	r = s.request("", "Locks/List", "{}")
	r.Host = "envoy-cluster"
	if a := s.do(r); a.Status != http.StatusOK {
		t.Errorf("a proxy: %v", a)
	}
}

// A gRPC client is told in its own terms.
func TestServeByGRPC(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rules := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(rules, []byte("domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServe(t, dir, "--roles", writeRoles(t, dir, ""), "--rules", rules)
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	s.http = &http.Client{Transport: transport}
	r := s.request("", "Locks/List", "\x00\x00\x00\x00\x00")
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("TE", "trailers")
	if a := s.do(r); a.Status != http.StatusUnauthorized { // which gRPC's clients take for Unauthenticated
		t.Errorf("got %v", a)
	}

	// Envoy's service on the same port. The message is {domain: "shop", descriptors: {entries: {key: "user", value: "eve"}}}.
	ask := func(token string) (answer, string) {
		t.Helper()
		const message = "\x0a\x04shop\x12\x0d\x0a\x0b\x0a\x04user\x12\x03eve"
		r := s.request(token, "Locks/List", string([]byte{0, 0, 0, 0, byte(len(message))})+message)
		r.URL.Path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
		r.Header.Set("Content-Type", "application/grpc")
		r.Header.Set("TE", "trailers")
		res, err := s.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer{Status: res.StatusCode, Text: string(text)}, res.Trailer.Get("Grpc-Status") + res.Header.Get("Grpc-Status")
	}
	for i, want := range []struct{ overall byte }{{1}, {2}} { // OK, then OVER_LIMIT
		a, status := ask(tokenShop)
		if a.Status != http.StatusOK || status != "0" || len(a.Text) < 7 || a.Text[5] != 8 || a.Text[6] != want.overall {
			t.Errorf("call %d: %q, %d, status %s", i+1, a.Text, a.Status, status)
		}
	}
	if a, status := ask(tokenA); status != "7" { // PERMISSION_DENIED
		t.Errorf("a caller that may not: %v, status %s", a, status)
	}
	if a, _ := ask(""); a.Status != http.StatusUnauthorized {
		t.Errorf("without an access token: %v", a)
	}
	s.wrote("denied", `"caller":"team-a"`, `"verb":"limit"`, `"key":"shop/"`)
}

// A call that waits is answered when the server is stopped.
func TestServeDrains(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := startServe(t, dir, "--roles", writeRoles(t, dir, ""))
	s.held(tokenB, `{"key":"both/drain","ttl_ms":20000}`)
	got := make(chan answer, 1)
	conn := s.dial()
	defer conn.Close()
	body := `{"key":"both/drain","op":"op o of 16 bytes","wait_ms":30000}`
	fmt.Fprintf(conn, "POST /baton.v1.Locks/Acquire HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", tokenA, len(body), body)
	go func() {
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			got <- answer{Text: err.Error()}
			return
		}
		text, _ := io.ReadAll(res.Body)
		got <- answer{Status: res.StatusCode, Text: string(text)}
	}()
	deadline := time.Now().Add(patience)
	for !strings.Contains(s.call(tokenOps, "Locks/List", `{"prefix":"both/drain"}`).Text, `"waiting":1`) {
		if time.Now().After(deadline) {
			t.Fatal("nobody waits")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if a := <-got; a.Status == 0 {
		t.Errorf("a call that waits got no answer: %s", a.Text)
	} else {
		t.Logf("a call that waits got %v", a)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("it ends with %v", err)
		}
	case <-time.After(patience):
		t.Error("it does not end")
	}
}

// TestServeSaysWhoDecides: who reads the log sees when a rule's on_failure decides in place
// of a store that hangs, and when the store does again.
func TestServeSaysWhoDecides(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	redis := testserver.Redis(t)
	rules := filepath.Join(dir, "rules.yaml")
	text := "rules:\n- {name: r, requests: 1000000, period: 1m, on_failure: open}\n"
	if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServe(t, dir, "--roles", writeRoles(t, dir, ""), "--rules", rules, "--store", "redis://"+redis.Addr)
	take := func() {
		t.Helper()
		s.wants(http.StatusOK, tokenWhole, "Limits/Take", `{"rule":"r","key":"a/x"}`)
	}
	until := func(pattern string) {
		t.Helper()
		for end := time.Now().Add(patience); !regexp.MustCompile(pattern).MatchString(s.errs.String()); take() {
			if time.Now().After(end) {
				t.Fatalf("it never says %q", pattern)
			}
		}
	}
	take()
	redis.Stop()
	until(`level=WARN msg="limits are decided without the store`)
	redis.Cont()
	until(`level=INFO msg="limits are decided by the store again`)
}
