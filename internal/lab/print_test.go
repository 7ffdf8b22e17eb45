package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonhq/baton/internal/language"
	"github.com/batonhq/baton/internal/textwidth"
)

// No line of a record is wider than the terminal: a terminal breaks it in the middle of a
// word, and lanes no longer stand below each other.
func TestPrintFits(t *testing.T) {
	t.Parallel()
	records := samples()
	files, _ := filepath.Glob("../../docs/lab/*.json") // the pattern is right
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
	if len(records) < 40 {
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

func TestFold(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, before, want string }{
		{"one two three four five", "", "one two\nthree four\nfive"},
		{"one two three four five", "  ", "  one two\n  three\n  four\n  five"},
		{"a-word-that-is-wide", "", "a-word-tha\nt-is-wide"},
		{"持有锁的客户端", "", "持有锁的\n客户端"},
		{"锁已经归还，结束", "", "锁已经归\n还，结束"},
		{"锁已归还，结束", "", "锁已归还，\n结束"},
		{"", "", ""},
	} {
		if got := Fold(c.text, c.before, 10); got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}
