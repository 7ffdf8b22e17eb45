package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// The pages are those of what is stored, and tell no addresses of servers that are gone.
func TestPages(t *testing.T) {
	t.Parallel()
	all, err := pages("../..")
	if err != nil {
		t.Fatal(err)
	}
	address := regexp.MustCompile(`127\.0\.0\.1|localhost|/tmp/`)
	for name, want := range all {
		got, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Error(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is stale: go run -C bench ./comparison -draw", name)
		}
		if found := address.Find(got); found != nil {
			t.Errorf("%s has the address %s", name, found)
		}
	}
	if len(all) != 4 {
		t.Errorf("%d pages, want 4", len(all))
	}
}
