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
)

const overridesObeyed = `Go programs obey if their Limiter is Overridable; limits from a file of rules and "baton
limit" always do. They look once a second: an override takes effect up to a second late, or
one decision late where there are fewer. Each limit keeps its algorithm, and the override
gives it other numbers; a limit that cannot keep them stays as it is.

KEY is as "baton limit ls" shows it: the program's key, 'NAME/{KEY}' of a limit with a name or
of a rule, '*/NAME' of a limit for all keys together.
`

func (a *app) setCommand() *cobra.Command {
	var (
		text  string
		burst int64
		keep  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "set [flags] KEY",
		Short: "Override the limit of one key for a while",
		Long: `Gives one key another limit for a while, in place of the one that programs have. What was
taken stays taken. There is one override for each key: the last one. It ends by itself, by
the store's clock, or by "baton limit rm --override".

` + overridesObeyed + `
` + exitTableOverride,
		Example: `  baton limit set --rate 500/1m --for 2h api/acme
  baton limit set --rate 5000 --for 24h 'orders/{acme}'         another number in the same period
  baton limit set --rate 10/s --burst 50 --for 30m '*/everybody'
  baton limit set --rate 0 --for 15m api/acme                   block the key`,
		Args:              oneArg("KEY"),
		ValidArgsFunction: a.completeLimit,
	}
	f := cmd.Flags()
	f.StringVar(&text, "rate", "", "the limit, `N/PERIOD`: 500/1m, 5/s; or N alone, in the period that the limit has; a limit per day, week, month or year takes N alone; 0 blocks the key")
	f.Int64Var(&burst, "burst", 0, "how many a token bucket holds (default: in the ratio of the rates, so that a burst of 100 under 100/h becomes 3600000 under 1000/s)")
	f.DurationVar(&keep, "for", 0, "how long: 30m, 2h, at most 720h")
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
		key := args[0]
		if err := check.Key(key); err != nil {
			return usage("%w", err)
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
			return &exit{Code: exitConfig, Err: err}
		} else if err != nil {
			return err
		}
		a.say("%q is %s for %s, for programs that obey overrides (baton help limit set); back at once: baton limit rm --override %s", safe(key), overrideRate(o), short(keep), shellWord(key))
		return nil
	})
	return cmd
}

func (a *app) endOverride(ctx context.Context, key string) error {
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
		a.say("%q is not overridden: nothing to remove; baton limit ls --overrides shows what is", safe(key))
		return nil
	}
	if err := store.SetOverride(ctx, limits.Override{Key: key}, 0); err != nil {
		return err
	}
	a.say("%q is not overridden any more", safe(key))
	return nil
}

// listOverrides is "baton limit ls --overrides".
func (a *app) listOverrides(ctx context.Context, args []string, asJSON bool) error {
	store, done, err := a.openOverrides(ctx)
	if err != nil {
		return err
	}
	defer done()
	all, err := store.Overrides(ctx)
	if err != nil {
		return err
	}
	if len(args) > 0 {
		all = slices.DeleteFunc(all, func(o limits.Override) bool { return !strings.HasPrefix(o.Key, args[0]) })
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
		a.say("no limit is overridden%s", under(args))
		return nil
	}
	rows := [][]string{{"KEY", "RATE", "ENDS IN"}}
	for _, o := range all {
		rows = append(rows, []string{safe(o.Key), overrideRate(o), short(o.Left)})
	}
	return table(a.stdout, rows)
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

// overrideRate is the rate of an override in words.
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

// openOverrides opens a store whose overrides other processes obey.
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
