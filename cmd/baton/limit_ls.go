package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/driver/observe"
)

// keysInStore says in help texts what a key is called, and what a list costs.
const keysInStore = `The keys are those of the store: KEY of a limit without a name, NAME/{KEY} of one with
a name, */NAME of one that counts for all keys together. Every character of the prefix
stands for itself. It is no snapshot: the list is read while the limits change.

PostgreSQL, MySQL, SQLite and etcd read what begins with the prefix, page by page. Redis
has no order of keys: there every key of the database is looked at first (by SCAN, a
thousand in each call, in Cluster on all primaries), whatever the prefix. No call keeps
it from others for long, but all of them together can take minutes on a large database.`

func (a *app) limitListCommand() *cobra.Command {
	var most int
	var after string
	cmd := &cobra.Command{
		Use:     "ls [flags] [PREFIX]",
		Aliases: []string{"list"},
		Short:   "List what is used of rate limits",
		Long: `Lists the keys that begin with the prefix, or all, in order, as far as something was
taken from their limits that has not come back: how much is used, out of how much, and
in what time all of it has come back if nothing else is taken.

A store knows what was taken, and not by which limit: that is in the program. So OF is
shown for an estimate (estimated-window) and for a bucket (token-bucket, leaky-bucket;
while more than its burst is out, as much as was), and not for a window (sliding-window,
fixed-window, sliding-log). "several" is a key from which several kinds of limits have
taken, and "unknown" one that another version of Baton has written.

` + keysInStore + `

With -o json: an array of key, kind, used, of, rate (n per period in seconds), and
resetAfter in seconds. What is not known is left out.

` + exitTable,
		Example: `  baton limit ls
  baton limit ls minute/{tenant/
  baton limit ls -n 0 -o json | jq -r '.[] | select(.of and .used >= .of) | .key'`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().IntVarP(&most, "limit", "n", 1000, "list at most this many keys; 0: all")
	cmd.Flags().StringVar(&after, "after", "", "begin after `KEY`, to continue a list")
	a.queryFlags(cmd)
	cmd.Args = noLimit("PREFIX")
	cmd.RunE = does(func(ctx context.Context, args []string) error {
		asJSON, err := a.json()
		if err != nil {
			return err
		}
		if most < 0 {
			return usage("--limit %d: it is a number, or 0 for all", most)
		}
		var all []limits.State
		more := false
		err = a.eachState(ctx, args, after, func(st limits.State) bool {
			if more = most > 0 && len(all) == most; !more {
				all = append(all, st)
			}
			return !more
		})
		if err != nil {
			return err
		}
		if asJSON {
			views := make([]stateView, 0, len(all))
			for _, st := range all {
				views = append(views, viewOf(st))
			}
			err = printJSON(a.stdout, views, true)
		} else if len(all) > 0 {
			rows := [][]string{{"KEY", "KIND", "USED", "OF", "FRESH IN"}}
			for _, st := range all {
				rows = append(rows, stateRow(st))
			}
			err = table(a.stdout, rows)
		} else {
			a.say("no limits are in use%s", under(args))
		}
		if err == nil && more {
			last := all[len(all)-1].Key
			if safe(last) == last {
				a.complain("there are more: go on with --after %s", shellWord(last))
			} else {
				a.complain("there are more: go on with --after and the last key, as -o json has it")
			}
		}
		return err
	})
	return cmd
}

// noLimit is for commands beside those that ask a limit, whose names are no keys.
func noLimit(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if cmd.ArgsLenAtDash() >= 0 {
			return usage(`"limit %s" shows limits, and %q cannot be a KEY: use another one`, cmd.CalledAs(), cmd.CalledAs())
		}
		return noMoreThanOne(name)(cmd, args)
	}
}

// eachState calls f for each state under the prefix in args, until f returns false. It
// tells the user if that takes a while.
func (a *app) eachState(ctx context.Context, args []string, after string, f func(limits.State) bool) error {
	store, err := a.openLimits(ctx, openWait{})
	if err != nil {
		return err
	}
	defer shut(store)
	if err := outlives(store.Traits()); err != nil {
		return err
	}
	lister, ok := limits.ListerOf(observe.Limits(store, a.told().Store))
	if !ok {
		return &exit{exitConfig, fmt.Errorf("store %s cannot list limits: %w", store.Traits().Store, errors.ErrUnsupported)}
	}
	prefix := ""
	if len(args) > 0 {
		prefix = args[0]
	}
	return a.patiently(lister.ListStates(ctx, prefix, after), f)
}

// patiently reads a list. If that takes a while it says so: on a terminal in a line that
// is kept up to date, elsewhere once.
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
	Kind       string    `json:"kind"`
	Used       int64     `json:"used"`
	Of         int64     `json:"of,omitempty"`
	Share      *float64  `json:"share,omitempty"` // baton limit top
	Rate       *rateView `json:"rate,omitempty"`
	ResetAfter float64   `json:"resetAfter,omitempty"`
}

type rateView struct {
	N      int64   `json:"n"`
	Period float64 `json:"period"` // seconds
}

func viewOf(st limits.State) stateView {
	v := stateView{Key: st.Key, Kind: string(st.Kind), Used: st.Used, Of: st.Of, ResetAfter: secondsUp(st.Reset)}
	if st.N > 0 {
		v.Rate = &rateView{st.N, st.Period.Seconds()}
	}
	return v
}

// stateRow is a row of the table.
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
