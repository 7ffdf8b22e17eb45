// Command bench compares Baton with other locks, and with the bare exchange with the same
// server, in one interleaved run, and prints medians and ratios.
//
//	go run . [flags]
//
// A full run takes about a quarter of an hour and needs an otherwise idle machine. It starts
// its own servers, which must be installed; -only 'pg-*' measures one system and needs no
// other. Compare figures only within one run; between runs compare ratios.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/batonhq/baton/internal/testserver"
)

func main() {
	if runChild() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run is the program. It prints the report on out and progress on log.
func run(ctx context.Context, args []string, out, log io.Writer) error {
	all := allWorkloads()
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(log)
	var (
		only     = flags.String("only", "", "measure only these `workloads`: names or patterns, separated by commas (list: "+names(all)+")")
		rivals   = flags.String("rivals", "", "measure only these `rivals`, and those that the ratios are to")
		reps     = flags.Int("reps", 3, "how often everything is measured")
		each     = flags.Duration("time", 800*time.Millisecond, "how long each measurement takes")
		hold     = flags.Duration("renew", time.Minute, "how long leases are held and renewed")
		leases   = flags.Int("leases", 10_000, "how many leases are renewed")
		age      = flags.Int("age", 10_000, "how often a key is locked before it counts as an old one")
		format   = flags.String("o", "table", "`format` of the report on standard output: table, json, html or markdown")
		from     = flags.String("from", "", "measure nothing: report what is in this `file`, which -o json has written")
		profiles = flags.String("cpuprofile", "", "write a CPU profile of each measurement of Baton to `PREFIX`-WORKLOAD-RIVAL-REPETITION.prof; a pair's has its rivals in it, too")
		dir      = flags.String("dir", "", "`directory` for the SQLite file, on the disk to be measured; servers keep their data in the temporary directory, as TMPDIR names it (default: the temporary directory)")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	write, ok := map[string]func(io.Writer, *results, method) error{"table": writeText, "json": writeJSON, "html": writeHTML, "markdown": writeMarkdown}[*format]
	workloads, unknown := choose(all, *only)
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case !ok:
		return fmt.Errorf("-o %s: no such format; there are table, json, html and markdown", *format)
	case len(unknown) > 0:
		return fmt.Errorf("-only %s: no such workload; there are %s", strings.Join(unknown, ","), names(all))
	case *reps < 1 || *leases < 1 || *age < 1 || *each <= 0 || *hold <= 0:
		return errors.New("-reps, -leases, -age, -time and -renew must be positive")
	}
	if *from != "" {
		f, err := os.Open(*from)
		if err != nil {
			return err
		}
		defer f.Close()
		res, m, err := readJSON(f, all)
		if err != nil {
			return fmt.Errorf("-from %s: %w", *from, err)
		}
		return write(out, res, m)
	}

	var program testserver.Program
	defer program.Close()
	var needed []string
	for _, w := range workloads {
		for _, name := range append([]string{w.system}, w.also...) {
			if !slices.Contains(needed, name) {
				needed = append(needed, name)
			}
		}
	}
	e, err := newEnv(&program, *dir, needed)
	if err != nil {
		return err
	}
	b := &bench{env: e, time: *each, hold: *hold, leases: *leases, age: *age, reps: *reps, profiles: *profiles, log: log}
	if *rivals != "" {
		b.rivals = strings.Split(*rivals, ",")
	}
	began := time.Now()
	res, err := b.run(ctx, workloads)
	if err != nil {
		return err
	}
	fmt.Fprintf(log, "measured in %v\n\n", time.Since(began).Round(time.Second))
	return write(out, res, describe(b, res))
}

func names(workloads []*workload) string {
	var all []string
	for _, w := range workloads {
		all = append(all, w.name)
	}
	return strings.Join(all, " ")
}
