package reference

import (
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/batonhq/baton/internal/catalogue"
)

//go:embed zh.txt
var chineseText string

//go:embed configuration.en.md.tmpl
var englishElse string

//go:embed configuration.zh.md.tmpl
var chineseElse string

// A language writes the pages. It remembers which texts it has not got.
type language struct {
	folder            string // of the pages
	words             map[string]string
	missing           []string
	used              map[string]bool
	errors, config    string // what the pages begin with
	otherwise         string // what the page of the configuration ends with
	errorRow, typeRow string // the heads of tables
}

func english() *language {
	return &language{
		folder: "docs/reference/",
		errors: `# Errors

[简体中文](../zh/reference/errors.md)

The errors that programs look for, package by package: with ` + "`errors.Is`" + ` those that begin with ` + "`Err`" + `, with ` + "`errors.As`" + ` the types, whose fields
tell more. What each says is its doc comment; the page is made of those.
`,
		config: `# Configuration

[简体中文](../zh/reference/configuration.md)

The structs that configure the packages, and then what is configured outside of programs. The first part is made of the doc comments. The zero
value of a field means its default.
`,
		otherwise: englishElse,
		errorRow:  "| error | what it says |\n|---|---|\n",
		typeRow:   "| field | type | default | meaning |\n|---|---|---|---|\n",
	}
}

func chinese() *language {
	return &language{
		folder: "docs/zh/reference/",
		words:  maps.Collect(catalogue.All(chineseText)),
		used:   make(map[string]bool),
		errors: `# 错误

[English](../../reference/errors.md)

程序要判断的错误，按包排列：以 ` + "`Err`" + ` 开头的用 ` + "`errors.Is`" + ` 判断，类型用 ` + "`errors.As`" + ` 取出，其字段给出更多内容。每个错误的含义就是它的文档注释，
这一页由它们生成。
`,
		config: `# 配置

[English](../../reference/configuration.md)

先是配置各个包的结构体，然后是在程序之外配置的东西。第一部分由文档注释生成。字段的零值表示它的默认值。
`,
		otherwise: chineseElse,
		errorRow:  "| 错误 | 含义 |\n|---|---|\n",
		typeRow:   "| 字段 | 类型 | 默认值 | 含义 |\n|---|---|---|---|\n",
	}
}

// word is a text that has to be translated though it has no space.
var word = regexp.MustCompile(`^[a-z]+$`)

// say is an English text in the language. Code and numbers stay as they are.
func (l *language) say(text string) string {
	if l.words == nil || !strings.Contains(text, " ") && !word.MatchString(text) {
		return text
	}
	other, ok := l.words[text]
	if !ok {
		l.missing = append(l.missing, text)
	}
	l.used[text] = true
	return other
}

// unused are translations of texts that are no more.
func (l *language) unused() (all []string) {
	for text := range l.words {
		if !l.used[text] {
			all = append(all, text)
		}
	}
	slices.Sort(all)
	return all
}

// pages returns the pages by their file names.
func (l *language) pages(all []pkg) map[string]string {
	errors, config := l.errors, l.config
	for _, p := range all {
		if len(p.errors) > 0 {
			errors += "\n## " + p.title() + "\n\n" + l.errorRow
			for _, e := range p.errors {
				text := strings.TrimPrefix(l.cell(e.doc), strings.TrimPrefix(e.name, "*")+"：") // the cell before has it
				errors += fmt.Sprintf("| `%s` | %s |\n", e.name, text)
			}
		}
		for _, c := range p.configs {
			config += fmt.Sprintf("\n## %s.%s\n\n", p.title(), c.name)
			for _, text := range c.doc {
				config += plain(l.say(text)) + "\n\n"
			}
			config += l.typeRow
			for _, f := range c.fields {
				standard := plain(l.say(f.standard))
				if standard == "" {
					standard = "–"
				}
				config += fmt.Sprintf("| `%s` | `%s` | %s | %s |\n", f.name, f.kind, standard, l.cell(f.doc))
			}
		}
	}
	return map[string]string{l.folder + "errors.md": errors, l.folder + "configuration.md": config + "\n" + l.otherwise}
}

// title is the import path below the module, or the name of the root package.
func (p pkg) title() string {
	if p.folder == "." {
		return p.name
	}
	return p.folder
}

func (l *language) cell(doc []string) string {
	var texts []string
	for _, text := range doc {
		texts = append(texts, plain(l.say(text)))
	}
	return strings.Join(texts, "<br>")
}

var plainText = strings.NewReplacer("<", `\<`, "*", `\*`, "|", `\|`)

// plain is a text as Markdown that shows it as it is.
func plain(text string) string { return plainText.Replace(text) }
