package rls_test

import (
	"log"
	"net/http"

	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/server"
	"github.com/batonhq/baton/server/rls"
	"github.com/batonhq/baton/store/memstore"
)

// Envoy's rate limit service, by rules from a file.
func ExampleNew() {
	all, err := rules.Load("rules.yaml")
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := rules.New(memstore.New(), all) // Redis, if there are several
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(rls.New(rls.Config{Limiter: limiter}))
	web := server.HTTPServer(mux)
	web.Addr = ":8081"
	log.Fatal(web.ListenAndServe())
}
