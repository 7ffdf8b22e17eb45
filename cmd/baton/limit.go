package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/cli"
	"github.com/batonhq/baton/internal/supervise"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/ratelimit"
)

// limiting are the flags that describe limits.
type limiting struct {
	rates     []string
	algorithm string
	burst     int64
	maxWait   time.Duration
}

func (k *limiting) rateFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&k.rates, "rate", nil, "the limit, `N/PERIOD`: 100/1m, 5/s, 1000/day; several must all allow it")
	f.Int64Var(&k.burst, "burst", 0, "how many a token bucket holds (default: N)")
	f.DurationVar(&k.maxWait, "max-wait", 0, "longest wait in a leaky bucket (default: PERIOD)")
}

// above refuses a zero in a flag: zero stands for a flag that was not given.
func (k *limiting) above(cmd *cobra.Command) error {
	for flag, zero := range map[string]bool{"burst": k.burst <= 0, "max-wait": k.maxWait <= 0} {
		if zero && cmd.Flags().Changed(flag) {
			return usage("--%s %s: it must be above zero", flag, cmd.Flag(flag).Value)
		}
	}
	return nil
}

// named adds the flag that names the algorithm.
func (k *limiting) named(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&k.algorithm, "algorithm", "a", "sliding-window",
		"sliding-window, fixed-window, sliding-log, estimated-window, token-bucket or leaky-bucket")
	_ = cmd.RegisterFlagCompletionFunc("algorithm", cobra.FixedCompletions(algorithms(), cobra.ShellCompDirectiveNoFileComp))
}

func algorithms() (names []string) {
	for a := limits.FixedWindow; a <= limits.LeakyBucket; a++ {
		names = append(names, a.String())
	}
	return names
}

// rate is N per PERIOD.
type rate struct {
	n      int64
	period time.Duration
}

func parseRate(text string) (rate, error) {
	n, period, err := cli.Rate(text)
	if err != nil {
		return rate{}, usage("--rate %w", err)
	}
	return rate{n, period}, nil
}

// limits makes the limits that the flags describe.
func (k *limiting) limits(cmd *cobra.Command) (all []ratelimit.Limit, err error) {
	a, ok := limits.ParseAlgorithm(k.algorithm)
	if !ok {
		return nil, usage("--algorithm %s: it is one of %s", safe(k.algorithm), strings.Join(algorithms(), ", "))
	}
	for flag, only := range map[string]limits.Algorithm{"burst": limits.TokenBucket, "max-wait": limits.LeakyBucket} {
		if cmd.Flags().Changed(flag) && a != only {
			return nil, usage("--%s is for --algorithm %v alone", flag, only)
		}
	}
	if err := k.above(cmd); err != nil {
		return nil, err
	}
	for i, text := range k.rates {
		r, err := parseRate(text)
		if err != nil {
			return nil, err
		}
		l := k.limit(a, r)
		if len(k.rates) > 1 {
			l = l.Named(fmt.Sprintf("rate-%d", i+1))
		}
		all = append(all, l)
	}
	return all, nil
}

func (k *limiting) limit(a limits.Algorithm, r rate) ratelimit.Limit {
	switch a {
	case limits.FixedWindow:
		return ratelimit.FixedWindow(r.n, r.period)
	case limits.SlidingLog:
		return ratelimit.SlidingLog(r.n, r.period)
	case limits.EstimatedWindow:
		return ratelimit.EstimatedWindow(r.n, r.period)
	case limits.TokenBucket:
		return ratelimit.TokenBucket(r.n, r.period, or(k.burst, r.n))
	case limits.LeakyBucket:
		return ratelimit.LeakyBucket(r.n, r.period, or(k.maxWait, r.period))
	}
	return ratelimit.SlidingWindow(r.n, r.period)
}

// limiter makes a Limiter. It obeys overrides if the store keeps them.
func limiter(store limits.Store, all []ratelimit.Limit, opts ...ratelimit.Option) (*ratelimit.Limiter, error) {
	for _, l := range all[1:] {
		opts = append(opts, l)
	}
	if _, keeps := limits.OverriderOf(store); keeps {
		opts = append(opts, ratelimit.Overridable())
	}
	l, err := ratelimit.New(store, all[0], opts...)
	if err != nil {
		return nil, usage("%w", err)
	}
	return l, nil
}

func or[T int64 | time.Duration](a, b T) T {
	if a != 0 {
		return a
	}
	return b
}

func (a *app) limitCommand() *cobra.Command {
	var (
		k    limiting
		cost int64
		wait time.Duration
		open bool
	)
	cmd := &cobra.Command{
		Use:   "limit [flags] KEY [-- COMMAND [ARG…]]",
		Short: "Ask a rate limit, and run a command if it allows it",
		Long: `Asks whether KEY allows one more request, and counts it if so. An allowed COMMAND then
runs in place of baton; without a COMMAND the exit code is the answer. All programs that
use the same key and store are counted together, by the store's clock. Refused requests
are not counted.

Algorithms, for N/PERIOD:

  sliding-window    never more than N in any stretch of PERIOD (default)
  fixed-window      N in each window; around a boundary up to twice that
  sliding-log       the same to the microsecond; N up to 10000
  estimated-window  from two counters: small, less than twice N at worst
  token-bucket      up to --burst at once, N per PERIOD in the long run
  leaky-bucket      one after the other, evenly: waits for its turn, up to --max-wait

An override of KEY, which baton limit set makes, stands in place of what --rate says. No KEY
is check, ls, list, rm, set or show, which are commands.

With -o json and no COMMAND: ok, key, cost, limit, remaining, the times in seconds, and
the same of each limit.

` + exitTableLimit,
		Example: `  baton limit --rate 10/1m mail/alice -- ./send-mail.sh
  baton limit --rate 5/s --rate 1000/day -w forever api -- curl …  waits for its turn
  baton limit --rate 100000/day --cost 800 -a token-bucket tokens
  baton limit show --rate 10/1m mail/alice                         how does it stand?`,
	}
	k.rateFlags(cmd)
	_ = cmd.MarkFlagRequired("rate")
	k.named(cmd)
	f := cmd.Flags()
	f.Int64Var(&cost, "cost", 1, "how much of the limit the request takes")
	f.VarP((*orForever)(&wait), "wait", "w", "wait until it is allowed, for this `duration` or forever (default: do not wait)")
	f.BoolVar(&open, "fail-open", false, "allow the request if the store is unreachable")
	a.queryFlags(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		dash := cmd.ArgsLenAtDash()
		switch {
		case len(args) == 0 || dash == 0:
			return usage("KEY is missing: baton limit --rate N/PERIOD KEY")
		case len(args) > 1 && dash < 0:
			return usage(`put "--" between the key and the command: baton limit … %s -- %s …%s`, shellWord(args[0]), shellWord(args[1]), below(cmd, args))
		case dash > 1:
			return usage("one KEY is enough: what is %q?", safe(args[1]))
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return does(func(ctx context.Context, args []string) error {
			asJSON, err := a.json()
			if err != nil {
				return err
			}
			if err := check.Key(args[0]); err != nil {
				return usage("%w", err)
			}
			if cost < 1 {
				return usage("--cost %d: it is a number above zero; to look is baton limit show", cost)
			}
			if cmd.Flags().Changed("wait") && wait <= 0 {
				return usage("--wait %v: it is a duration above zero, or forever", wait)
			}
			all, err := k.limits(cmd)
			if err != nil {
				return err
			}
			path := ""
			if len(args) > 1 {
				if path, err = find(args[1]); err != nil {
					return err
				}
			}
			q := question{key: args[0], cost: cost, wait: wait, json: asJSON, command: path != "", failOpen: open}
			if err := a.askLimit(ctx, all, q); err != nil || path == "" {
				return err
			}
			return &exit{Code: exitCannotRun, Err: fmt.Errorf("%s: %w", safe(args[1]), supervise.Become(path, args[1:], os.Environ()))}
		})(cmd, args)
	}
	cmd.AddCommand(a.limitListCommand(), a.limitShowCommand(), a.limitRemoveCommand(), a.setCommand(), a.checkCommand())
	return cmd
}

const exitTableLimit = `Exit codes:
  0         allowed (and with a command: the command's own)
  64        wrong usage
  69        the store cannot be reached
  75        refused
  78        wrong configuration: store URL, password, or a store without limits
  125       baton itself failed
  126, 127  the command cannot be executed, is not found
  128+n     signal n came while waiting
`

type question struct {
	key                     string
	cost                    int64
	json, command, failOpen bool
	wait                    time.Duration
}

// askLimit asks, waits for the turn and prints the decision. A nil error means allowed.
func (a *app) askLimit(ctx context.Context, all []ratelimit.Limit, q question) error {
	left := q.wait
	store, err := a.openLimits(ctx, openWait{tries: q.wait != 0, wait: &left})
	if err != nil {
		if q.failOpen && codeOf(err) == exitUnavailable {
			a.complain("%s; allowed all the same", explain(err))
			return nil
		}
		return err
	}
	defer shut(store)
	waited := q.wait
	if q.wait != 0 && q.wait != math.MaxInt64 {
		q.wait = left
	}
	var opts []ratelimit.Option
	if q.failOpen {
		opts = append(opts, ratelimit.FailOpen(2*time.Second))
	}
	limiter, err := limiter(store, all, opts...)
	if err != nil {
		return err
	}
	sigs, stop := listen(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var r ratelimit.Result
	answered, turns := make(chan error, 1), make(chan time.Duration, 1)
	go func() {
		var err error
		r, err = decideLimit(ctx, limiter, q, turns)
		answered <- err
	}()
	patience := time.NewTimer(longSilence)
	defer patience.Stop()
	for open := true; open; {
		select {
		case err = <-answered:
			open = false
		case <-patience.C:
			a.say("waiting for %s", shellWord(q.key))
		case wait := <-turns:
			if wait > longSilence {
				patience.Stop()
				a.say("waiting for %s: the turn comes in %s", shellWord(q.key), shortUp(wait))
			}
		case s := <-sigs:
			cancel()
			<-answered
			return interrupted(s)
		}
	}
	var refused *ratelimit.RefusedError
	if errors.As(err, &refused) {
		r, err = refused.Result, nil
	}
	if err != nil {
		return err
	}
	asJSON := q.json && !q.command // the command owns standard output
	if asJSON {
		if err := printJSON(a.stdout, limitJSON(r), false); err != nil {
			return err
		}
	}
	if r.OK {
		if !asJSON && !q.command {
			a.tellLimit(r)
		}
		return nil
	}
	if asJSON || a.quiet {
		return &exit{Code: exitNotAcquired, Err: nil}
	}
	return &exit{Code: exitNotAcquired, Err: errors.New(describeRefusal(r, waited))}
}

// orForever is the value of a flag: a duration, or "forever", which is the longest one.
type orForever time.Duration

const forever = "forever"

func (w *orForever) String() string {
	switch *w {
	case 0: // a default that help does not show
		return "0"
	case math.MaxInt64:
		return forever
	}
	return time.Duration(*w).String()
}

func (w *orForever) Set(text string) error {
	if text == forever {
		*w = math.MaxInt64
		return nil
	}
	d, err := time.ParseDuration(text)
	*w = orForever(d)
	return err
}

func (w *orForever) Type() string { return "patience" }

// longSilence is how long a command may take before it says what it waits for.
const longSilence = 500 * time.Millisecond

// decideLimit asks. If it waits for a turn in a queue it sends to turns for how long.
func decideLimit(ctx context.Context, l *ratelimit.Limiter, q question, turns chan<- time.Duration) (ratelimit.Result, error) {
	if q.wait != 0 {
		if q.wait != math.MaxInt64 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, q.wait)
			defer cancel()
		}
		return l.WaitN(ctx, q.key, q.cost)
	}
	if !l.Queues() {
		return l.AllowN(ctx, q.key, q.cost)
	}
	turn, err := l.Reserve(ctx, q.key, q.cost)
	if err != nil {
		return ratelimit.Result{}, err
	}
	turns <- turn.Result.Wait
	coming := time.NewTimer(turn.Result.Wait)
	defer coming.Stop()
	select {
	case <-coming.C:
		return turn.Result, nil
	case <-ctx.Done():
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = turn.Cancel(ctx) // what cannot be cancelled stays consumed
		return turn.Result, context.Canceled
	}
}

func (a *app) tellLimit(r ratelimit.Result) {
	text := fmt.Sprintf("allowed: %d of %d remain", r.Remaining, r.Limit)
	if r.ResetAfter > 0 {
		text += fmt.Sprintf(", all again in %s", shortUp(r.ResetAfter))
	}
	text += byOverride(r)
	if r.By.Fallback() {
		text = "allowed: the store cannot be reached"
	}
	a.say("%s", text)
}

// byOverride returns words that say that an override replaces the command line's limit.
func byOverride(r ratelimit.Result) string {
	if slices.ContainsFunc(r.Limits(), func(l ratelimit.LimitResult) bool { return l.Overridden }) {
		return " (overridden: see baton limit ls --overrides)"
	}
	return ""
}

// describeRefusal says why nothing was allowed, after a wait of at most waited.
func describeRefusal(r ratelimit.Result, waited time.Duration) string {
	if r.Limit == 0 && byOverride(r) != "" {
		return fmt.Sprintf("refused: %q is blocked%s", safe(r.Key), byOverride(r))
	}
	text := fmt.Sprintf("refused: %q has %d of %d left%s", safe(r.Key), r.Remaining, r.Limit, byOverride(r))
	if r.Cost > 1 {
		text += fmt.Sprintf(" and %d are asked for", r.Cost)
	}
	if r.RetryAfter == ratelimit.Never {
		return text + "; that will never be allowed: ask for less, or raise the limit"
	}
	if waited > 0 {
		return text + fmt.Sprintf("; allowed in %s: --wait %v is not enough", shortUp(r.RetryAfter), waited)
	}
	return text + fmt.Sprintf("; allowed in %s, or wait with -w forever", shortUp(r.RetryAfter))
}

type limitAnswer struct {
	*decided                 // nil: nothing was asked for
	Key        string        `json:"key,omitempty"`
	Name       string        `json:"name,omitempty"`
	Cost       int64         `json:"cost,omitempty"`
	Limit      int64         `json:"limit"`
	Remaining  int64         `json:"remaining"`
	NextAfter  float64       `json:"nextAfter"`
	ResetAfter float64       `json:"resetAfter"`
	Overridden bool          `json:"overridden,omitempty"`
	By         string        `json:"by,omitempty"`
	At         *time.Time    `json:"at,omitempty"`
	Limits     []limitAnswer `json:"limits,omitempty"`
}

type decided struct {
	OK         bool     `json:"ok"`
	RetryAfter *float64 `json:"retryAfter"` // null: never
}

func limitJSON(r ratelimit.Result) limitAnswer {
	at := r.At.UTC()
	out := limitAnswer{
		decided: &decided{r.OK, retrySeconds(r.RetryAfter)},
		Key:     r.Key, Name: r.Name, Cost: r.Cost, Limit: r.Limit, Remaining: r.Remaining,
		NextAfter: secondsUp(r.NextAfter), ResetAfter: secondsUp(r.ResetAfter), By: r.By.String(), At: &at,
	}
	for _, l := range r.Limits() {
		out.Limits = append(out.Limits, limitAnswer{
			decided: &decided{l.OK, retrySeconds(l.RetryAfter)},
			Name:    l.Name, Limit: l.Limit, Remaining: l.Remaining, Overridden: l.Overridden,
			NextAfter: secondsUp(l.NextAfter), ResetAfter: secondsUp(l.ResetAfter),
		})
	}
	return out
}

func retrySeconds(d time.Duration) *float64 {
	if d == ratelimit.Never {
		return nil
	}
	s := secondsUp(d)
	return &s
}

func (a *app) openLimits(ctx context.Context, p openWait) (open.LimitStore, error) {
	store, _, err := openURL(ctx, a, p, open.Limits)
	return store, err
}
