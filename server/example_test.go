package server_test

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/batonhq/baton/server"
	"github.com/batonhq/baton/store/memstore"
)

// A server inside of a program, and a client that needs nothing but HTTP.
func Example() {
	store := memstore.New()
	defer store.Close()
	s, err := server.New(server.Config{Store: store})
	if err != nil {
		log.Fatal(err)
	}
	web := httptest.NewServer(s.Handler()) // a program: server.HTTPServer(s.Handler()), and Shutdown at its end
	defer web.Close()

	answer, err := http.Post(web.URL+"/baton.v1.Locks/List", "application/json", strings.NewReader(`{"prefix": "order/"}`))
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	var list struct {
		Locks []struct{ Key string }
	}
	if err := json.NewDecoder(answer.Body).Decode(&list); err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.Status, len(list.Locks))
	// Output: 200 OK 0
}
