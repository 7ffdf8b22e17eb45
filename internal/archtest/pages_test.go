package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/batonhq/baton/internal/pagecode"
)

const architecture = "docs/architecture.md"

// TestArchitecture compares docs/architecture.md with the code: the rooms and
// their arrows with the imports, and the steps of its walks with the functions.
func TestArchitecture(t *testing.T) {
	t.Parallel()
	repo := os.DirFS("../..")
	house, err := load(repo)
	if err != nil {
		t.Fatal(err)
	}
	page, err := fs.ReadFile(repo, architecture)
	if err != nil {
		t.Fatal(err)
	}
	problems := checkRooms(string(page), house, parseDoors(doors))
	steps, missing := checkSteps(string(page), repo)
	if steps < 20 {
		t.Errorf("%s has only %d steps", architecture, steps)
	}
	for _, problem := range append(problems, missing...) {
		t.Error(problem)
	}
}

// TestArchitectureCatches plants violations and sees them found.
func TestArchitectureCatches(t *testing.T) {
	t.Parallel()
	const page = "```mermaid\nflowchart TD\n" +
		"    subgraph programs [\"all\"]\n        open\n    end\n    baton --> driver & parts\n    parts --> driver\n```\n" +
		"| room | packages | what |\n|---|---|---|\n" +
		"| driver | `driver` | |\n| baton | `baton` | |\n| parts | `internal/*` | |\n| open | `open` | |\n\n" +
		"| file | function | what |\n|---|---|---|\n| `lock.go` | `Locker.lock` `new` | |\n| `driver/d.go` | `Locks.Acquire` | |\n| `x.lua` | | |\n"
	files := fstest.MapFS{
		"lock.go":     {Data: []byte("package baton\n\nfunc (l *Locker[T]) lock() {}\n\nfunc new() {}\n")},
		"driver/d.go": {Data: []byte("package driver\n\ntype Locks interface{ Acquire() }\n")},
		"x.lua":       {},
	}
	for _, c := range []struct{ name, old, new, want string }{
		{name: "sound"},
		{"an arrow too many", "parts --> driver", "parts --> driver & baton", "parts --> baton is drawn, and no package imports so"},
		{"a missing arrow", "    parts --> driver\n", "", "parts --> driver is not drawn: internal/a imports driver"},
		{"a program that is imported", "    parts --> driver\n", "    parts --> driver\n    baton --> open\n", "baton --> open is drawn, and no package imports so"},
		{"a room without a row", "| parts | `internal/*` | |\n", "", "internal/a is in no room"},
		{"a row without a package", "`driver` | |\n| baton", "`driver` `driver/more` | |\n| baton", "driver/more is no package"},
		{"a package in two rooms", "| baton | `baton`", "| baton | `baton` `driver`", "baton and driver is not drawn"},
		{"a room that is not drawn", "        open\n", "", "open is in the table and not in the picture"},
		{"a room without packages", "    parts --> driver\n", "    parts --> driver & cellar\n", "cellar is in the picture and not in the table"},
		{"a file that has gone", "`x.lua`", "`y.lua`", "there is no y.lua"},
		{"a function that has gone", "`new`", "`old`", "lock.go has no old"},
		{"a method of another type", "`Locker.lock`", "`Lease.lock`", "lock.go has no Lease.lock"},
		{"a method of an interface", "`Locks.Acquire`", "`Locks.Ask`", "driver/d.go has no Locks.Ask"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			text := strings.Replace(page, c.old, c.new, 1)
			house := packages{
				"driver":     {},
				"baton":      {module + "/driver": "lock.go", module + "/internal/a": "lock.go"},
				"internal/a": {module + "/driver": "internal/a/a.go"},
				"open":       {module: "open/o.go"},
			}
			problems := checkRooms(text, house, parseDoors("driver:\nbaton: driver internal/*\ninternal/*: driver\nopen: *\n"))
			_, missing := checkSteps(text, files)
			got := strings.Join(append(problems, missing...), "\n")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}

// checkRooms compares the table of rooms and the picture with the imports. Every
// package has one room. Outside of the subgraph "programs", every import between
// two rooms is drawn, and every arrow is an import that the doors allow.
func checkRooms(page string, house packages, rules []rule) (problems []string) {
	drawn, programs, nodes := picture(page)
	rooms := make(map[string][]string) // their patterns
	for _, row := range rows(page, "room") {
		for _, pattern := range quoted.FindAllStringSubmatch(row[1], -1) {
			rooms[row[0]] = append(rooms[row[0]], pattern[1])
		}
	}
	for _, room := range slices.Sorted(maps.Keys(rooms)) {
		if !nodes[room] {
			problems = append(problems, room+" is in the table and not in the picture")
		}
		for _, pattern := range rooms[room] {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(house)), func(pkg string) bool { return matches(pattern, pkg) }) {
				problems = append(problems, pattern+" is no package")
			}
		}
	}
	for _, room := range slices.Sorted(maps.Keys(nodes)) {
		if rooms[room] == nil {
			problems = append(problems, room+" is in the picture and not in the table")
		}
	}
	roomOf := func(pkg string) string {
		var in []string
		for _, room := range slices.Sorted(maps.Keys(rooms)) {
			if slices.ContainsFunc(rooms[room], func(p string) bool { return matches(p, pkg) }) {
				in = append(in, room)
			}
		}
		return strings.Join(in, " and ") // two are one that is not drawn
	}
	used := make(map[[2]string]bool)
	for _, pkg := range slices.Sorted(maps.Keys(house)) {
		from := roomOf(pkg)
		if from == "" {
			problems = append(problems, pkg+" is in no room of "+architecture)
			continue
		}
		i := slices.IndexFunc(rules, func(r rule) bool { return matches(r.pattern, pkg) })
		for _, imported := range slices.Sorted(maps.Keys(house[pkg])) {
			to, ok := ours(imported)
			if in := roomOf(to); !ok || programs[from] || in == from || in == "" {
				continue
			}
			arrow := [2]string{from, roomOf(to)}
			used[arrow] = used[arrow] || i >= 0 && rules[i].allows(to)
			if !drawn[arrow] {
				problems = append(problems, fmt.Sprintf("%s --> %s is not drawn: %s imports %s", from, roomOf(to), pkg, to))
			}
		}
	}
	for arrow := range drawn {
		if !used[arrow] {
			problems = append(problems, fmt.Sprintf("%s --> %s is drawn, and no package imports so, or none may", arrow[0], arrow[1]))
		}
	}
	slices.Sort(problems)
	return problems
}

// picture reads the Mermaid diagram: its arrows, the rooms of its subgraph, and
// all rooms.
func picture(page string) (drawn map[[2]string]bool, programs, nodes map[string]bool) {
	drawn, programs, nodes = make(map[[2]string]bool), make(map[string]bool), make(map[string]bool)
	inside := false
	for line := range strings.Lines(strings.Join(pagecode.Blocks(page, "mermaid"), "")) {
		line = strings.TrimSpace(line)
		from, to, arrow := strings.Cut(line, " --> ")
		switch {
		case arrow:
			nodes[from] = true
			for room := range strings.SplitSeq(to, " & ") {
				nodes[room], drawn[[2]string{from, room}] = true, true
			}
		case strings.HasPrefix(line, "subgraph "), line == "end":
			inside = line != "end"
		case inside:
			programs[line], nodes[line] = true, true
		}
	}
	return drawn, programs, nodes
}

// rows returns the cells of those tables whose first column has the title given.
func rows(page, title string) (found [][]string) {
	in := false
	for line := range strings.Lines(page) {
		line, ok := strings.CutPrefix(strings.TrimSpace(line), "| ")
		if !ok {
			in = in && strings.HasPrefix(line, "|---")
			continue
		}
		cells := strings.Split(strings.TrimSuffix(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if cells[0] == title {
			in = true
		} else if in {
			found = append(found, cells)
		}
	}
	return found
}

// checkSteps looks for the files and functions that the walks name.
func checkSteps(page string, repo fs.FS) (steps int, problems []string) {
	for _, row := range rows(page, "file") {
		steps++
		file := strings.Trim(row[0], "`")
		text, err := fs.ReadFile(repo, file)
		if err != nil {
			problems = append(problems, "there is no "+file)
			continue
		}
		if path.Ext(file) != ".go" {
			continue
		}
		has, err := functions(file, text)
		if err != nil {
			problems = append(problems, err.Error())
		}
		for _, name := range quoted.FindAllStringSubmatch(row[1], -1) {
			if !has[name[1]] {
				problems = append(problems, fmt.Sprintf("%s has no %s", file, name[1]))
			}
		}
	}
	return steps, problems
}

var typeName = regexp.MustCompile(`^\*?(\w+)`)

// functions returns the names of a file's functions and of its methods, those of
// interfaces included, each behind its type and a dot.
func functions(file string, text []byte) (map[string]bool, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	has := make(map[string]bool)
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			name := n.Name.Name
			if n.Recv != nil {
				t := n.Recv.List[0].Type
				name = typeName.FindStringSubmatch(string(text[t.Pos()-1 : t.End()-1]))[1] + "." + name
			}
			has[name] = true
		case *ast.TypeSpec:
			if face, ok := n.Type.(*ast.InterfaceType); ok {
				for _, m := range face.Methods.List {
					for _, name := range m.Names {
						has[n.Name.Name+"."+name.Name] = true
					}
				}
			}
		}
		return true
	})
	return has, nil
}
