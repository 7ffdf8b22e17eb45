package batongin_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	batongin "github.com/batonhq/baton/adapters/gin"
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
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.POST("/shops/:shop/payments", batongin.Middleware(limit), batongin.Middleware(idempotent), func(c *gin.Context) {
		paid++
		c.JSON(http.StatusCreated, gin.H{"payment": paid})
	})

	for range 3 {
		w := httptest.NewRecorder()
		req := httptest.NewRequest(http.MethodPost, "/shops/7/payments", strings.NewReader(`{"euros": 5}`))
		req.Header.Set("Idempotency-Key", "8e03978e")
		r.ServeHTTP(w, req)
		fmt.Println(w.Code, w.Header().Get("Idempotency-Replayed"), w.Header().Get("Retry-After") != "")
	}
	fmt.Println(paid, "paid")
	// Output:
	// 201  false
	// 201 true false
	// 429  true
	// 1 paid
}
