package frameworks

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/batonhq/baton/internal/testserver"
)

func serveChi(_ *testing.T, s *shop) http.Handler {
	limit, idempotent := s.limit, s.idempotent
	payments := func(w http.ResponseWriter, r *http.Request) { s.chi(w, r) }

	r := chi.NewRouter()
	r.Use(middleware.Compress(5))
	if s.recovers == outside {
		r.Use(middleware.Recoverer)
	}
	r.Use(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Outer", "yes")
			next.ServeHTTP(w, r)
		})
	})
	r.With(limit).Get("/shops/{shop}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "a shop") })
	r.With(limit).Get("/shops/{shop}/live", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "one")
		_ = http.NewResponseController(w).Flush()
		<-s.leave
		fmt.Fprintln(w, "two")
	})
	r.With(limit).Head("/shops/{shop}", func(http.ResponseWriter, *http.Request) {})
	if s.recovers == inside {
		r.With(limit, idempotent, middleware.Recoverer).Post("/shops/{shop}/{what}", payments)
		return r
	}
	r.With(limit, idempotent).Post("/shops/{shop}/{what}", payments)
	return r
}

func (s *shop) chi(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	what := r.PathValue("what")
	text, err := s.handle(r.Context(), chi.URLParam(r, "shop"), what, string(body))
	switch {
	case errors.Is(err, errNoMoney):
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	case err != nil:
		http.Error(w, "Internal Server Error", http.StatusInternalServerError)
	case what == "empty":
		w.WriteHeader(http.StatusNoContent)
	case what == "stream":
		for _, line := range []string{"one\n", "two\n"} {
			fmt.Fprint(w, line)
			_ = http.NewResponseController(w).Flush()
		}
	default:
		http.SetCookie(w, &http.Cookie{Name: "a", Value: "1"})
		http.SetCookie(w, &http.Cookie{Name: "b", Value: "2"})
		w.Header().Set("Location", "/payments/1")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, text)
	}
}

// Middleware of Use knows the route within a group, and not in front of all routes.
func TestChiUse(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	look := func(pattern, shop string) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Pattern != pattern || r.PathValue("shop") != shop {
					t.Errorf("the route is %q, with %q; want %q, %q", r.Pattern, r.PathValue("shop"), pattern, shop)
				}
				next.ServeHTTP(w, r)
			})
		}
	}
	r := chi.NewRouter()
	r.Use(look("", ""))
	r.Group(func(r chi.Router) {
		r.Use(look("/shops/{shop}", "7"))
		r.Get("/shops/{shop}", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	})
	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/shops/7", http.NoBody))
	if w.Code != http.StatusTeapot {
		t.Error(w.Code)
	}
}
