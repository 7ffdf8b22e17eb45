package frameworks

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"testing"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"
)

// fromHTTP5 is m as middleware of echo. Errors are answered within m.
func fromHTTP5(m func(http.Handler) http.Handler) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		inner := echo.WrapMiddleware(m)(func(c *echo.Context) error {
			if err := next(c); err != nil {
				c.Echo().HTTPErrorHandler(c, err)
			}
			return nil
		})
		return func(c *echo.Context) error {
			request, response := c.Request(), c.Response()
			defer func() { c.SetRequest(request); c.SetResponse(response) }() // for what recovers outside
			return inner(c)
		}
	}
}

func serveEcho5(_ *testing.T, s *shop) http.Handler {
	limit, idempotent := s.limit, s.idempotent
	payments := func(c *echo.Context) error { return s.echo5(c) }

	e := echo.New()
	e.Logger = slog.New(slog.DiscardHandler)
	e.Use(middleware.Gzip())
	if s.recovers == outside {
		e.Use(middleware.Recover())
	}
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			c.Response().Header().Set("Outer", "yes")
			return next(c)
		}
	})
	e.GET("/shops/:shop", func(c *echo.Context) error { return c.String(http.StatusOK, "a shop") }, fromHTTP5(limit))
	e.GET("/shops/:shop/live", func(c *echo.Context) error {
		fmt.Fprintln(c.Response(), "one")
		_ = http.NewResponseController(c.Response()).Flush()
		<-s.leave
		fmt.Fprintln(c.Response(), "two")
		return nil
	}, fromHTTP5(limit))
	e.HEAD("/shops/:shop", func(c *echo.Context) error { return c.NoContent(http.StatusOK) }, fromHTTP5(limit))
	if s.recovers == inside {
		e.POST("/shops/:shop/:what", payments, fromHTTP5(limit), fromHTTP5(idempotent), middleware.Recover())
		return e
	}
	e.POST("/shops/:shop/:what", payments, fromHTTP5(limit), fromHTTP5(idempotent))
	return e
}

func (s *shop) echo5(c *echo.Context) error {
	body, err := io.ReadAll(c.Request().Body)
	if err != nil {
		return err
	}
	text, err := s.handle(c.Request().Context(), c.Param("shop"), c.Param("what"), string(body))
	switch {
	case errors.Is(err, errNoMoney):
		return echo.NewHTTPError(http.StatusUnprocessableEntity, err.Error())
	case err != nil:
		return err
	case c.Param("what") == "empty":
		return c.NoContent(http.StatusNoContent)
	case c.Param("what") == "stream":
		for _, line := range []string{"one\n", "two\n"} {
			fmt.Fprint(c.Response(), line)
			_ = http.NewResponseController(c.Response()).Flush()
		}
		return nil
	}
	c.SetCookie(&http.Cookie{Name: "a", Value: "1"})
	c.SetCookie(&http.Cookie{Name: "b", Value: "2"})
	c.Response().Header().Set("Location", "/payments/1")
	return c.Blob(http.StatusCreated, "application/json", []byte(text))
}
