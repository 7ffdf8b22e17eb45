package open

import (
	"context"
	"errors"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
	"github.com/batonhq/baton/store/sqlitestore"
)

func openMemory(_ context.Context, a *address) (driver.Store, error) {
	p := &params{given: a.params}
	if a.credentials || len(a.hosts) > 0 || a.path != "" {
		return nil, a.refuse(errors.New("memory has no parts: write just \"memory:\""))
	}
	if err := p.finish(); err != nil {
		return nil, a.refuse(err)
	}
	return memstore.New(), nil
}

func openSQLite(ctx context.Context, a *address) (driver.Store, error) {
	path, err := a.file()
	if err != nil {
		return nil, a.refuse(err)
	}
	return sqlitestore.Open(ctx, path)
}

// File returns the path of the file in a URL of SQLite. ok is false for URLs of other
// stores, and for those that Store refuses.
func File(url string) (path string, ok bool) {
	a, err := parse(url)
	if err != nil || a.scheme != "sqlite" {
		return "", false
	}
	path, err = a.file()
	return path, err == nil
}

// file parses the URL of a file: sqlite:relative, sqlite:/absolute or sqlite:///absolute.
func (a *address) file() (string, error) {
	path := a.path
	if a.slashes {
		if a.credentials || len(a.hosts) > 0 || path == "" {
			return "", errors.New("a file has no host: write sqlite:PATH, or sqlite:/// and an absolute path")
		}
		path = "/" + path
	}
	if path == "" {
		return "", errors.New("the path is missing: write sqlite:PATH")
	}
	return path, (&params{given: a.params}).finish()
}
