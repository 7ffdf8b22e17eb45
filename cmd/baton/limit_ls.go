package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/open"
)

// keysInStore says in help texts what a key is called, and what a list costs.
const keysInStore = `The keys are those of the store: KEY of a limit without a name, NAME/{KEY} of one with
a name, */NAME of one that counts for all keys together. Every character of the prefix
stands for itself. It is no snapshot: the list is read while the limits change.

PostgreSQL, MySQL, SQLite and etcd read what begins with the prefix, page by page. Redis
has no order of keys: there every key of the database is looked at first (by SCAN, a
thousand in each call, in Cluster on all primaries), whatever the prefix. No call keeps
it from others for long, but all of them together can take minutes on a large database.`

// listingLimits are the flags of "baton limit ls".
type listingLimits struct {
	sort      string
	most      int
	of        int64
	after     string
	overrides bool
}

func (a *app) limitListCommand() *cobra.Command {
	k := &listingLimits{}
	cmd := &cobra.Command{
		Use:     "ls [flags] [PREFIX]",
		Aliases: []string{"list"},
		Short:   "List what is used of rate limits, and which keys use most",
		Long: `Lists the keys that begin with the prefix, or all, as far as something was taken from
their limits that has not come back: how much is used, out of how much, and in what time
all of it has come back if nothing else is taken. They are in the order of keys, or with
--sort those that use most come first: the highest number, or the highest share of what a
key may use.

A store knows what was taken, and not by which limit: that is in the program. So OF is
shown for an estimate (estimated-window) and for a bucket (token-bucket, leaky-bucket;
while more than its burst is out, as much as was), and not for a window (sliding-window,
fixed-window, sliding-log), unless --of N says it. --sort share leaves out keys without it.
"several" is a key from which several kinds of limits have taken, and "unknown" one that
another version of Baton has written.

` + keysInStore + `

With -o json: an array of key, kind, used, of, share, rate (n per period in seconds), and
resetAfter in seconds. What is not known is left out. With --overrides: key, n, period (null:
that of the limit), burst (null: as the rate changes) and left, in seconds.

` + exitTable,
		Example: `  baton limit ls minute/{tenant/
  baton limit ls --sort used                       the ten keys of which most is used
  baton limit ls --sort share --of 100 minute/     the limit "minute" is 100 per minute
  baton limit ls --overrides                       what baton limit set has changed
  baton limit ls --most 0 -o json | jq -r '.[] | select(.share >= 1) | .key'`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringVar(&k.sort, "sort", "key", "first come the lowest `key`, the most used, or the highest share")
	f.IntVar(&k.most, "most", 0, "list at most `N` keys; 0: all (default: 1000, and 10 of those that use most)")
	f.Int64Var(&k.of, "of", 0, "assume the limit `N` for keys whose limit is not known")
	f.StringVar(&k.after, "after", "", "begin after `KEY`, to continue a list")
	f.BoolVar(&k.overrides, "overrides", false, "list the overrides of limits, and how long they last")
	_ = cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions([]string{"key", "used", "share"}, cobra.ShellCompDirectiveNoFileComp))
	a.queryFlags(cmd)
	for _, of := range []string{"sort", "most", "of", "after"} {
		cmd.MarkFlagsMutuallyExclusive("overrides", of)
	}
	cmd.MarkFlagsMutuallyExclusive("after", "sort")
	cmd.Args = noLimit(noMoreThanOne("PREFIX"))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return does(func(ctx context.Context, args []string) error {
			asJSON, err := a.json()
			if err != nil {
				return err
			}
			if k.overrides {
				return a.listOverrides(ctx, args, asJSON)
			}
			if err := k.check(cmd); err != nil {
				return err
			}
			if k.sort != "key" {
				return a.listMostUsed(ctx, args, k, asJSON)
			}
			return a.listStates(ctx, args, k, asJSON)
		})(cmd, args)
	}
	return cmd
}

func (k *listingLimits) check(cmd *cobra.Command) error {
	chosen := cmd.Flags().Changed("most")
	switch k.sort {
	case "key":
		if !chosen {
			k.most = 1000
		}
		if k.most < 0 {
			return usage("--most %d: it is a number, or 0 for all", k.most)
		}
	case "used", "share":
		if !chosen {
			k.most = 10
		}
		if k.most < 1 || k.most > mostTop {
			return usage("--most %d: with --sort %s it is a number from 1 to %d", k.most, k.sort, mostTop)
		}
	default:
		return usage("--sort %s: it is key, used or share", safe(k.sort))
	}
	if k.of < 1 && cmd.Flags().Changed("of") {
		return usage("--of %d: it is a number above zero", k.of)
	}
	return nil
}

// listStates lists in the order of keys.
func (a *app) listStates(ctx context.Context, args []string, k *listingLimits, asJSON bool) error {
	var all []limits.State
	more := false
	err := a.eachState(ctx, args, k, func(st limits.State) bool {
		if more = k.most > 0 && len(all) == k.most; !more {
			all = append(all, st)
		}
		return !more
	})
	if err != nil {
		return err
	}
	rows := [][]string{{"KEY", "KIND", "USED", "OF", "FRESH IN"}}
	for _, st := range all {
		rows = append(rows, stateRow(st))
	}
	if err := a.printStates(all, rows, args, asJSON); err != nil || !more {
		return err
	}
	last := all[len(all)-1].Key
	if safe(last) == last {
		a.complain("there are more: go on with --after %s", shellWord(last))
	} else {
		a.complain("there are more: go on with --after and the last key, as -o json has it")
	}
	return nil
}

// listMostUsed lists the keys that use most.
func (a *app) listMostUsed(ctx context.Context, args []string, k *listingLimits, asJSON bool) error {
	t := &topStates{n: k.most, share: k.sort == "share"}
	if err := a.eachState(ctx, args, k, t.add); err != nil {
		return err
	}
	all := t.sorted()
	if t.seen > 0 && len(all) == 0 && !asJSON {
		a.complain("none of %d keys tells how much it may use: --of N says it", t.seen)
		return nil
	}
	if err := a.printStates(all, t.rows(all), args, asJSON); err != nil || asJSON {
		return err
	}
	switch {
	case t.untold > 0:
		a.complain("%d of %d keys are left out, as they do not tell how much they may use: --of N says it", t.untold, t.seen)
	case t.seen > len(all):
		a.say("%d keys are in use%s", t.seen, under(args))
	}
	return nil
}

func (a *app) printStates(all []limits.State, rows [][]string, args []string, asJSON bool) error {
	switch {
	case asJSON:
		views := make([]stateView, 0, len(all))
		for _, st := range all {
			views = append(views, viewOf(st))
		}
		return printJSON(a.stdout, views, true)
	case len(all) == 0:
		a.say("no limits are in use%s", under(args))
		return nil
	}
	return table(a.stdout, rows)
}

// noLimit is for commands below "baton limit", whose names are not keys: what follows
// "--" would be a command.
func noLimit(args cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if cmd.ArgsLenAtDash() >= 0 {
			return usage(`"limit %s" runs no command, and %[1]q cannot be a KEY: use another one`, cmd.CalledAs())
		}
		return args(cmd, given)
	}
}

// eachState calls f for each state under the prefix in args, until f returns false. If
// that takes long it tells the user.
func (a *app) eachState(ctx context.Context, args []string, k *listingLimits, f func(limits.State) bool) error {
	store, err := a.openLimits(ctx, openWait{})
	if err != nil {
		return err
	}
	defer shut(store)
	return a.states(ctx, store, args, k, f)
}

// states is eachState for an open store.
func (a *app) states(ctx context.Context, store open.LimitStore, args []string, k *listingLimits, f func(limits.State) bool) error {
	if err := outlives(store.Traits()); err != nil {
		return err
	}
	lister, ok := limits.ListerOf(store)
	if !ok {
		return &exit{Code: exitConfig, Err: fmt.Errorf("store %s cannot list limits: %w", store.Traits().Store, errors.ErrUnsupported)}
	}
	prefix := ""
	if len(args) > 0 {
		prefix = args[0]
	}
	return a.patiently(lister.ListStates(ctx, prefix, k.after), func(st limits.State) bool {
		if st.Of == 0 {
			st.Of = k.of
		}
		return f(st)
	})
}

// patiently reads a list. If that takes long it says so: on a terminal in a line that it
// keeps up to date, elsewhere once.
func (a *app) patiently(all iter.Seq2[limits.State, error], f func(limits.State) bool) error {
	var n atomic.Int64
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		if !a.quiet {
			a.tellReading(&n, end)
		}
	}()
	defer func() { close(end); <-ended }()
	for st, err := range all {
		if err != nil {
			return err
		}
		if !f(st) {
			return nil
		}
		n.Add(1)
	}
	return nil
}

func (a *app) tellReading(n *atomic.Int64, end <-chan struct{}) {
	start := time.Now()
	tick := time.NewTicker(longSilence)
	defer tick.Stop()
	onTerminal := term.IsTerminal(int(a.stderr.Fd()))
	for told := false; ; told = true {
		select {
		case <-end:
			if told && onTerminal {
				fmt.Fprint(a.messages, "\r", clearLine)
			}
			return
		case <-tick.C:
		}
		if onTerminal {
			fmt.Fprint(a.messages, "\r", clearLine, fmt.Sprintf("baton: reading limits for %s: %d so far", short(time.Since(start).Round(time.Second)), n.Load()))
		} else if !told {
			a.say("reading limits: %d so far", n.Load())
		}
	}
}

// stateView is a state in JSON.
type stateView struct {
	Key        string    `json:"key"`
	Kind       string    `json:"kind,omitempty"`
	Used       int64     `json:"used"`
	Of         int64     `json:"of,omitempty"`
	Share      *float64  `json:"share,omitempty"`
	Rate       *rateView `json:"rate,omitempty"`
	ResetAfter float64   `json:"resetAfter,omitempty"`
}

type rateView struct {
	N      int64   `json:"n"`
	Period float64 `json:"period"` // seconds
}

func viewOf(st limits.State) stateView {
	v := stateView{Key: st.Key, Kind: string(st.Kind), Used: st.Used, Of: st.Of, ResetAfter: secondsUp(st.Reset)}
	if share, ok := shareOf(st); ok {
		share = math.Round(share*1000) / 1000
		v.Share = &share
	}
	if st.N > 0 {
		v.Rate = &rateView{st.N, st.Period.Seconds()}
	}
	return v
}

func stateRow(st limits.State) []string {
	row := []string{safe(st.Key), string(st.Kind), "-", "-", "-"}
	if st.Used > 0 {
		row[2] = strconv.FormatInt(st.Used, 10)
	}
	if st.Of > 0 {
		row[3] = strconv.FormatInt(st.Of, 10)
	}
	if st.Reset > 0 {
		row[4] = shortUp(st.Reset)
	}
	return row
}
