package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
)

const overridesObeyed = `Go programs obey if their Limiter is Overridable; limits from a file of rules and "baton
limit" always do. They look once a second: an override takes effect up to a second late, or
one decision late where there are fewer. Each limit keeps its algorithm, and the override
gives it other numbers; a limit that cannot keep them stays as it is.

KEY is the key in the store: that of an unnamed limit is the program's key, that of a limit
with a name, or of a rule, is made of both by --name NAME; a limit for all keys together is
'*/NAME'. "baton limit overrides" shows keys as they are written here.
`

func (a *app) overrideCommands() []*cobra.Command {
	return []*cobra.Command{a.setCommand(), a.unsetCommand(), a.overridesCommand()}
}

func (a *app) setCommand() *cobra.Command {
	var (
		text  string
		burst int64
		keep  time.Duration
		name  string
	)
	cmd := &cobra.Command{
		Use:   "set [flags] KEY",
		Short: "Override the limit of one key for a while",
		Long: `Gives one key another limit for a while, in place of the one that programs have. What was
taken stays taken. There is one override for each key: the last one. It ends by itself, by
the store's clock, or by "baton limit unset".

` + overridesObeyed + `
` + exitTableOverride,
		Example: `  baton limit set --rate 500/1m --for 2h api/acme
  baton limit set --rate 5000 --for 24h --name orders acme      another number in the same period
  baton limit set --rate 10/s --burst 50 --for 30m '*/everybody'
  baton limit set --rate 0 --for 15m api/acme                   block the key`,
		Args:              oneArg("KEY"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringVar(&text, "rate", "", "the limit, `N/PERIOD`: 500/1m, 5/s; or N alone, in the period that the limit\nhas; a limit per day, week, month or year takes N alone; 0 blocks the key")
	f.Int64Var(&burst, "burst", 0, "how many a token bucket holds (default: in the ratio of the rates, so that a\nburst of 100 under 100/h becomes 3600000 under 1000/s)")
	f.DurationVar(&keep, "for", 0, "how long: 30m, 2h, at most 720h")
	f.StringVar(&name, "name", "", "the name of the limit or rule, if it has one")
	_ = cmd.MarkFlagRequired("rate")
	_ = cmd.MarkFlagRequired("for")
	cmd.RunE = does(func(ctx context.Context, args []string) error {
		r, err := parseOverride(text)
		if err != nil {
			return err
		}
		switch {
		case keep <= 0:
			return usage("--for %v: it is a duration above zero", keep)
		case burst <= 0 && cmd.Flags().Changed("burst"):
			return usage("--burst %d: it must be above zero", burst)
		}
		key, err := overrideKey(args[0], name)
		if err != nil {
			return err
		}
		o := limits.Override{Key: key, N: r.n, Period: r.period, Burst: burst}
		if err := limits.CheckOverride(o, keep); err != nil {
			return usage("%w", err)
		}
		store, done, err := a.openOverrides(ctx)
		if err != nil {
			return err
		}
		defer done()
		if err := store.SetOverride(ctx, o, keep); errors.As(err, new(*limits.OverridesFullError)) {
			return &exit{exitConfig, err}
		} else if err != nil {
			return err
		}
		a.say("%q is %s for %s, for programs that obey overrides (see --help); back at once: baton limit unset %s", safe(key), overrideRate(o), short(keep), shellWord(key))
		return nil
	})
	return cmd
}

func (a *app) unsetCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "unset [flags] KEY",
		Short: "End the override of a key's limit",
		Long: `Ends the override of one key, so that programs go on with their own limit.

` + overridesObeyed + `
` + exitTableOverride,
		Example: `  baton limit unset api/acme
  baton limit unset --name orders acme`,
		Args:              oneArg("KEY"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&name, "name", "", "the name of the limit or rule, if it has one")
	cmd.RunE = does(func(ctx context.Context, args []string) error {
		key, err := overrideKey(args[0], name)
		if err != nil {
			return err
		}
		store, done, err := a.openOverrides(ctx)
		if err != nil {
			return err
		}
		defer done()
		all, err := store.Overrides(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(all, func(o limits.Override) bool { return o.Key == key }) {
			a.say("%q is not overridden: nothing to end; baton limit overrides shows what is", safe(key))
			return nil
		}
		if err := store.SetOverride(ctx, limits.Override{Key: key}, 0); err != nil {
			return err
		}
		a.say("%q is not overridden any more", safe(key))
		return nil
	})
	return cmd
}

func (a *app) overridesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "overrides [flags]",
		Short: "List the overrides of limits",
		Long: `Lists the limits that are overridden, and for how much longer.

` + overridesObeyed + `
With -o json: an array of key, n, period (null: that of the limit), burst (null: as the rate
changes) and left, in seconds.

` + exitTableOverride,
		Example: `  baton limit overrides
  baton limit overrides -o json | jq -r '.[].key'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	a.queryFlags(cmd)
	cmd.RunE = does(func(ctx context.Context, _ []string) error {
		asJSON, err := a.json()
		if err != nil {
			return err
		}
		store, done, err := a.openOverrides(ctx)
		if err != nil {
			return err
		}
		defer done()
		all, err := store.Overrides(ctx)
		if err != nil {
			return err
		}
		slices.SortFunc(all, func(x, y limits.Override) int { return strings.Compare(x.Key, y.Key) })
		if asJSON {
			views := make([]overrideView, 0, len(all))
			for _, o := range all {
				views = append(views, viewOverride(o))
			}
			return printJSON(a.stdout, views, true)
		}
		if len(all) == 0 {
			a.say("no limit is overridden")
			return nil
		}
		rows := [][]string{{"KEY", "RATE", "ENDS IN"}}
		for _, o := range all {
			rows = append(rows, []string{safe(o.Key), overrideRate(o), short(o.Left)})
		}
		return table(a.stdout, rows)
	})
	return cmd
}

const exitTableOverride = `Exit codes:
  0         done
  64        wrong usage
  69        the store cannot be reached
  78        wrong configuration: store URL, password, a store without overrides, or as many of them as
            it keeps
`

// parseOverride reads N/PERIOD, or N alone.
func parseOverride(text string) (rate, error) {
	if strings.Contains(text, "/") {
		return parseRate(text)
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
	if err != nil || n < 0 {
		return rate{}, usage("--rate %s: it is N/PERIOD, such as 100/1m or 5/s, or N alone; 0 blocks the key", safe(text))
	}
	return rate{n: n}, nil
}

// overrideKey is the key in the store.
func overrideKey(key, name string) (string, error) {
	if err := check.Key(key); err != nil {
		return "", usage("%w", err)
	}
	if name == "" {
		return key, nil
	}
	limit := ratelimit.FixedWindow(1, time.Second).Named(name)
	if limit.Check() != nil { // its error would repeat the name, which may be a misplaced URL
		return "", usage("--name %s: it has at most 40 bytes, of A-Z a-z 0-9 - _ and dots", safe(name))
	}
	return limit.StoreKey(key), nil
}

// overrideRate is what an override allows, for people.
func overrideRate(o limits.Override) string {
	if o.N == 0 {
		return "blocked"
	}
	text := strconv.FormatInt(o.N, 10)
	if o.Period != 0 {
		text += " per " + short(o.Period)
	}
	if o.Burst != 0 {
		text += fmt.Sprintf(", burst %d", o.Burst)
	}
	return text
}

type overrideView struct {
	Key    string   `json:"key"`
	N      int64    `json:"n"`
	Period *float64 `json:"period"`
	Burst  *int64   `json:"burst"`
	Left   float64  `json:"left"`
}

func viewOverride(o limits.Override) overrideView {
	v := overrideView{Key: o.Key, N: o.N, Left: seconds(o.Left)}
	if o.Period != 0 {
		period := o.Period.Seconds()
		v.Period = &period
	}
	if o.Burst != 0 {
		v.Burst = &o.Burst
	}
	return v
}

// openOverrides opens a store that keeps overrides, for other processes.
func (a *app) openOverrides(ctx context.Context) (limits.Overrider, func(), error) {
	store, err := a.openLimits(ctx, openWait{})
	if err != nil {
		return nil, nil, err
	}
	o, ok := limits.OverriderOf(store)
	if err = outlives(store.Traits()); err == nil && !ok {
		err = fmt.Errorf("store %s keeps no overrides of limits: %w", store.Traits().Store, errors.ErrUnsupported)
	}
	if err != nil {
		shut(store)
		return nil, nil, err
	}
	return o, func() { shut(store) }, nil
}
