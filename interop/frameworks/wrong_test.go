package frameworks

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	echo4 "github.com/labstack/echo/v4"
	echo5 "github.com/labstack/echo/v5"

	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/httponce"
	"github.com/batonhq/baton/store/memstore"
)

// What echo has of its own records an answer that no client should get, as docs/web.md says.
// If this fails, echo has become better, and the page can be shorter.
func TestEchosOwn(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	for _, f := range []framework{
		{"echo v4", overHTTP(func(_ *testing.T, s *shop) http.Handler {
			e := echo4.New()
			e.POST("/", func(echo4.Context) error { s.runs.Add(1); return errSecret }, echo4.WrapMiddleware(s.idempotent))
			return e
		})},
		{"echo v5", overHTTP(func(_ *testing.T, s *shop) http.Handler {
			e := echo5.New()
			e.POST("/", func(*echo5.Context) error { s.runs.Add(1); return errSecret }, echo5.WrapMiddleware(s.idempotent))
			return e
		})},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			ops, err := once.New(memstore.New(), once.Config{})
			if err != nil {
				t.Fatal(err)
			}
			s := new(shop)
			if s.idempotent, err = httponce.New(ops, httponce.Config{Scope: func(*http.Request) string { return "all" }}); err != nil {
				t.Fatal(err)
			}
			url := f.serve(t, s)
			post(t, url, "key", "")
			if a := post(t, url, "key", ""); a.status != http.StatusOK || a.body != "" || a.header.Get("Idempotency-Replayed") != "true" || s.runs.Load() != 1 {
				t.Errorf("%+v, run %d times", a, s.runs.Load())
			}
		})
	}
}

// What fiber has of its own runs handlers when the middleware has returned. (It also makes a
// context that races with fasthttp's server.)
func TestFibersOwn(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	order := ""
	app := fiber.New()
	app.Post("/", adaptor.HTTPMiddleware(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(w, r)
			order += "middleware "
		})
	}), func(fiber.Ctx) error { order += "handler "; return nil })
	res, err := app.Test(httptest.NewRequest(http.MethodPost, "/", http.NoBody))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if order != "middleware handler " {
		t.Error(order)
	}
}
