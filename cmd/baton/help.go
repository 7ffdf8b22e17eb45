package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// setHelp makes help of one screen: the examples first, then the flags, and the first
// paragraph. "baton help COMMAND" says everything.
func setHelp(root *cobra.Command) {
	root.SetHelpFunc(func(c *cobra.Command, _ []string) {
		first, more, _ := strings.Cut(c.Long, "\n\n")
		switch {
		case !c.Runnable(): // a topic
			first = c.Long
		case more != "" && c.HasParent():
			first += fmt.Sprintf("\n\nMore, and the exit codes: baton help%s", strings.TrimPrefix(c.CommandPath(), "baton"))
		}
		printHelp(c, first)
	})
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() != "help" {
			continue
		}
		c.Run = nil
		c.RunE = func(_ *cobra.Command, args []string) error {
			of, rest, err := root.Find(args)
			// cobra's own prints a line, and exits with 0.
			if of == nil || err != nil || len(rest) > 0 && of.HasSubCommands() {
				return usage("there is no help for %q: baton --help lists the commands and the topics", safe(strings.Join(args, " ")))
			}
			of.InitDefaultHelpFlag()
			printHelp(of, of.Long)
			return nil
		}
	}
}

// printHelp prints what a command is for, how it is called, and a text.
func printHelp(c *cobra.Command, text string) {
	_, _ = io.WriteString(c.OutOrStdout(), helpText(c, text))
}

func helpText(c *cobra.Command, text string) string {
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
	use := c.UseLine()
	if !c.HasParent() {
		use = "baton COMMAND"
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
		b.WriteString("\nFlags of all commands: -b URL (--store), -q (--quiet), -v (--verbose), -h (--help)\n")
	}
	fmt.Fprintf(&b, "\n%s\n", strings.TrimRight(text, "\n"))
	return b.String()
}

// rootCommands are the commands in groups, and the topics, which are named by "baton help":
// without it they read like commands that do something.
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
	for _, g := range append(root.Groups(), &cobra.Group{Title: "Other commands:"}) {
		list(g.Title, func(c *cobra.Command) bool { return c.GroupID == g.ID && c.IsAvailableCommand() }, "")
	}
	list("Topics:", (*cobra.Command).IsAdditionalHelpTopicCommand, "help ")
	return b.String()
}
