package frameworks

import (
	"bufio"
	"errors"
	"net"
	"testing"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/compress"
	"github.com/gofiber/fiber/v3/middleware/recover"

	batonfiber "github.com/batonhq/baton/adapters/fiber"
)

func serveFiber(t *testing.T, s *shop) string {
	limit, idempotent := s.limit, s.idempotent
	payments := func(c fiber.Ctx) error { return s.fiber(c) }

	app := fiber.New(fiber.Config{ErrorHandler: func(c fiber.Ctx, err error) error {
		if errors.Is(err, errNoMoney) {
			return c.Status(fiber.StatusUnprocessableEntity).JSON(fiber.Map{"error": err.Error()})
		}
		return c.SendStatus(fiber.StatusInternalServerError)
	}})
	app.Use(compress.New(compress.Config{Next: func(c fiber.Ctx) bool { return c.Method() == fiber.MethodGet }})) // it holds streams back
	if s.recovers == outside {
		app.Use(recover.New())
	}
	app.Use(func(c fiber.Ctx) error {
		c.Set("Outer", "yes")
		return c.Next()
	})
	app.Get("/shops/:shop", batonfiber.Middleware(limit), func(c fiber.Ctx) error { return c.SendString("a shop") })
	app.Get("/shops/:shop/live", batonfiber.Middleware(limit), func(c fiber.Ctx) error {
		return c.SendStreamWriter(func(w *bufio.Writer) {
			_, _ = w.WriteString("one\n")
			_ = w.Flush()
			<-s.leave
			_, _ = w.WriteString("two\n")
		})
	})
	if s.recovers == inside {
		app.Post("/shops/:shop/:what", batonfiber.Middleware(limit), batonfiber.Middleware(idempotent), recover.New(), payments)
	} else {
		app.Post("/shops/:shop/:what", batonfiber.Middleware(limit), batonfiber.Middleware(idempotent), payments)
	}
	return listen(t, app)
}

// listen serves an app of fiber.
func listen(t *testing.T, app *fiber.App) string {
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

func (s *shop) fiber(c fiber.Ctx) error {
	text, err := s.handle(c.Context(), c.Params("shop"), c.Params("what"), string(c.Body()))
	switch {
	case err != nil:
		return err
	case c.Params("what") == "empty":
		return c.SendStatus(fiber.StatusNoContent)
	case c.Params("what") == "stream":
		return c.SendStreamWriter(func(w *bufio.Writer) {
			for _, line := range []string{"one\n", "two\n"} {
				_, _ = w.WriteString(line)
				_ = w.Flush()
			}
		})
	}
	c.Cookie(&fiber.Cookie{Name: "a", Value: "1"})
	c.Cookie(&fiber.Cookie{Name: "b", Value: "2"})
	c.Location("/payments/1")
	c.Set("Content-Type", "application/json")
	return c.Status(fiber.StatusCreated).SendString(text)
}
