package batongoose_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"testing/fstest"

	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite"

	"github.com/batonhq/baton"
	batongoose "github.com/batonhq/baton/adapters/goose"
	"github.com/batonhq/baton/store/sqlitestore"
)

// The lock is in the file that is migrated.
func Example() {
	ctx := context.Background()
	folder, err := os.MkdirTemp("", "batongoose")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	file := filepath.Join(folder, "shop.db")
	store, err := sqlitestore.Open(ctx, file)
	if err != nil {
		panic(err)
	}
	defer store.Close()
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		panic(err)
	}
	db, err := sql.Open("sqlite", "file:"+file)
	if err != nil {
		panic(err)
	}
	defer db.Close()
	migrations := fstest.MapFS{"1_items.sql": {Data: []byte("-- +goose Up\nCREATE TABLE items (id INTEGER);\n")}}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, migrations, goose.WithLocker(batongoose.New(locks, "migrate/shop")))
	if err != nil {
		panic(err)
	}
	applied, err := provider.Up(ctx)
	fmt.Println(len(applied), err)
	// Output: 1 <nil>
}
