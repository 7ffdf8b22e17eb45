package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton/internal/catalogue"
)

// Every finding of every store has words in Chinese, and the catalogue has nothing else.
func TestFindingsHaveWords(t *testing.T) { // not parallel: it changes what is spoken
	defer func() { spoken = nil }()
	spoken = maps.Collect(catalogue.All(wordsZH))
	stores, err := filepath.Glob("../../store/*store")
	if err != nil {
		t.Fatal(err)
	}
	var all findingTexts
	for _, dir := range append(stores, "../../store/redlock", ".") {
		texts := findingsOf(t, dir, partsOfFindings[filepath.Base(dir)]...)
		if len(texts.said) == 0 {
			t.Errorf("%s has no findings", dir)
		}
		all.said = append(all.said, texts.said...)
		all.literals = append(all.literals, texts.literals...)
	}
	for _, problem := range append(unworded(all.said), idle(all)...) {
		t.Error(problem)
	}
	t.Logf("%d texts", len(all.said))
}

// partsOfFindings are the declarations, by store, whose texts findings have as parts.
var partsOfFindings = map[string][]string{
	"sqlitestore": {"ErrReplaced", "ErrNetworkFS", "ErrTimeNamespace", "ErrOtherMachine", "ErrFull", "ErrCorrupt"}, // those of FileError.Finding
	"redisstore":  {"judgeSilence"},
	"redlock":     {"areServers"},
	"pgstore":     {"SchemaError.Error"},
	"mysqlstore":  {"schemaProblems", "noTable", "later"},
}

// A translation of a finding has the figures, settings and commands of its text.
func TestFindingsAgree(t *testing.T) {
	t.Parallel()
	var names []string
	eachCommand((&app{}).root(), func(c *cobra.Command) { names = append(names, c.Name()) })
	parts := partsOf(names[1:])
	seen := map[string]bool{}
	for english, other := range catalogue.All(findingsZH) {
		if seen[english] {
			t.Errorf("two translations of %q", english)
		}
		seen[english] = true
		if english == other { // a command alone
			continue
		}
		// Chinese has no plural, and no comma that an address could end with.
		bare := strings.NewReplacer("TTLs", "TTL", "IDs", "ID", "redis://%s,", "redis://%s").Replace(english)
		for _, problem := range disagree(parts, bare, strings.ReplaceAll(other, "redis://%s，", "redis://%s")) {
			t.Error(problem)
		}
	}
}

func TestFindingWords(t *testing.T) { // not parallel: it changes what is spoken
	for _, c := range []struct{ text, want string }{
		{"the server has evicted 7 keys since its start, any of which may have been a lock", "服务器启动以来已淘汰 7 个键，其中任何一个都可能是锁"},
		{"91 % of maxmemory are in use: once it is full nothing can be locked, and leases are lost because they cannot be renewed", "maxmemory 已用 91 %：写满后什么也锁不了，租约因无法续期而丢失"},
		{"3 of 9 connections are taken: the next ones are refused, and whoever must connect again loses its leases", "9 个连接已用 3 个：再来的连接会被拒绝，需要重连的程序会丢失租约"},
		{"the server is a replica: it grants no locks, and what it shows is old (on a:1, b:2)", "这台服务器是从节点：它不授予锁，显示的也是旧数据（在 a:1, b:2 上）"},
		{"a quorum of 3 cannot come about with 2 Sentinels: nobody is ever promoted", "quorum 为 3，而只有 2 个 Sentinel，永远达不到：从不会有从节点被提升"},
		{"the tables are not as this version needs them: there is no table x; there is no column y", "这些表不符合本版本的要求：没有表 x；没有列 y"},
		{"the cluster says that its state is \"%s\n%!d\": it refuses requests", "集群报告自己的状态是 \"%s\n%!d\"：它拒绝请求"},
		{"chmod o-w '/a (on b); c'", "chmod o-w '/a (on b); c'"},
		{"the server says a; b (on c)", "the server says a; b (on c)"},
		{"no more than a mark (on c); there is no column y", "no more than a mark (on c); there is no column y"},
		{"sqlite store /a (b): the disk is full: free some space (no space left; on /)", "SQLite 存储 /a (b)：磁盘已满：腾出空间（no space left; on /）"},
		{"what no store says", "what no store says"},
		{strings.Repeat("x; ", 5000), strings.Repeat("x; ", 5000)},
		{strings.Repeat("1 Sentinel; ", 300), strings.Repeat("1 Sentinel; ", 300)},
	} {
		spoken = map[string]string{}
		got := findingWords(c.text)
		spoken = nil
		if got != c.want {
			t.Errorf("%.80q is %.200q, want %.200q", c.text, got, c.want)
		}
		if english := findingWords(c.text); english != c.text {
			t.Errorf("in English %.80q is %.80q", c.text, english)
		}
	}
}

// Planted findings without words, and words without a finding, are found.
func TestFindingsHaveWordsCatches(t *testing.T) { // not parallel: it changes what is spoken
	defer func() { spoken = nil }()
	spoken = map[string]string{}
	for _, c := range []struct{ code, want string }{
		{`f := driver.Finding{Name: "x", What: "the cluster has one member: while that is down, nothing is granted"}; _ = f`, ""},
		{`f := driver.Finding{Name: "x", What: "a new finding of " + x}; _ = f`, "a new finding of ‹1›"},
		{`f := driver.Finding{Name: "x", Mend: "do what is new"}; _ = f`, "do what is new"},
		{`f.What = fmt.Sprintf("the server is %s, 100 %% of it", x)`, "the server is ‹1›, 100 % of it"},
		{`f.What += " and more of it"`, " and more of it"},
		{`f.Name, f.Mend = "x", "do what is new"`, "do what is new"},
		{`note := func(name, mend, what string, args ...any) { f = driver.Finding{What: fmt.Sprintf(what, args...), Mend: mend} }; note("x", "baton schema apply", "the %d of it")`, "the ‹1› of it"},
		{`note := func(what, mend string) { f = driver.Finding{What: what, Mend: mend} }; note("the first of it", "")`, "the first of it"},
		{`const cost = "and nobody knows of it"; f.What = "the server stood still for 1 s when it last began to save; " + cost`, "and nobody knows of it"},
	} {
		f, err := parser.ParseFile(gotoken.NewFileSet(), "x.go", "package x\n\nfunc f(x string) { "+c.code+" }\n", parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		problems := strings.Join(unworded(textsOfFindings([]*ast.File{f}).said), "\n")
		if (c.want == "") != (problems == "") || !strings.Contains(problems, c.want) {
			t.Errorf("%s: found %q, want %q", c.code, problems, c.want)
		}
	}
	if problems := idle(findingTexts{said: []string{"the cluster has one member"}}); len(problems) < 100 {
		t.Errorf("words without findings: found %d", len(problems))
	}
}

// unworded says which texts have a part without words. Each %s of them is a part that needs none.
func unworded(texts []string) (problems []string) {
	english := regexp.MustCompile(`(?:[A-Za-z,']+ ){3}`)
	for _, text := range texts {
		if !wordy(text) {
			continue
		}
		n := 0
		if of, ok := strings.CutPrefix(text, "%s"); ok { // it may be that something is added to a text
			text = "1 Sentinel" + of
		}
		sample := verb.ReplaceAllStringFunc(text, func(v string) string {
			if v == "%%" {
				return "%"
			}
			n++
			return fmt.Sprintf("‹%d›", n)
		})
		got := findingWords(sample)
		asItIs := slices.ContainsFunc(rewordings(), func(r rewording) bool { return r.words == strings.ReplaceAll(text, "%d", "%s") })
		if !asItIs && (got == sample || english.MatchString(prose(got))) {
			problems = append(problems, "words/doctor_zh.txt lacks:\n"+sample+"\nof which it has\n"+got)
		}
	}
	return problems
}

// prose is a text without the commands and settings that stay English.
func prose(text string) string {
	return regexp.MustCompile(`CONFIG (SET|RESETSTAT)[\w -]*|ACL SETUSER [^，）]*|SET GLOBAL [\w= ']*|SENTINEL SET[\w ]*|CLUSTER FAILOVER FORCE|REPLICAOF NO ONE|sqlite3 ‹\d› '[^']*'|etcdctl [\w ]*|systemctl mask \S*|echo never > \S*|zkCli.sh [^）]*|"baton [\w ]*"|baton help stores|PRAGMA \w*|transparent_hugepage\S*`).ReplaceAllString(text, "")
}

// idle says which texts of the catalogue no store says.
func idle(all findingTexts) (problems []string) {
	source := strings.ReplaceAll(strings.Join(append(slices.Clone(all.said), all.literals...), "\n"), "%%", "%")
	for english := range catalogue.All(findingsZH) {
		for _, part := range partOfShape.Split(strings.ReplaceAll(english, "%%", "%"), -1) {
			one := strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(part, "1 "), "s")) // what is counted
			if !strings.Contains(source, part) && !strings.Contains(source, one) && wordy(part) {
				problems = append(problems, fmt.Sprintf("words/doctor_zh.txt has a text that no store says: %q, of which %q", english, part))
				break
			}
		}
	}
	return problems
}

// findingTexts are what a package says in findings, with %s for what is not fixed, and all
// strings of its code.
type findingTexts struct{ said, literals, parts []string }

func findingsOf(t *testing.T, dir string, parts ...string) findingTexts {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var parsed []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(gotoken.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, f)
	}
	texts := textsOfFindings(parsed, parts...)
	if len(texts.parts) != len(parts) {
		t.Errorf("%s has of %q only %q", dir, parts, texts.parts)
	}
	return texts
}

// textsOfFindings reads the findings of a package, and the texts in the declarations that
// have parts of them.
func textsOfFindings(parsed []*ast.File, parts ...string) (all findingTexts) {
	r := findingReader{constants: map[string]ast.Expr{}, makers: map[string]maker{}}
	for _, read := range []func(ast.Node){r.learn, r.read} {
		for _, f := range parsed {
			ast.Inspect(f, func(n ast.Node) bool { read(n); return true })
		}
	}
	for _, f := range parsed {
		ast.Inspect(f, func(n ast.Node) bool {
			if name := declared(n); slices.Contains(parts, name) {
				r.texts.parts = append(r.texts.parts, name)
				ast.Inspect(n, r.readPart)
			}
			return true
		})
	}
	return r.texts
}

// declared is the name that a node declares, with its type for a method, or "".
func declared(n ast.Node) string {
	switch n := n.(type) {
	case *ast.ValueSpec:
		return n.Names[0].Name
	case *ast.FuncDecl:
		if n.Recv == nil {
			return n.Name.Name
		}
		of := n.Recv.List[0].Type
		if star, ok := of.(*ast.StarExpr); ok {
			of = star.X
		}
		if id, ok := of.(*ast.Ident); ok {
			return id.Name + "." + n.Name.Name
		}
	}
	return ""
}

// readPart reads the texts of a declaration that has parts of findings.
func (r *findingReader) readPart(n ast.Node) bool {
	text := ""
	switch n := n.(type) {
	case *ast.CallExpr, *ast.BinaryExpr, *ast.BasicLit:
		text = r.shape(n.(ast.Expr))
	}
	if strings.ContainsFunc(text, unicode.IsSpace) && !strings.Contains(text, "SELECT") { // else a name, or a part of it comes
		r.say(text)
		return false
	}
	return true
}

// A findingReader finds the texts of findings in code.
type findingReader struct {
	constants map[string]ast.Expr
	makers    map[string]maker
	texts     findingTexts
}

// A maker is a function that makes a finding of its arguments.
type maker struct {
	what, mend int // which arguments these are
	formats    bool
}

// learn notes the constants, and the functions that are variables and make findings.
func (r *findingReader) learn(n ast.Node) {
	switch n := n.(type) {
	case *ast.ValueSpec:
		for i, name := range n.Names {
			if i < len(n.Values) {
				r.constants[name.Name] = n.Values[i]
			}
		}
	case *ast.AssignStmt:
		f, ok := n.Rhs[0].(*ast.FuncLit)
		name, named := n.Lhs[0].(*ast.Ident)
		if !ok || !named {
			return
		}
		m, i := maker{what: -1, mend: -1}, 0
		for _, field := range f.Type.Params.List {
			_, m.formats = field.Type.(*ast.Ellipsis)
			for _, p := range field.Names {
				switch p.Name {
				case "what":
					m.what = i
				case "mend":
					m.mend = i
				}
				i++
			}
		}
		if m.what >= 0 && m.mend >= 0 {
			r.makers[name.Name] = m
		}
	}
}

func (r *findingReader) read(n ast.Node) {
	isText := func(name string) bool { return name == "What" || name == "Mend" }
	switch n := n.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == gotoken.STRING {
			r.texts.literals = append(r.texts.literals, text)
		}
	case *ast.KeyValueExpr:
		if key, ok := n.Key.(*ast.Ident); ok && isText(key.Name) {
			r.say(r.shape(n.Value))
		}
	case *ast.AssignStmt:
		for i, left := range n.Lhs {
			of, ok := left.(*ast.SelectorExpr)
			switch {
			case !ok || !isText(of.Sel.Name) || i >= len(n.Rhs):
			case n.Tok == gotoken.ADD_ASSIGN:
				r.say("%s" + r.shape(n.Rhs[i]))
			default:
				r.say(r.shape(n.Rhs[i]))
			}
		}
	case *ast.CallExpr:
		f, ok := n.Fun.(*ast.Ident)
		if !ok {
			return
		}
		if m, ok := r.makers[f.Name]; ok && len(n.Args) > max(m.what, m.mend) {
			if format, ok := n.Args[m.what].(*ast.BasicLit); ok && m.formats {
				r.say(shapeOfFormat(format))
			} else {
				r.say(r.shape(n.Args[m.what]))
			}
			r.say(r.shape(n.Args[m.mend]))
		}
	}
}

func (r *findingReader) say(text string) { r.texts.said = append(r.texts.said, text) }

// shape is the text of an expression, with %s for what is not fixed.
func (r *findingReader) shape(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return strings.ReplaceAll(text, "%", "%%")
	case *ast.BinaryExpr:
		return r.shape(e.X) + r.shape(e.Y)
	case *ast.Ident:
		if value, ok := r.constants[e.Name].(*ast.BasicLit); ok && value.Kind == gotoken.STRING {
			return r.shape(value)
		}
	case *ast.CallExpr:
		of, ok := e.Fun.(*ast.SelectorExpr)
		if !ok || of.Sel.Name != "Sprintf" {
			break
		}
		if format, ok := e.Args[0].(*ast.BasicLit); ok {
			return shapeOfFormat(format)
		}
	}
	return "%s"
}

func shapeOfFormat(format *ast.BasicLit) string {
	text, _ := strconv.Unquote(format.Value)
	return verb.ReplaceAllStringFunc(text, func(v string) string {
		if v == "%%" {
			return v
		}
		return "%s"
	})
}
