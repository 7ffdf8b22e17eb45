package open

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/batonhq/baton/store/mysqlstore"
	"github.com/batonhq/baton/store/pgstore"
)

// dialects are the stores whose tables a person may have to make. SQLite files belong to
// the store alone.
var dialects = map[string]func() string{
	"postgres": pgstore.Schema,
	"mysql":    mysqlstore.Schema,
}

// dialectOf is the dialect of a scheme.
var dialectOf = map[string]string{
	"postgres": "postgres", "postgresql": "postgres",
	"mysql": "mysql", "mariadb": "mysql",
}

// Dialects are the dialects of SQL for Schema.
func Dialects() []string { return slices.Sorted(maps.Keys(dialects)) }

// Schema returns the SQL that makes the tables of a dialect.
func Schema(dialect string) (sql string, ok bool) {
	text, ok := dialects[dialect]
	if !ok {
		return "", false
	}
	return text(), true
}

// Dialect is the dialect of the store at the URL, or "" if it has no tables that a person
// may have to make.
func Dialect(url string) string {
	scheme, _, _ := split(url)
	return dialectOf[scheme]
}

// Migrate makes the missing tables of the store at the URL. Its errors are those of
// Store, and errors.ErrUnsupported for a store without tables.
func Migrate(ctx context.Context, url string) error {
	a, err := parseKnown(url)
	if err != nil {
		return err
	}
	if Dialect(url) == "" {
		return fmt.Errorf("%s: no tables to make: %w", a, errors.ErrUnsupported)
	}
	// Opening the store makes them without migrate=false.
	a.params = slices.DeleteFunc(a.params, func(p param) bool { return p.name == "migrate" })
	store, err := openAddress(ctx, a)
	if err != nil {
		return err
	}
	return store.Close()
}
