package sqlitestore

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The names by which a file is known to be up to date are those that the schema makes.
func TestNamesAreThoseOfTheSchema(t *testing.T) {
	t.Parallel()
	made, known := make(map[string]bool), make(map[string]bool)
	for _, text := range []string{schema, limitsSchema, keptSchema} {
		for _, found := range regexp.MustCompile(`(?m)^CREATE \w+ IF NOT EXISTS (\w+)`).FindAllStringSubmatch(text, -1) {
			made["'"+found[1]+"'"] = true
		}
	}
	for name := range strings.SplitSeq(names, ", ") {
		known[name] = true
	}
	if !maps.Equal(made, known) || len(made) < 9 {
		t.Errorf("the schema makes %q, and known are %q", slices.Sorted(maps.Keys(made)), slices.Sorted(maps.Keys(known)))
	}
}

// Each thing that an older program did not make is made when a newer one opens the file.
func TestWhatIsMissingIsMade(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	first, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if ready, err := first.ready(must(first.opts.boot())); !ready || err != nil {
		t.Errorf("a file that was just made is not ready: %v, %v", ready, err)
	}
	for _, drop := range []string{"TABLE baton_kept", "INDEX baton_kept_until", "TABLE baton_limit_id", "VIEW baton_show"} {
		if _, err := first.conn.ExecContext(t.Context(), "DROP "+drop); err != nil {
			t.Fatal(err)
		}
		if ready, err := first.ready(must(first.opts.boot())); ready || err != nil {
			t.Errorf("without %s: %v, %v", drop, ready, err)
		}
		second, err := Open(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if ready, err := second.ready(must(second.opts.boot())); !ready || err != nil {
			t.Errorf("%s was not made: %v, %v", drop, ready, err)
		}
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
