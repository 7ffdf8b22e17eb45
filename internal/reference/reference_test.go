package reference

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

var update = flag.Bool("update", false, "write docs/reference/errors.md and configuration.md, in both languages")

func TestPagesAreFresh(t *testing.T) {
	t.Parallel()
	all, err := read(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Errorf("found only %d packages", len(all))
	}
	for _, l := range []*language{english(), chinese()} {
		for name, page := range l.pages(all) {
			file := filepath.Join("../..", name)
			if *update {
				if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if have, err := os.ReadFile(file); err != nil || string(have) != page {
				t.Errorf("%s is stale (%v): go generate ./internal/reference", name, err)
			}
		}
		for _, text := range l.missing {
			t.Errorf("zh.txt has no translation of\n%s", text)
		}
		for _, text := range l.unused() {
			t.Errorf("zh.txt translates what no comment says:\n%s", text)
		}
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	all, err := read(fstest.MapFS{
		"x/x.go": {Data: []byte(`package x

// ErrA says a,
// see [y.Z].
var ErrA = errors.New("a")

var (
	ErrB = errors.New("b is off") // no comment
	ErrC = errors.New("c is off")
	errD = errors.New("d")
)

// BError refuses b.
//
// It is <odd>.
type BError struct{ Reason string }

func (*BError) Error() string { return "" }

// OldError is one of another package.
type OldError = y.OldError

// Config says how.
type Config struct {
	// TTL ends it. Defaults to 15s, or less. It is short.
	TTL  time.Duration
	Wait, Keep int // are both. Defaults to 0.
	own  int
}

type other struct{ A int }
`)},
		"x/x_test.go":     {Data: []byte("package x\n\nvar ErrTest = 1\n")},
		"internal/i/i.go": {Data: []byte("package i\n\nvar ErrI = 1\n")},
		"cmd/c/c.go":      {Data: []byte("package main\n\nvar ErrM = 1\n")},
	})
	if err != nil || len(all) != 1 {
		t.Fatalf("read %v: %v", all, err)
	}
	l := english()
	l.errors, l.config, l.otherwise = "", "", "end\n"
	pages := l.pages(all)
	for name, want := range map[string]string{
		"docs/reference/errors.md": "\n## x\n\n| error | what it says |\n|---|---|\n| `*BError` | BError refuses b.<br>It is \\<odd>. |\n| `ErrA` | ErrA says a, see y.Z. |\n" +
			"| `ErrB` | no comment |\n| `ErrC` | c is off |\n| `*OldError` | OldError is one of another package. |\n",
		"docs/reference/configuration.md": "\n## x.Config\n\nConfig says how.\n\n| field | type | default | meaning |\n|---|---|---|---|\n| `TTL` | `time.Duration` | 15s, or less | TTL ends it. It is short. |\n" +
			"| `Wait` | `int` | 0 | are both. |\n| `Keep` | `int` | 0 | are both. |\n\nend\n",
	} {
		if pages[name] != want {
			t.Errorf("%s is\n%s\nwant\n%s", name, pages[name], want)
		}
	}
}

// What is not translated, and what is translated for nothing, is noticed.
func TestMissingTranslations(t *testing.T) {
	t.Parallel()
	l := chinese()
	l.words = map[string]string{"a b": "甲", "old": "旧"}
	if got := l.say("a b") + l.say("c"); got != "甲" || len(l.missing) != 1 || l.missing[0] != "c" {
		t.Errorf("says %q, and misses %q", got, l.missing)
	}
	if unused := l.unused(); len(unused) != 1 || unused[0] != "old" {
		t.Errorf("does not use %q", unused)
	}
}

// Every variable of the environment that the command reads is on the page.
func TestEnvironmentIsThere(t *testing.T) {
	t.Parallel()
	count, problems, err := environment(os.DirFS("../.."), englishElse)
	if err != nil || count < 5 {
		t.Errorf("found only %d variables: %v", count, err)
	}
	for _, problem := range problems {
		t.Error(problem)
	}
}

var reads = regexp.MustCompile(`(?:os\.Getenv|os\.LookupEnv|getenv)\("([A-Z_]+)"\)`)

// environment counts the variables that the command reads, and says which are not on a page.
func environment(repo fs.FS, page string) (count int, problems []string, err error) {
	for _, folder := range []string{"cmd/baton", "open", "internal/systemd", "internal/supervise", "internal/httpguard"} {
		files, err := fs.Glob(repo, folder+"/*.go")
		if err != nil {
			return 0, nil, err
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := fs.ReadFile(repo, file)
			if err != nil {
				return 0, nil, err
			}
			for _, found := range reads.FindAllStringSubmatch(string(text), -1) {
				count++
				if !strings.Contains(page, "`"+found[1]+"`") {
					problems = append(problems, file+" reads "+found[1]+", which is not in configuration.en.md.tmpl")
				}
			}
		}
	}
	return count, problems, nil
}

func TestEnvironmentIsThereCatches(t *testing.T) {
	t.Parallel()
	count, problems, err := environment(fstest.MapFS{
		"cmd/baton/x.go":        {Data: []byte(`a, b := os.Getenv("BATON_A"), getenv("BATON_B")`)},
		"cmd/baton/x_test.go":   {Data: []byte(`os.Getenv("BATON_T")`)},
		"internal/systemd/x.go": {Data: []byte(`c, ok := os.LookupEnv("C_D")`)},
		"internal/testrun/x.go": {Data: []byte(`os.Getenv("BATON_E")`)},
		"open/x.go":             {Data: []byte(`os.Getenv("BATON_A")`)},
	}, "`BATON_A` and BATON_B and `BATON_C_D`")
	want := []string{"cmd/baton/x.go reads BATON_B, which is not in configuration.en.md.tmpl", "internal/systemd/x.go reads C_D, which is not in configuration.en.md.tmpl"}
	if err != nil || count != 4 || !slices.Equal(problems, want) {
		t.Errorf("of %d variables it finds %q (%v), want %q", count, problems, err, want)
	}
}
