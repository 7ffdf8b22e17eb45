// Package compattest tests the packages of compat, which have the names of another
// library: that no name is missing, that code for the other library compiles and runs
// with the changed import, and that programs of both exclude each other while they are
// killed.
package compattest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/batonhq/baton/internal/pagecode"
)

// A Library is another library, and the package that has its names.
type Library struct {
	Path    string // of its imports: "github.com/bsm/redislock"
	Ours    string // the import that replaces it
	Package string // the folder of ours
}

func (l Library) folder(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", l.Path).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// Read reads a file of the other library.
func (l Library) Read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(l.folder(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Block returns the first Go block in a page of the other library, as a program.
func (l Library) Block(t *testing.T, page string) string {
	t.Helper()
	blocks := pagecode.Blocks(l.Read(t, page), "go")
	if len(blocks) == 0 {
		t.Fatalf("%s has no Go", page)
	}
	text := blocks[0]
	if !strings.HasPrefix(text, "package ") {
		text = "package main\n" + text
	}
	return text
}

// Compiles checks a program of the other library with changed imports. replace has pairs
// of further changes.
func (l Library) Compiles(t *testing.T, program string, replace ...string) {
	t.Helper()
	if out, err := exec.Command("go", "vet", l.changed(t, "main.go", program, replace)).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Runs runs the examples of a test file of the other library, changed likewise.
func (l Library) Runs(t *testing.T, file, text string, replace ...string) {
	t.Helper()
	out, err := exec.Command("go", "test", "-count=1", "-vet=off", "-v", "-run=Example", l.changed(t, file, text, replace)).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: Example") {
		t.Errorf("%v\n%s", err, out)
	}
}

// RunsProgram runs a program of the other library, changed likewise.
func (l Library) RunsProgram(t *testing.T, program string, replace ...string) {
	t.Helper()
	if out, err := exec.Command("go", "run", l.changed(t, "main.go", program, replace)).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// changed writes a file into a folder of the module that no package pattern matches.
func (l Library) changed(t *testing.T, name, text string, replace []string) (folder string) {
	t.Helper()
	changed := strings.NewReplacer(append([]string{`"` + l.Path, `"` + l.Ours}, replace...)...).Replace(text)
	if changed == text || strings.Contains(changed, `"`+l.Path) {
		t.Fatalf("%s does not import the original, or it was not replaced", name)
	}
	dir, err := os.MkdirTemp(".", "_original")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.WriteFile(filepath.Join(dir, name), []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
	return "./" + dir
}

// HasAllNames compares all exported names and signatures. The other library must have at
// least this many.
func (l Library) HasAllNames(t *testing.T, least int) {
	t.Helper()
	theirs, ours := exported(t, l.folder(t)), exported(t, l.Package)
	if len(theirs) < least {
		t.Fatalf("the original has %d names: they were not found", len(theirs))
	}
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		if ours[name] != theirs[name] {
			t.Errorf("%s is %q here, and %q in the original", name, ours[name], theirs[name])
		}
	}
}

// exported maps each exported name of a package to its signature or type.
func exported(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	api := make(map[string]string)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				addFunction(api, d)
			case *ast.GenDecl:
				for _, s := range d.Specs {
					addSpec(api, d.Tok, s)
				}
			}
		}
	}
	return api
}

func addFunction(api map[string]string, d *ast.FuncDecl) {
	name := d.Name.Name
	if d.Recv != nil {
		receiver := types.ExprString(d.Recv.List[0].Type)
		if !ast.IsExported(strings.TrimPrefix(receiver, "*")) {
			return
		}
		name = receiver + "." + name
	}
	if d.Name.IsExported() {
		api[name] = signature(d.Type)
	}
}

func addSpec(api map[string]string, kind token.Token, s ast.Spec) {
	switch s := s.(type) {
	case *ast.ValueSpec:
		for _, n := range s.Names {
			if n.IsExported() {
				api[n.Name] = kind.String()
			}
		}
	case *ast.TypeSpec:
		if !s.Name.IsExported() {
			return
		}
		api[s.Name.Name] = "type"
		var fields *ast.FieldList
		switch of := s.Type.(type) {
		case *ast.StructType:
			fields = of.Fields
		case *ast.InterfaceType:
			fields = of.Methods
		case *ast.FuncType:
			api[s.Name.Name] = "func" + signature(of)
			return
		default:
			return
		}
		for _, f := range fields.List {
			what := types.ExprString(f.Type)
			if of, ok := f.Type.(*ast.FuncType); ok {
				what = signature(of)
			}
			if len(f.Names) == 0 && ast.IsExported(strings.TrimPrefix(what, "*")) {
				api[s.Name.Name+"."+what] = "embedded"
			}
			for _, n := range f.Names {
				if n.IsExported() {
					api[s.Name.Name+"."+n.Name] = what
				}
			}
		}
	}
}

func signature(f *ast.FuncType) string {
	list := func(fields *ast.FieldList) (all []string) {
		if fields == nil {
			return nil
		}
		for _, f := range fields.List {
			for range max(1, len(f.Names)) {
				all = append(all, types.ExprString(f.Type))
			}
		}
		return all
	}
	return "(" + strings.Join(list(f.Params), ", ") + ") (" + strings.Join(list(f.Results), ", ") + ")"
}
