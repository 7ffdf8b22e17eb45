// Package translated writes the Chinese twins of pages that are made by a program or hold
// figures that are measured. The twin of a page is made of the page itself, block by block,
// with the translations in zh/NAME.txt. A test fails when a twin is stale or a block has no
// translation; "go generate" writes the twins anew, and so does each program that writes
// one of the pages.
//
// A block stands in one line of its catalogue (package catalogue). The figures of an entry
// are examples: those of the page take their places. Links stand as in the English page and
// are made to lead from the twin, to twins where there are some; their anchors are those of
// the Chinese page. Code, numbers, units and names of faults need no entry, and of a list
// each part may have its own. zh/common.txt belongs to all pages.
package translated

//go:generate go test -run ^TestTwinsAreFresh$ -update .

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/batonhq/baton/internal/catalogue"
)

// Pages are those that have their twins from here.
var Pages = []string{
	"GUARANTEES.md",
	"docs/architecture.md",
	"docs/benchmarks.md",
	"docs/metrics.md",
	"docs/requirements.md",
	"docs/soak.md",
	"docs/verification.md",
}

//go:embed zh/*.txt
var catalogues embed.FS

// Write writes the twin of a page of the repository. A block that has no translation stays
// English in it, and makes the test of this package fail.
func Write(repository, page string) error {
	twin, _, err := Twin(os.DirFS(repository), page)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(repository, filepath.FromSlash(nameOf(page))), []byte(twin), 0o644)
}

// Twin is the page in Chinese, with what is wrong with the translations.
func Twin(repository fs.FS, page string) (twin string, problems []string, err error) {
	text, err := fs.ReadFile(repository, page)
	if err != nil {
		return "", nil, err
	}
	catalogue, err := catalogues.ReadFile("zh/" + strings.TrimSuffix(path.Base(page), ".md") + ".txt")
	if err != nil {
		return "", nil, err
	}
	common, err := catalogues.ReadFile("zh/common.txt")
	if err != nil {
		return "", nil, err
	}
	t := &translation{words: make(map[string]entry), used: make(map[string]bool)}
	t.read(string(common))
	for key := range t.words {
		t.used[key] = true // by some page
	}
	t.read(string(catalogue))
	t.link = func(target string) string {
		if target == "" || strings.HasPrefix(target, "#") || strings.Contains(target, "://") {
			return target
		}
		file, anchor, has := strings.Cut(target, "#")
		to := path.Join(path.Dir(page), file)
		if twin := nameOf(to); strings.HasSuffix(to, ".md") {
			if _, err := fs.Stat(repository, twin); err == nil || slices.Contains(Pages, to) {
				to = twin
			}
		}
		rel, err := filepath.Rel(path.Dir(nameOf(page)), to)
		if err != nil {
			t.problems = append(t.problems, err.Error())
		}
		if rel = filepath.ToSlash(rel); has {
			rel += "#" + anchor
		}
		return rel
	}
	back, err := filepath.Rel(path.Dir(nameOf(page)), page)
	if err != nil {
		return "", nil, err
	}
	t.back = "[English](" + filepath.ToSlash(back) + ")"
	twin = t.page(string(text))
	for key, e := range t.words {
		if !t.used[key] {
			t.problems = append(t.problems, "no block of "+page+" is: "+e.english)
		}
	}
	slices.Sort(t.problems)
	return twin, t.problems, nil
}

// nameOf is the Chinese twin of an English page.
func nameOf(page string) string {
	if in, ok := strings.CutPrefix(page, "docs/"); ok {
		return "docs/zh/" + in
	}
	return strings.TrimSuffix(page, ".md") + ".zh.md"
}

// An entry is a translation of all blocks that differ in figures only.
type entry struct {
	english string
	other   []string // with figures between: the parts of a text
	figures []int    // which of the block's figures stands behind each part but the last
}

type translation struct {
	words    map[string]entry
	used     map[string]bool
	problems []string
	link     func(target string) string
	back     string // a link to the English page, which has one to this one
}

var (
	figure = regexp.MustCompile(`\d+([.,:]\d+)*`)
	link   = regexp.MustCompile(`\]\(([^)]*)\)`)
	nobody = regexp.MustCompile("`[^`]*`" + `|https?://\S+|\d(h|ms|m|s|µs)+| [KMG]i?B\b`)
	names  = regexp.MustCompile(`^([a-z]+-[a-z-]+(, [a-z-]+)*|f\d+ [a-z-]+)$`) // of faults
	letter = regexp.MustCompile(`\pL`)
)

// shape is a text without its figures.
func shape(text string) string { return figure.ReplaceAllString(text, "\x00") }

func (t *translation) read(text string) {
	for english, other := range catalogue.All(text) {
		t.add(english, other)
	}
}

func (t *translation) add(english, other string) {
	e := entry{english: english}
	of := figure.FindAllString(english, -1)
	taken := make([]bool, len(of))
	rest := other
	for {
		at := figure.FindStringIndex(rest)
		if at == nil {
			break
		}
		n := -1
		for i, f := range of {
			if f == rest[at[0]:at[1]] && !taken[i] {
				n, taken[i] = i, true
				break
			}
		}
		if n < 0 {
			t.problems = append(t.problems, fmt.Sprintf("the figure %s is not in: %s", rest[at[0]:at[1]], english))
			return
		}
		e.other, e.figures, rest = append(e.other, rest[:at[0]]), append(e.figures, n), rest[at[1]:]
	}
	if slices.Contains(taken, false) {
		t.problems = append(t.problems, "a figure is missing in the translation of: "+english)
	}
	e.other = append(e.other, rest)
	key := shape(english)
	if was, ok := t.words[key]; ok && !(slices.Equal(was.other, e.other) && slices.Equal(was.figures, e.figures)) {
		t.problems = append(t.problems, "two translations, by the figures, of: "+english)
	}
	t.words[key] = e
}

// knows reports that all parts of a list have translations, or need none.
func (t *translation) knows(list string) bool {
	if _, ok := t.words[shape(list)]; ok || !letter.MatchString(list) {
		return true
	}
	first, rest, ok := strings.Cut(list, ", ")
	return ok && t.knows(first) && t.knows(rest)
}

// say is a block in Chinese.
func (t *translation) say(block string) string {
	if strings.HasPrefix(block, "[简体中文](") {
		return t.back
	}
	key := shape(block)
	e, ok := t.words[key]
	if !ok {
		if first, rest, ok := strings.Cut(block, ", "); ok && t.knows(first) && t.knows(rest) {
			return t.say(first) + "，" + t.say(rest)
		}
		if !names.MatchString(block) && letter.MatchString(nobody.ReplaceAllString(block, "")) {
			t.problems = append(t.problems, "no translation of: "+block)
		}
		return t.relink(block)
	}
	t.used[key] = true
	figures := figure.FindAllString(block, -1)
	var b strings.Builder
	for i, part := range e.other {
		b.WriteString(part)
		if i < len(e.figures) {
			b.WriteString(figures[e.figures[i]])
		}
	}
	return t.relink(b.String())
}

func (t *translation) relink(text string) string {
	return link.ReplaceAllStringFunc(text, func(found string) string {
		return "](" + t.link(found[2:len(found)-1]) + ")"
	})
}

var begins = regexp.MustCompile(`^( *(?:[-*] |\d+\. )|#+ |\||<!--|` + "```)")

// page translates a page block by block. Of code, the lines are translated that have a
// translation: remarks.
func (t *translation) page(text string) string {
	var out []string
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		start := begins.FindString(line)
		switch {
		case line == "" || start == "<!--":
			out = append(out, line)
			continue
		case start == "```":
			end := i + 1 + slices.Index(lines[i+1:], "```")
			for _, code := range lines[i : end+1] {
				if _, ok := t.words[shape(code)]; ok {
					code = t.say(code)
				}
				out = append(out, code)
			}
			i = end
			continue
		case start == "|":
			out = append(out, t.row(line))
			continue
		}
		block := strings.TrimPrefix(line, start)
		for !strings.HasPrefix(start, "#") && i+1 < len(lines) && lines[i+1] != "" && begins.FindString(lines[i+1]) == "" {
			i++
			block += " " + strings.TrimSpace(lines[i])
		}
		out = append(out, start+t.say(block))
	}
	return strings.Join(out, "\n") + "\n"
}

// row translates a row of a table cell by cell.
func (t *translation) row(line string) string {
	if strings.Trim(line, "|-: ") == "" {
		return line
	}
	cells := strings.Split(strings.ReplaceAll(strings.Trim(line, "|"), `\|`, "\x01"), "|")
	for i, cell := range cells {
		if text := strings.TrimSpace(cell); text != "" {
			cells[i] = strings.Replace(cell, text, t.say(strings.ReplaceAll(text, "\x01", `\|`)), 1)
		}
	}
	return strings.ReplaceAll("|"+strings.Join(cells, "|")+"|", "\x01", `\|`)
}
