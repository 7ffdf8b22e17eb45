package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/cli"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/ratelimit/rules"
)

// app is what all commands share.
type app struct {
	stdin, stdout, stderr *os.File

	storeURL string
	output   string
	quiet    bool
}

const exitBroken = 1 // baton-lab verify found a broken promise

type exit = cli.Exit

var usage = cli.Usage

// run is the program. It returns the exit code.
func run(args []string) int {
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	root := a.root()
	root.SetArgs(args)
	out := &cli.Out{Writer: a.stdout}
	root.SetOut(out)
	cmd, err := root.ExecuteC()
	if err == nil && out.Err != nil {
		err = &exit{Code: cli.ExitFailed, Err: out.Err}
	}
	if err == nil {
		return 0
	}
	var own *exit
	if !errors.As(err, &own) && !errors.As(err, new(cli.Ran)) {
		err = usage("%w", cli.Misspelt(cmd, err)) // cobra's own error: no command ran
	}
	code := cli.CodeOf(err)
	if own == nil || own.Err != nil {
		a.complain("%s", explain(err))
		if code == cli.ExitUsage {
			a.complain("see: %s --help", cmd.CommandPath())
		}
	}
	return code
}

// explain formats an error for people.
func explain(err error) string {
	if errors.As(err, new(*rules.Error)) { // escapes control characters, and keeps its lines
		return err.Error()
	}
	return cli.Safe(strings.TrimPrefix(err.Error(), "baton: "))
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "baton-lab",
		Short: "Try distributed locks and rate limits out",
		Long: `The laboratory of Baton: experiments that answer questions about distributed locks and
rate limits, and tools that try out a store of your own. What runs in production is the
command baton. "baton help stores" lists the URLs of stores.`,
		Example: `  baton-lab ask                                          the questions
  baton-lab ask setnx-expire                             answer one by an experiment
  baton-lab verify --store redis://db1:6379 --fault kill does the store keep its promises?
  baton-lab bench memory: redis://db1:6379               how fast are they?
  baton-lab simulate --rate 100/1m access.log            which limit fits?`,
		SilenceUsage:               true,
		SilenceErrors:              true,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SuggestionsMinimumDistance: 2,
		CompletionOptions:          cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetContext(context.Background())
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return err })
	root.PersistentFlags().BoolVarP(&a.quiet, "quiet", "q", false, "say nothing but errors")
	for _, c := range []*cobra.Command{a.askCommand(), a.drawCommand(), a.verifyCommand(), a.benchCommand(), a.simulateCommand(), a.scaleCommand(), faultsTopic()} {
		c.Flags().SortFlags = false
		root.AddCommand(c)
	}
	cli.SetHelp(root)
	return root
}

// storeFlag adds the flag of commands that use one store.
func (a *app) storeFlag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&a.storeURL, "store", "b", "", "`URL` of the store "+`("baton help stores"); BATON_STORE says the same;`+"\nby default a SQLite file in the user's state directory")
}

// url is the store's URL: flag, environment, default.
func (a *app) url() (string, error) {
	if a.storeURL != "" {
		return a.storeURL, nil
	}
	if url := os.Getenv("BATON_STORE"); url != "" {
		return url, nil
	}
	url, err := open.Default()
	if err != nil {
		return "", &exit{Code: cli.ExitConfig, Err: fmt.Errorf("%w; name a store with --store or BATON_STORE", err)}
	}
	return url, nil
}

// openTimeout bounds the time to a store's first answer.
const openTimeout = 10 * time.Second

// shut closes the store, but waits only a second: a server that does not answer must not
// keep this process from ending.
func shut(store driver.Store) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = store.Close() // the rest ends with the process
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}

// outputFlag adds the flag of commands that show a result.
func (a *app) outputFlag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&a.output, "output", "o", "text", "form of the answer: text or json")
}

// json reports whether -o json was given.
func (a *app) json() (bool, error) {
	switch a.output {
	case "json":
		return true, nil
	case "text", "":
		return false, nil
	}
	return false, usage("-o %s: it is text or json", cli.Safe(a.output))
}

// say prints a message that is no warning, unless quiet.
func (a *app) say(format string, args ...any) {
	if !a.quiet {
		a.complain(format, args...)
	}
}

// complain prints a warning, even if quiet.
func (a *app) complain(format string, args ...any) {
	fmt.Fprintf(a.stderr, "baton-lab: %s\n", cli.WithoutCredentials(fmt.Sprintf(format, args...)))
}

// onTerminal reports whether progress is a line on a terminal, see shown.
func (a *app) onTerminal() bool { return term.IsTerminal(int(a.stderr.Fd())) }

// shown replaces the terminal's last line.
func (a *app) shown(format string, args ...any) {
	columns, _, err := term.GetSize(int(a.stderr.Fd()))
	if err != nil || columns < 20 {
		columns = 80
	}
	fmt.Fprintf(a.stderr, "\r\x1b[K%s", cli.Cut("baton-lab: "+fmt.Sprintf(format, args...), columns-1))
}

// unshown removes that line.
func (a *app) unshown() { fmt.Fprint(a.stderr, "\r\x1b[K") }

// build is the version of this program's sources.
func build() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return fmt.Sprintf("%s (%s)", info.Main.Version, s.Value[:min(12, len(s.Value))])
		}
	}
	return info.Main.Version
}
