package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/metrics"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/observe"
	"github.com/batonhq/baton/internal/cli"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/server/page"
	"github.com/batonhq/baton/store/pgstore"
	"github.com/batonhq/baton/store/redisstore"
	"github.com/batonhq/baton/store/sqlitestore"
)

// app is what all commands share.
type app struct {
	stdin          *os.File
	stdout, stderr *os.File
	messages       *messageWriter // to stderr

	storeURL string
	naming   *pflag.Flag // --store
	opened   string      // the URL of the store that was opened, redacted
	output   string
	quiet    bool
	verbose  bool

	telling sync.Mutex
	aloud   bool     // say prints at once
	untold  []string // what say has not printed

	metricsFile string
	measured    *measured      // nil: not asked for
	shown       metrics.Events // of a server
	recent      *page.Recent   // nil: not asked for

	death death
}

func newApp(stdin, stdout, stderr *os.File) *app {
	return &app{stdin: stdin, stdout: stdout, stderr: stderr, messages: newMessages(stderr)}
}

func run(args []string) int {
	a := newApp(os.Stdin, os.Stdout, os.Stderr)
	root := a.root()
	root.SetArgs(args)
	out := &cli.Out{Writer: a.stdout}
	root.SetOut(out)
	cmd, err := root.ExecuteC()
	if err == nil && out.Err != nil {
		err = &exit{Code: exitFailed, Err: out.Err}
	}
	if err == nil {
		a.conclude(0)
		a.messages.flush(lastPatience)
		return 0
	}
	var own *exit
	if !errors.As(err, &own) && !errors.As(err, new(cli.Ran)) {
		err = usage("%w", misspelt(cmd, err)) // an error of cobra: nothing ran
	}
	a.speakUp()
	code := codeOf(err)
	if own == nil || own.Err != nil {
		a.complain("%s", explain(err))
		if code == exitUsage {
			a.complain("see: %s --help", cmd.CommandPath())
		}
	}
	a.conclude(code)
	a.messages.flush(lastPatience)
	if i, ok := errors.AsType[*interruption](err); ok {
		a.death = death{sig: i.sig}
	}
	a.death.die()
	return code
}

const about = `Baton gives programs distributed locks and rate limits over the stores they already run.

A lock is a lease: it is renewed while its holder lives and ends by itself
soon after its holder has crashed. Every grant carries a fencing token, a
number that rises with every grant of the same key.

A limit counts exactly, by the store's clock, the requests of all programs on all
machines; it does not count a request that it refuses.

To try a store out, to compare stores or limits, there is another command, baton-lab.`

func (a *app) root() *cobra.Command {
	var showVersion bool
	root := &cobra.Command{
		Use:   "baton",
		Short: "Distributed locks and rate limits for commands and scripts",
		Long:  about,
		Example: `  baton run nightly-report -- ./report.sh          wait for the lock, run, give it back
  baton run -n nightly-report -- ./report.sh       or leave at once if it already runs
  baton -b redis://db1:6379 show nightly-report    who holds it?
  baton limit --rate 10/1m mail -- ./send.sh       run it, unless it ran ten times within a minute`,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if showVersion {
				fmt.Fprintln(cmd.OutOrStdout(), version()) // a cli.Out remembers the error
				return nil
			}
			return cmd.Help()
		},
		SuggestionsMinimumDistance: 2,
		CompletionOptions:          cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetContext(context.Background())
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		// A flag behind KEY and another argument belongs to the command: "--" is missing.
		if args := c.Flags().Args(); len(args) > 1 && strings.Contains(c.Use, "-- COMMAND") {
			return c.ValidateArgs(args)
		}
		return err
	})

	flags := root.PersistentFlags()
	flags.SortFlags = false
	flags.StringVarP(&a.storeURL, "store", "b", "", "`URL` of the store "+`("baton help stores"); BATON_STORE says the same; by default a SQLite file in the user's state directory`)
	a.naming = flags.Lookup("store")
	flags.BoolVarP(&a.quiet, "quiet", "q", false, "say nothing but errors, on a terminal too")
	flags.BoolVarP(&a.verbose, "verbose", "v", false, "say everything at once, and log what happens, to standard error")

	root.Flags().BoolVar(&showVersion, "version", false, "show what this program was built from, as baton version does")

	root.AddGroup(&cobra.Group{ID: "use", Title: "Use locks and limits:"}, &cobra.Group{ID: "look", Title: "Look at locks:"},
		&cobra.Group{ID: "store", Title: "Look at stores:"})
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("use", a.runCommand(), a.lockCommand(), a.renewCommand(), a.unlockCommand(), a.electCommand(), a.onceCommand(), a.limitCommand(), a.agentCommand(), a.serveCommand(), a.tokenCommand())
	add("look", a.listCommand(), a.showCommand(), a.watchCommand(), a.askCommand(), a.breakCommand())
	add("store", a.doctorCommand(), a.schemaCommand())
	add("", a.completionCommand(root), a.manCommand(root), a.referenceCommand(root), a.versionCommand())
	root.AddCommand(topics()...)
	eachCommand(root, func(c *cobra.Command) { c.Flags().SortFlags = false })
	root.SetHelpCommandGroupID("")
	cli.SetHelp(root)
	return root
}

func eachCommand(root *cobra.Command, do func(*cobra.Command)) {
	do(root)
	for _, c := range root.Commands() {
		eachCommand(c, do)
	}
}

// queryFlags adds the flags of commands that show something.
func (a *app) queryFlags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&a.output, "output", "o", "text", "form of the answer: text or json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

func (a *app) json() (bool, error) {
	switch a.output {
	case "json":
		return true, nil
	case "text", "":
		return false, nil
	}
	return false, usage("-o %s: it is text or json", safe(a.output))
}

// attended reports whether a person is likely to see what is printed.
var attended = func(to *os.File) bool { return term.IsTerminal(int(to.Fd())) }

// mostUntold bounds the messages that wait; older ones are dropped.
const mostUntold = 100

// say is for messages that are no trouble. Where standard error is no terminal they wait
// for the first trouble, and are dropped if the command succeeds without any: cron mails
// everything that is printed. Quiet drops them all.
func (a *app) say(format string, args ...any) {
	if a.quiet {
		return
	}
	text := fmt.Sprintf(format, args...)
	a.telling.Lock()
	if !a.aloud && !a.verbose && !attended(a.stderr) {
		a.untold = append(a.untold, text)
		a.untold = a.untold[max(0, len(a.untold)-mostUntold):]
		a.telling.Unlock()
		return
	}
	a.telling.Unlock()
	a.print(text)
}

// complain reports trouble, even if quiet. The waiting messages of say come first.
func (a *app) complain(format string, args ...any) {
	a.speakUp()
	a.print(fmt.Sprintf(format, args...))
}

// speakUp prints the waiting messages of say. From then on say prints at once.
func (a *app) speakUp() {
	a.telling.Lock()
	untold := a.untold
	a.aloud, a.untold = true, nil
	a.telling.Unlock()
	for _, text := range untold {
		a.print(text)
	}
}

func (a *app) print(text string) {
	fmt.Fprintf(a.messages, "baton: %s\n", cli.WithoutCredentials(text))
}

func (a *app) logger() *slog.Logger {
	if !a.verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(a.messages, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// url is the store's URL: flag, environment, default.
func (a *app) url() (string, error) {
	if a.storeURL != "" {
		return a.storeURL, nil
	}
	if a.naming.Changed { // a variable that is not set may be the reason, and the default store belongs to this user alone
		return "", &exit{Code: exitConfig, Err: errors.New("the name of the store is empty: name one, or leave it out for the default store")}
	}
	if url := os.Getenv("BATON_STORE"); url != "" {
		return url, nil
	}
	url, err := open.Default()
	if err != nil {
		return "", &exit{Code: exitConfig, Err: fmt.Errorf("%w; name a store with --store or BATON_STORE", err)}
	}
	return url, nil
}

func (a *app) storeArgument(args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case a.naming.Changed:
		return usage("the store is named twice, by --store and by the argument")
	}
	a.storeURL, a.naming.Changed = args[0], true
	return nil
}

// newFile looks whether the store is a file that does not exist. told, which is called
// once the store is open, says that the file was made: its name may be misspelt. For the
// default store it says nothing.
func (a *app) newFile(url string) (told func()) {
	path, is := open.File(url)
	if a.storeURL == "" && os.Getenv("BATON_STORE") == "" || !is {
		return func() {}
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return func() {}
	}
	return func() { a.say("created the file %s", safe(path)) }
}

// openTimeout bounds how long a store may take to answer for the first time.
const openTimeout = 10 * time.Second

// openWait is for how long a command tries to open a store that is away. The zero value
// means one try.
type openWait struct {
	tries bool           // at least for the connect-timeout of the URL
	wait  *time.Duration // of --wait, less the time that passed; nil: not given
	ever  bool           // until the context ends
}

// openWait is how long a command with these flags tries: with -n, once.
func (k *asking) openWait() openWait {
	p := openWait{tries: !k.try}
	if k.waits {
		p.wait = &k.left
	}
	return p
}

// openURL has opener open the store that the command line names.
func openURL[S driver.Store](ctx context.Context, a *app, p openWait, opener func(context.Context, string) (S, error)) (store S, url string, err error) {
	if url, err = a.url(); err != nil {
		return store, "", err
	}
	told := a.newFile(url)
	began := time.Now()
	store, err = again(ctx, a, p, open.ConnectTimeout(url), func(ctx context.Context) (S, error) { return opener(ctx, url) })
	switch {
	case err == nil:
		told()
	case codeOf(err) == exitFailed:
		code := exitUnavailable
		if file, ok := errors.AsType[*sqlitestore.FileError](err); ok && file.Problem != sqlitestore.ErrFull && file.Problem != sqlitestore.ErrIO {
			code = exitConfig // trying again does not help until a person changes something
		}
		err = &exit{Code: code, Err: err}
	}
	if p.wait != nil {
		*p.wait = max(*p.wait-time.Since(began), time.Millisecond)
	}
	return store, url, err
}

// again opens a store. It tries until that succeeds, another try cannot help, the
// patience ends, or a signal asks to stop waiting.
func again[S driver.Store](ctx context.Context, a *app, p openWait, least time.Duration, open func(context.Context) (S, error)) (store S, err error) {
	began, longest := time.Now(), max(openTimeout, least)
	try := func(ctx context.Context, within time.Duration) (S, error) {
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		return open(ctx)
	}
	if !p.tries {
		return try(ctx, longest)
	}
	if p.wait != nil {
		least = max(least, *p.wait)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if !p.ever { // else the caller handles the signals
		sigs, stop := listen(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
		defer stop()
		go func() {
			select {
			case s := <-sigs:
				cancel(interruptedIn(s, "the store has not been opened"))
			case <-ctx.Done():
			}
		}()
	}
	for first := true; ; first = false {
		within := longest
		if p.wait != nil { // a server that is only slow needs some time
			within = min(within, max(least-time.Since(began), time.Second))
		}
		store, err = try(ctx, within)
		switch passed := time.Since(began); {
		case ctx.Err() != nil:
			if err == nil {
				shut(store)
			}
			return store, context.Cause(ctx)
		case err == nil, !away(err), !p.ever && passed >= least:
			return store, err
		case first && (p.ever || term.IsTerminal(int(a.stderr.Fd()))): // cron would mail it
			a.say("%s; trying again", safe(message(err)))
		}
		pause := min(max(time.Since(began)/4, 50*time.Millisecond), time.Second)
		if left := least - time.Since(began); !p.ever {
			pause = min(pause, max(left, 0)) // the last try is at the very end
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// away reports whether a store that failed to open may answer later: a server that does
// not answer, or is a replica, may be in the middle of a fail-over.
func away(err error) bool {
	return codeOf(err) == exitUnavailable || errors.As(err, new(*redisstore.ReplicaError)) || errors.As(err, new(*pgstore.StandbyError))
}

// open opens the store and makes a Locker, unless a check fails.
func (a *app) open(ctx context.Context, cfg baton.Config, checks ...func(driver.Traits) error) (locks *baton.Locker, store driver.Store, err error) {
	return a.openWith(ctx, openWait{}, func() baton.Config { return cfg }, checks...)
}

// openWith is open for a Config that is made after the checks.
func (a *app) openWith(ctx context.Context, p openWait, config func() baton.Config, checks ...func(driver.Traits) error) (locks *baton.Locker, store driver.Store, err error) {
	store, url, err := openURL(ctx, a, p, open.Store)
	if err != nil {
		return nil, nil, err
	}
	for _, check := range checks {
		if err := check(store.Traits()); err != nil {
			store.Close()
			return nil, nil, err
		}
	}
	store = observe.Store(store, a.told().Store)
	cfg := config()
	cfg.Logger = a.logger()
	cfg.Events = a.told().Locks
	a.opened = safe(open.Redact(url))
	cfg.Logger.Debug("store opened", "url", a.opened)
	locks, err = baton.New(store, cfg)
	if err != nil {
		store.Close()
		return nil, nil, err
	}
	return locks, store, nil
}

// A base is a store with a Locker.
type base struct {
	locks *baton.Locker
	store driver.Store
}

// openLater is openWith for servers: it tries until the store is open, or a signal comes
// for which ends is true. Then the base is zero.
func (a *app) openLater(ctx context.Context, sigs <-chan os.Signal, ends func(os.Signal) bool, config func() baton.Config, checks ...func(driver.Traits) error) (base, error) {
	type opened struct {
		base
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan opened, 1)
	go func() {
		locks, store, err := a.openWith(ctx, openWait{tries: true, ever: true}, config, checks...)
		done <- opened{base{locks, store}, err}
	}()
	for {
		select {
		case o := <-done:
			return o.base, o.err
		case s := <-sigs:
			if !ends(s) {
				continue
			}
			cancel()
			select {
			case o := <-done:
				if o.err == nil {
					shut(o.store)
				}
			case <-time.After(time.Second): // like a file that is a pipe without a writer
			}
			return base{}, nil
		}
	}
}

// shut closes the store, and waits a second at most: a server that does not answer must
// not keep this process alive.
func shut(store driver.Store) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = store.Close() // the end of the process closes the rest
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}

// oneArg demands exactly one argument; name describes it.
func oneArg(name string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return usage("%s is missing", name)
		case len(args) > 1:
			return usage("one %s is enough: what is %q?", name, safe(args[1]))
		}
		return nil
	}
}

// message is the text of an error without the package's name.
func message(err error) string { return strings.TrimPrefix(err.Error(), "baton: ") }

// safeError is the text of an error in one line. Errors of rules keep their lines, which
// quote the file and mark a place; they are already escaped for a terminal.
func safeError(err error) string {
	if errors.As(err, new(*rules.Error)) {
		return err.Error()
	}
	return safe(message(err))
}

// explain says for people what happened and what to do about it.
func explain(err error) string {
	if errors.As(err, new(*rules.Error)) {
		return safeError(err)
	}
	text := message(err)
	switch code := codeOf(err); {
	case errors.As(err, new(*exit)):
	case code == exitUnavailable:
		text = fmt.Sprintf("%s; is the store up, and is its URL right (--store, BATON_STORE)?", text)
	case errors.As(err, new(*open.URLError)):
		if !strings.HasSuffix(text, "?") {
			text += ";"
		}
		text += " see: baton help stores"
	}
	return safe(text)
}
