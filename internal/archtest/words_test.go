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

const glossary = "docs/glossary.md"

// TestWords finds words that the glossary forbids.
func TestWords(t *testing.T) {
	t.Parallel()
	problems, err := checkWords(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Error(problem)
	}
}

// TestWordsCatch plants violations and sees them found.
func TestWordsCatch(t *testing.T) {
	t.Parallel()
	const text = "| word | means |\n|---|---|\n| lease | `Lock` |\n\n| say | never | not for this |\n|---|---|---|\n| lease | `tenure` | loan |\n| queue | `in line`, `lines up` | |\n"
	for _, c := range []struct{ name, file, text, want string }{
		{"sound", "README.md", "A lease on a loan, and a waiter in a queue.", ""},
		{"a word", "README.md", "One.\nIts Tenure ends.", "README.md:2 says \"tenure\": the word is lease"},
		{"several", "docs/x.md.tmpl", "Tenures end.", "docs/x.md.tmpl:1"},
		{"a part of a word", "README.md", "Untenured.", ""},
		{"a phrase over two lines", "README.md", "It stands in\nline.", "README.md:1 says \"in line\": the word is queue"},
		{"a name of code in a page", "README.md", "See `tenure.go`.", ""},
		{"a block of code in a page", "README.md", "```go\ntenure()\n```\nIt ends.", ""},
		{"after a block of code", "README.md", "```go\nx()\n```\nIts tenure ends.", "README.md:4"},
		{"a decision", "docs/adr/0001-x.md", "The tenure.", ""},
		{"the glossary", glossary, "", ""},
		{"code", "store/x/x.go", "package x\n\nfunc newTenure() {}\n", "store/x/x.go:3 says \"tenure\""},
		{"a comment", "x.sql", "-- its tenure\n", "x.sql:1"},
		{"a phrase in code", "x.go", "package x // in line\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			files := fstest.MapFS{glossary: {Data: []byte(text)}}
			if c.file != glossary {
				files[c.file] = &fstest.MapFile{Data: []byte(c.text)}
			}
			problems, err := checkWords(files)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(problems, "\n")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}

// checkWords looks for words in pages and in code, and for phrases in pages.
func checkWords(repo fs.FS) (problems []string, err error) {
	raw, err := fs.ReadFile(repo, glossary)
	if err != nil {
		return nil, err
	}
	never := forbidden(string(raw))
	if len(never) == 0 {
		return nil, fmt.Errorf("%s forbids nothing", glossary)
	}
	err = eachFile(repo, true, func(name string) error {
		page := strings.HasSuffix(name, ".md") || strings.HasSuffix(name, ".md.tmpl")
		code := slices.Contains([]string{".go", ".lua", ".sql", ".sh"}, path.Ext(name))
		if !page && !code || name == glossary || name == "internal/archtest/words_test.go" || strings.HasPrefix(name, "docs/adr/") {
			return nil
		}
		raw, err := fs.ReadFile(repo, name)
		if err != nil {
			return err
		}
		text := string(raw)
		if page {
			text = codeInLine.ReplaceAllString(pagecode.Prose(text), "")
		} else {
			text = humps.ReplaceAllString(text, "$1 $2")
		}
		lower := strings.ToLower(text)
		for word, instead := range never {
			first, _, phrase := strings.Cut(word, " ")
			if code && phrase || !strings.Contains(lower, first) {
				continue
			}
			said := regexp.MustCompile(`(?i)\b` + strings.ReplaceAll(word, " ", `\s+`) + `s?\b`)
			if at := said.FindStringIndex(text); at != nil {
				problems = append(problems, fmt.Sprintf("%s:%d says %q: the word is %s (%s)",
					name, 1+strings.Count(text[:at[0]], "\n"), word, instead, glossary))
			}
		}
		return nil
	})
	slices.Sort(problems)
	return problems, err
}

var (
	codeInLine = regexp.MustCompile("`[^`\n]*`")
	humps      = regexp.MustCompile(`([a-z0-9])([A-Z])`) // of a name in code
	quoted     = regexp.MustCompile("`([^`]+)`")
)

// forbidden reads the column "never" of the glossary's last table, and what to say
// instead.
func forbidden(text string) map[string]string {
	never := make(map[string]string)
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		for _, word := range quoted.FindAllStringSubmatch(cells[2], -1) {
			never[word[1]] = strings.TrimSpace(cells[1])
		}
	}
	return never
}
