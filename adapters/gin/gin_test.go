package batongin_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	batongin "github.com/batonhq/baton/adapters/gin"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/httponce"
	"github.com/batonhq/baton/store/memstore"
)

func newIdempotent(t *testing.T) gin.HandlerFunc {
	t.Helper()
	ops, err := once.New(memstore.New(), once.Config{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := httponce.New(ops, httponce.Config{Scope: func(*http.Request) string { return "all" }})
	if err != nil {
		t.Fatal(err)
	}
	return batongin.Middleware(m)
}

func serve(t *testing.T, handlers ...gin.HandlerFunc) string {
	t.Helper()
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.POST("/:name", handlers...)
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	return server.URL + "/x"
}

func post(t *testing.T, url, key string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", key)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(text)
}

// A handler that leaves an error for somebody outside has not succeeded.
func TestErrorThatNobodyAnswers(t *testing.T) {
	runs := 0
	url := serve(t, newIdempotent(t), func(c *gin.Context) {
		runs++
		_ = c.Error(errors.New("no"))
	})
	for n := range 2 {
		if res, _ := post(t, url, "key"); res.StatusCode != http.StatusInternalServerError || runs != n+1 {
			t.Errorf("number %d: %d, run %d times", n, res.StatusCode, runs)
		}
	}
}

// An error that its handler has answered, or that a handler outside has left, changes no answer.
func TestErrorThatIsAnswered(t *testing.T) {
	for name, answer := range map[string]gin.HandlerFunc{
		"with a body":   func(c *gin.Context) { _ = c.Error(errors.New("no")); c.String(http.StatusAccepted, "yes") },
		"with a status": func(c *gin.Context) { c.Status(http.StatusAccepted); _ = c.Error(errors.New("no")) },
		"by gin":        func(c *gin.Context) { _ = c.AbortWithError(http.StatusAccepted, errors.New("no")) },
		"outside":       func(c *gin.Context) { c.Status(http.StatusAccepted) },
	} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, func(c *gin.Context) { _ = c.Error(errors.New("a warning")) }, newIdempotent(t), answer)
			first, _ := post(t, url, "key")
			again, _ := post(t, url, "key")
			if first.StatusCode != http.StatusAccepted || again.StatusCode != http.StatusAccepted || again.Header.Get("Idempotency-Replayed") != "true" {
				t.Errorf("%d, then %d", first.StatusCode, again.StatusCode)
			}
		})
	}
}

// Handlers around the middleware see what was answered, and the request that they had; those
// behind it see it with gin's own methods.
func TestGinSees(t *testing.T) {
	type seen struct {
		status, size int
		written      bool
	}
	var outside, before, after seen
	look := func(c *gin.Context) seen {
		return seen{c.Writer.Status(), c.Writer.Size(), c.Writer.Written()}
	}
	url := serve(t, func(c *gin.Context) {
		request, writer := c.Request, c.Writer
		c.Next()
		outside = look(c)
		if c.Request != request || c.Writer != writer {
			t.Error("the request or the writer is another one")
		}
	}, newIdempotent(t), func(c *gin.Context) {
		before = look(c)
		if c.Request.Pattern != "/:name" || c.Request.PathValue("name") != "x" {
			t.Errorf("the route is %q of %q", c.Request.Pattern, c.Request.PathValue("name"))
		}
		_, _, err := c.Writer.Hijack()
		if err == nil {
			t.Error("the connection is taken over")
		}
		if c.Writer.Pusher() != nil {
			t.Error("a pusher")
		}
		c.Status(http.StatusBadRequest)
		c.String(http.StatusOK, "%s", "hello") // the last status counts
		c.Status(http.StatusBadRequest)        // too late
		after = look(c)
	})
	res, text := post(t, url, "key")
	if res.StatusCode != http.StatusOK || text != "hello" {
		t.Errorf("%d %q", res.StatusCode, text)
	}
	if before != (seen{http.StatusOK, -1, false}) || after != (seen{http.StatusOK, 5, true}) || outside != after {
		t.Errorf("before %+v, after %+v, outside %+v", before, after, outside)
	}
	if post(t, url, "key"); outside != after {
		t.Errorf("a replay: %+v", outside)
	}
}

// A middleware that answers by itself ends gin's chain.
func TestRefusal(t *testing.T) {
	refuse := func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })
	}
	url := serve(t, batongin.Middleware(refuse), func(*gin.Context) { t.Error("a handler has run") })
	if res, text := post(t, url, "key"); res.StatusCode != http.StatusForbidden || text != "no\n" {
		t.Errorf("%d %q", res.StatusCode, text)
	}
}

// A stream behind httponce does not end with its client, but with the context of its handler.
func TestStreamOutlivesItsClient(t *testing.T) {
	began, wrote := make(chan bool), make(chan bool, 1)
	url := serve(t, func(c *gin.Context) {
		c.Set("client", c.Request.Context().Done())
	}, newIdempotent(t), func(c *gin.Context) {
		close(began)
		<-c.MustGet("client").(<-chan struct{})
		n := 0
		whole := !c.Stream(func(w io.Writer) bool {
			n++
			_, _ = io.WriteString(w, "line\n")
			return n < 3
		})
		wrote <- whole
	})
	ctx, hangUp := context.WithCancel(t.Context())
	go func() { <-began; hangUp() }()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", "key")
	if _, err := http.DefaultClient.Do(r); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if !<-wrote {
		t.Error("the stream has ended early")
	}
	for {
		res, text := post(t, url, "key")
		if res.StatusCode == http.StatusConflict { // the first has not returned yet
			continue
		}
		if text != "line\nline\nline\n" || res.Header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("%d %q", res.StatusCode, text)
		}
		return
	}
}
