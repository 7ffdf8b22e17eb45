package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonhq/baton/internal/textwidth"
	"github.com/batonhq/baton/lab/language"
)

// No line of a record is wider than the terminal: a terminal breaks it in the middle of a
// word, and lanes no longer stand below each other.
func TestPrintFits(t *testing.T) {
	t.Parallel()
	records := samples()
	files, _ := filepath.Glob("../docs/lab/*.json") // the pattern is right
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		r, err := ReadRecord(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, r)
	}
	if len(records) < 30 {
		t.Fatalf("there are %d records", len(records))
	}
	for _, r := range records {
		for _, l := range language.All {
			for _, width := range []int{30, 40, 80, 120} {
				var b strings.Builder
				if err := r.Print(&b, l, width); err != nil {
					t.Fatal(err)
				}
				for line := range strings.Lines(b.String()) {
					if line = strings.TrimSuffix(line, "\n"); textwidth.Of(line) > width {
						t.Errorf("%s, %s, %d columns: %d: %s", r.Question, l, width, textwidth.Of(line), line)
					}
				}
			}
		}
	}
}
