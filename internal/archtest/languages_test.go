package archtest

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

	"github.com/batonhq/baton/internal/pagecode"
)

// englishOnly are pages, or folders of pages, that need none in Chinese.
var englishOnly = map[string]string{
	"CHANGELOG.md":                         "it is written for each change, by those who make it",
	"docs/adr/":                            "decisions keep the words of those who made them, and are read by those who change the code",
	".github/":                             "forms of the forge, which has one for all languages",
	"adapters/metrics/testdata/command.md": "a part of docs/metrics.md",
	"clients/bash/":                        "one README is the page of a package in the registry of its language",
	"clients/java/":                        "one README is the page of a package in the registry of its language",
	"clients/node/":                        "one README is the page of a package in the registry of its language",
	"clients/php/":                         "one README is the page of a package in the registry of its language",
	"clients/python/":                      "one README is the page of a package in the registry of its language",
}

// TestLanguagesAgree compares each page in Chinese with the English one: NAME.zh.md beside it, and
// docs/zh/NAME.md. Each page has one in Chinese.
func TestLanguagesAgree(t *testing.T) {
	t.Parallel()
	pages, problems, err := checkLanguages(os.DirFS("../.."), englishOnly)
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
		{"a link to the English page", "docs/zh/b.md", "docs/b.md", `the link "docs/b.md" leads to a page that is there in Chinese`},
		{"another link", "docs/zh/b.md", "docs/zh/c.md", `section 1: the link "docs/c.md" stands where A.md has "docs/b.md"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pages, problems, err := checkLanguages(fstest.MapFS{
				"A.md":         {Data: []byte(english)},
				"A.zh.md":      {Data: []byte(strings.Replace(chinese, c.old, c.new, 1))},
				"docs/b.md":    {Data: []byte("# b\n")},
				"docs/zh/b.md": {Data: []byte("# 乙\n")},
			}, nil)
			all := strings.Join(problems, "\n")
			if err != nil || pages != 2 || (c.want == "") != (all == "") || !strings.Contains(all, c.want) {
				t.Errorf("of %d pages it says %q, want %q: %v", pages, all, c.want, err)
			}
		})
	}
}

func TestLanguagesCatchMissingPages(t *testing.T) {
	t.Parallel()
	page := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	for _, c := range []struct {
		name, want string
		more       fstest.MapFS
	}{
		{name: "sound"},
		{"English alone", "docs/how/c.md: there is no docs/zh/how/c.md", fstest.MapFS{"docs/how/c.md": page("# c\n")}},
		{"English alone at the top", "NEW.md: there is no NEW.zh.md", fstest.MapFS{"NEW.md": page("# n\n")}},
		{"English alone elsewhere", "clients/x/README.md: there is no clients/x/README.zh.md", fstest.MapFS{"clients/x/README.md": page("# x\n")}},
		{"Chinese alone", "docs/zh/c.md: there is no docs/c.md", fstest.MapFS{"docs/zh/c.md": page("# c\n")}},
		{"Chinese alone at the top", "NEW.zh.md: there is no NEW.md", fstest.MapFS{"NEW.zh.md": page("# n\n")}},
		{"an exception for nothing", "docs/old/ is no page", fstest.MapFS{"docs/old/": nil}},
		{"an exception that has a page in Chinese", "docs/adr/1.md has a page in Chinese", fstest.MapFS{"docs/zh/adr/1.md": page("# x\n")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			repo := fstest.MapFS{"A.md": page("# a\n"), "A.zh.md": page("# a\n"), "docs/b.md": page("# b\n"), "docs/zh/b.md": page("# b\n"), "docs/adr/1.md": page("# x\n")}
			alone := map[string]string{"docs/adr/": "of old"}
			for name, file := range c.more {
				if file == nil {
					alone[name] = "gone"
				} else {
					repo[name] = file
				}
			}
			_, problems, err := checkLanguages(repo, alone)
			all := strings.Join(problems, "\n")
			if err != nil || (c.want == "") != (all == "") || !strings.Contains(all, c.want) {
				t.Errorf("it says %q, want %q: %v", all, c.want, err)
			}
		})
	}
}

// checkLanguages counts the pages in Chinese, and says where they differ from the English ones,
// and which page is there in one language only, but for those in alone.
func checkLanguages(repo fs.FS, alone map[string]string) (count int, problems []string, err error) {
	names, err := pagesOf(repo)
	if err != nil {
		return 0, nil, err
	}
	excused := make(map[string]bool)
	for _, name := range names {
		of := englishOf(name)
		exception, isAlone := of, alone[of] != ""
		for folder := range alone {
			if strings.HasSuffix(folder, "/") && strings.HasPrefix(of, folder) {
				exception, isAlone = folder, true
			}
		}
		excused[exception] = true
		switch {
		case isAlone && of == name:
		case isAlone:
			problems = append(problems, of+" has a page in Chinese, and is an exception that needs none")
		case of == name:
			if twin := chineseOf(name); !slices.Contains(names, twin) {
				problems = append(problems, name+": there is no "+twin)
			}
		case !slices.Contains(names, of):
			problems = append(problems, name+": there is no "+of)
		default:
			count++
			chinese, err := fs.ReadFile(repo, name)
			if err != nil {
				return 0, nil, err
			}
			english, err := fs.ReadFile(repo, of)
			if err != nil {
				return 0, nil, err
			}
			for _, link := range leaving(names, name, string(chinese)) {
				problems = append(problems, fmt.Sprintf("%s: the link %q leads to a page that is there in Chinese", name, link))
			}
			for _, difference := range differences(of, sectionsOf(of, string(english)), sectionsOf(name, string(chinese))) {
				problems = append(problems, name+": "+difference)
			}
		}
	}
	for exception := range alone {
		if !excused[exception] {
			problems = append(problems, exception+" is no page, and an exception")
		}
	}
	return count, problems, nil
}

// leaving are the links of a Chinese page to English pages that have one in Chinese, but for that to its own.
func leaving(names []string, name, page string) (all []string) {
	for _, link := range pageLink.FindAllStringSubmatch(inlineCode.ReplaceAllString(pagecode.Prose(page), ""), -1) {
		file, _, _ := strings.Cut(link[1], "#")
		to := path.Join(path.Dir(name), file)
		if strings.HasSuffix(file, ".md") && to != englishOf(name) && englishOf(to) == to && slices.Contains(names, chineseOf(to)) {
			all = append(all, link[1])
		}
	}
	return all
}

// pagesOf returns the pages of the repository, in both languages.
func pagesOf(repo fs.FS) (names []string, err error) {
	err = fs.WalkDir(repo, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && name != "." && name != ".github" || d.Name() == "node_modules" || d.Name() == "dist"):
			return fs.SkipDir
		case strings.HasSuffix(name, ".md"):
			names = append(names, name)
		}
		return nil
	})
	return names, err
}

// englishOf is the English page of a page in either language.
func englishOf(name string) string {
	return strings.Replace(strings.Replace(name, ".zh.md", ".md", 1), "docs/zh/", "docs/", 1)
}

// chineseOf is the Chinese page of an English one: of docs/ below docs/zh/, of any other folder beside it.
func chineseOf(name string) string {
	if in, ok := strings.CutPrefix(name, "docs/"); ok {
		return "docs/zh/" + in
	}
	return strings.TrimSuffix(name, ".md") + ".zh.md"
}

// A section is what stands between two headings.
type section struct {
	level                         string // "##"
	blocks, figures, names, links []string
}

var (
	heading    = regexp.MustCompile(`(?m)^(#+) .*$`)
	codeRemark = regexp.MustCompile(`(?m)(^|\s+)(//|#)(\s.*)?$`)
	inlineCode = regexp.MustCompile("`[^`]+`")
	pageLink   = regexp.MustCompile(`\]\(([^)]*)\)`)
	figure     = regexp.MustCompile(`\d+([.,:]\d+)*`)
)

// sectionsOf takes a page apart. Remarks in code are in the language of the page.
func sectionsOf(name, page string) (all []section) {
	lines := strings.SplitAfter(page, "\n")
	var starts []int
	for i, line := range strings.Split(pagecode.Prose(page), "\n") {
		if heading.MatchString(line) {
			starts = append(starts, i)
		}
	}
	for i, start := range starts {
		end := len(lines)
		if i+1 < len(starts) {
			end = starts[i+1]
		}
		whole := strings.Join(lines[start:end], "")
		s := section{level: heading.FindStringSubmatch(whole)[1]}
		for _, b := range pagecode.All(whole) {
			s.blocks = append(s.blocks, strings.TrimSpace(codeRemark.ReplaceAllString(b.Text, "")))
		}
		text := pagecode.Prose(whole)
		for _, name := range inlineCode.FindAllString(text, -1) {
			s.names = append(s.names, strings.Join(strings.Fields(name), " ")) // lines end elsewhere
		}
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
