//go:build unix

package sqlitestore_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/sqlitestore"
)

// Locks of the processes of one machine, by a file that the first of them makes.
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	ctx := context.Background()
	store, err := sqlitestore.Open(ctx, filepath.Join(dir, "locks.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		log.Fatal(err)
	}
	err = locks.Do(ctx, "report", func(ctx context.Context, lease *baton.Lease) error {
		fmt.Println(lease.Key(), ctx.Err())
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: report <nil>
}
