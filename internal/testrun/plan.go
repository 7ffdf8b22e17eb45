package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A rule says how the packages that match its pattern are tested; "/..." at the
// end stands for everything below. The first rule that matches decides. Packages
// start in the order of their rules: what takes longest has to start first.
type rule struct {
	pattern string
	norace  bool // nothing in it races that is not raced elsewhere
	split   bool // its parallel tests and the others are two programs, side by side
	waits   bool // its tests leave the processors to others nearly all the time: they run beside the lanes
}

var rules = []rule{
	// Real processes, which are children of their test program, and stores that are raced
	// by their own tests: the detector would take half of all the time that tests have.
	{pattern: "internal/faulttest", norace: true, split: true},
	{pattern: "internal/verify", norace: true},
	{pattern: "cmd/baton", norace: true},
	{pattern: "store/etcdstore", split: true},
	{pattern: "store/pgstore", split: true},
	{pattern: "store/mysqlstore", split: true},
	{pattern: "store/zkstore", split: true},
	{pattern: "store/redisstore", split: true},
	{pattern: "store/sqlitestore", split: true},
	{pattern: "internal/verify/fault", norace: true},
	{pattern: "bench/...", norace: true},
	{pattern: "store/redisstore/goredis"},
	{pattern: "store/redlock"},
	{pattern: "guard"},
	{pattern: "open"},
	{pattern: "internal/verify/deploy", norace: true},
	{pattern: "internal/verify/soak", norace: true, waits: true},
	{pattern: "internal/testserver", norace: true},
	{pattern: "clients", norace: true},           // processes in other languages
	{pattern: "internal/pagetest", norace: true}, // a browser
	// What draws, writes pages or reads the tree.
	{pattern: "internal/verify/...", norace: true},
	{pattern: "internal/modtest", norace: true},
	{pattern: "internal/measure/...", norace: true},
	{pattern: "internal/guarantees", norace: true},
	{pattern: "internal/monitoring", norace: true},
	{pattern: "internal/alltold", norace: true},
	{pattern: "internal/envoytest", norace: true},  // it measures times
	{pattern: "internal/pagestried", norace: true}, // the command is built
	{pattern: "internal/proxies", norace: true},
	{pattern: "internal/release", norace: true},
	{pattern: "internal/archtest", norace: true},
	{pattern: "internal/reference", norace: true},
	{pattern: "internal/translated", norace: true},
	{pattern: "internal/lab/questions", norace: true}, // real servers, side by side
	{pattern: "internal/simulate", norace: true},
	{pattern: "internal/testrun", norace: true},
	{pattern: "examples/fencing", norace: true},
	{pattern: "examples/...", norace: true, waits: true},
	{pattern: "internal/rate"},
	{pattern: "..."},
}

func (r rule) matches(name string) bool {
	if r.pattern == "..." {
		return true
	}
	above, below := strings.CutSuffix(r.pattern, "/...")
	return name == above || below && strings.HasPrefix(name, above+"/")
}

// A unit is a test program and those of its tests that are run in one go.
type unit struct {
	name   string // the package's folder, from the top: "store/redisstore", "." for the root
	module string // the module's folder
	dir    string // absolute
	part   string // "" for all tests of the package
	only   string // regular expression of the tests of this part; "" for all
	skip   string // regular expression of the tests that are none of it
	race   bool
	waits  bool
	place  int // in the order of starting
}

func (u unit) label() string {
	if u.part == "" {
		return u.name
	}
	return u.name + " (" + u.part + ")"
}

// argument names the package for "go test" in its module's folder.
func (u unit) argument() string {
	if rest, ok := strings.CutPrefix(u.name, u.module+"/"); ok && u.module != "." {
		return "./" + rest
	}
	if u.name == u.module {
		return "."
	}
	return "./" + u.name
}

// modules returns the folders below top that hold a go.mod, but for those whose
// module exists only for its requirements.
func modules(top string) (found []string, err error) {
	err = filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != top && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.Name() == "go.mod":
			rel, err := filepath.Rel(top, filepath.Dir(p))
			if rel != "tools" {
				found = append(found, filepath.ToSlash(rel))
			}
			return err
		}
		return nil
	})
	return found, err
}

// plan lists what is to be run, in the order of starting. Each pattern that is
// given has to match a package with tests.
func plan(ctx context.Context, top string, patterns []string, splits bool) ([]unit, error) {
	mods, err := modules(top)
	if err != nil {
		return nil, err
	}
	var units []unit
	matched := make(map[string]bool)
	for _, module := range mods {
		list := exec.CommandContext(ctx, "go", "list", "-json=Dir,TestGoFiles,XTestGoFiles", "./...")
		list.Dir = filepath.Join(top, module)
		var stderr bytes.Buffer
		list.Stderr = &stderr
		out, err := list.Output()
		if err != nil {
			return nil, fmt.Errorf("go list in %s: %w\n%s", module, err, stderr.Bytes())
		}
		for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
			var p struct {
				Dir                       string
				TestGoFiles, XTestGoFiles []string
			}
			if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("go list in %s: %w", module, err)
			}
			files := slices.Concat(p.TestGoFiles, p.XTestGoFiles)
			if len(files) == 0 {
				continue
			}
			rel, err := filepath.Rel(top, p.Dir)
			if err != nil {
				return nil, err
			}
			name := filepath.ToSlash(rel)
			wanted := len(patterns) == 0
			for _, pattern := range patterns {
				if (rule{pattern: path.Clean(strings.TrimPrefix(pattern, "./"))}).matches(name) {
					wanted, matched[pattern] = true, true
				}
			}
			if !wanted {
				continue
			}
			parts, err := unitsOf(unit{name: name, module: module, dir: p.Dir}, files, splits)
			if err != nil {
				return nil, err
			}
			units = append(units, parts...)
		}
	}
	for _, pattern := range patterns {
		if !matched[pattern] {
			return nil, fmt.Errorf("no package with tests matches %s", pattern)
		}
	}
	slices.SortStableFunc(units, func(a, b unit) int { return cmp.Compare(a.place, b.place) })
	return units, nil
}

// unitsOf applies the rules to a package.
func unitsOf(u unit, files []string, splits bool) ([]unit, error) {
	u.place = slices.IndexFunc(rules, func(r rule) bool { return r.matches(u.name) })
	r := rules[u.place]
	u.race, u.waits = !r.norace, r.waits
	if !r.split || !splits {
		return []unit{u}, nil
	}
	parallel, err := parallelTests(u.dir, files)
	if err != nil || len(parallel) == 0 {
		return []unit{u}, err
	}
	pattern := "^(" + strings.Join(parallel, "|") + ")$"
	beside, alone := u, u
	beside.part, beside.only = "parallel", pattern
	alone.part, alone.skip = "one by one", pattern
	return []unit{beside, alone}, nil
}

// parallelTests returns the tests in files that call t.Parallel before they begin.
func parallelTests(dir string, files []string) (names []string, err error) {
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return nil, err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && slices.ContainsFunc(f.Body.List, isParallel) {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names, nil
}

func isParallel(s ast.Stmt) bool {
	e, ok := s.(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := e.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	return ok && method.Sel.Name == "Parallel"
}
