package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/catalogue"
	"github.com/batonhq/baton/internal/httpguard"
	"github.com/batonhq/baton/internal/roles"
	"github.com/batonhq/baton/internal/textwidth"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/ratelimit/rules"
)

// Everything that the command says to people has words in Chinese, and the catalogue has
// nothing else. A text that is missing is printed as the catalogue wants it.
func TestWordsAreComplete(t *testing.T) {
	t.Parallel()
	files := gotoken.NewFileSet()
	var parsed []*ast.File
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := e.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			f, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, f)
		}
	}
	ofSource, problems := textsOfSource(files, parsed)
	said := textsOfHelp()
	maps.Copy(said, ofSource)
	for _, problem := range append(problems, incomplete(said, wordsZH)...) {
		t.Error(problem)
	}
}

// incomplete says what a catalogue lacks of the texts that are said, what it has twice, and
// what it has for nothing.
func incomplete(said map[string]string, text string) (problems []string) {
	words := map[string]string{}
	for english, other := range catalogue.All(text) {
		if words[english] != "" {
			problems = append(problems, "words/zh.txt has two translations of:\n"+english)
		}
		words[english] = other
	}
	var missing []string
	for text, where := range said {
		if words[text] == "" {
			missing = append(missing, "# "+where+"\n\n"+text+"\n=\n…\n")
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		problems = append(problems, fmt.Sprintf("words/zh.txt lacks %d texts:\n\n%s", len(missing), strings.Join(missing, "\n")))
	}
	for text := range words {
		if said[text] == "" {
			problems = append(problems, "words/zh.txt has a text that nothing says:\n"+text)
		}
	}
	return problems
}

// TestWordsAreCompleteCatches plants texts and code that are wrong, and sees them found.
func TestWordsAreCompleteCatches(t *testing.T) {
	t.Parallel()
	const sound = "a text\n=\n文字\n\nof %s and more\n=\n%s 等\n"
	for _, c := range []struct{ name, code, words, want string }{
		{"sound", `say("a text"); complain("of %s " + more, x); say(format, x); say("%s\n", x)`, sound, ""},
		{"a text without words", `say("a text"); complain("of %s " + more, x); usage("new")`, sound, "lacks 1 texts:\n\n# x.go\n\nnew\n="},
		{"words without a text", `say("a text")`, sound, "has a text that nothing says:\nof %s and more"},
		{"two translations", `say("a text"); complain("of %s and more", x)`, sound + "\na text\n=\n另\n", "has two translations of:\na text"},
		{"an error in English to everybody", `say("a text"); complain("of %s and more", x); _ = fmt.Errorf("a text")`, sound, `x.go:5:`},
		{"a text that is made as it runs", `say("a text"); complain("of %s and more", x); say("a" + x)`, sound, "has no words in other languages"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			files := gotoken.NewFileSet()
			f, err := parser.ParseFile(files, "x.go", "package main\n\nconst more = \"and more\"\n\nfunc f(format, x string) { "+c.code+" }\n", parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			said, problems := textsOfSource(files, []*ast.File{f})
			all := strings.Join(append(problems, incomplete(said, c.words)...), "\n")
			if (c.want == "") != (all == "") || !strings.Contains(all, c.want) {
				t.Errorf("found %q, want %q", all, c.want)
			}
		})
	}
}

// textsOfHelp are the paragraphs of the help, with the command that has them.
func textsOfHelp() map[string]string {
	said := map[string]string{}
	root := (&app{}).root()
	root.InitDefaultHelpCmd()
	add := func(where, text string) {
		for p := range strings.SplitSeq(text, "\n\n") {
			if p = strings.Trim(p, "\n"); wordy(p) {
				said[p] = cmp.Or(said[p], where)
			}
		}
	}
	eachCommand(root, func(c *cobra.Command) {
		where := c.CommandPath()
		add(where, c.Short)
		add(where, c.Long)
		inExample(c.Example, func(remark string) string { add(where, remark); return remark })
		for _, g := range c.Groups() {
			add(where, g.Title)
		}
		eachFlag(c, func(f *pflag.Flag) { add(where+" --"+f.Name, f.Usage) })
	})
	for _, text := range slices.Concat(cobraTitles, cobraErrors, slices.Collect(maps.Values(wantedValues)), typesOfValues, libraryTexts, []string{cobraMore}) {
		said[text] = "cobra"
	}
	return said
}

// speaking are the functions whose first argument is said to people.
var speaking = []string{"say", "complain", "usage", "errorf", "phrase", "translated", "worded"}

// textsOfSource are the texts of the code, with the file that has them, and what is said
// there past all catalogues.
func textsOfSource(files *gotoken.FileSet, parsed []*ast.File) (said map[string]string, problems []string) {
	said = map[string]string{}
	constants := map[string]ast.Expr{}
	for _, f := range parsed {
		ast.Inspect(f, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok {
				for i, name := range spec.Names {
					if i < len(spec.Values) {
						constants[name.Name] = spec.Values[i]
					}
				}
			}
			return true
		})
	}
	var textOf func(e ast.Expr) (string, bool)
	textOf = func(e ast.Expr) (string, bool) {
		switch e := e.(type) {
		case *ast.BasicLit:
			text, err := strconv.Unquote(e.Value)
			return text, err == nil
		case *ast.BinaryExpr:
			x, ok := textOf(e.X)
			y, also := textOf(e.Y)
			return x + y, ok && also && e.Op == gotoken.ADD
		case *ast.Ident:
			if value, ok := constants[e.Name]; ok {
				return textOf(value)
			}
		}
		return "", false
	}
	for _, f := range parsed {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			where := files.Position(call.Pos())
			name := ""
			switch f := call.Fun.(type) {
			case *ast.Ident:
				name = f.Name
			case *ast.SelectorExpr:
				name = f.Sel.Name
				if x, ok := f.X.(*ast.Ident); ok && (x.Name == "fmt" && name == "Errorf" || x.Name == "errors" && name == "New") {
					if text, _ := textOf(call.Args[0]); wordy(text) && !slices.Contains(notForPeople, text) {
						problems = append(problems, fmt.Sprintf("%v: %s.%s says %q in English to everybody: errorf says it in the language that is spoken", where, x.Name, name, text))
					}
				}
			}
			if !slices.Contains(speaking, name) {
				return true
			}
			switch text, ok := textOf(call.Args[0]); {
			case ok && wordy(text):
				said[text] = where.Filename
			case !ok && where.Filename != "words.go" && !passesOn(call.Args[0]):
				problems = append(problems, fmt.Sprintf("%v: %s of a text that is made up as it runs has no words in other languages", where, name))
			}
			return true
		})
	}
	return said, problems
}

// notForPeople are errors that a client of the agent or a log gets.
var notForPeople = []string{
	"the page needs the token that the agent has drawn at its start",
	"not written by baton once",
}

// passesOn reports whether the text is the parameter of a function that is itself one of
// those whose calls are looked at.
func passesOn(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "format"
}

// wordy reports whether a text has words beside verbs, flags and names.
func wordy(text string) bool {
	if regexp.MustCompile(`^baton \w+$`).MatchString(text) {
		return false
	}
	return strings.ContainsFunc(verb.ReplaceAllString(flagName.ReplaceAllString(text, ""), ""), unicode.IsLetter)
}

var (
	verb     = regexp.MustCompile(`%(?:\[(\d+)\])?[-+# 0]*[\d.]*(?:\[(\d+)\])?([a-zA-Z%])`)
	flagName = regexp.MustCompile(`(^|[^\w-])--?[a-zA-Z][\w-]*`)
)

// A translation has the verbs, flags, commands, addresses, names and figures of its text.
func TestWordsAgree(t *testing.T) {
	t.Parallel()
	var names []string
	eachCommand((&app{}).root(), func(c *cobra.Command) { names = append(names, c.Name()) })
	parts := partsOf(names[1:]) // without baton itself
	for english, other := range catalogue.All(wordsZH) {
		for _, problem := range disagree(parts, english, other) {
			t.Error(problem)
		}
	}
}

// partsOf finds what stays as it is in a translation. commands are their names.
func partsOf(commands []string) map[string]*regexp.Regexp {
	return map[string]*regexp.Regexp{
		"flags":    flagName,
		"commands": regexp.MustCompile(`baton (?:` + strings.Join(commands, "|") + `)\b`),
		"URLs":     regexp.MustCompile(`[a-z][a-z+]*:/[\w/.:@,?=*-]*`),
		"names":    regexp.MustCompile(`\$?\b[A-Z][A-Z_]+\b|\b[a-z]+_[a-z_]+\b|\b[a-z][a-z-]*=|\bdocs/[\w-]+|` + strings.Join(algorithms(), "|")),
		"figures":  regexp.MustCompile(`\d+(?:[.,/:]\d+)*`),
		"values":   regexp.MustCompile("`[^`]+`"),
	}
}

// disagree says what a translation has otherwise than its text.
func disagree(parts map[string]*regexp.Regexp, english, other string) (problems []string) {
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if want, got := verbsOf(english), verbsOf(other); !slices.Equal(want, got) {
		problem("%q has the verbs %q, and in Chinese %q:\n%s", english, want, got, other)
	}
	bare := func(text string) string { return strings.Join(strings.Fields(verb.ReplaceAllString(text, "")), " ") }
	bareEnglish, bareOther := bare(english), bare(other)
	title := english == strings.ToUpper(english)
	for what, part := range parts {
		want, got := part.FindAllString(bareEnglish, -1), part.FindAllString(bareOther, -1)
		for _, list := range [][]string{want, got} {
			for i, text := range list {
				list[i] = strings.TrimLeft(text, " (（“\"'，。：；、）\n/|[")
				if what == "flags" {
					list[i] = strings.TrimLeftFunc(text, func(r rune) bool { return r != '-' })
				}
			}
			slices.Sort(list)
		}
		if what == "names" {
			want, got = slices.Compact(want), slices.Compact(got)
		}
		if !slices.Equal(want, got) && !(what == "names" && title) {
			problem("the %s are %q, and in Chinese %q:\n%s\n=\n%s", what, want, got, english, other)
		}
	}
	if english == other {
		problem("not translated: %q", english)
	}
	if m := halfWidth.FindString(other); m != "" {
		problem("Chinese with the mark of another script, %q:\n%s", m, other)
	}
	return problems
}

// TestWordsAgreeCatches plants translations that are wrong, and sees them found.
func TestWordsAgreeCatches(t *testing.T) {
	t.Parallel()
	parts := partsOf([]string{"ls", "show"})
	for _, c := range []struct{ english, other, want string }{
		{"wait %s for %d keys", "为 %[2]d 个键等待 %[1]s", ""},
		{"see --ttl and baton ls, 3 s, redis://HOST", "见 --ttl 和 baton ls，3 s，redis://HOST", ""},
		{"wait %s for %d keys", "等待 %s", "has the verbs"},
		{"wait %s for %d keys", "为 %d 个键等待 %s", "has the verbs"},
		{"see --ttl", "见 --tll", "the flags are"},
		{"see baton ls", "见 baton show", "the commands are"},
		{"at redis://HOST", "在 rediss://HOST", "the URLs are"},
		{"set BATON_STORE", "设置 BATON_STORES", "the names are"},
		{"after 3 s", "5 s 之后", "the figures are"},
		{"a `FILE` of it", "它的 `文件`", "the values are"},
		{"a text", "a text", "not translated"},
		{"a text, and more", "文字,等等", "the mark of another script"},
	} {
		all := strings.Join(disagree(parts, c.english, c.other), "\n")
		if (c.want == "") != (all == "") || !strings.Contains(all, c.want) {
			t.Errorf("%q as %q: found %q, want %q", c.english, c.other, all, c.want)
		}
	}
}

// halfWidth are marks of Latin script beside Chinese.
var halfWidth = regexp.MustCompile(`\p{Han}[,;:?!()]|[,;?!()]\p{Han}`)

// verbsOf are the verbs of a format by the argument they are for.
func verbsOf(format string) []string {
	var verbs []string
	n := 0
	for _, m := range verb.FindAllStringSubmatch(format, -1) {
		if m[3] == "%" {
			continue
		}
		if at := cmp.Or(m[1], m[2]); at != "" {
			n, _ = strconv.Atoi(at)
		} else {
			n++
		}
		for len(verbs) < n {
			verbs = append(verbs, "")
		}
		verbs[n-1] += m[0][len(m[0])-1:]
	}
	return verbs
}

// BATON_LANG chooses, or else the locale, as other programs do.
func TestLanguage(t *testing.T) { // not parallel: it changes what is spoken
	defer func() { spoken = nil }()
	for _, c := range []struct {
		env  string
		want string
	}{
		{"", "en"},
		{"LANG=C.UTF-8", "en"},
		{"LANG=de_DE.UTF-8", "en"},
		{"LANG=zh_CN.UTF-8", "zh"},
		{"LANG=zh_CN.utf8", "zh"},
		{"LANG=zh_CN", "zh"},
		{"LANG=zh_SG.UTF-8@pinyin", "zh"},
		{"LANG=zh_TW.UTF-8", "zh"},
		{"LANG=zh_CN.GB18030", "en"}, // a terminal that would not show UTF-8
		{"LC_MESSAGES=zh_CN.UTF-8 LANG=en_US.UTF-8", "zh"},
		{"LC_ALL=C LC_MESSAGES=zh_CN.UTF-8 LANG=zh_CN.UTF-8", "en"},
		{"BATON_LANG=zh", "zh"},
		{"BATON_LANG=zh_CN.UTF-8", "zh"},
		{"BATON_LANG=zh-Hans", "zh"},
		{"BATON_LANG=ZH", "zh"},
		{"BATON_LANG=zh_CN.GB18030", "zh"},
		{"BATON_LANG=en LC_ALL=zh_CN.UTF-8", "en"},
		{"BATON_LANG=en_GB.UTF-8", "en"},
		{"BATON_LANG=zh LC_ALL=C", "zh"},
		{"BATON_LANG=fr LANG=zh_CN.UTF-8", "error"},
		{"BATON_LANG=C", "error"},
	} {
		env := map[string]string{}
		for pair := range strings.FieldsSeq(c.env) {
			name, value, _ := strings.Cut(pair, "=")
			env[name] = value
		}
		got, err := "en", speak(func(name string) string { return env[name] })
		switch {
		case err != nil:
			got = "error"
			if codeOf(err) != exitUsage || !strings.Contains(err.Error(), "en (English) or zh") {
				t.Errorf("%s: %v, exit code %d", c.env, err, codeOf(err))
			}
		case spoken != nil:
			got = "zh"
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.env, got, c.want)
		}
	}
}

// What wraps an error still does in Chinese, and the columns of the flags begin where they
// do in English.
func TestChinese(t *testing.T) { // not parallel, as the test above
	defer func() { spoken = nil }()
	english := columnsOfFlags(t)
	spoken = maps.Collect(catalogue.All(wordsZH))
	if got := columnsOfFlags(t); !slices.Equal(got, english) {
		t.Errorf("usages of flags begin at the columns %v, in English at %v", got, english)
	}
	inner := errors.New("no")
	if err := errorf("reading the handle: %w", inner); !errors.Is(err, inner) || err.Error() != "读取句柄：no" {
		t.Errorf("an error is %q", err)
	}
	if got := cobraError(`unknown command "rnu" for "baton": did you mean run?`); !strings.Contains(got, `"rnu"`) || !strings.Contains(got, "run？") || strings.Contains(got, "unknown") {
		t.Errorf("cobra's error is %q", got)
	}
}

// columnsOfFlags are the columns at which the usages of flags begin, in the help of each
// command.
func columnsOfFlags(t *testing.T) (columns []int) {
	root := (&app{}).root()
	root.InitDefaultHelpCmd()
	eachCommand(root, func(c *cobra.Command) {
		before := len(columns)
		defer func() {
			if here := slices.Compact(slices.Clone(columns[before:])); len(here) > 1 {
				t.Errorf("the flags of %s are not aligned: their usages begin at the columns %v", c.CommandPath(), here)
			}
		}()
		c.InitDefaultHelpFlag()
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			usage, _, _ := strings.Cut(strings.ReplaceAll(f.Usage, "`", ""), "\n")
			for line := range strings.SplitSeq(c.UsageString(), "\n") {
				if before, _, ok := strings.Cut(line, usage); ok && usage != "" && strings.Contains(before, "--"+f.Name) {
					columns = append(columns, textwidth.Of(before))
				}
			}
		})
	})
	if len(columns) < 100 {
		t.Errorf("only %d flags were found", len(columns))
	}
	return columns
}

// A line is broken where Chinese can be, and no part is wider than it may be.
func TestBreakLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		line string
		want []string
	}{
		{"  -n 不等待", []string{"  -n 不等待"}},
		{"  -n 一二三四五六七八九", []string{"  -n 一二三", "四五六七八九"}},
		{"  -n 一二三，四五六", []string{"  -n 一二", "三，四五六"}},
		{"  -n 见 exporters 的吗", []string{"  -n 见", "exporters 的", "吗"}},
		{"  -n 一二（三四）", []string{"  -n 一二", "（三四）"}},
		{"one two three four", []string{"one two", "three four"}},
		{"one two thre", []string{"one two thre"}},
		{"twelve words", []string{"twelve words"}},
		{"twelve wordsx", []string{"twelve", "wordsx"}},
		{strings.Repeat("x", 50) + " y", []string{strings.Repeat("x", 50), "y"}},
	} {
		if got := breakLine(c.line, 12, 12); !slices.Equal(got, c.want) {
			t.Errorf("%q is broken into %q, want %q", c.line, got, c.want)
		}
	}
}

// What the library says to a new user has words: each format that words_library.go has is
// still what the library says.
func TestLibraryWords(t *testing.T) { // not parallel: it changes what is spoken
	defer func() { spoken = nil }()
	spoken = maps.Collect(catalogue.All(wordsZH))
	opened := func(url string) error {
		_, err := open.Store(t.Context(), url)
		return err
	}
	handle := func(text string) error {
		_, _, err := baton.ReadHandle(text)
		return badHandle(err)
	}
	parsed := func(text string) error {
		_, err := rules.Parse("r.yaml", []byte(text))
		return err
	}
	listening := func(cfg httpguard.Config) error {
		_, err := httpguard.New(cfg)
		return doorError(err)
	}
	_, missing := os.Stat("nosuch.yaml")
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no database"), 0o600); err != nil {
		t.Fatal(err)
	}
	for said, err := range map[string]error{
		"没有协议名":                 opened("locks.db"),
		"不认识它的协议名":              opened("localhost:6379"),
		`"reddis"：是不是想写 redis？`: opened("reddis://h"),
		`"valkey"：写 redis://`:   opened("valkey://h"),
		`"gopher"：有 etcd,`:      opened("gopher://h"),
		"prefx：是不是想写 prefix？":   opened("redis://h?prefx=a"),
		"缺少路径":                  opened("sqlite:"),
		"这个文件不是 SQLite 数据库":     opened("sqlite:" + text),
		"例如 item/42":            check.Key(""),
		"以 \"baton1.\" 开头":      handle("abc"),
		"句柄已损坏":                 handle("baton1.!"),
		"规则 没有字段 \"request\"：是不是想写 requests？": parsed("rules:\n- name: api\n  request: 5\n  per: 1m\n"),
		"没有字段 \"xyzzy\"：有 ":                   parsed("rules:\n- name: api\n  xyzzy: 5\n"),
		"要带单位，例如 5s 或 5m":                     parsed("rules:\n- name: api\n  requests: 5\n  algorithm: leaky-bucket\n  per: 1m\n  max_wait: 5\n"),
		"其他机器能访问这个地址：必须":                      listening(httpguard.Config{Address: ":0"}),
		"并在途中读到访问令牌":                          listening(httpguard.Config{Address: ":0", ClientCA: "", Roles: &roles.File{}}),
		"并做任何事":                               listening(httpguard.Config{Address: ":0", Certificate: "c", Key: "k"}),
		"找不到文件 nosuch.yaml":                   missing,
		"没能及时续期（最后一个错误：":                      &baton.LostError{Key: "k", Cause: baton.Expired, Err: baton.ErrUnavailable},
		"存储忘了它":                               &baton.LostError{Key: "k", Cause: baton.Gone},
		"已持有到允许的最长时间":                         &baton.LostError{Key: "k", Cause: baton.Overheld},
		"这个句柄已经解过锁":                           badHandle(&baton.LostError{Key: "k", Cause: baton.Gone}),
		"存储不可用（":                              baton.ErrUnavailable,
	} {
		if err == nil {
			t.Errorf("no error says %s", said)
			continue
		}
		if got := explain(err); !strings.Contains(got, said) {
			t.Errorf("an error is %q, which lacks %q", got, said)
		}
	}
}
