package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Out is standard output for cobra. It keeps the first error of a write, which cobra
// drops.
type Out struct {
	io.Writer
	Err error
}

func (o *Out) Write(text []byte) (int, error) {
	n, err := o.Writer.Write(text)
	o.Err = cmp.Or(o.Err, err)
	return n, err
}

// SetHelp makes help of one screen: the examples, the flags, and the first paragraph. The
// command help prints all of it.
func SetHelp(root *cobra.Command) {
	root.SetHelpFunc(func(c *cobra.Command, _ []string) {
		first, more, _ := strings.Cut(c.Long, "\n\n")
		switch {
		case !c.Runnable(): // a topic
			first = c.Long
		case more != "" && c.HasParent():
			first += fmt.Sprintf("\n\nMore, and the exit codes: %s help%s", root.Name(), strings.TrimPrefix(c.CommandPath(), root.Name()))
		}
		printHelp(c, first)
	})
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() != "help" {
			continue
		}
		c.Use, c.Run = "help [COMMAND]", nil
		c.ValidArgsFunction = helpNames
		c.Short, c.Long = "Say everything about a command or a topic", ""
		c.RunE = func(_ *cobra.Command, args []string) error {
			of, rest, err := root.Find(args)
			// cobra's own prints a line, and exits with 0.
			if of == nil || err != nil || len(rest) > 0 {
				return Usage("there is no help for %q: %s --help lists what there is", Safe(strings.Join(args, " ")), root.Name())
			}
			of.InitDefaultHelpFlag()
			printHelp(of, of.Long)
			return nil
		}
	}
}

// helpNames completes the names of commands and topics.
func helpNames(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	of, rest, err := c.Root().Find(args)
	if err != nil || len(rest) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, below := range of.Commands() {
		if !below.Hidden && strings.HasPrefix(below.Name(), typed) {
			names = append(names, cobra.CompletionWithDesc(below.Name(), below.Short))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// printHelp prints the purpose of a command, its usage, and a text.
func printHelp(c *cobra.Command, text string) {
	_, _ = io.WriteString(c.OutOrStdout(), HelpText(c, text)) // an Out keeps the error
}

// UseLine is the usage of a command. A command without [flags] in its Use has none of its
// own.
func UseLine(c *cobra.Command) string {
	if strings.Contains(c.Use, "[flags]") {
		return c.UseLine()
	}
	return strings.TrimSuffix(c.UseLine(), " [flags]")
}

// HelpText is the help of a command with text, which is its first paragraph or all of it.
func HelpText(c *cobra.Command, text string) string {
	var b strings.Builder
	section := func(name, text string) {
		if text = strings.Trim(text, "\n"); text != "" {
			fmt.Fprintf(&b, "\n%s:\n%s\n", name, text)
		}
	}
	if !c.Runnable() && !c.HasSubCommands() { // a topic
		fmt.Fprintf(&b, "%s\n", strings.TrimRight(text, "\n"))
		section("Examples", c.Example)
		return b.String()
	}
	use := UseLine(c)
	if !c.HasParent() {
		use = c.Name() + " COMMAND"
	}
	fmt.Fprintf(&b, "%s\n\nUsage: %s\n", c.Short, use)
	section("Examples", c.Example)
	var list strings.Builder
	for _, below := range c.Commands() {
		if c.HasParent() && below.IsAvailableCommand() {
			fmt.Fprintf(&list, "  %-8s %s\n", below.Name(), below.Short)
		}
	}
	section("Commands below it", list.String())
	if !c.HasParent() {
		b.WriteString(rootCommands(c))
	}
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	own.SortFlags = false
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			own.AddFlag(f)
		}
	})
	section("Flags", own.FlagUsagesWrapped(100))
	if c.HasParent() {
		b.WriteString("\nFlags of all commands: ")
		c.Root().PersistentFlags().VisitAll(func(f *pflag.Flag) {
			value, _ := pflag.UnquoteUsage(f)
			fmt.Fprintf(&b, "%s (--%s), ", strings.TrimSpace("-"+f.Shorthand+" "+value), f.Name)
		})
		b.WriteString("-h (--help)\n")
	}
	fmt.Fprintf(&b, "\n%s\n", strings.TrimRight(text, "\n"))
	return b.String()
}

// rootCommands are the commands in groups, and the topics as "baton help TOPIC": by their
// names alone they would look like commands.
func rootCommands(root *cobra.Command) string {
	var b bytes.Buffer
	list := func(title string, of func(c *cobra.Command) bool, prefix string) {
		fmt.Fprintf(&b, "\n%s\n", title)
		for _, c := range root.Commands() {
			if of(c) {
				fmt.Fprintf(&b, "  %s%-10s %s\n", prefix, c.Name(), c.Short)
			}
		}
	}
	others := &cobra.Group{Title: "Other commands:"}
	if len(root.Groups()) == 0 {
		others.Title = "Commands:"
	}
	for _, g := range append(root.Groups(), others) {
		list(g.Title, func(c *cobra.Command) bool { return c.GroupID == g.ID && c.IsAvailableCommand() }, "")
	}
	if root.HasHelpSubCommands() {
		list("Topics:", (*cobra.Command).IsAdditionalHelpTopicCommand, "help ")
	}
	return b.String()
}
