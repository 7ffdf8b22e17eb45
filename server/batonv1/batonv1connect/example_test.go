package batonv1connect_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/batonhq/baton/server"
	"github.com/batonhq/baton/server/batonv1"
	"github.com/batonhq/baton/server/batonv1/batonv1connect"
	"github.com/batonhq/baton/store/memstore"
)

// A Go client of a server. Programs that reach the store do better with package baton, which
// renews.
func Example() {
	s, err := server.New(server.Config{Store: memstore.New()})
	if err != nil {
		log.Fatal(err)
	}
	web := httptest.NewServer(s.Handler())
	defer web.Close()

	ctx := context.Background()
	locks := batonv1connect.NewLocksClient(http.DefaultClient, web.URL)
	got, err := locks.Acquire(ctx, &batonv1.AcquireRequest{Key: "order/42", Op: "order/42, first try", TtlMs: 10_000})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("token", got.GetToken() > 0)
	if _, err := locks.Release(ctx, &batonv1.ReleaseRequest{Handle: got.GetHandle()}); err != nil {
		log.Fatal(err)
	}
	// Output: token true
}
