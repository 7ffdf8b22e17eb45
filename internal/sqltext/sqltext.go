// Package sqltext finds SQL in the source of a package, for tests about all statements.
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

// A Text is a literal of the source with a word of SQL and a table after it.
type Text struct {
	At  string // file and line
	SQL string // on one line
}

var table = regexp.MustCompile(`(?i)\b(FROM|INTO|UPDATE|JOIN)\s+(main\.)?baton_[a-z_]+\b[^(]`)

// InGo lists the texts in the Go files of a directory, without tests. Each literal of a
// concatenation is a text of its own.
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
			text, _ := strconv.Unquote(l.Value) // cannot fail: the parser has checked it
			if table.MatchString(text + " ") {
				at := set.Position(l.Pos())
				all = append(all, Text{fmt.Sprintf("%s:%d", at.Filename, at.Line), Line(text)})
			}
			return true
		})
	}
	return all, nil
}

// Line puts SQL on one line.
func Line(sql string) string { return strings.Join(strings.Fields(sql), " ") }

// Missing lists the texts that no statement contains.
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

// Unmeant compares statements that break a rule with the exceptions from the rule: parts
// of statements, and the reason for each. It returns the statements without an exception,
// and the exceptions without a statement, which must be removed.
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
