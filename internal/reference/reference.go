// Package reference writes docs/reference/errors.md and docs/reference/configuration.md from
// the doc comments of the packages that programs import, and both in Chinese with the
// translations of zh.txt. A test fails when a page is stale or a translation is missing;
// "go generate" writes the pages anew.
package reference

//go:generate go test -run ^TestPagesAreFresh$ -update .

import (
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A pkg has what the pages show of a package.
type pkg struct {
	folder  string // "." is the root
	name    string
	errors  []entry
	configs []config
}

// An entry is an error, or a field of a configuration.
type entry struct {
	name, kind string // kind is the Go type
	doc        []string
	standard   string // what a field defaults to
}

// A config is a struct that configures something.
type config struct {
	name   string
	doc    []string
	fields []entry
}

// skipped are folders without packages that programs import. drivertest is for those who
// write stores.
var skipped = []string{"internal", "testdata", "cmd", "examples", "bench", "clients", "tools", "dist", "bin", "drivertest", "docs", "site"}

// read reads all packages of the repository that programs import.
func read(repo fs.FS) (all []pkg, err error) {
	err = fs.WalkDir(repo, ".", func(folder string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if folder != "." && (slices.Contains(skipped, d.Name()) || strings.HasPrefix(d.Name(), ".")) {
			return fs.SkipDir
		}
		names, err := fs.Glob(repo, path.Join(folder, "*.go"))
		if err != nil {
			return err
		}
		p := pkg{folder: folder}
		var files []*ast.File
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			text, err := fs.ReadFile(repo, name)
			if err != nil {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			if p.name = file.Name.Name; p.name != "main" {
				files = append(files, file)
			}
		}
		p.take(files)
		if len(p.errors)+len(p.configs) > 0 {
			all = append(all, p)
		}
		return nil
	})
	return all, err
}

// take finds the errors and configurations in the files of a package.
func (p *pkg) take(files []*ast.File) {
	failing := make(map[string]bool) // types that have a method Error
	for _, file := range files {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.Name == "Error" {
				failing[strings.TrimPrefix(source(f.Recv.List[0].Type), "*")] = true
			}
		}
	}
	for _, file := range files {
		for _, decl := range file.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range group.Specs {
				switch s := spec.(type) {
				case *ast.ValueSpec:
					if name := s.Names[0].Name; group.Tok == token.VAR && strings.HasPrefix(name, "Err") {
						doc := paragraphs(s.Doc, s.Comment, onlyOf(group))
						if doc == nil {
							doc = messageOf(s)
						}
						p.errors = append(p.errors, entry{name: name, doc: doc})
					}
				case *ast.TypeSpec:
					name, doc := s.Name.Name, paragraphs(s.Doc, s.Comment, onlyOf(group))
					fields, isStruct := s.Type.(*ast.StructType)
					switch {
					case !s.Name.IsExported():
					case failing[name], s.Assign != 0 && strings.HasSuffix(name, "Error"):
						p.errors = append(p.errors, entry{name: "*" + name, doc: doc})
					case isStruct && strings.HasSuffix(name, "Config"):
						p.configs = append(p.configs, config{name, doc, fieldsOf(fields)})
					}
				}
			}
		}
	}
	slices.SortFunc(p.errors, func(a, b entry) int {
		return strings.Compare(strings.TrimPrefix(a.name, "*"), strings.TrimPrefix(b.name, "*"))
	})
}

// onlyOf is the comment of a declaration that is no group.
func onlyOf(group *ast.GenDecl) *ast.CommentGroup {
	if group.Lparen.IsValid() {
		return nil
	}
	return group.Doc
}

// messageOf is the text of an error whose text says it all.
func messageOf(s *ast.ValueSpec) []string {
	if len(s.Values) == 1 {
		if call, ok := s.Values[0].(*ast.CallExpr); ok && len(call.Args) == 1 {
			if text, ok := call.Args[0].(*ast.BasicLit); ok {
				if message, err := strconv.Unquote(text.Value); err == nil {
					return []string{message}
				}
			}
		}
	}
	return nil
}

func fieldsOf(s *ast.StructType) (all []entry) {
	for _, f := range s.Fields.List {
		for _, name := range f.Names {
			if !name.IsExported() {
				continue
			}
			e := entry{name: name.Name, kind: source(f.Type), doc: paragraphs(f.Doc, f.Comment)}
			for i, text := range e.doc {
				if at := standard.FindStringIndex(text); at != nil {
					e.standard = text[at[0]+len("Defaults to "):]
					e.doc[i] = strings.TrimSpace(text[:at[0]])
					if end := strings.Index(e.standard, ". "); end >= 0 {
						e.doc[i] = strings.TrimSpace(e.doc[i] + " " + e.standard[end+2:])
						e.standard = e.standard[:end]
					}
					e.standard = strings.TrimSuffix(e.standard, ".")
				}
			}
			e.doc = slices.DeleteFunc(e.doc, func(text string) bool { return text == "" })
			all = append(all, e)
		}
	}
	return all
}

var (
	standard = regexp.MustCompile(`\bDefaults to `)
	docLink  = regexp.MustCompile(`\[(\*?[A-Za-z][\w./]*)\]`)
)

// paragraphs are those of the first comment that says something, each in one line.
func paragraphs(comments ...*ast.CommentGroup) (all []string) {
	for _, c := range comments {
		if text := c.Text(); text != "" {
			for p := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
				all = append(all, docLink.ReplaceAllString(strings.Join(strings.Fields(p), " "), "$1"))
			}
			return all
		}
	}
	return nil
}

// source is an expression as it stands in the code.
func source(e ast.Expr) string {
	var b strings.Builder
	_ = printer.Fprint(&b, token.NewFileSet(), e)
	return strings.Join(strings.Fields(b.String()), " ")
}
