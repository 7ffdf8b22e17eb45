//go:build unix

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/batonhq/baton/internal/pagecode"
)

// TestCommandsOfPagesExist: every command and every flag that a page shows is there, in blocks
// and within sentences, and so is every recipe.
func TestCommandsOfPagesExist(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"../../docs", "../../clients"} {
		err := filepath.WalkDir(folder, func(file string, d fs.DirEntry, err error) error {
			if strings.HasSuffix(file, ".md") && filepath.Base(filepath.Dir(file)) != "adr" { // which tell of what was
				pages = append(pages, file)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range commandsOf(string(text)) {
			name, err := tryCommand(line, string(makefile))
			if err != nil {
				t.Errorf("%s: %q: %v", strings.TrimPrefix(page, "../../"), line, err)
			}
			seen[name] = true
		}
	}
	for _, want := range []string{"run", "once", "elect", "agent", "serve", "ls", "doctor", "bench", "verify", "check", "make test", "make comparison"} {
		if !seen[want] {
			t.Errorf("no page shows %s", want)
		}
	}
}

func TestCommandsOfPagesCatch(t *testing.T) {
	t.Parallel()
	page := "Say `baton lss` or `baton run --nose k -- true`.\n\n```sh\nBATON_STORE=redis://x sudo -u x baton ls --deep   # all\nmake teas\nbaton ls\n```\n"
	var wrong []string
	lines := commandsOf(page)
	for _, line := range lines {
		if _, err := tryCommand(line, "test: servers\n"); err != nil {
			wrong = append(wrong, line)
		}
	}
	if want := []string{"baton lss", "baton run --nose k", "baton ls --deep", "make teas"}; !slices.Equal(wrong, want) || len(lines) != 5 {
		t.Errorf("of %q it refuses %q, want %q", lines, wrong, want)
	}
}

var (
	inSentence = regexp.MustCompile("`((?:baton|make) [^`]*)`")
	inLine     = regexp.MustCompile(`(?:^|[\s(|&;])(baton|make) .*`)
	shellEnds  = regexp.MustCompile(`\s(--|[|&;>]|&&|\|\||#)(\s|$).*`)
)

// commandsOf finds the commands in a page.
func commandsOf(page string) (lines []string) {
	for _, found := range inSentence.FindAllStringSubmatch(pagecode.Prose(page), -1) {
		lines = append(lines, found[1])
	}
	for _, block := range pagecode.All(page) {
		if !slices.Contains([]string{"sh", "console", "crontab", "cron"}, block.Language) {
			continue
		}
		for line := range strings.Lines(strings.ReplaceAll(block.Text, "\\\n", " ")) {
			line = strings.TrimPrefix(strings.Replace(line, "go run ./cmd/baton", "baton", 1), "$ ")
			if found := inLine.FindString(line); found != "" && !strings.HasPrefix(line, "#") {
				lines = append(lines, strings.TrimLeft(found, " \t(|&;"))
			}
		}
	}
	for i, line := range lines {
		lines[i] = strings.TrimSpace(shellEnds.ReplaceAllString(line, ""))
	}
	return lines
}

// tryCommand finds a command and reads its flags.
func tryCommand(line, makefile string) (name string, err error) {
	words := strings.Fields(line)
	if words[0] == "make" {
		if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(words[1]) + `:`).MatchString(makefile) {
			return line, errors.New("no such recipe")
		}
		return "make " + words[1], nil
	}
	root := (&app{}).root()
	root.InitDefaultHelpCmd()
	cmd, rest, err := root.Find(words[1:])
	if err != nil {
		return line, err
	}
	if cmd == root && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return line, errors.New("no such command")
	}
	err = cmd.ParseFlags(rest)
	if _, names := errors.AsType[*pflag.ValueRequiredError](err); names {
		err = nil // a sentence names the flag alone
	}
	return cmd.Name(), err
}
