// Package docs tests the pages: links lead somewhere, and code that is marked works.
//
//	```go compile     the block compiles
//	```sh run         the commands run on this machine, with SQLite; with exit=75 the last exit code is that
//	```yaml file=NAME the block is a file of that name for the commands after it
//
// A block of text after commands that run is in their standard output, with "…" for what differs each time.
// A comment "<!-- go" holds declarations, without bodies, that the Go code of its page needs; a comment
// "<!-- sh" commands that run unseen.
package docs

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/batonhq/baton/internal/pagecode"
)

const (
	repo   = ".."
	module = "github.com/batonhq/baton"
)

// A page is a file of the repository in Markdown.
type page struct {
	name   string // below the repository
	text   string
	blocks []pagecode.Block
}

// pages reads all pages.
func pages(t *testing.T) (all []page) {
	t.Helper()
	err := filepath.WalkDir(repo, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != repo && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"node_modules", "dist", "testdata"}, d.Name())):
			return fs.SkipDir
		case d.IsDir() || path.Ext(file) != ".md":
			return nil
		}
		text, err := os.ReadFile(file)
		name, _ := filepath.Rel(repo, file)
		all = append(all, newPage(filepath.ToSlash(name), string(text)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var comment = regexp.MustCompile(`(?ms)^<!-- (go|sh)\n(.*?)^-->$`)

// newPage reads a page. A comment becomes a block that is marked as hidden.
func newPage(name, text string) page {
	return page{name, text, pagecode.All(comment.ReplaceAllString(text, "```$1 hidden\n$2```"))}
}

// Links

var (
	inlineCode = regexp.MustCompile("(?s)``.+?``|`[^`]+`")
	link       = regexp.MustCompile(`\]\(([^()\s]+(?:\([^()]*\)[^()\s]*)?)\)|(?:src|href)="([^"]+)"`)
	linkText   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

func TestLinks(t *testing.T) {
	t.Parallel()
	for _, problem := range deadLinks(pages(t)) {
		t.Error(problem)
	}
}

// deadLinks finds the links within the repository that lead nowhere.
func deadLinks(all []page) (problems []string) {
	anchors := make(map[string]map[string]bool)
	for _, p := range all {
		anchors[p.name] = anchorsOf(p.text)
	}
	for _, p := range all {
		for _, found := range link.FindAllStringSubmatch(inlineCode.ReplaceAllString(pagecode.Prose(p.text), ""), -1) {
			target, anchor, _ := strings.Cut(found[1]+found[2], "#")
			if strings.Contains(target, ":") {
				continue
			}
			to := p.name
			if target != "" {
				to = path.Join(path.Dir(p.name), target)
			}
			if _, err := os.Stat(filepath.Join(repo, filepath.FromSlash(to))); err != nil && target != "" {
				problems = append(problems, fmt.Sprintf("%s: there is no %s", p.name, to))
			} else if anchor != "" && path.Ext(to) == ".md" && !anchors[to][anchor] {
				problems = append(problems, fmt.Sprintf("%s: #%s is no heading of %s", p.name, anchor, to))
			}
		}
	}
	return problems
}

// anchorsOf returns the anchors that GitHub, and the site, make of the headings of a page.
func anchorsOf(text string) map[string]bool {
	all := make(map[string]bool)
	for line := range strings.Lines(pagecode.Prose(text)) {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		heading := linkText.ReplaceAllString(strings.Trim(line, "# \n"), "$1")
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsNumber(r), unicode.IsMark(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, heading)
		anchor := slug
		for n := 1; all[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", slug, n)
		}
		all[anchor] = true
	}
	return all
}

// Go

func TestCompile(t *testing.T) {
	t.Parallel()
	for _, problem := range uncompiled(t, pages(t)) {
		t.Error(problem)
	}
}

// A unit is the Go code of a page that is one package, or a program that the page shows.
type unit struct {
	page  string
	files []*ast.File
}

// complete reports whether a program has the function main.
func (u *unit) complete() bool {
	return slices.ContainsFunc(u.files, func(f *ast.File) bool { return f.Scope.Lookup("main") != nil })
}

// uncompiled type-checks the blocks that are marked. Variables and imports may be unused: what is left
// out on a page may use them.
func uncompiled(t *testing.T, all []page) (problems []string) {
	t.Helper()
	set := token.NewFileSet()
	known := packagesByName(t)
	var units []*unit
	paths := map[string]bool{}
	for _, p := range all {
		shared, program := &unit{page: p.name}, (*unit)(nil)
		for _, b := range p.blocks {
			if b.Language != "go" || b.Marks != "compile" && b.Marks != "hidden" {
				continue
			}
			file, err := parse(set, p.name, b)
			if err != nil {
				problems = append(problems, err.Error())
				continue
			}
			for _, i := range file.Imports {
				imported, _ := strconv.Unquote(i.Path.Value)
				paths[imported] = true
			}
			for _, id := range file.Unresolved {
				if known[id.Name] != "" {
					paths[known[id.Name]] = true
				}
			}
			switch {
			case file.Name.Name != "main":
				shared.files = append(shared.files, file)
			case program == nil || program.complete():
				program = &unit{p.name, []*ast.File{file}}
				units = append(units, program)
			default:
				program.files = append(program.files, file)
			}
		}
		units = append(units, shared)
	}
	imports := importer.ForCompiler(set, "gc", exported(t, slices.Sorted(maps.Keys(paths))))
	for _, u := range units {
		u.addImports(known, imports)
		config := types.Config{Importer: imports, Error: func(err error) {
			if e, ok := err.(types.Error); ok && !e.Soft {
				problems = append(problems, fmt.Sprintf("%v: %s", set.Position(e.Pos), e.Msg))
			}
		}}
		_, _ = config.Check(u.page, set, u.files, nil) // it tells Error
	}
	return problems
}

// parse reads a block: a file, or declarations, or statements of a function.
func parse(set *token.FileSet, page string, b pagecode.Block) (*ast.File, error) {
	at := fmt.Sprintf("//line %s:%d\n", path.Base(page), b.Line) // beside the page
	if strings.HasPrefix(b.Text, "package ") {
		file, err := parser.ParseFile(set, page, at+b.Text, 0)
		if err == nil && file.Name.Name != "main" {
			file.Name.Name = "page"
		}
		return file, err
	}
	const head = "package page\n"
	if file, err := parser.ParseFile(set, page, head+at+b.Text, 0); err == nil {
		return file, nil
	}
	// What it returns is what the function returns.
	file, err := parser.ParseFile(set, page, head+"func _() {\n"+at+b.Text+"\n}", 0)
	if err != nil {
		return nil, err
	}
	results, last := "", ""
	ast.Inspect(file.Decls[0].(*ast.FuncDecl).Body, func(n ast.Node) bool {
		if r, ok := n.(*ast.ReturnStmt); ok && len(r.Results) > 0 {
			results, last = "("+strings.Repeat("any, ", len(r.Results)-1)+"error)", "panic(0)"
		}
		_, inner := n.(*ast.FuncLit)
		return !inner
	})
	return parser.ParseFile(set, page, head+"func _() "+results+" {\n"+at+b.Text+"\n"+last+"\n}", 0)
}

// addImports adds to each file that says "package page" what it uses: an import of another block of the
// page, a package of ours, or one of Go's.
func (u *unit) addImports(known map[string]string, imports types.Importer) {
	of := maps.Clone(known)
	declared := map[string]bool{}
	for _, file := range u.files {
		for _, i := range file.Imports {
			imported, _ := strconv.Unquote(i.Path.Value)
			if p, err := imports.Import(imported); i.Name != nil {
				of[i.Name.Name] = imported
			} else if err == nil {
				of[p.Name()] = imported
			}
		}
		for name := range file.Scope.Objects {
			declared[name] = true
		}
	}
	for _, file := range u.files {
		if file.Name.Name == "main" {
			continue
		}
		file.Imports, file.Decls = nil, slices.DeleteFunc(file.Decls, func(d ast.Decl) bool {
			g, ok := d.(*ast.GenDecl)
			return ok && g.Tok == token.IMPORT
		})
		added := &ast.GenDecl{TokPos: file.Name.End(), Tok: token.IMPORT}
		for _, id := range file.Unresolved {
			if of[id.Name] == "" || declared[id.Name] || slices.ContainsFunc(added.Specs, func(s ast.Spec) bool { return s.(*ast.ImportSpec).Name.Name == id.Name }) {
				continue
			}
			spec := &ast.ImportSpec{Name: ast.NewIdent(id.Name), Path: &ast.BasicLit{ValuePos: file.Name.End(), Kind: token.STRING, Value: strconv.Quote(of[id.Name])}}
			added.Specs = append(added.Specs, spec)
			file.Imports = append(file.Imports, spec)
		}
		if len(added.Specs) > 0 {
			file.Decls = append([]ast.Decl{added}, file.Decls...)
		}
	}
}

// packagesByName maps the names of Go's packages and ours to their paths. Of two with one name it has the
// shorter path, and ours before Go's.
func packagesByName(t *testing.T) map[string]string {
	t.Helper()
	known := map[string]string{"baton": module}
	add := func(root, prefix string) {
		found := map[string]string{}
		err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() || file == root {
				return err
			}
			if slices.Contains([]string{"internal", "vendor", "testdata", "cmd", "docs", "node_modules", "examples", "interop"}, d.Name()) || strings.HasPrefix(d.Name(), ".") {
				return fs.SkipDir
			}
			below, _ := filepath.Rel(root, file)
			name, imported := d.Name(), prefix+filepath.ToSlash(below)
			if had := found[name]; had == "" || len(imported) < len(had) {
				if files, _ := filepath.Glob(filepath.Join(file, "*.go")); len(files) > 0 {
					found[name] = imported
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for name, imported := range found {
			if known[name] == "" {
				known[name] = imported
			}
		}
	}
	add(repo, module+"/")
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	add(filepath.Join(strings.TrimSpace(string(out)), "src"), "")
	return known
}

// exported builds packages, and finds the types of each.
func exported(t *testing.T, paths []string) func(imported string) (io.ReadCloser, error) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-e", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}"}, paths...)...)
	cmd.Dir = repo
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &errs)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		imported, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		files[imported] = file
	}
	return func(imported string) (io.ReadCloser, error) {
		if files[imported] == "" {
			return nil, fmt.Errorf("there is no package %s", imported)
		}
		return os.Open(files[imported])
	}
}
