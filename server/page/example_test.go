package page_test

import (
	"log"
	"net/http"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/server/page"
	"github.com/batonhq/baton/store/memstore"
)

// The page of a program's own locks, for people on the same machine.
func ExampleNew() {
	recent := page.NewRecent()
	store := memstore.New()
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		log.Fatal(err)
	}
	p, err := page.New(page.Config{Locks: locks, Limits: store, Recent: recent, Hosts: page.Loopback})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	log.Fatal(http.ListenAndServe("127.0.0.1:7421", p))
}
