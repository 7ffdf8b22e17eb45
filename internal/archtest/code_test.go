package archtest

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/batonhq/baton/internal/pagecode"
)

// TestCodeOfPagesIsTried: whoever writes a page with code writes a test that reads it.
func TestCodeOfPagesIsTried(t *testing.T) {
	t.Parallel()
	pages, untried, err := untriedPages(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if pages < 12 {
		t.Errorf("found only %d pages with code", pages)
	}
	for _, page := range untried {
		t.Errorf("%s shows code, and no test reads it", page)
	}
}

func TestCodeOfPagesIsTriedCatches(t *testing.T) {
	t.Parallel()
	code := &fstest.MapFile{Data: []byte("# x\n\n```go\nx()\n```\n")}
	pages, untried, err := untriedPages(fstest.MapFS{
		"README.md":             code,
		"docs/read.md":          code,
		"docs/words.md":         {Data: []byte("# x\n")},
		"docs/lost.md":          code,
		"docs/coming-from/a.md": code,
		"README.zh.md":          code,
		"docs/zh/a.md":          code,
		"docs/adr/a.md":         code,
		"readme_test.go":        {Data: []byte(`package x; const page = "README.md"; // "docs/lost.md" is named in no string of a test`)},
		"x/x_test.go":           {Data: []byte(`package x; var all = []string{"../docs/read.md", "../docs/*.md"}`)},
		"x/x.go":                {Data: []byte(`package x; const lost = "../docs/lost.md"`)},
	})
	if want := []string{"docs/lost.md"}; err != nil || pages != 3 || !slices.Equal(untried, want) {
		t.Errorf("of %d pages it finds %q, want %q: %v", pages, untried, want, err)
	}
}

var (
	pageName = regexp.MustCompile(`"(?:\.\./)*([^"\n]*\.md)"`)
	remark   = regexp.MustCompile(`(?m)(^|\s)//.*$`)
)

// tried are folders whose pages have their tests elsewhere, or tell of the past.
var tried = []string{"docs/adr", "docs/coming-from", "docs/explanation", "docs/howto", "docs/tutorials", "docs/zh"}

// untriedPages counts the pages with code, and finds those that no test names. Package
// internal/pagestried looks at the folders of tried, the code of pages in Chinese is that of the English
// ones, and commands in blocks of sh are cmd/baton's.
func untriedPages(repo fs.FS) (pages int, untried []string, err error) {
	var named, withCode []string
	err = fs.WalkDir(repo, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && name != "." || slices.Contains(tried, name)):
			return fs.SkipDir
		case strings.HasSuffix(name, "_test.go"):
			text, err := fs.ReadFile(repo, name)
			for _, found := range pageName.FindAllStringSubmatch(remark.ReplaceAllString(string(text), ""), -1) {
				named = append(named, found[1])
			}
			return err
		case strings.HasSuffix(name, ".md") && !strings.HasSuffix(name, ".zh.md") && (path.Dir(name) == "." || strings.HasPrefix(name, "docs/")):
			text, err := fs.ReadFile(repo, name)
			if slices.ContainsFunc(pagecode.All(string(text)), func(b pagecode.Block) bool { return b.Language != "" && b.Language != "sh" }) {
				withCode = append(withCode, name)
			}
			return err
		}
		return nil
	})
	for _, page := range withCode {
		if !slices.Contains(named, page) {
			untried = append(untried, page)
		}
	}
	return len(withCode), untried, err
}
