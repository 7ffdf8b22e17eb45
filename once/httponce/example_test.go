package httponce_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/httponce"
	"github.com/batonhq/baton/store/memstore"
)

func Example() {
	ops, err := once.New(memstore.New(), once.Config{}) // or a store that several processes share
	if err != nil {
		fmt.Println(err)
		return
	}
	idempotent, err := httponce.New(ops, httponce.Config{
		Scope:    func(r *http.Request) string { name, _, _ := r.BasicAuth(); return name }, // which another handler has checked
		Required: true,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	paid := 0
	mux := http.NewServeMux()
	mux.Handle("POST /payments", idempotent(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paid++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "payment %d", paid)
	})))
	server := httptest.NewServer(mux)
	defer server.Close()

	for range 2 { // the client did not get the first answer, and asks again
		r, err := http.NewRequest(http.MethodPost, server.URL+"/payments", strings.NewReader(`{"euros": 5}`))
		if err != nil {
			fmt.Println(err)
			return
		}
		r.SetBasicAuth("eve", "")
		r.Header.Set("Idempotency-Key", `"8e03978e-40d5-43dd-bc93-6894a57f9324"`)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			fmt.Println(err)
			return
		}
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		fmt.Println(res.StatusCode, string(text), res.Header.Get("Idempotency-Replayed"), err)
	}
	// Output:
	// 201 payment 1  <nil>
	// 201 payment 1 true <nil>
}
