package frameworks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonhq/baton/internal/pagecode"
	"github.com/batonhq/baton/internal/testserver"
)

// TestPageIsCompiled finds every Go block of docs/web.md in a test of this package, which
// runs it.
func TestPageIsCompiled(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
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
		compiled += pagecode.Plain(string(text)) + "\n"
	}
	page, err := os.ReadFile("../../docs/web.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := pagecode.Blocks(string(page), "go")
	if len(blocks) < 6 {
		t.Errorf("found %d blocks", len(blocks))
	}
	for _, block := range blocks {
		for part := range strings.SplitSeq(block, "\n\n") { // between them stands what to do about errors
			if !strings.Contains(compiled, pagecode.Plain(part)) {
				t.Errorf("docs/web.md shows what is compiled nowhere:\n%s", part)
			}
		}
	}
}
