package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/cli"
	"github.com/batonhq/baton/lab/simulate"
)

// limit has the values of --rate and the flags beside it.
type limit struct {
	rates   []string
	n       int64
	period  time.Duration
	burst   int64
	parts   int64
	maxWait time.Duration
}

func (k *limit) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&k.rates, "rate", nil, "the limit, `N/PERIOD`: 100/1m, 5/s, 1000/day")
	f.Int64Var(&k.burst, "burst", 0, "how many a token bucket holds (default: N)")
	f.Int64Var(&k.parts, "parts", 0, "how many sub-windows a sliding window has (default: 10 up to 10s, else 60)")
	f.DurationVar(&k.maxWait, "max-wait", 0, "longest wait in a leaky bucket (default: PERIOD)")
}

func (k *limit) check(cmd *cobra.Command) (err error) {
	if len(k.rates) != 1 {
		return usage("--rate N/PERIOD, or --rules FILE: one is simulated at a time")
	}
	// A flag that was not given has the value 0.
	for flag, zero := range map[string]bool{"burst": k.burst <= 0, "parts": k.parts <= 0, "max-wait": k.maxWait <= 0} {
		if zero && cmd.Flags().Changed(flag) {
			return usage("--%s %s: it must be above zero", flag, cmd.Flag(flag).Value)
		}
	}
	if k.n, k.period, err = cli.Rate(k.rates[0]); err != nil {
		return usage("--rate %w", err)
	}
	return nil
}

func (a *app) simulateCommand() *cobra.Command {
	var k limit
	var by replay
	var bursts []string
	var svg string
	cmd := &cobra.Command{
		Use:   "simulate --rate N/PERIOD | --rules FILE [flags] [FILE…]",
		Short: "Replay requests through every algorithm, side by side",
		Long: `Replays requests through every algorithm and shows who would have been refused:
the lines of files ("-" is standard input), or what --at makes up. No store is needed,
and nothing is counted anywhere.

A line is TIME [COST [KEY]], the time as RFC 3339, as seconds since 1970 or as an offset
such as 0:50; or a line of a web server's access log, whose key is the client's
address. Each key is limited by itself.

With --rules the requests are replayed through the rules of a file (see baton limit
check --help): through each named rule, or through --rule alone, for each of its tiers,
or for --tier alone. The key of a line is what the rule counts. With --domain they are
replayed through its descriptors; --describe says what of, with {key} for the key.

"most" is the most that one key was allowed within any PERIOD. With --svg FILE the
timeline is drawn, to be opened in a browser. With -o json: everything, and the verdict
on each request.`,
		Example: `  baton-lab simulate --rate 100/1m --at 60@0:50 --at 60@1:10
  baton-lab simulate --rate 20/1m --svg limits.svg /var/log/nginx/access.log
  baton-lab simulate --rate 5/s --burst 20 --at 600@0s+1m --at 50@30s
  baton-lab simulate --rules rules.yaml --rule api access.log
  baton-lab simulate --rules rules.yaml --domain edge --describe remote_address={key} access.log`,
	}
	k.flags(cmd)
	by.flags(cmd)
	f := cmd.Flags()
	f.StringArrayVar(&bursts, "at", nil, "make up requests: `N@TIME`, or N@TIME+DURATION spread evenly")
	f.StringVar(&svg, "svg", "", "draw the timeline into `FILE`")
	a.outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return cli.Does(func(_ context.Context, args []string) error {
			asJSON, err := a.json()
			if err != nil {
				return err
			}
			if err := by.check(cmd); err != nil {
				return err
			}
			if len(by.files) > 0 {
				events, err := a.events(bursts, args)
				if err != nil {
					return err
				}
				return a.replayRules(&by, events, asJSON)
			}
			if err := k.check(cmd); err != nil {
				return err
			}
			events, err := a.events(bursts, args)
			if err != nil {
				return err
			}
			return a.simulate(&k, events, svg, asJSON)
		})(cmd, args)
	}
	return cmd
}

// events are the events of the bursts and of the files, in the order of time.
func (a *app) events(bursts, files []string) ([]simulate.Event, error) {
	var all []simulate.Event
	for _, text := range bursts {
		more, err := simulate.Burst(text)
		if err != nil {
			return nil, usage("--at %w", err)
		}
		all = append(all, more...)
	}
	for _, name := range files {
		var in io.Reader = a.stdin
		if name != "-" {
			f, err := os.Open(name)
			if err != nil {
				return nil, usage("%w", err)
			}
			defer f.Close()
			in = f
		}
		more, err := simulate.Read(in)
		if err != nil {
			return nil, usage("%s: %w", cli.Safe(name), err)
		}
		all = append(all, more...)
	}
	if len(all) == 0 {
		return nil, usage("there is nothing to replay: name a file, or make requests up with --at 60@0:50")
	}
	if len(all) > simulate.MaxEvents {
		return nil, usage("%d requests are too many: at most %d are replayed", len(all), simulate.MaxEvents)
	}
	simulate.Sort(all)
	return all, nil
}

// contenders are the limits side by side.
func (k *limit) contenders() []simulate.Line {
	parts := cmp.Or(k.parts, 60)
	if k.parts == 0 && k.period <= 10*time.Second {
		parts = 10
	}
	line := func(title string, l limits.Limit) simulate.Line {
		l.N, l.Period = k.n, k.period
		return simulate.Line{Title: title, Outcome: simulate.Outcome{Limit: l}}
	}
	burst := cmp.Or(k.burst, k.n)
	size := new(big.Int).Mul(big.NewInt(k.n), big.NewInt(int64(cmp.Or(k.maxWait, k.period))))
	size.Div(size, big.NewInt(int64(k.period)))
	queue := int64(math.MaxInt64) // an amount that Run refuses
	if size.IsInt64() {
		queue = max(size.Int64(), 1)
	}
	return []simulate.Line{
		line("fixed-window", limits.Limit{Algorithm: limits.FixedWindow}),
		line("sliding-window", limits.Limit{Algorithm: limits.SlidingWindow, Parts: parts}),
		line("sliding-window, classic", limits.Limit{Algorithm: limits.SlidingWindow, Parts: parts, Classic: true}),
		line("sliding-log", limits.Limit{Algorithm: limits.SlidingLog}),
		line("estimated-window", limits.Limit{Algorithm: limits.EstimatedWindow}),
		line(fmt.Sprintf("token-bucket, burst %d", burst), limits.Limit{Algorithm: limits.TokenBucket, Burst: burst}),
		line(fmt.Sprintf("leaky-bucket, queue %d", queue), limits.Limit{Algorithm: limits.LeakyBucket, Burst: queue}),
	}
}

func (a *app) simulate(k *limit, events []simulate.Event, svg string, asJSON bool) error {
	var lines []simulate.Line
	for _, line := range k.contenders() {
		var err error
		line.Outcome, err = simulate.Run(line.Outcome.Limit, events, k.period)
		if bad := (*limits.Error)(nil); errors.As(err, &bad) {
			a.say("%s is left out: %s", line.Title, bad.Reason)
			continue
		} else if err != nil {
			return err
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		return usage("--rate %s: no algorithm can count that", cli.Safe(k.rates[0]))
	}
	if svg != "" {
		if err := draw(svg, fmt.Sprintf("%d requests under %d per %v", len(events), k.n, k.period), events, lines); err != nil {
			return err
		}
		a.say("wrote %s", cli.Safe(svg))
	}
	if asJSON {
		return cli.JSON(a.stdout, simulationJSON(events, lines), false)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "ALGORITHM\tALLOWED\tREFUSED\tMOST IN %v\tFIRST REFUSED\tLONGEST WAIT\n", k.period)
	for _, line := range lines {
		o := line.Outcome
		first, wait := "-", "-"
		if o.FirstRefused >= 0 {
			v := o.Verdicts[o.FirstRefused]
			retry := "never allowed"
			if v.Retry != limits.Never {
				retry = "retry after " + v.Retry.String()
			}
			first = fmt.Sprintf("number %d, %s", o.FirstRefused+1, retry)
		}
		if o.LongestWait > 0 {
			wait = o.LongestWait.String()
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\n", line.Title, o.Allowed, o.Refused, o.Most, first, wait)
	}
	return w.Flush()
}

func draw(path, title string, events []simulate.Event, lines []simulate.Line) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = simulate.Draw(f, title, events, lines)
	return errors.Join(err, f.Close())
}

type simulatedVerdict struct {
	At         time.Time `json:"at"`
	Key        string    `json:"key,omitempty"`
	Cost       int64     `json:"cost"`
	OK         bool      `json:"ok"`
	Wait       float64   `json:"wait,omitempty"`
	RetryAfter *float64  `json:"retryAfter,omitempty"` // absent: never, or allowed
}

type simulated struct {
	Algorithm    string             `json:"algorithm"`
	Allowed      int64              `json:"allowed"`
	Refused      int64              `json:"refused"`
	Most         int64              `json:"most"`
	FirstRefused int                `json:"firstRefused"` // counted from 1; 0 if none
	LongestWait  float64            `json:"longestWait"`
	Verdicts     []simulatedVerdict `json:"verdicts"`
}

func simulationJSON(events []simulate.Event, lines []simulate.Line) (all []simulated) {
	for _, line := range lines {
		o := line.Outcome
		s := simulated{line.Title, o.Allowed, o.Refused, o.Most, o.FirstRefused + 1, cli.Seconds(o.LongestWait), nil}
		for i, v := range o.Verdicts {
			x := simulatedVerdict{At: events[i].At.UTC(), Key: events[i].Key, Cost: events[i].Cost, OK: v.OK, Wait: cli.Seconds(v.Wait)}
			if !v.OK {
				x.RetryAfter = retrySeconds(v.Retry)
			}
			s.Verdicts = append(s.Verdicts, x)
		}
		all = append(all, s)
	}
	return all
}

// retrySeconds is nil for a request that will never be allowed.
func retrySeconds(d time.Duration) *float64 {
	if d == limits.Never {
		return nil
	}
	s := cli.SecondsUp(d)
	return &s
}
