package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/batonhq/baton/internal/catalogue"
	"github.com/batonhq/baton/internal/language"
	"github.com/batonhq/baton/internal/supervise"
	"github.com/batonhq/baton/internal/textwidth"
)

// spoken has the texts of the language in which the command speaks to people, by the
// English ones that stand in the code. It is nil for English. run sets it before anything
// else, and nothing changes it afterwards.
//
// What people read is in that language: the help, the manual pages, the completions and
// the messages on standard error, and what baton lab and baton doctor print as text. What
// programs read is not: the rest of standard output, logs, the audit, metrics. Nor is what the
// library and the stores say, but for the errors that words_library.go knows and the findings
// that words_doctor.go does.
var spoken map[string]string

//go:embed words/zh.txt
var wordsZH string

// speak reads the language from the environment: BATON_LANG, or else the locale.
func speak(getenv func(string) string) error {
	chosen := getenv("BATON_LANG")
	language := chosen
	for _, name := range []string{"LC_ALL", "LC_MESSAGES", "LANG"} {
		if language == "" {
			language = getenv(name)
		}
	}
	spoken = nil
	name, charset, _ := strings.Cut(language, ".")
	name, _, _ = strings.Cut(strings.ReplaceAll(strings.ToLower(name), "_", "-"), "-")
	charset, _, _ = strings.Cut(strings.ReplaceAll(strings.ToLower(charset), "-", ""), "@")
	switch {
	case name == "zh" && (chosen != "" || charset == "" || charset == "utf8"):
		spoken = maps.Collect(catalogue.All(wordsZH))
	case chosen != "" && name != "en":
		return usage("BATON_LANG is %s: it is en (English) or zh (简体中文)", safe(chosen))
	}
	return nil
}

// spokenLanguage is the language of pages and pictures that the command makes for people.
func spokenLanguage() language.Language {
	if spoken != nil {
		return language.Chinese
	}
	return language.English
}

// translated is an English text in the language that is spoken, paragraph by paragraph.
// What has no translation stays as it is.
func translated(text string) string {
	if spoken == nil {
		return text
	}
	paragraphs := strings.Split(text, "\n\n")
	for i, p := range paragraphs {
		bare := strings.Trim(p, "\n")
		if other, ok := spoken[bare]; ok {
			paragraphs[i] = strings.Replace(p, bare, other, 1)
		}
	}
	return strings.Join(paragraphs, "\n\n")
}

// phrase is fmt.Sprintf for what people read, errorf is fmt.Errorf.
func phrase(format string, args ...any) string {
	if false {
		_ = fmt.Sprintf(format, args...) // tells vet that this is a printf
	}
	return fmt.Sprintf(translated(format), args...)
}

func errorf(format string, args ...any) error {
	if false {
		_ = fmt.Errorf(format, args...)
	}
	return fmt.Errorf(translated(format), args...)
}

// translate puts the texts of a command and of all below it into the language that is
// spoken.
func translate(root *cobra.Command) {
	if spoken == nil {
		return
	}
	root.InitDefaultHelpCmd()
	eachCommand(root, func(c *cobra.Command) {
		c.InitDefaultHelpFlag()
		if help := c.Flags().Lookup("help"); help != nil {
			help.Usage = phrase("help for %s", c.DisplayName())
		}
		c.Short, c.Long = translated(c.Short), translated(c.Long)
		c.Example = inExample(c.Example, translated)
		for _, g := range c.Groups() {
			g.Title = translated(g.Title)
		}
		eachFlag(c, func(f *pflag.Flag) { f.Usage = translated(f.Usage) })
	})
}

// rewordUsage has usageWords change what cobra writes.
func rewordUsage(root *cobra.Command) {
	english := root.UsageFunc()
	root.SetUsageFunc(func(c *cobra.Command) error {
		out := c.OutOrStderr()
		var b bytes.Buffer
		c.SetOut(&b)
		err := english(c)
		c.SetOut(out)
		if _, failed := out.Write([]byte(usageWords(b.String()))); err == nil {
			err = failed
		}
		return err
	})
}

func eachCommand(root *cobra.Command, do func(*cobra.Command)) {
	do(root)
	for _, c := range root.Commands() {
		eachCommand(c, do)
	}
}

// signalWords is a signal in a message: what Go calls it is English.
func signalWords(s os.Signal) any {
	if spoken != nil {
		for _, of := range supervise.Ending {
			if of.Signal == s {
				return of.Name
			}
		}
	}
	return s
}

// eachFlag visits the flags that a command declares, also for those below it.
func eachFlag(c *cobra.Command, do func(*pflag.Flag)) {
	c.LocalNonPersistentFlags().VisitAll(do)
	c.PersistentFlags().VisitAll(do)
}

// inExample changes the remarks of an example: what follows its code after two spaces or
// more, and goes on in lines that are indented as far as no code is.
func inExample(example string, change func(string) string) string {
	const far = 20
	lines := strings.Split(example, "\n")
	var out []string
	for i := 0; i < len(lines); i++ {
		code, remark := cutRemark(lines[i])
		if remark == "" {
			out = append(out, lines[i])
			continue
		}
		before := []string{code} // the remark in each of its lines
		for i+1 < len(lines) && strings.HasPrefix(lines[i+1], strings.Repeat(" ", far)) {
			i++
			rest := strings.TrimLeft(lines[i], " ")
			before = append(before, lines[i][:len(lines[i])-len(rest)])
			remark += "\n" + rest
		}
		for j, line := range strings.Split(change(remark), "\n") {
			out = append(out, before[min(j, len(before)-1)]+line)
		}
	}
	return strings.Join(out, "\n")
}

// cutRemark cuts a line of an example into the code, with the blanks behind it, and the
// remark.
func cutRemark(line string) (code, remark string) {
	indent := len(line) - len(strings.TrimLeft(line, " "))
	if _, rest, ok := strings.Cut(line[indent:], "  "); ok {
		remark = strings.TrimLeft(rest, " ")
	}
	return line[:len(line)-len(remark)], remark
}

// What cobra writes by itself. Of its errors there are those that wrong arguments bring
// about.
var (
	cobraTitles = []string{"Usage:", "Aliases:", "Examples:", "Available Commands:", "Additional Commands:", "Flags:", "Global Flags:", "Additional help topics:"}
	cobraMore   = `Use "%s [command] --help" for more information about a command.`
	cobraErrors = []string{
		"unknown command %s for %s", "unknown flag: --%s", "unknown shorthand flag: %s in -%s", "bad flag syntax: %s",
		"flag needs an argument: %s", "invalid argument %s for %s flag: %s", "required flag(s) %s not set",
		"if any flags in the group [%s] are set none of the others can be; [%s] were all set",
	}
)

// typesOfValues are the names that pflag has for what a flag wants.
var typesOfValues = []string{"string", "stringArray", "strings", "duration", "int", "ints", "uint"}

// wantedValues say what a flag of a type wants, by the name that pflag has for the type.
var wantedValues = map[string]string{
	"bool":     "it takes no value",
	"duration": "it is a duration, such as 30s, 5m or 1h30m",
	"int":      "it is a whole number",
	"intSlice": "they are whole numbers, with commas between them",
	"uint64":   "it is a whole number, zero or more",
}

var (
	defaultOfFlag = regexp.MustCompile(`(?m) \(default (.+)\)$`)
	typeOfFlag    = regexp.MustCompile(`(?m)^( +(?:-\w, )?--[\w-]+ )(` + strings.Join(typesOfValues, "|") + `)(\[=\w+\])? {2,}`)
	moreOfCommand = regexp.MustCompile(`(?m)^Use "(.+) \[command\] --help" for more information about a command\.$`)
)

// usageWords translates what cobra writes around the texts of a command. In every language
// it names topics by "baton help": without it they read like commands that do something.
func usageWords(text string) string {
	lines := strings.Split(text, "\n")
	uses, topics := false, false
	for i, line := range lines {
		if topics = line != "" && (topics || line == "Additional help topics:"); topics {
			lines[i] = strings.Replace(line, "  baton ", "  baton help ", 1)
		}
		if uses = line != "" && (uses || line == "Usage:"); uses {
			lines[i] = useWords(line)
		}
		if m := moreOfCommand.FindStringSubmatch(line); m != nil {
			lines[i] = phrase(cobraMore, m[1])
			continue
		}
		for _, title := range cobraTitles {
			if line == title {
				lines[i] = translated(title)
			}
		}
	}
	return flagWords(strings.Join(lines, "\n"))
}

// useWords translates what cobra writes into a line of use.
func useWords(line string) string {
	line = strings.Replace(line, "[flags]", translated("[flags]"), 1)
	return strings.Replace(line, "[command]", translated("[command]"), 1)
}

// flagWords translates what pflag writes into a table of flags.
func flagWords(table string) string {
	if spoken == nil {
		return table
	}
	table = typeOfFlag.ReplaceAllStringFunc(table, func(start string) string {
		m := typeOfFlag.FindStringSubmatch(start)
		named := m[1] + translated(m[2]) + m[3]
		return named + strings.Repeat(" ", max(2, textwidth.Of(start)-textwidth.Of(named)))
	})
	return defaultOfFlag.ReplaceAllString(table, translated("(default: $1)"))
}

// cobraError translates an error about arguments.
func cobraError(text string) string {
	if spoken == nil {
		return text
	}
	text, near, guessed := strings.Cut(text, ": did you mean ")
	if words, ok := inFormats(cobraErrors, text); ok {
		text = words
	}
	if guessed {
		text += phrase(": did you mean %s?", strings.TrimSuffix(near, "?"))
	}
	return text
}

// inFormats translates a text that was made by one of the formats, whose verbs are %s.
func inFormats(formats []string, text string) (words string, ok bool) {
	if spoken == nil {
		return "", false
	}
	for _, format := range formats {
		pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(format), "%s", "(.+)") + "$"
		if m := regexp.MustCompile(pattern).FindStringSubmatch(text); m != nil {
			parts := make([]any, len(m)-1)
			for i, part := range m[1:] {
				parts[i] = translated(part)
			}
			return phrase(format, parts...), true
		}
	}
	return "", false
}

// flagTable is the table of flags in at most so many columns.
func flagTable(flags *pflag.FlagSet, columns int) string {
	if spoken == nil {
		return flags.FlagUsagesWrapped(columns)
	}
	// pflag counts bytes, and breaks lines at blanks alone, of which Chinese has few.
	var b strings.Builder
	indent := 0 // where usages begin
	for line := range strings.Lines(flagWords(flags.FlagUsages())) {
		flags.VisitAll(func(f *pflag.Flag) {
			_, usage := pflag.UnquoteUsage(f)
			usage, _, _ = strings.Cut(usage, "\n")
			if before, _, ok := strings.Cut(line, usage); ok && usage != "" && strings.Contains(before, "--"+f.Name) {
				indent = textwidth.Of(before)
			}
		})
		for n, part := range breakLine(strings.TrimSuffix(line, "\n"), columns, columns-indent) {
			if n > 0 {
				b.WriteString(strings.Repeat(" ", indent))
			}
			b.WriteString(part + "\n")
		}
	}
	return b.String()
}

// breakLine breaks a line where Chinese can be broken: beside a wide character, or at a
// blank, but not before a mark that ends something or behind one that begins it. The
// first part has at most so many columns, the others rest, if they can be broken.
func breakLine(line string, first, rest int) (parts []string) {
	for textwidth.Of(line) > first {
		at, used := 0, 0
		var before rune
		for i, r := range line {
			ends := used
			if before == ' ' {
				ends-- // the blank is not kept
			}
			if at > 0 && ends > first {
				break
			}
			may := before == ' ' || textwidth.OfRune(r) == 2 || textwidth.OfRune(before) == 2
			if i > 0 && may && !strings.ContainsRune(" ，。；：、？！）”", r) && !strings.ContainsRune("（“", before) && strings.TrimSpace(line[:i]) != "" {
				at = i
			}
			before = r
			used += textwidth.OfRune(r)
		}
		if at == 0 {
			break
		}
		parts = append(parts, strings.TrimRight(line[:at], " "))
		line, first = line[at:], rest
	}
	return append(parts, line)
}
