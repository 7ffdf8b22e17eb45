package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/batonhq/baton/internal/cli"
)

// manCommand is for packagers.
func (a *app) manCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write the manual pages",
		Long:   "Writes a manual page for each command and each topic of the help into a directory that exists.",
		Hidden: true,
		Args:   oneArg("DIRECTORY"),
		RunE: does(func(_ context.Context, args []string) error {
			return writeManuals(root, args[0])
		}),
	}
}

// referenceCommand makes a page for the site, with the help of all commands.
func (a *app) referenceCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:    "reference",
		Short:  "Print the help of all commands as a page in Markdown",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: does(func(context.Context, []string) error {
			_, err := a.stdout.WriteString(reference(root))
			return err
		}),
	}
}

func reference(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# The command line\n\n`baton help COMMAND` says the same, and `baton COMMAND --help` what fits a screen.\n")
	eachCommand(root, func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" {
			return
		}
		title := c.CommandPath()
		if !c.Runnable() {
			title = "baton help " + c.Name()
		}
		fmt.Fprintf(&b, "\n## %s\n\n```text\n%s\n```\n", title, strings.TrimSpace(cli.HelpText(c, c.Long)))
	})
	return b.String()
}

// writeManuals writes the pages of a command and of all below it.
func writeManuals(cmd *cobra.Command, dir string) error {
	if err := os.WriteFile(filepath.Join(dir, manName(cmd)+".1"), manual(cmd), 0o644); err != nil {
		return ofPage(err)
	}
	for _, c := range cmd.Commands() {
		if c.Hidden || c.Name() == "help" {
			continue
		}
		if err := writeManuals(c, dir); err != nil {
			return err
		}
	}
	return nil
}

func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manual is the page of a command. Texts keep their layout for a terminal.
func manual(cmd *cobra.Command) []byte {
	var b bytes.Buffer
	section := func(name, text string) {
		if text = strings.Trim(text, "\n"); text != "" {
			fmt.Fprintf(&b, ".SH %s\n.nf\n%s\n.fi\n", name, roff(text))
		}
	}
	fmt.Fprintf(&b, ".TH %q 1 \"\" \"baton\" \"Baton\"\n.SH NAME\n%s \\- %s\n", strings.ToUpper(manName(cmd)), roff(manName(cmd)), roff(cmd.Short))
	if cmd.Runnable() {
		section("SYNOPSIS", cli.UseLine(cmd))
	}
	long := cmd.Long
	if long == "" {
		long = cmd.Short + "."
	}
	section("DESCRIPTION", long)
	flags := func(name string, set *pflag.FlagSet) {
		if set.HasAvailableFlags() {
			section(name, set.FlagUsagesWrapped(78))
		}
	}
	flags("OPTIONS", cmd.NonInheritedFlags())
	flags("GLOBAL OPTIONS", cmd.InheritedFlags())
	section("EXAMPLES", cmd.Example)
	var others []string
	if cmd.HasParent() {
		others = append(others, manName(cmd.Parent())+"(1)")
	}
	for _, c := range cmd.Commands() {
		if !c.Hidden && c.Name() != "help" {
			others = append(others, manName(c)+"(1)")
		}
	}
	if len(others) > 0 {
		fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", roff(strings.Join(others, ", ")))
	}
	return b.Bytes()
}

var roffEscapes = strings.NewReplacer(`\`, `\e`, "-", `\-`, "`", `\(ga`, "'", `\(aq`, "^", `\(ha`, "~", `\(ti`)

// roff escapes a text so that nroff shows it unchanged.
func roff(text string) string {
	lines := strings.Split(roffEscapes.Replace(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
