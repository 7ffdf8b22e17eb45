package main

import (
	"bytes"
	"flag"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

var write = flag.Bool("write", false, "write the exported names to api/next.txt")

// TestAPI shows each difference between what the packages export and api/next.txt.
func TestAPI(t *testing.T) {
	t.Parallel()
	const file = "../../api/next.txt"
	have, err := exported("../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(have) < 100 {
		t.Fatalf("only %d exported names were found", len(have))
	}
	if *write {
		if err := os.WriteFile(file, []byte(strings.Join(have, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, d := range differences(strings.Split(strings.TrimSpace(string(read(t, file))), "\n"), have) {
		t.Error(d)
	}
	if t.Failed() {
		t.Log("if that is meant: go test ./internal/release -run API -write")
	}
}

// TestAPICatches plants changes and sees them shown.
func TestAPICatches(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put := func(text string) []string {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "x.go"), []byte("package x\n\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		lines, err := exported(dir)
		if err != nil {
			t.Fatal(err)
		}
		return lines
	}
	before := put("type T struct {\n\tA int\n\tb int\n}\n\nfunc (*T) M(n int) error { return nil }\n\nfunc (t T) own() {}\n\nconst C = 1\n")
	for text, want := range map[string]string{
		"type T struct {\n\tA int\n\tc int\n}\n\nfunc (t *T) M(m int) error { return t.own() }\n\nconst C = 1\n": "",
		"type T struct {\n\tA int64\n}\n\nfunc (*T) M(n int) error { return nil }\n\nconst C = 1\n":              "+ . type T.A int64\n- . type T.A int",
		"type T struct {\n\tA int\n}\n\nfunc (*T) M() error { return nil }\n\nconst C = 1\n":                     "+ . func (*T) M() error\n- . func (*T) M(int) error",
		"type T struct {\n\tA int\n}\n\nfunc (*T) M(n int) error { return nil }\n\nvar C = 1\n":                  "+ . var C = 1\n- . const C = 1",
	} {
		got := differences(before, put(text))
		slices.Sort(got)
		if strings.Join(got, "\n") != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// differences are lines that have gone, with "-", and that have come, with "+".
func differences(before, now []string) (lines []string) {
	for _, line := range before {
		if !slices.Contains(now, line) {
			lines = append(lines, "- "+line)
		}
	}
	for _, line := range now {
		if !slices.Contains(before, line) {
			lines = append(lines, "+ "+line)
		}
	}
	return lines
}

// exported lists what the packages below a folder export on this platform, a line each:
// the folder of the package, and the declaration without the names of parameters.
func exported(top string) (lines []string, err error) {
	err = filepath.WalkDir(top, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		folder, _ := filepath.Rel(top, filepath.Dir(file))
		if d.IsDir() && file != top {
			switch d.Name() {
			case "internal", "testdata", "cmd", "examples", "bench", "clients", "tools", "dist", "bin":
				return fs.SkipDir
			}
			if strings.HasPrefix(d.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") || elsewhere(file) {
			return nil
		}
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil || excluded(parsed) {
			return err
		}
		parsed.Comments = nil
		ast.FileExports(parsed)
		add := func(kind string, node any) {
			var b bytes.Buffer
			_ = (&printer.Config{Mode: printer.RawFormat}).Fprint(&b, token.NewFileSet(), node)
			lines = append(lines, filepath.ToSlash(folder)+" "+kind+strings.Join(strings.Fields(b.String()), " "))
		}
		for _, decl := range parsed.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				decl.Body, decl.Doc = nil, nil
				unname(decl)
				add("", decl)
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					switch spec := spec.(type) {
					case *ast.ValueSpec:
						spec.Doc, spec.Comment = nil, nil
						add(decl.Tok.String()+" ", spec)
					case *ast.TypeSpec:
						addType(spec, add)
					}
				}
			}
		}
		return nil
	})
	slices.Sort(lines)
	return slices.Compact(lines), err
}

// addType adds a line for a type, and one for each of its exported members.
func addType(spec *ast.TypeSpec, add func(kind string, node any)) {
	spec.Doc, spec.Comment = nil, nil
	unname(spec.Type)
	var members *ast.FieldList
	switch of := spec.Type.(type) {
	case *ast.StructType:
		members, of.Fields, of.Incomplete = of.Fields, &ast.FieldList{}, false
	case *ast.InterfaceType:
		members, of.Methods, of.Incomplete = of.Methods, &ast.FieldList{}, false
	}
	add("type ", spec)
	if members == nil {
		return
	}
	for _, m := range members.List {
		if len(m.Names) == 0 {
			add("type "+spec.Name.Name+" embeds ", m.Type)
		}
		for _, name := range m.Names {
			add("type "+spec.Name.Name+"."+name.Name+" ", m.Type)
		}
	}
}

// unname takes the names of receivers, parameters and results away: they may change.
func unname(node ast.Node) {
	ast.Inspect(node, func(n ast.Node) bool {
		if f, ok := n.(*ast.FuncDecl); ok && f.Recv != nil {
			f.Recv.List[0].Names = nil
		}
		of, ok := n.(*ast.FuncType)
		if !ok {
			return true
		}
		for _, list := range []*ast.FieldList{of.Params, of.Results} {
			if list == nil {
				continue
			}
			var single []*ast.Field
			for _, field := range list.List {
				for range max(1, len(field.Names)) {
					single = append(single, &ast.Field{Type: field.Type})
				}
			}
			list.List = single
		}
		return true
	})
}

// elsewhere reports whether a file's name says that it is for another system than Linux.
func elsewhere(file string) bool {
	name := strings.TrimSuffix(filepath.Base(file), ".go")
	return strings.HasSuffix(name, "_windows") || strings.HasSuffix(name, "_darwin")
}

// excluded reports whether a build constraint keeps a file out on Linux.
func excluded(file *ast.File) bool {
	for _, group := range file.Comments {
		for _, c := range group.List {
			if group.Pos() < file.Package && constraint.IsGoBuild(c.Text) {
				expr, err := constraint.Parse(c.Text)
				return err == nil && !expr.Eval(func(tag string) bool { return tag == "linux" || tag == "unix" || tag == runtime.GOARCH })
			}
		}
	}
	return false
}
