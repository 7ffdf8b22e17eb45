package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/cli"
	"github.com/batonhq/baton/internal/textwidth"
	"github.com/batonhq/baton/lab/measure"
	"github.com/batonhq/baton/lab/measure/page"
	"github.com/batonhq/baton/open"
)

// benching is one run of baton-lab bench.
type benching struct {
	*app
	plan   measure.Plan
	html   string
	stores []measure.Store
}

const mostGoroutines = 4096

func (a *app) benchCommand() *cobra.Command {
	b := &benching{app: a}
	cmd := &cobra.Command{
		Use:   "bench [flags] [[NAME=]URL…]",
		Short: "Measure stores side by side",
		Long: `Measures how long a lock takes, how many there are in a second and how evenly they are
served, as more and more goroutines ask for them:

  - all for one key, standing in the line of one process,
  - all for one key, each with a store of its own and so by itself in the store's queue,
    as that many processes would be (32 at most),
  - each for a key of its own.

The stores (the arguments, or the one that --store or BATON_STORE names) take turns, and
everything is repeated: figures are medians. A store is called by the scheme of its URL,
or by the name that stands before it. It uses keys of its own with a random name,
which are free at the end, and leaves all others alone; but it loads the servers as much
as it can, so keep it away from those that others need. Ctrl-C ends it early and prints
what was measured so far.

Figures are for lock and unlock together, with nothing done in between and no pause after
it. Jitter is how much two locks of the same goroutine that follow each other differ, in
the mean. Jain's index of fairness is 1 if all are served alike, and 1/n if one of n has
everything.

With -o json: stores, results (store, shape, goroutines, the medians, and all
repetitions; times in seconds, what is not known is null), failed, complete, began, took,
repetitions, the program's build, go and platform, cpus, and method. -o markdown prints tables for a page.

` + exitTableBench,
		Example: `  baton-lab bench memory: sqlite:/tmp/bench.db redis://db1:6379
  baton-lab bench --for 10m --html report.html old=redis://db1:6379 new=redis+cluster://c1,c2,c3`,
		Args: cobra.ArbitraryArgs,
	}
	f := cmd.Flags()
	f.DurationVar(&b.plan.For, "for", 0, "how long all of it takes (default: 1m for each store)")
	f.IntSliceVar(&b.plan.Goroutines, "goroutines", []int{1, 2, 4, 8, 16, 32, 64, 128, 256}, "how many ask at once")
	f.IntVar(&b.plan.Repetitions, "repetitions", 3, "how often each measurement is made")
	f.StringVar(&b.html, "html", "", "also write a page with plots to this `FILE`")
	a.storeFlag(cmd)
	f.StringVarP(&a.output, "output", "o", "text", "form of the answer: text, json or markdown")
	cmd.RunE = cli.Does(func(ctx context.Context, args []string) error {
		if cmd.Flags().Changed("for") && b.plan.For <= 0 {
			return usage("--for %v: it is a duration above zero", b.plan.For)
		}
		if err := b.check(args); err != nil {
			return err
		}
		return b.run(ctx, args)
	})
	return cmd
}

const exitTableBench = `Exit codes:
  0         everything was measured
  64        wrong usage
  69        a store cannot be reached, or failed on the way (the others were measured)
  78        wrong configuration: a store's URL
  125       baton-lab itself failed, or a store broke a promise
  130       interrupted; what was measured so far was printed
`

func (b *benching) check(args []string) error {
	if !slices.Contains([]string{"text", "json", "markdown"}, b.output) {
		return usage("-o %s: it is text, json or markdown", cli.Safe(b.output))
	}
	if len(args) > 0 && b.storeURL != "" {
		return usage("name all stores as arguments, without --store")
	}
	if b.plan.Repetitions < 1 {
		return usage("--repetitions %d: it is at least 1", b.plan.Repetitions)
	}
	slices.Sort(b.plan.Goroutines)
	b.plan.Goroutines = slices.Compact(b.plan.Goroutines)
	if n := b.plan.Goroutines; len(n) == 0 || n[0] < 1 || n[len(n)-1] > mostGoroutines {
		return usage("--goroutines %v: they are numbers from 1 to %d", n, mostGoroutines)
	}
	return nil
}

func (b *benching) run(ctx context.Context, urls []string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if len(urls) == 0 {
		url, err := b.url()
		if err != nil {
			return err
		}
		urls = []string{url}
	}
	if b.html != "" { // fail now rather than after ten minutes
		if err := writable(b.html); err != nil {
			return &exit{Code: cli.ExitFailed, Err: err}
		}
	}
	for _, arg := range urls {
		name, url := named(arg)
		opening, cancel := context.WithTimeout(ctx, openTimeout)
		store, err := open.Store(opening, url)
		cancel()
		switch {
		case ctx.Err() != nil:
			return &exit{Code: cli.ExitSignal + int(syscall.SIGINT), Err: errors.New("interrupted")}
		case err != nil && cli.CodeOf(err) == cli.ExitFailed:
			return &exit{Code: cli.ExitUnavailable, Err: err}
		case err != nil:
			return err
		}
		defer shut(store)
		b.add(name, url, store)
	}
	if b.plan.For == 0 {
		b.plan.For = time.Duration(len(urls)) * time.Minute
	}

	began := time.Now()
	shown, done := b.showProgress()
	b.plan.Progress = shown
	go func() {
		<-ctx.Done()
		stop() // another Ctrl-C ends the process
	}()
	result, err := measure.Run(ctx, b.plan)
	done()
	took := time.Since(began)
	report := b.report(result, began, took)

	if len(result.Cells) > 0 {
		if err := b.print(report); err != nil {
			return err
		}
	}
	interrupted := ctx.Err() != nil
	for name, failure := range result.Failed {
		b.complain("%s failed, and was left out from then on: %s", cli.Safe(name), cli.Safe(failure.Error()))
	}
	switch {
	case interrupted:
		b.say("interrupted: these are the figures so far")
		return &exit{Code: cli.ExitSignal + int(syscall.SIGINT)}
	case err != nil:
		return err
	case len(result.Failed) > 0:
		return &exit{Code: cli.ExitUnavailable}
	case !result.Complete:
		b.say("time was up before everything was measured: give it more with --for")
	}
	return nil
}

// named splits an argument into the store's name and its URL. The scheme is the name if
// the argument has none.
func named(arg string) (name, url string) {
	if name, url, ok := strings.Cut(arg, "="); ok && url != "" && nameable(name) {
		return name, url
	}
	scheme, _, _ := strings.Cut(arg, ":")
	return cli.Safe(scheme), arg
}

// nameable reports whether a text can be a store's name. The beginning of a URL cannot,
// because it has a colon.
func nameable(name string) bool {
	for i, r := range name {
		if !unicode.IsLetter(r) && !unicode.IsNumber(r) && (i == 0 || !strings.ContainsRune(" ._-", r)) {
			return false
		}
	}
	return name != "" && utf8.RuneCountInString(name) <= 31
}

// add adds a store under a unique name.
func (b *benching) add(name, url string, store driver.Store) {
	wanted := name
	taken := func(t measure.Target) bool { return t.Name == name }
	for n := 2; slices.ContainsFunc(b.plan.Targets, taken); n++ {
		name = fmt.Sprintf("%s %d", wanted, n)
	}
	b.plan.Targets = append(b.plan.Targets, measure.Target{Name: name, Store: store, Open: func(ctx context.Context) (driver.Store, error) {
		ctx, cancel := context.WithTimeout(ctx, openTimeout)
		defer cancel()
		return open.Store(ctx, url)
	}})
	b.stores = append(b.stores, measure.Store{Name: name, About: open.Redact(url)})
}

func writable(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("--html: %w", cli.OfFile(err))
	}
	return f.Close()
}

// showProgress shows the present measurement on standard error: on a terminal in a line that
// changes, elsewhere once for each shape and repetition.
func (b *benching) showProgress() (show func(measure.Step), done func()) {
	if b.quiet {
		return nil, func() {}
	}
	began := time.Now()
	if !b.onTerminal() {
		var last measure.Step
		return func(s measure.Step) {
			if s.Shape != last.Shape || s.Repetition != last.Repetition {
				b.say("repetition %d of %d: %s (%d of %d measurements, %s)", s.Repetition, b.plan.Repetitions, s.Shape,
					s.N-1, s.Of, cli.Short(time.Since(began).Round(time.Second)))
			}
			last = s
		}, func() {}
	}
	return func(s measure.Step) {
		left := max(b.plan.For-time.Since(began), 0).Round(time.Second)
		b.shown("%d %%, at most %s left: %s, %d goroutines, %s", 100*(s.N-1)/s.Of, cli.Short(left), s.Target, s.Goroutines, s.Shape)
	}, b.unshown
}

// report adds the circumstances of the measurement to the result.
func (b *benching) report(r *measure.Result, began time.Time, took time.Duration) *measure.Report {
	return &measure.Report{
		Result: r, Stores: b.stores, Repetitions: b.plan.Repetitions,
		Began: began, Took: took, Build: build(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.GOMAXPROCS(0),
	}
}

func (b *benching) print(r *measure.Report) error {
	if b.html != "" {
		var text bytes.Buffer
		err := page.Write(&text, r)
		if err == nil {
			err = os.WriteFile(b.html, text.Bytes(), 0o644)
		}
		if err != nil {
			return &exit{Code: cli.ExitFailed, Err: fmt.Errorf("--html: %w", cli.OfFile(err))}
		}
		path, _ := filepath.Abs(b.html) // only for display
		b.say("wrote %s", cli.Safe(path))
	}
	switch b.output {
	case "json":
		return cli.JSON(b.stdout, r, true)
	case "markdown":
		return b.markdown(r)
	}
	return b.text(r.Result)
}

func (b *benching) markdown(r *measure.Report) error {
	var w strings.Builder
	r.Markdown(&w)
	for _, s := range r.Stores {
		fmt.Fprintf(&w, "- %s is `%s`\n", s.Name, s.About)
	}
	_, err := io.WriteString(b.stdout, w.String())
	return err
}

func (b *benching) text(r *measure.Result) error {
	var w strings.Builder
	var last measure.Shape
	for _, t := range r.Tables() {
		if t.Shape != last {
			fmt.Fprintf(&w, "%s\n\n", strings.ToUpper(t.Shape.String()))
			if note := t.Shape.Note(); note != "" {
				w.WriteString(cli.Fold(note, "", 90) + "\n\n")
			}
			last = t.Shape
		}
		w.WriteString(t.Metric.Title + "\n")
		if err := cli.Table(&w, aligned(t)); err != nil {
			return err
		}
		w.WriteByte('\n')
	}
	for _, s := range b.stores {
		fmt.Fprintf(&w, "%s is %s\n", s.Name, cli.Safe(s.About))
	}
	_, err := io.WriteString(b.stdout, w.String())
	return err
}

// aligned pads the numbers, so that each column is aligned to the right.
func aligned(t measure.Table) [][]string {
	rows := append([][]string{slices.Clone(t.Head)}, t.Rows...)
	for column := 1; column < len(t.Head); column++ {
		most := 0
		for _, row := range rows {
			most = max(most, textwidth.Of(row[column]))
		}
		for _, row := range rows {
			row[column] = strings.Repeat(" ", most-textwidth.Of(row[column])) + row[column]
		}
	}
	return rows
}
