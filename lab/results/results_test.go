// Package results has the records and the raw pages of measurements, for developers of
// Baton. docs/measured.md shows users some figures of these pages.
package results

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"
)

var update = flag.Bool("update", false, "write docs/measured.md from measured.md.tmpl and the pages beside it")

func TestMeasured(t *testing.T) {
	t.Parallel()
	page := template.New("measured.md.tmpl").Funcs(template.FuncMap{
		"cell": cell, "broke": broke, "list": func(s string) []string { return strings.Split(s, ", ") },
	})
	var want bytes.Buffer
	if err := template.Must(page.ParseFiles("measured.md.tmpl")).Execute(&want, nil); err != nil {
		t.Fatal(err)
	}
	const file = "../../docs/measured.md"
	if *update {
		if err := os.WriteFile(file, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s is stale: go test ./lab/results -update writes it (%v)", file, err)
	}
}

var between = regexp.MustCompile(` +\| +|  +`)

// table has the first table behind each of some texts in turn: of Markdown, or of indented text.
func table(page, behind string) (rows [][]string, err error) {
	text, err := os.ReadFile(page + ".md")
	_, rest, found := string(text), string(text), true
	for part := range strings.SplitSeq(behind, " > ") {
		if _, rest, found = strings.Cut(rest, part); !found {
			return nil, fmt.Errorf("%s.md has no %q (%w)", page, part, err)
		}
	}
	for line := range strings.Lines(rest) {
		if isRow := strings.HasPrefix(line, "|") || strings.HasPrefix(line, "  "); isRow && !strings.HasPrefix(line, "|--") {
			rows = append(rows, between.Split(strings.Trim(line, "| \n"), -1))
		} else if !isRow && rows != nil {
			break
		}
	}
	return rows, nil
}

// cell is the cell of a table in the row that begins with some cells, below the head of a column.
func cell(page, behind, row, column string) (string, error) {
	rows, err := table(page, behind)
	for _, cells := range rows {
		if i := slices.Index(rows[0], column) - len(rows[0]); i+len(rows[0]) >= 0 && strings.HasPrefix(strings.Join(cells, ", ")+", ", row) && i+len(cells) >= 0 {
			return cells[i+len(cells)], nil
		}
	}
	return "", fmt.Errorf("%s.md: %s has no %q, %q (%v)", page, behind, row, column, err)
}

// broke lists the faults under which a promise was seen broken on a kind of store.
func broke(promise, kind string) (string, error) {
	rows, err := table("verification", "seen broken.")
	var all []string
	for _, cells := range rows[min(1, len(rows)):] {
		if i := slices.Index(rows[0], kind); i > 0 && strings.Contains(cells[i], promise+" broke") {
			_, name, _ := strings.Cut(cells[0], " ")
			all = append(all, name)
		}
	}
	if all == nil {
		return "–", err
	}
	return strings.Join(all, ", "), err
}
