package batonfiber_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/gofiber/fiber/v3"

	batonfiber "github.com/batonhq/baton/adapters/fiber"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/httponce"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/httplimit"
	"github.com/batonhq/baton/store/memstore"
)

// Each shop has a limit, whatever client asks, and a payment that is sent twice is made once.
func Example() {
	store := memstore.New() // or a store that several processes share
	limiter, err := ratelimit.New(store, ratelimit.SlidingWindow(2, time.Hour).Named("api"))
	if err != nil {
		panic(err)
	}
	limit, err := httplimit.New(limiter, httplimit.By(httplimit.Func("shop", func(r *http.Request) string { return r.PathValue("shop") })))
	if err != nil {
		panic(err)
	}
	ops, err := once.New(store, once.Config{})
	if err != nil {
		panic(err)
	}
	idempotent, err := httponce.New(ops, httponce.Config{
		Scope: func(r *http.Request) string { return r.PathValue("shop") }, // which another handler has checked
	})
	if err != nil {
		panic(err)
	}
	paid := 0
	app := fiber.New()
	app.Post("/shops/:shop/payments", batonfiber.Middleware(limit), batonfiber.Middleware(idempotent), func(c fiber.Ctx) error {
		paid++
		return c.Status(http.StatusCreated).JSON(fiber.Map{"payment": paid})
	})

	for range 3 {
		req := httptest.NewRequest(http.MethodPost, "/shops/7/payments", strings.NewReader(`{"euros": 5}`))
		req.Header.Set("Idempotency-Key", "8e03978e")
		res, err := app.Test(req)
		if err != nil {
			panic(err)
		}
		res.Body.Close()
		fmt.Println(res.StatusCode, res.Header.Get("Idempotency-Replayed"), res.Header.Get("Retry-After") != "")
	}
	fmt.Println(paid, "paid")
	// Output:
	// 201  false
	// 201 true false
	// 429  true
	// 1 paid
}
