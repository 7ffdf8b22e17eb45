package sqlitestore

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/batonhq/baton/internal/sqltext"
)

// meantScans are parts of the statements that read a whole table, and why.
var meantScans = map[string]string{
	"SELECT ifnull(max(last), 0) FROM baton_lock)": "after a boot, once: every counter is remembered before the rows go",
}

// Every statement of the source is explained, and none reads a whole table that is
// not meant to. SQLite makes its plans by the indexes, whatever the tables hold.
func TestNoStatementScans(t *testing.T) {
	s := openNew(t, newWorld().option)
	source, err := sqltext.InGo(os.DirFS("."))
	if err != nil || len(source) < 25 {
		t.Fatalf("the source has %d statements, %v", len(source), err)
	}
	all := append(slices.Clone(statements[stBoot:]), listSQL, listTextsSQL, listStatesSQL, grantedSQL, inTxSQL)
	for _, x := range sqltext.Missing(source, all) {
		all = append(all, x.SQL) // then it has to be one by itself
	}
	reads := make(map[string]string) // the step that reads a whole table, by statement
	for _, text := range all {
		for _, step := range explain(t, s, text) {
			if scans(step) {
				reads[text] = step
			}
		}
	}
	unmeant, unused := sqltext.Unmeant(slices.Collect(maps.Keys(reads)), meantScans)
	for _, text := range unmeant {
		t.Errorf("%q in\n%s", reads[text], text)
	}
	for _, part := range unused {
		t.Errorf("no statement with %q scans: it needs no exception", part)
	}

	// The test itself: this is how a scan looks.
	for _, text := range []string{"SELECT k FROM baton_lock WHERE ends > ?1", "UPDATE baton_claim AS c SET ttl = 1 WHERE c.seq = 5"} {
		if steps := explain(t, s, text); !slices.ContainsFunc(steps, scans) {
			t.Errorf("the scan of %q is not seen: %q", text, steps)
		}
	}
}

// scans reports whether a step of a plan reads a whole table or index.
func scans(step string) bool {
	what, how, _ := strings.Cut(step, " ")
	if what == "SEARCH" {
		return !strings.Contains(how, "(") // it searches for nothing
	}
	return what == "SCAN" && !strings.Contains(how, "VIRTUAL TABLE") && !strings.Contains(how, "(") && how != "CONSTANT ROW" && !strings.HasSuffix(how, "VALUES CLAUSE")
}

func explain(t *testing.T, s *Store, text string) (steps []string) {
	t.Helper()
	rows, err := s.readers.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+text, make([]any, 12)...)
	if err != nil {
		t.Fatalf("this is no statement by itself, and part of none in the list: %s: %v", text, err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, parent, unused int
		var step string
		if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
			t.Fatal(err)
		}
		steps = append(steps, step)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return steps
}
