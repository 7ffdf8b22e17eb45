package archtest

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"unicode"

	"github.com/batonhq/baton/internal/pagecode"
)

// TestAnchorsLead looks for the heading of each link with an anchor. Files are
// looked for by TestReadmeLinksLead.
func TestAnchorsLead(t *testing.T) {
	t.Parallel()
	links, problems, err := checkAnchors(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if links < 20 {
		t.Errorf("found only %d links with an anchor", links)
	}
	for _, problem := range problems {
		t.Error(problem)
	}
}

func TestAnchorsLeadCatches(t *testing.T) {
	t.Parallel()
	const page = "# Top of `it`, all\n\n[one](#one-two) [again](#one-two-1) [b](docs/b.md#集成测试只有-x) [c](docs/b.md) [far](https://x.org/a.md#b) `[no](#no)`\n\n" +
		"## One Two\n\n## One *Two*\n\n```sh\n# none\n```\n\n## A [link](b.md#x) to_x: `Y.Z`!\n\n[own](#a-link-to_x-yz) [top](#top-of-it-all)\n"
	for _, c := range []struct{ name, old, new, want string }{
		{name: "sound"},
		{"a heading that has gone", "## One Two\n\n## One *Two*", "## One Two", "A.md: #one-two-1 is no heading of A.md"},
		{"a heading of another page", "docs/b.md#集成测试只有-x", "docs/b.md#集成测试-只有-x", "A.md: #集成测试-只有-x is no heading of docs/b.md"},
		{"a remark in code", "(#one-two)", "(#none)", "#none is no heading of A.md"},
		{"a page that has gone", "docs/b.md#", "docs/c.md#", "A.md: there is no docs/c.md"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			links, problems, err := checkAnchors(fstest.MapFS{
				"A.md":      {Data: []byte(strings.Replace(strings.Replace(page, "b.md#x", "docs/b.md#x", 1), c.old, c.new, 1))},
				"docs/b.md": {Data: []byte("# X\n\n## 集成测试：只有 `x`\n\n[up](../A.md#one-two)\n")},
			})
			all := strings.Join(problems, "\n")
			if err != nil || links != 7 || (c.want == "") != (all == "") || !strings.Contains(all, c.want) {
				t.Errorf("of %d links it says %q, want %q: %v", links, all, c.want, err)
			}
		})
	}
}

// checkAnchors counts the links with an anchor to a heading of a page of the repository,
// and says which of them lead nowhere.
func checkAnchors(repo fs.FS) (links int, problems []string, err error) {
	names, err := pagesOf(repo)
	if err != nil {
		return 0, nil, err
	}
	anchors := make(map[string]map[string]bool) // of pages
	text := make(map[string]string)
	for _, name := range names {
		raw, err := fs.ReadFile(repo, name)
		if err != nil {
			return 0, nil, err
		}
		text[name] = pagecode.Prose(string(raw))
		anchors[name] = anchorsOf(text[name])
	}
	for _, name := range names {
		for _, link := range pageLink.FindAllStringSubmatch(inlineCode.ReplaceAllString(text[name], ""), -1) {
			file, anchor, found := strings.Cut(link[1], "#")
			if !found || strings.Contains(file, "://") || file != "" && !strings.HasSuffix(file, ".md") {
				continue
			}
			links++
			of := name
			if file != "" {
				of = path.Join(path.Dir(name), file)
			}
			switch {
			case anchors[of] == nil:
				problems = append(problems, fmt.Sprintf("%s: there is no %s", name, of))
			case !anchors[of][anchor]:
				problems = append(problems, fmt.Sprintf("%s: #%s is no heading of %s", name, anchor, of))
			}
		}
	}
	return links, problems, nil
}

var linkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)

// anchorsOf returns the anchors that GitHub makes of the headings of a page without
// code. The site makes the same (site/.vitepress/config.mjs).
func anchorsOf(page string) map[string]bool {
	all := make(map[string]bool)
	count := make(map[string]int)
	for _, line := range heading.FindAllString(page, -1) {
		text := linkText.ReplaceAllString(strings.TrimLeft(line, "# "), "$1")
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsNumber(r), unicode.IsMark(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(text))
		if n := count[slug]; n > 0 {
			all[fmt.Sprintf("%s-%d", slug, n)] = true
		} else {
			all[slug] = true
		}
		count[slug]++
	}
	return all
}
