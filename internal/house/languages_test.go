package house

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// TestLanguagesAgree compares each page in Chinese with the English one: README.zh.md, and docs/zh/NAME.md.
func TestLanguagesAgree(t *testing.T) {
	t.Parallel()
	pages, problems, err := checkLanguages(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if pages == 0 {
		t.Error("no page is there in Chinese")
	}
	for _, problem := range problems {
		t.Error(problem)
	}
}

func TestLanguagesCatch(t *testing.T) {
	t.Parallel()
	const english = "# A\n\n[简体中文](A.zh.md)\n\nIt takes 15 s and `x`, see [b](docs/b.md).\n\n## B\n\n```sh\nrun -n 5  # wait\n```\n\n- one `y`\n"
	const chinese = "# A\n\n[English](A.md)\n\n需要 15 s 和 `x`，见 [b](docs/zh/b.md)。\n\n## 乙\n\n```sh\nrun -n 5  # 等待\n```\n\n- 一 `y`\n"
	for _, c := range []struct{ name, old, new, want string }{
		{name: "sound"},
		{"a missing heading", "## 乙\n\n", "", "A.zh.md: its headings are # where those of A.md are # ##"},
		{"a heading of another level", "## 乙", "### 乙", "its headings are # ### where"},
		{"another command", "run -n 5", "run -n 6", `section 2: the code "run -n 6" stands where A.md has "run -n 5"`},
		{"a block is missing", "```sh\nrun -n 5  # 等待\n```\n", "", "section 2: it has 0 blocks of code, A.md has 1"},
		{"another figure", "15 s", "16 s", `section 1: the figure "16" stands where A.md has "15"`},
		{"a figure is missing", "15 s", "几秒", `section 1: the figure "" stands where A.md has "15"`},
		{"another name", "`y`", "`z`", "section 2: the name \"`z`\" stands where A.md has \"`y`\""},
		{"another link", "docs/zh/b.md", "docs/zh/c.md", `section 1: the link "docs/c.md" stands where A.md has "docs/b.md"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pages, problems, err := checkLanguages(fstest.MapFS{
				"A.md":         {Data: []byte(english)},
				"A.zh.md":      {Data: []byte(strings.Replace(chinese, c.old, c.new, 1))},
				"docs/b.md":    {Data: []byte("# b\n")},
				"docs/zh/b.md": {Data: []byte("# 乙\n")},
			})
			all := strings.Join(problems, "\n")
			if err != nil || pages != 2 || (c.want == "") != (all == "") || !strings.Contains(all, c.want) {
				t.Errorf("of %d pages it says %q, want %q: %v", pages, all, c.want, err)
			}
		})
	}
	if _, problems, err := checkLanguages(fstest.MapFS{"docs/zh/lost.md": {Data: []byte("# x\n")}}); err == nil && len(problems) == 0 {
		t.Error("a page that is there in Chinese alone is not noticed")
	}
}

// checkLanguages counts the pages in Chinese, and says where they differ from the English ones.
func checkLanguages(repo fs.FS) (count int, problems []string, err error) {
	var names []string
	for _, pattern := range []string{"*.zh.md", "docs/zh/*.md", "docs/zh/*/*.md"} {
		found, err := fs.Glob(repo, pattern)
		if err != nil {
			return 0, nil, err
		}
		names = append(names, found...)
	}
	for _, name := range names {
		chinese, err := fs.ReadFile(repo, name)
		if err != nil {
			return 0, nil, err
		}
		of := englishOf(name)
		english, err := fs.ReadFile(repo, of)
		if err != nil {
			return 0, nil, err
		}
		for _, difference := range differences(of, sectionsOf(of, string(english)), sectionsOf(name, string(chinese))) {
			problems = append(problems, name+": "+difference)
		}
	}
	return len(names), problems, nil
}

// englishOf is the English page of a page in either language.
func englishOf(name string) string {
	return strings.Replace(strings.Replace(name, ".zh.md", ".md", 1), "docs/zh/", "docs/", 1)
}

// A section is what stands between two headings.
type section struct {
	level                         string // "##"
	blocks, figures, names, links []string
}

var (
	heading    = regexp.MustCompile(`(?m)^(#+) .*$`)
	codeBlock  = regexp.MustCompile("(?ms)^```.*?^```$")
	codeRemark = regexp.MustCompile(`(?m)(^|\s+)(//|#)(\s.*)?$`)
	inlineCode = regexp.MustCompile("`[^`]+`")
	pageLink   = regexp.MustCompile(`\]\(([^)]*)\)`)
	figure     = regexp.MustCompile(`\d+([.,:]\d+)*`)
)

// sectionsOf takes a page apart. Remarks in code are in the language of the page.
func sectionsOf(name, page string) (all []section) {
	blocks := make(map[int][]string) // of sections
	count := 0
	page = codeBlock.ReplaceAllStringFunc(page, func(block string) string {
		count++
		blocks[count] = []string{strings.TrimSpace(codeRemark.ReplaceAllString(strings.Trim(block, "`"), ""))}
		return fmt.Sprintf("\x00%c", rune(0xE000+count)) // no figure of the text
	})
	starts := heading.FindAllStringSubmatchIndex(page, -1)
	for i, at := range starts {
		end := len(page)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		s := section{level: page[at[2]:at[3]]}
		text := page[at[0]:end]
		for r := range strings.SplitSeq(text, "\x00") {
			if n := int([]rune(r + " ")[0]) - 0xE000; n > 0 && blocks[n] != nil {
				_, code, _ := strings.Cut(blocks[n][0], "\n")
				s.blocks = append(s.blocks, strings.TrimSpace(code))
			}
		}
		s.names = inlineCode.FindAllString(text, -1)
		text = inlineCode.ReplaceAllString(text, "")
		for _, link := range pageLink.FindAllStringSubmatch(text, -1) {
			target, _, _ := strings.Cut(link[1], "#") // headings have other names
			if target != "" && !strings.Contains(target, "://") {
				target = englishOf(path.Join(path.Dir(name), target))
			}
			s.links = append(s.links, target)
		}
		s.figures = figure.FindAllString(pageLink.ReplaceAllString(text, "]"), -1)
		all = append(all, s)
	}
	return all
}

func differences(of string, english, chinese []section) (all []string) {
	levels := func(sections []section) string {
		var all []string
		for _, s := range sections {
			all = append(all, s.level)
		}
		return strings.Join(all, " ")
	}
	if e, c := levels(english), levels(chinese); e != c {
		return []string{fmt.Sprintf("its headings are %s where those of %s are %s", c, of, e)}
	}
	for i, e := range english {
		c := chinese[i]
		if len(e.blocks) != len(c.blocks) {
			all = append(all, fmt.Sprintf("section %d: it has %d blocks of code, %s has %d", i+1, len(c.blocks), of, len(e.blocks)))
		} else {
			lines := func(blocks []string) []string { return strings.Split(strings.Join(blocks, "\n"), "\n") }
			all = append(all, first(of, i, "code", lines(e.blocks), lines(c.blocks))...)
		}
		// A language has an order of its own.
		for _, kind := range []struct {
			name             string
			english, chinese []string
		}{{"figure", e.figures, c.figures}, {"name", e.names, c.names}, {"link", e.links, c.links}} {
			slices.Sort(kind.english)
			slices.Sort(kind.chinese)
			all = append(all, first(of, i, kind.name, kind.english, kind.chinese)...)
		}
	}
	return all
}

// first is the first difference of two lists.
func first(of string, section int, what string, english, chinese []string) []string {
	at := func(list []string, i int) string {
		if i < len(list) {
			return list[i]
		}
		return ""
	}
	for i := range max(len(english), len(chinese)) {
		if e, c := at(english, i), at(chinese, i); e != c {
			return []string{fmt.Sprintf("section %d: the %s %q stands where %s has %q", section+1, what, c, of, e)}
		}
	}
	return nil
}
