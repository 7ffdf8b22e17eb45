package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/cli"
	"github.com/batonhq/baton/internal/scratch"
	"github.com/batonhq/baton/open"
)

const (
	doctorPairs = 20
	doctorFor   = 5 * time.Second       // the most that measuring may take
	slowPair    = 50 * time.Millisecond // a slower store gets a finding
)

func (a *app) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor [flags] [URL]",
		Short: "Examine a store: what it promises, what makes it unsafe or slow",
		Long: `Connects to the store, says what it promises, and names what makes it unsafe or slow
for locks, each with the line that repairs it: what is unsafe first, then what costs
speed, then what is worth knowing. It changes no setting. It locks and unlocks a scratch key of
its own a few times to measure how long that takes, and looks how far the store's clock
is from this machine's, which locks do not depend on.

The store is the argument, or what --store or BATON_STORE says.

With -o json: url, store, unsafe (true or false), promises (names and true or false),
findings (name, severity, what, mend), pair (seconds: p50, slowest; n) and clock_offset
(seconds; left out if the store has no clock of its own) and not_asked (why, if not
everything could be asked).

` + exitTableDoctor,
		Example: `  baton doctor redis://db1:6379
  baton doctor -o json | jq -r '.findings[] | select(.severity == "unsafe") | .mend'`,
		Args:              noMoreThanOne("URL"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	a.queryFlags(cmd)
	cmd.RunE = does(func(ctx context.Context, args []string) error {
		asJSON, err := a.json()
		if err != nil {
			return err
		}
		if err := a.storeArgument(args); err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		d, err := a.examine(ctx)
		if ctx.Err() != nil {
			return &exit{Code: exitSignal + int(syscall.SIGINT), Err: errors.New("interrupted")}
		}
		if err != nil {
			return err
		}
		if asJSON {
			err = printJSON(a.stdout, d.view(), true)
		} else {
			err = d.print(a)
		}
		switch {
		case err != nil:
			return err
		case d.count(driver.Unsafe) > 0:
			return &exit{Code: exitUnsafe}
		case d.partial != nil: // the failed questions may hide something unsafe
			return &exit{Code: exitUnavailable}
		}
		return nil
	})
	return cmd
}

const exitTableDoctor = `Exit codes:
  0         nothing unsafe was found
  1         something unsafe was found
  64        wrong usage
  69        the store cannot be reached, or not everything could be asked
  78        wrong configuration: the store's URL
  125       baton itself failed
  130       interrupted
`

// diagnosis is what examine has found out about a store.
type diagnosis struct {
	url      string         // redacted
	traits   *driver.Traits // nil if the store was refused
	findings []driver.Finding
	pair     *scratch.Pairs // nil if not measured
	offset   *time.Duration // of the store's clock from this machine's; nil: the store has no clock
	within   time.Duration  // how exact the offset is
	partial  error          // why some questions failed
}

// examine opens the store and asks everything that it can tell.
func (a *app) examine(ctx context.Context) (*diagnosis, error) {
	url, err := a.url()
	if err != nil {
		return nil, err
	}
	d := &diagnosis{url: open.Redact(url)}
	opening, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	store, err := open.Store(opening, url)
	if refused, ok := errors.AsType[driver.Refusal](err); ok {
		if f, ok := refused.Finding(); ok {
			d.findings = append(d.findings, f)
			return d, nil
		}
	}
	if err != nil {
		if codeOf(err) == exitFailed {
			err = &exit{Code: exitUnavailable, Err: err}
		}
		return nil, err
	}
	defer shut(store)
	traits := store.Traits()
	d.traits = &traits

	asking, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if e, ok := driver.As[driver.Examiner](store); ok {
		d.findings, d.partial = e.Examine(asking)
	}
	if d.partial != nil && len(d.findings) == 0 {
		return nil, &exit{Code: exitUnavailable, Err: d.partial}
	}
	d.judgeTTL(traits)
	d.compareClocks(asking, store)
	d.measure(ctx, store)
	slices.SortStableFunc(d.findings, func(x, y driver.Finding) int { return cmp.Compare(y.Severity, x.Severity) })
	return d, nil
}

// judgeTTL notes which TTL the store gets without --ttl, if it is not the default.
func (d *diagnosis) judgeTTL(traits driver.Traits) {
	if ttl := baton.DefaultTTLOf(traits); ttl != baton.DefaultTTL {
		d.findings = append(d.findings, driver.Finding{
			Name: "default-ttl", Severity: driver.Note,
			What: fmt.Sprintf("the default TTL of %v is not within %v and %v, which the store accepts: without --ttl it is %v", baton.DefaultTTL, traits.MinTTL, traits.MaxTTL, ttl),
			Mend: "give --ttl, or have the store accept longer TTLs",
		})
	}
}

// compareClocks assumes that the server read its clock in the middle of the round trip.
func (d *diagnosis) compareClocks(ctx context.Context, store driver.Store) {
	c, ok := driver.As[driver.Clock](store)
	if !ok {
		return
	}
	start := time.Now()
	at, err := c.ServerTime(ctx)
	if err != nil {
		d.partial = cmp.Or(d.partial, err)
		return
	}
	d.within = time.Since(start) / 2
	offset := at.Sub(start.Add(d.within))
	d.offset = &offset
}

// measure locks and unlocks a scratch key. A store that answers and fails to do that is
// unsafe: waiting for a lock never ends there.
func (d *diagnosis) measure(ctx context.Context, store driver.Store) {
	ctx, cancel := context.WithTimeout(ctx, doctorFor)
	defer cancel()
	d.judgePairs(scratch.Measure(ctx, store, doctorPairs))
}

func (d *diagnosis) judgePairs(pairs scratch.Pairs, err error) {
	switch {
	case pairs.N > 0:
		d.pair = &pairs
		if pairs.P50 >= slowPair {
			d.findings = append(d.findings, driver.Finding{
				Name: "slow-pair", Severity: driver.Slow,
				What: fmt.Sprintf("to lock and unlock a free key takes %v", pairs.P50.Round(time.Millisecond)),
				Mend: "run the program near the store; look at the store's load, and at its disk if it writes before it answers",
			})
		}
	case err != nil:
		d.findings = append(d.findings, driver.Finding{
			Name: "no-lock", Severity: driver.Unsafe,
			What: "a scratch key could not be locked and unlocked: " + err.Error(),
			Mend: "see what else is unsafe here; if nothing is, look at the rights of the user that the URL names",
		})
	}
}

func (d *diagnosis) count(s driver.Severity) (n int) {
	for _, f := range d.findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

// promise is a promise of a store, in words for an operator.
type promise struct {
	name  string // in JSON
	kept  bool
	holds string // what it means if the store keeps it
	fails string // and if not
}

func promises(t driver.Traits) []promise {
	unshared := "known to one process alone"
	if t.Processes {
		unshared = "shared by the processes of this machine, not by others"
	}
	return []promise{
		{"machines", t.Machines, "shared by all machines that reach it", unshared},
		{"fencing", t.Fencing, "the token rises with every grant, through expiry, deletion and restart", "no fencing token that rises for ever"},
		{"fifo", t.FIFO, "first come, first served", "no order among waiters"},
		{"shared", t.Shared, "read locks", "no read locks"},
		{"permits", t.Permits, "permits (n of N)", "no permits (n of N)"},
		{"durable", t.Durable, "what was granted survives a crash of the server", "a crash of the server may lose locks that their holders still use"},
		{"consensus", t.Consensus, "what was granted survives the loss of a minority of the servers", "no consensus: the loss of a primary may lose locks, or bring back old ones"},
	}
}

// applies reports whether the promise means anything for the store: some mean nothing
// without servers.
func (p promise) applies(t driver.Traits) bool {
	switch p.name {
	case "consensus":
		return t.Machines
	case "durable":
		return t.Processes
	}
	return true
}

func (d *diagnosis) print(a *app) error {
	const columns = 90
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", safe(d.url))
	if d.traits != nil {
		fmt.Fprintf(&b, "\nWhat a %s store promises (and what not: --):\n", d.traits.Store)
		for _, p := range promises(*d.traits) {
			switch {
			case !p.applies(*d.traits):
			case p.kept:
				fmt.Fprintf(&b, "   %s\n", p.holds)
			default:
				fmt.Fprintf(&b, "-- %s\n", p.fails)
			}
		}
	}
	for _, f := range d.findings {
		mark := fmt.Sprintf("%-8s", severityWords(f.Severity))
		fmt.Fprintf(&b, "\n%s\n", cli.Fold(safe(f.Name+": "+f.What), mark, columns))
		if f.Mend != "" { // on one line, for copying
			fmt.Fprintf(&b, "%8sfix: %s\n", "", safe(f.Mend))
		}
	}
	b.WriteByte('\n')
	if d.pair != nil {
		fmt.Fprintf(&b, "Locking and unlocking a free key took %s (p50 of %d; the slowest %s).\n", exact(d.pair.P50), d.pair.N, exact(d.pair.Slowest))
	}
	if d.offset != nil {
		fmt.Fprintf(&b, "The store's clock %s, give or take %s. Locks do not depend on this difference.\n", offsetWords(*d.offset, d.within), exact(d.within))
	}
	if d.partial != nil {
		fmt.Fprintf(&b, "Not everything could be asked: %s.\n", safe(message(d.partial)))
	}
	if d.traits == nil {
		fmt.Fprintln(&b, "The store is refused for this reason. Repair it and ask again: the rest is examined then.")
	}
	notes := d.count(driver.Note)
	if notes == 1 {
		fmt.Fprintf(&b, "Found: %d unsafe, %d slow, 1 note.\n", d.count(driver.Unsafe), d.count(driver.Slow))
	} else {
		fmt.Fprintf(&b, "Found: %d unsafe, %d slow, %d notes.\n", d.count(driver.Unsafe), d.count(driver.Slow), notes)
	}
	_, err := a.stdout.WriteString(b.String())
	return err
}

func severityWords(s driver.Severity) string {
	if s == driver.Unsafe {
		return "UNSAFE"
	}
	return s.String()
}

func offsetWords(offset, within time.Duration) string {
	switch {
	case offset.Abs() <= within:
		return "agrees with this machine's"
	case offset > 0:
		return fmt.Sprintf("is %s ahead of this machine's", exact(offset))
	}
	return fmt.Sprintf("is %s behind this machine's", exact(-offset))
}

// exact writes a duration with three significant digits.
func exact(d time.Duration) string {
	unit := time.Nanosecond
	for d.Abs() >= 1000*unit {
		unit *= 10
	}
	return d.Round(unit).String()
}

type diagnosisView struct {
	URL         string          `json:"url"`
	Store       string          `json:"store,omitempty"`
	Unsafe      bool            `json:"unsafe"`
	Promises    map[string]bool `json:"promises,omitempty"`
	Findings    []findingView   `json:"findings"`
	Pair        *pairView       `json:"pair,omitempty"`
	ClockOffset *float64        `json:"clock_offset,omitempty"`
	NotAsked    string          `json:"not_asked,omitempty"`
}

type findingView struct {
	Name     string `json:"name"`
	Severity string `json:"severity"`
	What     string `json:"what"`
	Mend     string `json:"mend,omitempty"`
}

type pairView struct {
	P50     float64 `json:"p50"`
	Slowest float64 `json:"slowest"`
	N       int     `json:"n"`
}

func (d *diagnosis) view() diagnosisView {
	v := diagnosisView{URL: d.url, Unsafe: d.count(driver.Unsafe) > 0, Findings: []findingView{}}
	if d.traits != nil {
		v.Store, v.Promises = d.traits.Store, map[string]bool{}
		for _, p := range promises(*d.traits) {
			v.Promises[p.name] = p.kept
		}
	}
	for _, f := range d.findings {
		v.Findings = append(v.Findings, findingView{f.Name, f.Severity.String(), f.What, f.Mend})
	}
	if d.pair != nil {
		v.Pair = &pairView{d.pair.P50.Seconds(), d.pair.Slowest.Seconds(), d.pair.N}
	}
	if d.offset != nil {
		s := d.offset.Seconds()
		v.ClockOffset = &s
	}
	if d.partial != nil {
		v.NotAsked = d.partial.Error()
	}
	return v
}
