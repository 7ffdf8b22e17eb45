package modtest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/batonhq/baton/internal/translated"
)

var writeTable = flag.Bool("table", false, "write the table of docs/requirements.md")

const (
	tableBegin = "<!-- table: go test ./internal/modtest -run Requirements -table -->\n"
	tableEnd   = "<!-- end of table -->\n"
)

// TestRequirements compares the table of docs/requirements.md with what the go command says.
func TestRequirements(t *testing.T) {
	t.Parallel()
	house := readHouse(t)
	o := newOutside(t, house)
	table := "\n| import | others' modules in the program | those that Baton itself imports |\n|---|---|---|\n"
	for _, m := range house.modules {
		if slices.Contains(neverFetched, m.folder) {
			continue
		}
		rows, err := o.requirements(t.Context(), m)
		if err != nil {
			t.Fatal(err, hint)
		}
		table += rows
	}
	file := filepath.Join(house.top, "docs/requirements.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), tableBegin)
	have, after, ends := strings.Cut(rest, tableEnd)
	switch {
	case !begins || !ends:
		t.Fatalf("%s has no table between %q and %q", file, tableBegin, tableEnd)
	case have == table+"\n":
	case *writeTable:
		if err := os.WriteFile(file, []byte(before+tableBegin+table+"\n"+tableEnd+after), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := translated.Write(house.top, "docs/requirements.md"); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the table of docs/requirements.md is not true any more: go test ./internal/modtest -run Requirements -table\nhave:\n%s\nwant:\n%s", have, table)
	}
}

// requirements returns a row for each package of a module that others import: the modules of
// others that a program has which imports it.
func (o outside) requirements(ctx context.Context, m module) (rows string, err error) {
	dir, err := o.user(ctx, m)
	if err != nil {
		return "", err
	}
	list, err := o.run(ctx, dir, "list", "-deps", "-f",
		`{{.ImportPath}}|{{.Name}}|{{with .Module}}{{.Path}}{{end}}|{{join .Imports " "}}|{{join .Deps " "}}`, m.path+"/...")
	if err != nil {
		return "", err
	}
	of := make(map[string]string)        // the modules of packages
	imports := make(map[string][]string) // of packages
	type pkg struct {
		name string
		deps []string
	}
	var packages []pkg
	for line := range strings.Lines(list) {
		f := strings.Split(strings.TrimSpace(line), "|")
		of[f[0]], imports[f[0]] = f[2], strings.Fields(f[3])
		if f[1] != "main" && f[2] == m.path && !slices.Contains(strings.Split(f[0], "/"), "internal") {
			packages = append(packages, pkg{f[0], strings.Fields(f[4])})
		}
	}
	slices.SortFunc(packages, func(a, b pkg) int { return strings.Compare(a.name, b.name) })
	ours := func(name string) bool {
		_, ok := o.tree.module(of[name])
		return ok
	}
	for _, p := range packages {
		others, direct := make(map[string]bool), make(map[string]bool)
		for _, name := range append(p.deps, p.name) {
			if of[name] == "" { // of Go itself
				continue
			}
			if !ours(name) {
				others[of[name]] = true
				continue
			}
			for _, i := range imports[name] {
				if of[i] != "" && !ours(i) {
					direct[of[i]] = true
				}
			}
		}
		var names []string
		for name := range direct {
			names = append(names, name)
		}
		slices.Sort(names)
		for i, name := range names {
			names[i] = "`" + name + "`"
		}
		count := "none"
		if len(others) > 0 {
			count = fmt.Sprint(len(others))
		}
		rows += fmt.Sprintf("| `%s` | %s | %s |\n", p.name, count, strings.Join(names, ", "))
	}
	return rows, nil
}

func TestRequirementsCatch(t *testing.T) {
	t.Parallel()
	house := readHouse(t)
	o := newOutside(t, house)
	m, _ := house.module("github.com/batonhq/baton/adapters/cron")
	rows, err := o.requirements(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	if want := "| `github.com/batonhq/baton/adapters/cron` | 1 | `github.com/robfig/cron/v3` |\n"; rows != want {
		t.Errorf("the rows are\n%s\nwant\n%s", rows, want)
	}
}
