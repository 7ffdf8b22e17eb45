package pagestried

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/batonhq/baton/internal/pagecode"
)

// A page is one that a pattern of pages finds.
type page struct {
	path   string // below the repository
	text   string
	blocks []pagecode.Block
}

// pages reads all pages.
func pages(repo fs.FS) (all []page, err error) {
	for _, pattern := range []string{"docs/coming-from*.md", "docs/coming-from/*.md", "docs/tutorials/*.md", "docs/explanation/*.md", "docs/howto*.md", "docs/howto/*.md"} {
		found, err := fs.Glob(repo, pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range found {
			text, err := fs.ReadFile(repo, name)
			if err != nil {
				return nil, err
			}
			all = append(all, page{name, string(text), pagecode.All(string(text))})
		}
	}
	return all, nil
}

// compiled are the files whose Go code the pages show: every one is compiled, and run, by
// the tests of its package.
var compiled = []string{"internal/pagestried/*_test.go", "adapters/compat/*/*_test.go", "adapters/cron/example_test.go", "examples/*/*.go"}

// sections are what each page of docs/coming-from/ has, in this order.
var sections = []string{
	"## Does the old one exclude the new one?", "## What maps to what", "## What gets better",
	"## What is different", "## Instance by instance",
}

// check returns what is wrong with the pages. ran says whether TestCommands or TestRules
// has a block.
func check(repo fs.FS, ran func(p page, b pagecode.Block) bool) (problems []string, err error) {
	all, err := pages(repo)
	if err != nil {
		return nil, err
	}
	var code strings.Builder
	for _, pattern := range compiled {
		found, err := fs.Glob(repo, pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range found {
			text, err := fs.ReadFile(repo, name)
			if err != nil {
				return nil, err
			}
			code.WriteString(pagecode.Plain(string(text)) + "\n")
		}
	}
	readme, err := fs.ReadFile(repo, "README.md")
	if err != nil {
		return nil, err
	}
	index, err := fs.ReadFile(repo, "docs/index.md")
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		problem := func(format string, args ...any) {
			problems = append(problems, p.path+": "+fmt.Sprintf(format, args...))
		}
		if !strings.Contains(string(readme), "]("+p.path+")") && !strings.Contains(string(index), "]("+strings.TrimPrefix(p.path, "docs/")+")") {
			problem("neither README.md nor docs/index.md names it")
		}
		for _, b := range p.blocks {
			switch {
			case b.Language == "go" && !strings.Contains(code.String(), pagecode.Plain(b.Text)):
				problem("no test compiles\n%s", b.Text)
			case b.Language != "go" && !ran(p, b):
				problem("no test runs this block of %q\n%s", b.Language, b.Text)
			}
		}
		if _, then, program := strings.Cut(p.text, "package main"); program && !strings.Contains(then, "go mod tidy") {
			problem("it does not say `go mod tidy` after the program: what the program imports has no line in go.sum")
		}
		if path.Dir(p.path) != "docs/coming-from" {
			continue
		}
		if n := strings.Count(p.text, "\n"); n < 40 || n > 100 {
			problem("%d lines, want 40 to 100", n)
		}
		first, _, _ := strings.Cut(p.text, sections[0])
		if !strings.Contains(first, "is read from") {
			problem("it does not say which version it is read from")
		}
		at := -1
		for _, s := range sections {
			next := strings.Index(p.text, s+"\n")
			if next <= at {
				problem("%q is missing or not in its place", s)
			}
			at = next
		}
	}
	return problems, nil
}

// runs says whether TestCommands or TestRules has a block. What an explanation draws has no
// language.
func runs(p page, b pagecode.Block) bool {
	return slices.Contains([]string{"sh", "text", "yaml"}, b.Language) || b.Language == "" && path.Dir(p.path) == "docs/explanation"
}

func TestPages(t *testing.T) {
	t.Parallel()
	repo := os.DirFS("../..")
	problems, err := check(repo, runs)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Error(p)
	}
	all, err := pages(repo)
	if err != nil || len(all) < 9 {
		t.Errorf("found %d pages (%v)", len(all), err)
	}
}

// TestPagesCatches plants pages that are wrong, and sees them found.
func TestPagesCatches(t *testing.T) {
	t.Parallel()
	const name = "docs/coming-from/planted.md"
	sound := "# Coming from planted\n\nIt is read from v1.\n\n" + strings.Join(sections, "\n\nText.\n\n") + "\n" +
		"```go\nlease, err := locks.Lock(ctx, key) // waits\n```\n```sh\nbaton ls\n```\n" + strings.Repeat("\nText.\n", 12)
	for _, c := range []struct{ name, old, new, want string }{
		{name: "sound"},
		{"code that nobody compiles", "locks.Lock(ctx, key)", "locks.Look(ctx, key)", "no test compiles"},
		{"code in a language that nobody runs", "```sh\n", "```java\n", `no test runs this block of "java"`},
		{"code without a language", "```sh\n", "```\n", `no test runs this block of ""`},
		{"a program that does not build", "```sh\n", "package main\n```sh\n", "does not say `go mod tidy`"},
		{"no version", "is read from", "knows", "which version"},
		{"a missing section", sections[2], "## More", "What gets better"},
		{"sections in another order", sections[1] + "\n\nText.\n\n" + sections[2], sections[2] + "\n\nText.\n\n" + sections[1], "not in its place"},
		{"a page of few lines", strings.Repeat("\nText.\n", 12), "", "lines, want"},
		{"a page of many lines", "\nText.\n", strings.Repeat("\nText.\n", 60), "lines, want"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			repo := fstest.MapFS{
				name:                            {Data: []byte(strings.Replace(sound, c.old, c.new, 1))},
				"README.md":                     {Data: []byte("[planted](" + name + ")")},
				"docs/index.md":                 {Data: []byte("[another](another.md)")},
				"internal/pagestried/x_test.go": {Data: []byte("package pagestried\n\nfunc f() {\n\tlease,  err := locks.Lock(ctx, key)\n}\n")},
			}
			problems, err := check(repo, runs)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(problems, "\n")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
			if repo["README.md"].Data = nil; c.want == "" {
				if problems, err = check(repo, runs); err != nil || len(problems) != 1 {
					t.Errorf("a page that README.md does not name: %q, %v", problems, err)
				}
				repo["docs/index.md"].Data = []byte("[planted](coming-from/planted.md)")
				if problems, err = check(repo, runs); err != nil || len(problems) != 0 {
					t.Errorf("a page that docs/index.md names: %q, %v", problems, err)
				}
			}
		})
	}
}
