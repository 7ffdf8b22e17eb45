package main

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/batonhq/baton/internal/catalogue"
	"github.com/batonhq/baton/open"
)

//go:generate go test -run ^TestReferenceIsFresh$ -update .

var updateReference = flag.Bool("update", false, "write the pages in docs/reference that are made of the help")

// TestReferenceIsFresh compares the pages of the reference that are made of the help with it.
func TestReferenceIsFresh(t *testing.T) {
	defer func(was map[string]string) { spoken = was }(spoken)
	for _, w := range []wording{english, chinese} {
		spoken = w.spoken()
		root := (&app{}).root()
		eachCommand(root, func(c *cobra.Command) { c.InitDefaultHelpFlag() }) // for which UseLine looks
		for file, page := range w.pages(root) {
			file = strings.Replace(file, "docs/", w.folder, 1)
			if *updateReference {
				if err := os.WriteFile(file, page, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if have, err := os.ReadFile(file); err != nil || !bytes.Equal(have, page) {
				t.Errorf("%s is stale (%v): go generate ./cmd/baton", file, err)
			}
		}
	}
}

// The help about stores, and so the page about URLs, has all schemes that an error offers.
func TestStoresHaveAllSchemes(t *testing.T) {
	t.Parallel()
	_, err := open.Store(t.Context(), "baseball://host")
	_, names, offered := strings.Cut(fmt.Sprint(err), "there are ")
	if !offered {
		t.Fatalf("the error offers no schemes: %v", err)
	}
	text := topic((&app{}).root(), "stores").Long
	for name := range strings.SplitSeq(names, ", ") {
		if !regexp.MustCompile(`(^|\s)` + regexp.QuoteMeta(name) + `:`).MatchString(text) {
			t.Errorf("the help about stores does not have %s", name)
		}
	}
}

// Texts that are laid out for a terminal become paragraphs, lists and code.
func TestReferenceMarkdown(t *testing.T) {
	t.Parallel()
	long := "Runs it,\nand <ends>:\n\n  KEY    the name of\n         the lock\n  no meaning\n\n等待锁，\n然后\n运行 go\n程序。见 docs/agent.md。\n"
	want := "Runs it, and \\<ends>:\n\n- `KEY`: the name of the lock\n- no meaning\n\n等待锁，然后运行 go 程序。见 [docs/agent.md](../agent.md)。\n"
	if got := english.text(long); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	example := "  baton run k -- true\n  baton run -n k -- true    unless it\n                            runs\n  baton ls"
	want = "```sh\nbaton run k -- true\nbaton run -n k -- true  # unless it runs\nbaton ls\n```\n"
	if got := exampleBlock(example); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A wording is what the pages say beside the texts of the help.
type wording struct {
	folder                                  string
	spoken                                  func() map[string]string
	twin                                    string // link from this page to a page NAME in the other language
	cli, cliIntro, usage, examples, aliases string
	flags, global, topic, allOthers         string
	others                                  string
	exits, exitsIntro, urls, urlsIntro      string
	colon, comma, stop, byDefault           string
}

var english = wording{
	folder:     "docs/",
	spoken:     func() map[string]string { return nil },
	twin:       "[简体中文](../zh/reference/%s)",
	cli:        "The command line",
	cliIntro:   "This page is made of the help of the command: `baton help` and `baton help COMMAND` say the same.",
	usage:      "Usage",
	examples:   "Examples",
	aliases:    "Also called",
	flags:      "Flags",
	global:     "Flags of all commands",
	topic:      "`baton help %s`: %s",
	allOthers:  "all-other-commands",
	others:     "Other commands",
	exits:      "Exit codes",
	exitsIntro: "This page is made of the help of the command: `baton help exit-codes` says the same.",
	urls:       "URLs of stores",
	urlsIntro: "This page is made of the help of the command: `baton help stores` says the same. Programs give these URLs to " +
		"`open.Store` ([package open](../../open/open.go)); [What an import adds](../requirements.md) says what each store adds to a program.",
	colon:     ": ",
	stop:      ".",
	byDefault: " (default %s)",
	comma:     ", ",
}

var chinese = wording{
	folder:     "docs/zh/",
	spoken:     func() map[string]string { return maps.Collect(catalogue.All(wordsZH)) },
	twin:       "[English](../../reference/%s)",
	cli:        "命令行",
	cliIntro:   "这一页由命令的帮助生成：`baton help` 和 `baton help COMMAND` 说的相同。",
	usage:      "用法",
	examples:   "示例",
	aliases:    "也叫",
	flags:      "选项",
	global:     "所有命令的选项",
	topic:      "`baton help %s`：%s",
	allOthers:  "其他所有命令",
	others:     "其他命令",
	exits:      "退出码",
	exitsIntro: "这一页由命令的帮助生成：`baton help exit-codes` 说的相同。",
	urls:       "存储的 URL",
	urlsIntro: "这一页由命令的帮助生成：`baton help stores` 说的相同。程序把这些 URL 交给 `open.Store`（[包 open](../../../open/open.go)）；" +
		"每种存储给程序带来什么，见[每个 import 带来什么](../requirements.md)。",
	colon:     "：",
	stop:      "。",
	byDefault: "（默认：%s）",
	comma:     "、",
}

// pages are the pages of the reference by their names.
func (w wording) pages(root *cobra.Command) map[string][]byte {
	return map[string][]byte{
		"../../docs/reference/cli.md":        w.commandLine(root),
		"../../docs/reference/exit-codes.md": w.topicPage(root, "exit-codes", "exit-codes.md", w.exits, w.exitsIntro),
		"../../docs/reference/urls.md":       w.topicPage(root, "stores", "urls.md", w.urls, w.urlsIntro),
	}
}

func (w wording) start(file, title, intro string) *bytes.Buffer {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n\n%s\n\n%s\n", title, fmt.Sprintf(w.twin, file), intro)
	return &b
}

func (w wording) commandLine(root *cobra.Command) []byte {
	b := w.start("cli.md", w.cli, w.cliIntro)
	w.body(b, root)
	fmt.Fprintf(b, "\n%s%s\n\n%s", w.global, strings.TrimSpace(w.colon), w.flagList(root.PersistentFlags()))
	groups := slices.Concat(root.Groups(), []*cobra.Group{{Title: w.others}})
	for _, g := range groups {
		fmt.Fprintf(b, "\n## %s\n", strings.TrimRight(g.Title, ":："))
		for _, c := range root.Commands() {
			if c.GroupID == g.ID && c.Runnable() && !c.Hidden && c.Name() != "help" {
				w.command(b, c)
			}
		}
	}
	c := topic(root, "metrics") // the others have pages of their own
	fmt.Fprintf(b, "\n## "+w.topic+"\n\n%s", c.Name(), c.Short, w.text(c.Long))
	fmt.Fprintf(b, "\n```text\n%s\n```\n", strings.TrimSpace(strings.ReplaceAll("\n"+c.Example, "\n  ", "\n")))
	return b.Bytes()
}

// command writes the section of a command, and of those below it.
func (w wording) command(b *bytes.Buffer, c *cobra.Command) {
	fmt.Fprintf(b, "\n### %s\n\n%s%s\n", c.CommandPath(), strings.TrimRight(c.Short, ".。"), w.stop)
	w.body(b, c)
	if own := c.LocalFlags(); own.HasAvailableFlags() {
		if list := w.flagList(own); list != "" {
			fmt.Fprintf(b, "\n%s%s\n\n%s", w.flags, strings.TrimSpace(w.colon), list)
		}
	}
	for _, below := range c.Commands() {
		if !below.Hidden && below.Name() != "help" {
			w.command(b, below)
		}
	}
}

// body writes usage, text and examples of a command.
func (w wording) body(b *bytes.Buffer, c *cobra.Command) {
	if c.HasParent() {
		fmt.Fprintf(b, "\n%s%s`%s`\n", w.usage, w.colon, c.UseLine())
	}
	if len(c.Aliases) > 0 {
		fmt.Fprintf(b, "\n%s%s`%s`\n", w.aliases, w.colon, strings.Join(c.Aliases, "`"+w.comma+"`"))
	}
	long, codes, _ := strings.Cut(c.Long, "\n"+firstLine(translated(exitTable))+"\n")
	if long != "" {
		fmt.Fprintf(b, "\n%s", w.text(long))
	}
	codes = strings.TrimRight(codes, "\n")
	switch {
	case codes == "":
	case strings.TrimRight(translated(exitTable), "\n") == firstLine(translated(exitTable))+"\n"+codes:
		fmt.Fprintf(b, "\n[%s](exit-codes.md#%s)\n", w.exits, w.allOthers)
	case strings.Contains(topic(c.Root(), "exit-codes").Long, c.CommandPath()+"\n\n"+firstLine(translated(exitTable))+"\n"+codes):
		fmt.Fprintf(b, "\n[%s](exit-codes.md#%s)\n", w.exits, strings.ReplaceAll(c.CommandPath(), " ", "-"))
	default: // of this command alone
		fmt.Fprintf(b, "\n%s%s\n\n%s", w.exits, strings.TrimSpace(w.colon), w.text(codes))
	}
	if c.Example != "" {
		fmt.Fprintf(b, "\n%s%s\n\n%s", w.examples, strings.TrimSpace(w.colon), exampleBlock(c.Example))
	}
}

func (w wording) flagList(set *pflag.FlagSet) string {
	var b strings.Builder
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if kind != "" {
			name += " " + kind
		}
		what, more, _ := strings.Cut(usage, "\n")
		fmt.Fprintf(&b, "- `%s`%s", name, w.colon)
		var items []string
		for line := range strings.SplitSeq(more, "\n") {
			term, meaning, is := item(line)
			switch {
			case is && strings.HasPrefix(meaning, "("), line == "":
				what = join(what, strings.TrimSpace(line))
			case is:
				items = append(items, fmt.Sprintf("  - `%s`%s%s\n", term, w.colon, plain(meaning)))
			case len(items) > 0: // behind a list
				what = join(what, strings.TrimSpace(line))
			default:
				what = join(what, strings.TrimSpace(line))
			}
		}
		if d := f.DefValue; !strings.Contains(usage, "default") && !strings.Contains(usage, "默认") && d != "" && d != "0" && d != "0s" && d != "false" && d != "[]" {
			what += fmt.Sprintf(w.byDefault, d)
		}
		b.WriteString(plain(what) + "\n" + strings.Join(items, ""))
	})
	return b.String()
}

// topicPage is the page of a topic of the help. Lines that stand alone before a list, and
// names of commands, are headings.
func (w wording) topicPage(root *cobra.Command, name, file, title, intro string) []byte {
	b := w.start(file, title, intro)
	for block := range strings.SplitSeq(strings.Trim(topic(root, name).Long, "\n"), "\n\n") {
		first := firstLine(block)
		switch {
		case name == "exit-codes" && first == block:
			fmt.Fprintf(b, "\n## %s\n", first)
		case name == "exit-codes" && first == firstLine(translated(exitTable)):
			fmt.Fprintf(b, "\n%s", w.text(strings.TrimPrefix(block, first+"\n")))
		case name == "stores" && first == block && heading.MatchString(first):
			fmt.Fprintf(b, "\n## %s\n", heading.FindStringSubmatch(first)[1])
		default:
			fmt.Fprintf(b, "\n%s", w.text(block))
		}
	}
	return b.Bytes()
}

// topic is a page of the help that belongs to no command.
func topic(root *cobra.Command, name string) *cobra.Command {
	i := slices.IndexFunc(root.Commands(), func(c *cobra.Command) bool { return c.Name() == name })
	return root.Commands()[i]
}

// heading is the line before the parameters of a store.
var heading = regexp.MustCompile(`^([^.。，]*?)(, after "\?".*|，.*)?[:：]$`)

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

var columns = regexp.MustCompile(`^\s*(\S.*?)\s{2,}(\S.*)$`)

// item takes a line of two columns apart.
func item(line string) (term, meaning string, ok bool) {
	found := columns.FindStringSubmatch(line)
	if found == nil {
		return "", "", false
	}
	return found[1], found[2], true
}

// text makes Markdown of a text that was laid out for a terminal. What is indented is a
// list, of terms and what they mean if there are two columns.
func (w wording) text(long string) string {
	var b strings.Builder
	var open string // what goes on in the next line
	list := false
	flush := func() {
		if open != "" {
			b.WriteString(open + "\n")
		}
		open = ""
	}
	for line := range strings.SplitSeq(strings.Trim(long, "\n"), "\n") {
		indent := len(line) - len(strings.TrimLeft(line, " "))
		term, meaning, isItem := item(line)
		switch {
		case line == "":
			flush()
			b.WriteString("\n")
			list = false
			continue
		case indent == 0 && !list:
			open = join(open, plain(line))
			continue
		case indent == 0:
			flush()
			b.WriteString("\n")
			list = false
			open = plain(line)
			continue
		case indent > 2 && open != "": // the item goes on
			open = join(open, plain(strings.TrimSpace(line)))
			continue
		}
		if !list && open != "" {
			flush()
			b.WriteString("\n")
		}
		flush()
		list = true
		if isItem {
			open = "- `" + term + "`" + w.colon + plain(meaning)
		} else {
			open = "- " + plain(strings.TrimPrefix(strings.TrimSpace(line), "- "))
		}
	}
	flush()
	return b.String()
}

// exampleBlock makes a block of code of examples. What stands beside a command is a remark.
func exampleBlock(example string) string {
	var lines []string
	for line := range strings.SplitSeq(strings.Trim(example, "\n"), "\n") {
		command, remark, ok := item(line)
		switch {
		case len(line)-len(strings.TrimLeft(line, " ")) > 2:
			last := len(lines) - 1
			lines[last] = join(strings.TrimSuffix(lines[last], ` \`), strings.TrimSpace(line))
		case ok:
			lines = append(lines, command+"  # "+remark)
		default:
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return "```sh\n" + strings.Join(lines, "\n") + "\n```\n"
}

var ofDocs = regexp.MustCompile(`docs/([a-z-]+\.md)`)

// plain is a line of Markdown that shows a text as it is, with links to the pages that it
// names.
func plain(line string) string {
	return ofDocs.ReplaceAllString(strings.NewReplacer("<", `\<`, "*", `\*`, "{{", `{\{`).Replace(line), "[docs/$1](../$1)")
}

// join puts two lines together: with a space, but not within Chinese.
func join(a, b string) string {
	if a == "" || b == "" {
		return cmp.Or(a, b)
	}
	last, first := []rune(a)[len([]rune(a))-1], []rune(b)[0]
	wide := func(r rune) bool { return r > 0xFF && !unicode.Is(unicode.Han, r) && unicode.IsPunct(r) && r != '…' }
	if wide(last) || wide(first) || unicode.Is(unicode.Han, last) && unicode.Is(unicode.Han, first) {
		return a + b
	}
	return a + " " + b
}
