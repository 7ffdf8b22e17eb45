package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton/internal/cli"
	"github.com/batonhq/baton/lab/verify"
	"github.com/batonhq/baton/lab/verify/deploy"
	"github.com/batonhq/baton/lab/verify/fault"
	"github.com/batonhq/baton/lab/verify/history"
)

// verifying is one run of baton-lab verify.
type verifying struct {
	*app
	cfg    verify.Config
	faults []string
	crowd  []string // of --clients
	html   string
}

func (a *app) verifyCommand() *cobra.Command {
	v := &verifying{app: a}
	cmd := &cobra.Command{
		Use:   "verify [flags]",
		Short: "Try to break a store's promises, with processes that die and wires that are cut",
		Long: `Starts processes that lock, read-lock and take permits and limits, all wanting the
same, and writes down what they see. It kills and stops them and cuts their
connections. Then it looks in what was written for what must never happen:

  E  two clients that exclude each other considered themselves holders at one instant
  F  a token did not rise, or what checks tokens took a stale write
  L  after the fault a waiter waited for too long, or something was left; a lease was
     lost, and no fault explains it; a limit served too little
  B  a limit admitted more than it allows

The store is the one that --store or BATON_STORE names. Its servers are left alone, and so
are all keys but those of the run, which have a random name and are removed. What breaks
are the clients, and, where the URL names one address of Redis, MySQL or PostgreSQL,
their connections, which go through proxies. But the run loads the store as much as a
crowd does: keep it away from one that others need. With --local the servers are started
for the run, if they are installed on this machine, and broken as well.

With --clients agent,http the clients are programs in Python and PHP that use the agents of
two hosts, or programs in Python that use the HTTP API of two servers that share a secret,
all on this machine. These
can be killed and stopped as well, and the connections to them are cut.

Each fault has a run of its own, with what is drawn from the seed: keys, goroutines, who
wants what for how long, who is broken and for how long. Scheduling is not in it: the same
command breaks the same things in the same way, and finds a rare mishap again sooner or
later. Faults with a + between them have one run and begin together, each at clients of
its own; one of them may break servers. What is promised then is what is promised under
each. A run does not count if this machine paused, or if hardly anything happened.

A run without a violation is no proof. It says how many operations held.

With -o json: store, url, seed, clients, ways, ttl, bound, for and trials; of each fault its
verdict (held, broken, excused if what broke is not promised under that fault, invalid or
skipped), why (if invalid or skipped), promises, what was looked at, what baton.Events told (which must agree in every
client), violations, and the command that repeats it. Durations are in
nanoseconds.

` + exitTableVerify,
		Example: `  baton-lab verify --store redis://db1:6379 --fault kill,reply-cut --for 1m
  baton-lab verify --store sqlite:/tmp/locks.db --fault f02 --seed 42 --for 10s
  baton-lab verify --local etcd3 --fault leader-kill --html report.html
  baton-lab verify --local postgres --fault long-stop+reply-cut+server-kill
  baton-lab verify --local redis --clients 6,library,agent,http --fault reply-cut,agent-kill
  baton-lab verify -o json --store postgres://db2/locks | jq '.trials[].verdict'`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&v.cfg.Local, "local", "", "start servers of this `KIND` (\"baton-lab help faults\"), and break them as well, instead of --store")
	f.StringSliceVar(&v.faults, "fault", nil, "what to break (\"baton-lab help faults\"): `FAULTS` by number or name, with commas between them,\nor with + if they are to break at the same time (default: all that can be)")
	f.DurationVar(&v.cfg.For, "for", 30*time.Second, "how long the clients work under each fault")
	f.Uint64Var(&v.cfg.Seed, "seed", 0, "seed of all random choices, above 0 (default: random)")
	f.StringSliceVar(&v.crowd, "clients", nil, "how many processes (default: 4 to 8), and the `WAYS` in which they reach the store, in turn:\nlibrary (the default), agent, http")
	f.DurationVar(&v.cfg.TTL, "ttl", 0, "of the locks (default: 2s, or more if a fault is of no use with so little)")
	f.BoolVar(&v.cfg.Brief, "brief", false, "hold every lock for 5 ms at most, for many acquisitions (a holder is broken\nless often in the midst of its work)")
	f.DurationVar(&v.cfg.Bound, "bound", 0, "extra time, beyond the TTL, in which waiters must be served after the faults (default: by the store)")
	f.DurationVar(&v.cfg.Stall, "max-stall", 200*time.Millisecond, "longest pause of this machine outside of the fault; after a longer one the run does not count")
	f.StringVar(&v.html, "html", "", "also write a page with timelines to this `FILE`")
	f.StringVar(&v.cfg.Keep, "keep", "", "keep all that the clients wrote in this `DIR`, which is made, or empty")
	for _, name := range []string{"brief", "bound", "max-stall", "keep"} { // for developers of Baton
		_ = f.MarkHidden(name)
	}
	a.storeFlag(cmd)
	a.outputFlag(cmd)
	cmd.RunE = cli.Does(func(ctx context.Context, _ []string) error {
		asJSON, err := a.json()
		if err != nil {
			return err
		}
		if err := v.check(cmd); err != nil {
			return err
		}
		return v.run(ctx, asJSON)
	})
	return cmd
}

const exitTableVerify = `Exit codes:
  0         nothing was found, or nothing but what is not promised under the fault
  1         a promise was broken
  64        wrong usage
  69        the store cannot be reached
  75        nothing was found, but a run counts for nothing: try again
  78        wrong configuration: the store's URL, or what --local or --clients needs is not
            installed
  125       baton-lab itself failed
  130       interrupted; the faults that were done with were printed
`

// faultsTopic lists the values of --fault and --local.
func faultsTopic() *cobra.Command {
	var b strings.Builder
	b.WriteString("The faults that --fault takes, by number or name:\n\n")
	for _, f := range fault.WithFronts() {
		b.WriteString(cli.Fold(f.Does, fmt.Sprintf("  %s  %-15s  ", f.ID, f.Name), 90) + "\n")
	}
	b.WriteString("\nThe kinds of servers that --local takes:\n\n")
	for _, k := range deploy.Kinds {
		fmt.Fprintf(&b, "  %-15s  %s\n", k.Name, k.Does)
	}
	return &cobra.Command{Use: "faults", Short: "What verify breaks, and on which servers of its own", Long: b.String()}
}

func (v *verifying) check(cmd *cobra.Command) error {
	for _, name := range []string{"for", "ttl", "bound", "max-stall"} {
		if d, _ := cmd.Flags().GetDuration(name); cmd.Flags().Changed(name) && d <= 0 {
			return usage("--%s %v: it is a duration above zero", name, d)
		}
	}
	if cmd.Flags().Changed("seed") && v.cfg.Seed == 0 {
		return usage("--seed 0: it is a number above 0")
	}
	for _, word := range v.crowd {
		n, err := strconv.Atoi(word)
		switch {
		case err != nil:
			v.cfg.Ways = append(v.cfg.Ways, word)
		case v.cfg.Clients != 0:
			return usage("--clients: it has one number")
		case n < 1 || n > verify.MaxClients:
			return usage("--clients %d: it is a number from 1 to %d", n, verify.MaxClients)
		default:
			v.cfg.Clients = n
		}
	}
	if v.cfg.Local != "" && v.storeURL != "" {
		return usage("--local starts servers of its own: there is no --store then")
	}
	if !slices.Equal(v.faults, []string{"all"}) {
		v.cfg.Faults = v.faults
	}
	return nil
}

func (v *verifying) run(ctx context.Context, asJSON bool) error {
	if v.cfg.Local == "" {
		url, err := v.url()
		if err != nil {
			return err
		}
		v.cfg.URL = url
	}
	if v.html != "" { // fail now rather than at the end
		if err := writable(v.html); err != nil {
			return &exit{Code: cli.ExitFailed, Err: err}
		}
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	go func() {
		<-ctx.Done()
		stop() // another Ctrl-C ends the process, and its clients with it
	}()
	shown, done := v.showProgress()
	report, err := verify.Run(ctx, v.cfg, shown)
	done()
	if report != nil && len(report.Trials) > 0 {
		failed := v.page(report)
		if asJSON {
			failed = errors.Join(failed, cli.JSON(v.stdout, report, true))
		} else {
			failed = errors.Join(failed, verdicts(v.stdout, report))
		}
		if failed != nil {
			return failed
		}
	}
	var wrong *verify.ConfigError
	var missing *verify.NotInstalledError
	switch {
	case ctx.Err() != nil:
		return &exit{Code: cli.ExitSignal + int(syscall.SIGINT), Err: errors.New("interrupted")}
	case errors.As(err, &wrong):
		flag := map[string]string{"Local": "--local", "Faults": "--fault", "For": "--for", "TTL": "--ttl", "Clients": "--clients", "Ways": "--clients", "Keep": "--keep"}[wrong.Field]
		return usage("%s %s", flag, cli.Safe(wrong.Reason))
	case errors.As(err, &missing):
		return &exit{Code: cli.ExitConfig, Err: fmt.Errorf("--clients: %w", missing)}
	case errors.Is(err, deploy.ErrNotInstalled):
		return &exit{Code: cli.ExitConfig, Err: fmt.Errorf("--local: %w", err)}
	case err != nil:
		return err
	}
	switch report.Verdict() {
	case verify.Broken:
		return &exit{Code: exitBroken}
	case verify.Invalid, verify.Skipped:
		return &exit{Code: cli.ExitNotAcquired}
	}
	return nil
}

// page writes the page if the user asked for it.
func (v *verifying) page(r *verify.Report) error {
	if v.html == "" {
		return nil
	}
	var b bytes.Buffer
	err := r.WriteHTML(&b)
	if err == nil {
		err = os.WriteFile(v.html, b.Bytes(), 0o644)
	}
	if err != nil {
		return &exit{Code: cli.ExitFailed, Err: fmt.Errorf("--html: %w", cli.OfFile(err))}
	}
	v.say("wrote %s", cli.Safe(v.html))
	return nil
}

// showProgress shows the present fault on standard error: on a terminal in a line that
// changes, elsewhere once for each fault.
func (v *verifying) showProgress() (show func(verify.Step), done func()) {
	if v.quiet {
		return nil, func() {}
	}
	if !v.onTerminal() {
		last := 0
		return func(s verify.Step) {
			if s.N != last {
				v.say("%s, %d of %d", s.Fault, s.N, s.Of)
			}
			last = s.N
		}, func() {}
	}
	return func(s verify.Step) { v.shown("%s, %d of %d: %s", s.Fault, s.N, s.Of, s.Doing) }, v.unshown
}

// verdicts prints a report for people.
func verdicts(w io.Writer, r *verify.Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d clients, TTL %s, %s each, seed %d\n\n", cli.Safe(r.URL), r.Clients, cli.Short(r.TTL), cli.Short(r.For), r.Seed)
	rows := [][]string{{"FAULT", "", "VERDICT", "E", "F", "L", "B", "LOCKS", "WRITES", "STALE", "LOST", "LIMITS"}}
	for _, t := range r.Trials {
		row := []string{t.Fault, t.Name, string(t.Verdict)}
		for _, p := range verify.Promises {
			kept, looked := t.Promises[p]
			row = append(row, map[[2]bool]string{{true, true}: "held", {false, true}: "BROKEN"}[[2]bool{kept, looked}])
		}
		if t.Verdict != verify.Skipped {
			row = append(row, count(t.Looked.Granted), count(t.Looked.Writes), count(t.Looked.Stale), count(t.Lost), count(t.Decisions))
		}
		rows = append(rows, row)
	}
	if err := cli.Table(&b, rows); err != nil {
		return err
	}
	for _, t := range r.Trials {
		if len(t.Why)+len(t.Violations) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n%s %s: %s\n", t.Fault, t.Name, t.Does)
		for _, why := range t.Why {
			fmt.Fprintf(&b, "  %s: %s\n", t.Verdict, indented(why))
		}
		for i, x := range t.Violations {
			if i == mostShown {
				fmt.Fprintf(&b, "  and %d more (-o json has them all)\n", len(t.Violations)-i)
				break
			}
			fmt.Fprintf(&b, "  %s at %s, %s, %s: %s\n", x.Promise, cli.Short(history.Duration(t.Began, x.From)), x.Check, cli.Safe(x.Key), indented(x.Text))
		}
		if t.Verdict != verify.Skipped {
			fmt.Fprintf(&b, "  again: %s\n", t.Repeat)
		}
	}
	fmt.Fprintf(&b, "\nSTALE are the writes that a resource without a check of tokens would have taken from a\nholder that was not the last. Again: %s\n", r.Repeat)
	_, err := io.WriteString(w, b.String())
	return err
}

// mostShown bounds the violations that are printed for one fault.
const mostShown = 20

func count(n int) string { return strconv.Itoa(n) }

// indented makes a text of several lines an entry of a list.
func indented(s string) string {
	var lines []string
	for line := range strings.Lines(strings.TrimSpace(s)) {
		lines = append(lines, cli.Safe(strings.TrimRight(line, "\r\n")))
	}
	return strings.Join(lines, "\n      ")
}
