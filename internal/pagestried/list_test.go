//go:build unix

package pagestried

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/batonhq/baton/internal/pagecode"
)

// elsewhere are blocks of commands that another test runs, by the block and as the file and
// the test.
//
// A block is "PAGE: START": the only block of the page that has a line which begins with
// START. Without a START it is each block of the page that has no entry of its own.
var elsewhere = map[string]string{
	"README.md: go run ./cmd/baton run nightly-report":                         "readme_test.go TestReadmeFirstCommandRuns",
	"clients/README.md: baton agent --store":                                   "clients/pages_test.go TestQuarterOfAnHour",
	"clients/README.md: BATON_AGENT=/srv/app/agent.sock php":                   "clients/pages_test.go TestQuarterOfAnHour",
	"clients/README.md: BATON_AGENT=/srv/app/agent.sock node":                  "clients/pages_test.go TestQuarterOfAnHour",
	"clients/README.md: . /srv/app/baton.sh":                                   "clients/pages_test.go TestQuarterOfAnHour",
	"clients/README.md: */5 * * * *":                                           "clients/pages_test.go TestQuarterOfAnHour",
	"clients/README.md: baton run --store sqlite":                              "clients/pages_test.go TestQuarterOfAnHour",
	"clients/README.md: echo '{":                                               "clients/pages_test.go TestQuarterOfAnHour",
	"clients/bash/README.md":                                                   "clients/pages_test.go TestPages",
	"docs/fencing.md: go run github.com/batonhq/baton/examples/fencing@latest": "examples/fencing/fencing_test.go TestSQLite",
	"docs/index.md: go run . & go run .":                                       "examples/firstlock/first_test.go TestLock",
	"docs/index.md: go run .\n":                                                "examples/firstlock/first_test.go TestLimit",
	"docs/lab.md":                                                              "internal/lab/questions/questions_test.go TestQuestions",
	"docs/server.md: $ curl -s $BATON/baton.v1.Locks/Acquire":                  "server/page_test.go TestPage",
	"docs/server.md: $ curl -s $BATON/baton.v1.Once/Begin":                     "server/page_test.go TestPage",
	"docs/server.md: $ curl -s $BATON/baton.v1.Limits/Take":                    "server/page_test.go TestPage",
}

// shells are the languages of blocks of commands.
var shells = []string{"sh", "bash", "shell", "console", "cron", "crontab", "powershell", "fish", "zsh"}

// A commandBlock is a block of commands of any page.
type commandBlock struct{ page, text string }

func (b commandBlock) String() string { return b.page + ":\n" + b.text }

// starts says whether a line of the block begins with a text.
func (b commandBlock) starts(text string) bool { return strings.Contains("\n"+b.text, "\n"+text) }

// lines are the commands of the block, with what goes on in the next line.
func (b commandBlock) lines() (all []string) {
	whole := ""
	for line := range strings.Lines(b.text) {
		if whole += line; strings.HasSuffix(line, "\\\n") {
			continue
		}
		if text := strings.TrimSpace(whole); text != "" && !strings.HasPrefix(text, "#") {
			all = append(all, whole)
		}
		whole = ""
	}
	return all
}

// reason is why a line of the block cannot run; used is told of the entry that says so.
func (b commandBlock) reason(cannot map[string]string, line string, used func(entry string)) string {
	for entry, why := range cannot {
		if page, start, _ := strings.Cut(entry, ": "); page == b.page && strings.HasPrefix(line, start) {
			used(entry)
			return why
		}
	}
	return ""
}

// commandBlocks finds the blocks of commands in all English pages: a test of internal/archtest
// sees that those of the Chinese ones are equal.
func commandBlocks(repo fs.FS) (all []commandBlock, err error) {
	err = fs.WalkDir(repo, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && name != "." || d.Name() == "node_modules" || d.Name() == "dist" || d.Name() == "testdata" || name == "docs/zh"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".md") || strings.HasSuffix(name, ".zh.md"):
			return nil
		}
		text, err := fs.ReadFile(repo, name)
		if err != nil {
			return err
		}
		for _, language := range shells {
			for _, b := range pagecode.Blocks(string(text), language) {
				all = append(all, commandBlock{name, b})
			}
		}
		return nil
	})
	return all, err
}

// unrun returns what is wrong with the lists: a block that none or two of them have, and an
// entry that has no block or names no test. The pages of tried are TestCommands'.
func unrun(repo fs.FS, tried []string, guides map[string]guide, elsewhere, cannot map[string]string) (problems []string, blocks int, err error) {
	all, err := commandBlocks(repo)
	if err != nil {
		return nil, 0, err
	}
	hits := make(map[string]int) // by entry
	for _, b := range all {
		var by []string
		if slices.Contains(tried, b.page) {
			by = append(by, "TestCommands")
		}
		find := func(entry string) {
			if page, start, _ := strings.Cut(entry, ": "); page == b.page && start != "" && b.starts(start) {
				by = append(by, entry)
			}
		}
		for entry := range guides {
			find(entry)
		}
		for entry := range elsewhere {
			find(entry)
		}
		if elsewhere[b.page] != "" && len(by) == 0 {
			by = append(by, b.page)
		}
		runs := false
		for _, line := range b.lines() {
			why := b.reason(cannot, line, func(entry string) { hits[entry]++ })
			runs = runs || why == ""
		}
		if !runs {
			by = append(by, "cannot")
		}
		for _, entry := range by {
			hits[entry]++
		}
		if len(by) != 1 {
			slices.Sort(by)
			problems = append(problems, fmt.Sprintf("run by %d of the lists (%s): %s", len(by), strings.Join(by, "; "), b))
		}
	}
	entry := func(list, name string, most int) {
		if hits[name] == 0 || hits[name] > most {
			problems = append(problems, fmt.Sprintf("%s: %q stands for %d blocks", list, name, hits[name]))
		}
	}
	for name := range guides {
		entry("guides", name, 1)
	}
	for name := range cannot {
		entry("cannot", name, len(all))
	}
	for name, test := range elsewhere {
		most := 1
		if !strings.Contains(name, ": ") {
			most = len(all)
		}
		entry("elsewhere", name, most)
		file, function, _ := strings.Cut(test, " ")
		if text, err := fs.ReadFile(repo, file); err != nil || !strings.Contains(string(text), "\nfunc "+function+"(t *testing.T) {") {
			problems = append(problems, fmt.Sprintf("elsewhere: %q: there is no test %s", name, test))
		}
	}
	slices.Sort(problems)
	return problems, len(all), nil
}

// TestAllBlocksRun: each block of commands of each page runs in a test, or a list says why
// it cannot.
func TestAllBlocksRun(t *testing.T) {
	t.Parallel()
	repo := os.DirFS("../..")
	all, err := pages(repo)
	if err != nil {
		t.Fatal(err)
	}
	var tried []string
	for _, p := range all {
		tried = append(tried, p.path)
	}
	problems, blocks, err := unrun(repo, tried, guides, elsewhere, cannot)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Error(p)
	}
	if blocks < 100 {
		t.Errorf("found %d blocks", blocks)
	}
}

func TestAllBlocksRunCatches(t *testing.T) {
	t.Parallel()
	const page = "# Planted\n\n```sh\nbaton ls\n```\n\n```bash\nbaton show a \\\n  b\n```\n"
	ls, show := "docs/planted.md: baton ls", "docs/planted.md: baton show"
	sound, test := map[string]guide{ls: {}}, map[string]string{show: "x_test.go TestX"}
	for _, c := range []struct {
		name, old, new    string
		guides            map[string]guide
		elsewhere, cannot map[string]string
		want              string
	}{
		{name: "sound", guides: sound, elsewhere: test},
		{name: "sound, with a command that cannot run", guides: sound, cannot: map[string]string{show: "why"}},
		{name: "a block that nothing runs", guides: sound, want: "run by 0 of the lists"},
		{name: "a new block", old: "# Planted\n", new: "# Planted\n\n```sh\nbaton watch\n```\n", guides: sound, elsewhere: test, want: "baton watch"},
		{name: "an entry without a block", old: "baton ls", new: "baton top", guides: sound, elsewhere: test, want: `guides: "docs/planted.md: baton ls" stands for 0`},
		{name: "a reason without a command", guides: sound, elsewhere: test, cannot: map[string]string{"docs/planted.md: baton top": "why"}, want: `cannot: "docs/planted.md: baton top" stands for 0`},
		{name: "an entry for two blocks", old: "baton show a", new: "baton ls", guides: sound, elsewhere: test, want: "stands for 2"},
		{name: "a block with two entries", guides: map[string]guide{ls: {}, show: {}}, elsewhere: test, want: "run by 2 of the lists"},
		{name: "a block that runs and cannot", guides: sound, elsewhere: test, cannot: map[string]string{ls: "why"}, want: "run by 2 of the lists"},
		{name: "a test that is not there", guides: sound, elsewhere: map[string]string{show: "x_test.go TestY"}, want: "there is no test x_test.go TestY"},
	} {
		repo := fstest.MapFS{
			"docs/planted.md":    {Data: []byte(strings.Replace(page, c.old, c.new, 1))},
			"docs/zh/planted.md": {Data: []byte(page)},
			"x_test.go":          {Data: []byte("package x\n\nfunc TestX(t *testing.T) {\n}\n")},
		}
		problems, blocks, err := unrun(repo, nil, c.guides, c.elsewhere, c.cannot)
		if text := strings.Join(problems, "\n"); err != nil || blocks < 2 || (c.want == "") != (text == "") || !strings.Contains(text, c.want) {
			t.Errorf("%s: it says %q of %d blocks, want %q: %v", c.name, text, blocks, c.want, err)
		}
	}
}
