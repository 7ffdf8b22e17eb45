package batoncertmagic_test

import (
	"context"
	"fmt"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/batonhq/baton"
	batoncertmagic "github.com/batonhq/baton/adapters/certmagic"
	"github.com/batonhq/baton/store/memstore"
)

// The certificates are in a folder that all instances mount, the locks in Redis or another
// store. No certificate is obtained here: that needs a domain and a CA.
func Example() {
	ctx := context.Background()
	store := memstore.New() // one that all instances share, such as that of redisstore
	locks, err := baton.New(store, baton.Config{TTL: time.Minute})
	if err != nil {
		panic(err)
	}
	storage := batoncertmagic.New(&certmagic.FileStorage{Path: "/shared/certmagic"}, locks, "certs/")
	certmagic.Default.Storage = storage

	// certmagic.TLS([]string{"example.com"}) would do this with the lock of the domain:
	if err := storage.Lock(ctx, "issue_cert_example.com"); err != nil {
		panic(err)
	}
	info, err := locks.Inspect(ctx, "certs/issue_cert_example.com")
	fmt.Println(len(info.Holders), err)
	fmt.Println(storage.Unlock(ctx, "issue_cert_example.com"))
	// Output:
	// 1 <nil>
	// <nil>
}
