package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/httplimit"
	"github.com/batonhq/baton/store/sqlitestore"
)

func main() {
	store, err := sqlitestore.Open(context.Background(), "limits.db") // on several machines: a store that they share
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	limiter, err := ratelimit.New(store,
		ratelimit.SlidingWindow(3, 10*time.Second).Named("api"),
		ratelimit.FailOpen(50*time.Millisecond)) // without the store, requests pass
	if err != nil {
		log.Fatal(err)
	}
	limit, err := httplimit.New(limiter, httplimit.By(httplimit.Func("user", user)))
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /hello", limit(http.HandlerFunc(hello)))
	addr := "127.0.0.1:8080"
	if len(os.Args) > 1 {
		addr = os.Args[1]
	}
	log.Fatal(http.ListenAndServe(addr, mux))
}

// user is who sent a request. Here a password would be checked, or a token: a name that the
// client only claims is no limit.
func user(r *http.Request) string {
	name, _, _ := r.BasicAuth()
	return name
}

func hello(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintln(w, "hello,", user(r))
}
