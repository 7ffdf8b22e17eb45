package batonfiber_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gofiber/fiber/v3"

	batonfiber "github.com/batonhq/baton/adapters/fiber"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/httponce"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/httplimit"
	"github.com/batonhq/baton/store/memstore"
)

func newIdempotent(t *testing.T, change ...func(*httponce.Config)) fiber.Handler {
	t.Helper()
	ops, err := once.New(memstore.New(), once.Config{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := httponce.Config{Scope: func(r *http.Request) string { return "a/" + r.Header.Get("User") }}
	for _, c := range change {
		c(&cfg)
	}
	m, err := httponce.New(ops, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return batonfiber.Middleware(m)
}

// serve serves the app by a real connection.
func serve(t *testing.T, app *fiber.App) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- app.Listener(l, fiber.ListenConfig{DisableStartupMessage: true}) }()
	t.Cleanup(func() {
		if err := errors.Join(app.Shutdown(), <-served); err != nil {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String()
}

type answer struct {
	*http.Response
	text string
}

func (a answer) replayed() bool { return a.Header.Get("Idempotency-Replayed") == "true" }

func send(t *testing.T, method, url string, body io.Reader, fields ...string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
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
	return answer{res, string(text)}
}

func post(t *testing.T, url, body string, fields ...string) answer {
	t.Helper()
	return send(t, http.MethodPost, url, strings.NewReader(body), append(fields, "Idempotency-Key", "key")...)
}

// A request of net/http outlives fasthttp's, which uses its memory again: a store keeps keys.
func TestMemoryIsNotShared(t *testing.T) {
	store := memstore.New()
	limiter, err := ratelimit.New(store, ratelimit.FixedWindow(3, 1000*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var kept []*http.Request
	limit, err := httplimit.New(limiter, httplimit.By(httplimit.Join(httplimit.Route(), httplimit.Header("User"), httplimit.Func("id", func(r *http.Request) string {
		mu.Lock()
		defer mu.Unlock()
		kept = append(kept, r)
		return r.PathValue("id")
	}))))
	if err != nil {
		t.Fatal(err)
	}
	app := fiber.New()
	app.Get("/things/:id", batonfiber.Middleware(limit), func(c fiber.Ctx) error { return c.SendString(c.Params("id")) })
	url := serve(t, app)
	const users = 50
	var all sync.WaitGroup
	for n := range users {
		all.Go(func() {
			id := fmt.Sprintf("%03d", n)
			for try := range 4 {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/things/"+id+"?q="+id, http.NoBody)
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("User", id)
				res, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				res.Body.Close()
				if refused := res.StatusCode == http.StatusTooManyRequests; refused != (try == 3) {
					t.Errorf("user %s, number %d: %d", id, try, res.StatusCode)
				}
			}
		})
	}
	all.Wait()
	for _, r := range kept {
		id := r.PathValue("id")
		if r.Method != http.MethodGet || r.Pattern != "/things/:id" || r.URL.Path != "/things/"+id || r.RequestURI != r.URL.Path+"?q="+id || r.Header.Get("User") != id || r.Host != strings.TrimPrefix(url, "http://") {
			t.Errorf("kept: %+v", r)
		}
	}
}

// All of a request is there, and each value of a field.
func TestRequest(t *testing.T) {
	var got *http.Request
	var text []byte
	look := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got = r
			text, _ = io.ReadAll(r.Body)
			next.ServeHTTP(w, r)
		})
	}
	app := fiber.New()
	app.Use("/a/:x", batonfiber.Middleware(look))
	app.Post("/a/:x/:y", func(c fiber.Ctx) error { return c.Send(c.Body()) })
	url := serve(t, app)
	a := post(t, url+"/a/1/2%2F3?b=c", "hello", "X", "1", "X", "2", "Cookie", "a=b")
	if a.text != "hello" || string(text) != "hello" {
		t.Errorf("the handler read %q, the middleware %q", a.text, text)
	}
	if got.Pattern != "" || got.PathValue("x") != "1" || got.PathValue("y") != "" { // fiber knows the route later
		t.Errorf("%q, %q, %q", got.Pattern, got.PathValue("x"), got.PathValue("y"))
	}
	if len(got.Header.Values("X")) != 2 || got.Header.Get("Cookie") != "a=b" || got.Header.Get("Host") != "" || got.RequestURI != "/a/1/2%2F3?b=c" || got.URL.RawPath != "/a/1/2%2F3" || got.ContentLength != 5 || got.RemoteAddr == "" {
		t.Errorf("%+v", got)
	}
	if addr, ok := got.Context().Value(http.LocalAddrContextKey).(net.Addr); !ok || "http://"+addr.String() != url {
		t.Errorf("the server is at %v", addr)
	}
	if a := post(t, url+"/b", ""); a.StatusCode != http.StatusNotFound {
		t.Errorf("%d", a.StatusCode)
	}
}

// A middleware that passes the request on leaves the answer alone.
func TestPassing(t *testing.T) {
	field := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Field", "of the middleware")
			w.Header().Del("Removed")
			next.ServeHTTP(w, r)
		})
	}
	app := fiber.New()
	app.Use(func(c fiber.Ctx) error {
		c.Set("Outer", "yes")
		c.Set("Removed", "yes")
		return c.Next()
	})
	app.Use(func(c fiber.Ctx) error {
		if c.Query("plain") != "" {
			return c.Next()
		}
		return batonfiber.Middleware(field)(c)
	})
	app.Post("/empty", func(c fiber.Ctx) error { return c.SendStatus(http.StatusNoContent) })
	app.Post("/text", func(c fiber.Ctx) error { return c.SendString("text") })
	app.Post("/json", func(c fiber.Ctx) error { return c.JSON(1) })
	app.Post("/error", func(fiber.Ctx) error { return fiber.ErrTeapot })
	url := serve(t, app)
	for _, path := range []string{"/empty", "/text", "/json", "/error", "/nowhere"} {
		want, got := post(t, url+path+"?plain=1", ""), post(t, url+path, "")
		if got.StatusCode != want.StatusCode || strings.ReplaceAll(got.text, "?plain=1", "") != want.text || got.Header.Get("Content-Type") != want.Header.Get("Content-Type") || got.Header.Get("Outer") != "yes" {
			t.Errorf("%s: %d %v %q, without the middleware %d %v %q", path, got.StatusCode, got.Header, got.text, want.StatusCode, want.Header, want.text)
		}
		if got.Header.Get("Field") == "" || got.Header.Get("Removed") != "" {
			t.Errorf("%s: %v", path, got.Header)
		}
	}
}

// Of a form of several parts fiber keeps no bytes to compare, unless it is told not to parse it.
func TestForms(t *testing.T) {
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	for n := range 9 { // in an order that fiber would lose
		if err := w.WriteField(fmt.Sprint("field", n), "x"); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	for _, keep := range []bool{false, true} {
		var failed error
		runs := 0
		app := fiber.New(fiber.Config{DisablePreParseMultipartForm: keep, ErrorHandler: func(c fiber.Ctx, err error) error {
			failed = err
			return fiber.DefaultErrorHandler(c, err)
		}})
		app.Post("/", newIdempotent(t), func(c fiber.Ctx) error {
			runs++
			return c.SendString(c.FormValue("field8"))
		})
		url := serve(t, app)
		for n := range 5 {
			a := send(t, http.MethodPost, url, bytes.NewReader(form.Bytes()), "Content-Type", w.FormDataContentType(), "Idempotency-Key", "key")
			switch {
			case !keep && (a.StatusCode != http.StatusInternalServerError || !errors.Is(failed, batonfiber.ErrForm) || runs != 0):
				t.Errorf("parsed: %d %q, %v, run %d times", a.StatusCode, a.text, failed, runs)
			case keep && (a.text != "x" || a.replayed() != (n > 0) || runs != 1):
				t.Errorf("not parsed: %d %q, run %d times", a.StatusCode, a.text, runs)
			}
		}
		a := send(t, http.MethodPost, url, bytes.NewReader(form.Bytes()), "Content-Type", w.FormDataContentType())
		if a.text != "x" {
			t.Errorf("without a key: %d %q", a.StatusCode, a.text)
		}
	}
}

// A body that fiber has not read yet is read as far as the middleware allows, and the handler
// has it.
func TestStreamedBody(t *testing.T) {
	const most = 100_000
	app := fiber.New(fiber.Config{StreamRequestBody: true, BodyLimit: 1000})
	app.Post("/", newIdempotent(t, func(cfg *httponce.Config) { cfg.MaxBody = most }), func(c fiber.Ctx) error {
		return c.SendString(fmt.Sprint(len(c.Body())))
	})
	url := serve(t, app)
	for _, size := range []int{10, most} {
		for n := range 2 {
			if a := post(t, url, strings.Repeat("x", size), "User", fmt.Sprint(size)); a.text != fmt.Sprint(size) || a.replayed() != (n == 1) {
				t.Errorf("%d: %d %q", size, a.StatusCode, a.text)
			}
		}
	}
	if a := post(t, url, strings.Repeat("x", most), "Idempotency-Key", "2"); a.StatusCode != http.StatusBadRequest {
		t.Errorf("two keys: %d", a.StatusCode)
	}
	if a := post(t, url, strings.Repeat("x", most+1), "User", "eve"); a.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("too long: %d %q", a.StatusCode, a.text)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, io.MultiReader(strings.NewReader(strings.Repeat("x", 20_000)))) // no length: chunked
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", "chunked")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); string(text) != "20000" {
		t.Errorf("chunked: %d %q, %v", res.StatusCode, text, err)
	}
}

// What nobody reads of a body is not taken for the next request.
func TestBodyThatIsLeft(t *testing.T) {
	for _, size := range []int{20_000, 10 << 20} {
		app := fiber.New(fiber.Config{StreamRequestBody: true, BodyLimit: 1000})
		refuse := func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
		}
		app.Post("/", batonfiber.Middleware(refuse))
		app.Get("/secret", func(c fiber.Ctx) error { return c.SendString("secret") })
		conn, err := net.Dial("tcp", strings.TrimPrefix(serve(t, app), "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		const smuggled = "GET /secret HTTP/1.1\r\nHost: a\r\n\r\n"
		go func() { // it fails if the server ends the connection
			_, _ = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat(smuggled, size/len(smuggled)))
			_, _ = io.WriteString(conn, strings.Repeat("x", size%len(smuggled)))
			_, _ = io.WriteString(conn, "GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		}()
		answers, _ := io.ReadAll(conn) // an error is the end of the connection
		text := string(answers)
		if strings.Contains(text, "secret") || !strings.Contains(text, "403 Forbidden") || strings.Contains(text, "404 Not Found") != (size < 256<<10) {
			t.Errorf("%d: %.500s", size, text)
		}
	}
}

// An answer that is too long, or has no end, is cut off, and what is recorded says so.
func TestAnswerWithoutEnd(t *testing.T) {
	runs, ended := 0, make(chan bool, 1)
	app := fiber.New()
	app.Post("/", newIdempotent(t), func(c fiber.Ctx) error {
		runs++
		return c.SendStream(&endless{ended})
	})
	url := serve(t, app)
	for n := range 2 {
		if a := post(t, url, ""); a.StatusCode != http.StatusInternalServerError || !strings.Contains(a.text, "too long") || a.replayed() != (n == 1) || runs != 1 {
			t.Errorf("%d %.100q, run %d times", a.StatusCode, a.text, runs)
		}
	}
	<-ended
}

// A stream that ends before its end is an error that is not recorded, as are all 500s. What
// the body of other answers is fasthttp knows by itself.
func TestStreamThatBreaks(t *testing.T) {
	broken := errors.New("the upstream is gone")
	bodies := map[string]func(fiber.Ctx) error{
		"fails": func(c fiber.Ctx) error {
			return c.SendStream(io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken)))
		},
		"is short": func(c fiber.Ctx) error { return c.SendStream(strings.NewReader("half"), 100) },
	}
	for name, body := range bodies {
		runs := 0
		app := fiber.New(fiber.Config{ErrorHandler: func(c fiber.Ctx, err error) error {
			if !errors.Is(err, broken) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Error(err)
			}
			return c.Status(http.StatusBadGateway).SendString("broken")
		}})
		app.Post("/", newIdempotent(t), func(c fiber.Ctx) error {
			if runs++; runs > 2 {
				c.Set("Content-Length", "100")
				return c.SendString("whole")
			}
			return body(c)
		})
		url := serve(t, app)
		for n := range 4 {
			status, text := http.StatusBadGateway, "broken"
			if n >= 2 {
				status, text = http.StatusOK, "whole"
			}
			if a := post(t, url, ""); a.StatusCode != status || a.text != text || a.replayed() != (n == 3) || runs != min(n+1, 3) {
				t.Errorf("%s, number %d: %d %q, run %d times", name, n, a.StatusCode, a.text, runs)
			}
		}
	}
}

type endless struct{ closed chan<- bool }

func (*endless) Read(p []byte) (int, error) { return len(p), nil }
func (e *endless) Close() error             { e.closed <- true; return nil }

// The handler of errors is that of the app, and of the part of it that has the route; one that
// fails itself makes a 500.
func TestErrorHandlers(t *testing.T) {
	idempotent, runs := newIdempotent(t, func(cfg *httponce.Config) { cfg.Record = func(int) bool { return true } }), 0
	fail := func(fiber.Ctx) error { runs++; return fiber.ErrTeapot }
	part := fiber.New(fiber.Config{ErrorHandler: func(c fiber.Ctx, _ error) error { return c.Status(http.StatusGone).SendString("of the part") }})
	part.Post("/x", idempotent, fail)
	broken := fiber.New(fiber.Config{ErrorHandler: func(_ fiber.Ctx, err error) error { return err }})
	broken.Post("/x", idempotent, fail)
	app := fiber.New()
	var outer error
	app.Use(func(c fiber.Ctx) error {
		outer = c.Next()
		return outer
	})
	app.Use("/part", part)
	app.Use("/broken", broken)
	app.Post("/x", idempotent, fail)
	url := serve(t, app)
	for path, want := range map[string]struct {
		status int
		text   string
	}{
		"/x":        {http.StatusTeapot, "I'm a teapot"},
		"/part/x":   {http.StatusGone, "of the part"},
		"/broken/x": {http.StatusInternalServerError, "Internal Server Error"},
	} {
		runs = 0
		for n := range 2 {
			a := post(t, url+path, "", "User", path)
			if a.StatusCode != want.status || a.text != want.text || a.replayed() != (n == 1) || runs != 1 || outer != nil {
				t.Errorf("%s, number %d: %d %q, run %d times, %v", path, n, a.StatusCode, a.text, runs, outer)
			}
		}
	}
}

// Handlers that are passed by the middleware find the context that was there before.
func TestContextEnds(t *testing.T) {
	app := fiber.New()
	app.Use(func(c fiber.Ctx) error {
		before := c.Context()
		err := c.Next()
		if c.Context() != before {
			t.Error("the context is another one")
		}
		return err
	})
	app.Post("/", newIdempotent(t), func(c fiber.Ctx) error {
		if _, ok := httponce.AttemptOf(c.Context()); !ok {
			t.Error("no attempt")
		}
		return nil
	})
	if a := post(t, serve(t, app), ""); a.StatusCode != http.StatusOK {
		t.Errorf("%d", a.StatusCode)
	}
}
