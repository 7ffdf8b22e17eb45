// Package sqltext finds SQL in the source of a package, for tests that must not
// forget a statement.
package sqltext

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Text is a literal of the source that names a table after a word of SQL.
type Text struct {
	At  string // file and line
	SQL string // on one line
}

var table = regexp.MustCompile(`(?i)\b(FROM|INTO|UPDATE|JOIN)\s+(main\.)?baton_[a-z_]+\b[^(]`)

// InGo lists those in the Go files of a directory, without tests. Literals that the
// source puts together are texts of their own.
func InGo(dir fs.FS) (all []Text, err error) {
	files, err := fs.Glob(dir, "*.go")
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(set, name, source, 0)
		if err != nil {
			return nil, err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			l, ok := n.(*ast.BasicLit)
			if !ok || l.Kind != token.STRING {
				return true
			}
			text, _ := strconv.Unquote(l.Value) // the parser has seen to that
			if table.MatchString(text + " ") {
				at := set.Position(l.Pos())
				all = append(all, Text{fmt.Sprintf("%s:%d", at.Filename, at.Line), Line(text)})
			}
			return true
		})
	}
	return all, nil
}

// Line writes SQL on one line.
func Line(sql string) string { return strings.Join(strings.Fields(sql), " ") }

// Missing lists the texts that are part of no statement.
func Missing(texts []Text, statements []string) (missing []Text) {
	for _, x := range texts {
		found := false
		for _, s := range statements {
			found = found || strings.Contains(Line(s), x.SQL)
		}
		if !found {
			missing = append(missing, x)
		}
	}
	return missing
}

// Unmeant holds statements that do what none should against the exceptions from
// that rule: parts of statements, and why they are excepted. It returns the
// statements of which no exception is a part, and the exceptions that are part of
// no statement, which have to go.
func Unmeant(statements []string, exceptions map[string]string) (unmeant, unused []string) {
	used := make(map[string]bool)
	for _, s := range statements {
		meant := false
		for part := range exceptions {
			if strings.Contains(s, part) {
				meant, used[part] = true, true
			}
		}
		if !meant {
			unmeant = append(unmeant, s)
		}
	}
	for part := range exceptions {
		if !used[part] {
			unused = append(unused, part)
		}
	}
	slices.Sort(unused)
	return unmeant, unused
}
