package webtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPageIsCompiled finds every Go block of docs/web.md in a test of this package, which
// runs it.
func TestPageIsCompiled(t *testing.T) {
	t.Parallel()
	plain := func(text string) string {
		var lines []string
		for line := range strings.Lines(text) {
			line, _, _ = strings.Cut(line, " // ")
			if line = strings.Join(strings.Fields(line), " "); line != "" {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "\n")
	}
	names, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	compiled := ""
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		compiled += plain(string(text)) + "\n"
	}
	page, err := os.ReadFile("../../docs/web.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```go\n")[1:]
	if len(blocks) < 6 {
		t.Errorf("found %d blocks", len(blocks))
	}
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		for part := range strings.SplitSeq(block, "\n\n") { // between them stands what to do about errors
			if !strings.Contains(compiled, plain(part)) {
				t.Errorf("docs/web.md shows what is compiled nowhere:\n%s", part)
			}
		}
	}
}
