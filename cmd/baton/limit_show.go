package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/rules"
)

// showing are the flags of "baton limit show".
type showing struct {
	limiting
	rules string
	tier  string
}

func (a *app) limitShowCommand() *cobra.Command {
	k := &showing{}
	cmd := &cobra.Command{
		Use:   "show [flags] KEY",
		Short: "Show how a rate limit stands: what it allows, what is used, what remains",
		Long: `Shows how KEY stands, and counts nothing. What a limit allows is in the program: --rate and
--algorithm say it as for "baton limit", --rules reads it from a file (see "baton limit
check"). With --rules, or neither, KEY is as "baton limit ls" shows it. Without --rate and
--rules it shows what the store keeps of KEY; Redis reads every key for that.

With -o json and --rate or --rules: what "baton limit -o json" prints; else what "baton limit
ls -o json" prints of a key, and override.

` + exitTable,
		Example: `  baton limit show --rate 10/1m mail/alice
  baton limit show --rules rules.yaml 'api/{user/7}'
  baton limit show mail/alice`,
		Args:              noLimit(oneArg("KEY")),
		ValidArgsFunction: a.completeLimit,
	}
	k.rateFlags(cmd)
	k.named(cmd)
	cmd.Flags().StringVar(&k.rules, "rules", "", "`FILE` with the rules of limits, or a folder of such files")
	cmd.Flags().StringVar(&k.tier, "tier", "", "the tier of the caller, with --rules")
	a.queryFlags(cmd)
	for _, of := range []string{"rate", "burst", "max-wait", "algorithm"} {
		cmd.MarkFlagsMutuallyExclusive("rules", of)
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
			if k.tier != "" && k.rules == "" {
				return usage("--tier goes with --rules")
			}
			all, err := k.limits(cmd)
			if err != nil {
				return err
			}
			for _, of := range []string{"burst", "max-wait", "algorithm"} {
				if len(all) == 0 && cmd.Flags().Changed(of) {
					return usage("--%s goes with --rate", of)
				}
			}
			switch {
			case k.rules != "":
				return a.showByRules(ctx, args[0], k, asJSON)
			case len(all) > 0:
				return a.showByRate(ctx, args[0], all, k, asJSON)
			}
			return a.showState(ctx, args, asJSON)
		})(cmd, args)
	}
	return cmd
}

// showByRate shows the state of the limits that the flags describe.
func (a *app) showByRate(ctx context.Context, key string, all []ratelimit.Limit, k *showing, asJSON bool) error {
	store, err := a.openLimits(ctx, openWait{})
	if err != nil {
		return err
	}
	defer shut(store)
	l, err := limiter(store, all)
	if err != nil {
		return err
	}
	r, err := l.Peek(ctx, key)
	if err != nil {
		return err
	}
	algorithm, _ := limits.ParseAlgorithm(k.algorithm)
	var allows, keys []string
	for i, text := range k.rates {
		of, _ := parseRate(text)
		one := rules.Limit{N: of.n, Period: of.period, Algorithm: algorithm}
		if algorithm == limits.TokenBucket {
			one.Burst = k.burst
		}
		if algorithm == limits.LeakyBucket {
			one.MaxWait = k.maxWait
		}
		allows, keys = append(allows, one.String()), append(keys, all[i].StoreKey(key))
	}
	return a.printStanding(ctx, store, r, r.Limits(), allows, keys, asJSON)
}

// showByRules shows the state of the limits of a file, for a key of the store.
func (a *app) showByRules(ctx context.Context, key string, k *showing, asJSON bool) error {
	r, err := a.readRules([]string{k.rules})
	if err != nil {
		return a.mistakes(err)
	}
	ask, err := ruleOf(r, key)
	if err != nil {
		return err
	}
	ask.Tier = k.tier
	for i := range r.Rules {
		r.Rules[i].OnFailure = rules.Failure{} // a failure of the store must be an error here
	}
	for i := range r.Domains {
		r.Domains[i].OnFailure = rules.Failure{}
	}
	store, err := a.openLimits(ctx, openWait{})
	if err != nil {
		return err
	}
	defer shut(store)
	l, err := rules.New(store, r)
	if err != nil {
		return a.mistakes(err)
	}
	d, err := l.Peek(ctx, ask)
	if unknown, ok := errors.AsType[*rules.UnknownError](err); ok {
		return usage("%w", unknown)
	}
	if err != nil {
		return err
	}
	m := d.Matches[0]
	if m.Unlimited || m.Rule == "" {
		if asJSON {
			return printJSON(a.stdout, limitJSON(d.Result), false)
		}
		_, err := fmt.Fprintf(a.stdout, "%q is unlimited\n", safe(key))
		return err
	}
	var allows []string
	for _, one := range m.Set {
		one.Name = "" // the table has a column for it
		allows = append(allows, one.String())
	}
	return a.printStanding(ctx, store, d.Result, m.Limits, allows, []string{key}, asJSON)
}

// ruleOf finds the request that counts under a key of the store.
func ruleOf(r rules.Rules, key string) (rules.Request, error) {
	if rest, described := strings.CutPrefix(key, "{"); described {
		domain, entries, ok := strings.Cut(rest, "}/")
		entries, _, _ = strings.Cut(entries, "#")
		var d rules.Description
		for entry := range strings.SplitSeq(entries, ",") {
			name, value, pair := strings.Cut(entry, "=")
			name, err1 := url.PathUnescape(name)
			value, err2 := url.PathUnescape(value)
			ok = ok && pair && err1 == nil && err2 == nil
			d.Entries = append(d.Entries, rules.Entry{Key: name, Value: value})
		}
		domain, err := url.PathUnescape(domain)
		if !ok || err != nil {
			return rules.Request{}, usage("%q does not tell what was asked for", safe(key))
		}
		return rules.Request{Domain: domain, Descriptions: []rules.Description{d}}, nil
	}
	name, of, named := strings.Cut(key, "/")
	switch {
	case name == "*":
		name, of = of, "-"
	case strings.HasPrefix(of, "/"):
		of = of[1:]
	case strings.HasPrefix(of, "{") && strings.HasSuffix(of, "}"):
		of = of[1 : len(of)-1]
	default:
		named = false
	}
	if named { // the name of one of the limits may follow
		for rest := name; ; {
			if slices.ContainsFunc(r.Rules, func(one rules.Rule) bool { return one.Name == rest }) {
				return rules.Request{Rule: rest, Key: of}, nil
			}
			dot := strings.LastIndexByte(rest, '.')
			if dot < 0 {
				break
			}
			rest = rest[:dot]
		}
	}
	return rules.Request{}, usage("no rule of the file counts under %q: NAME/{KEY} is that of the rule NAME", safe(key))
}

// printStanding prints the state of limits, and what each of them allows. keys are those
// that may be overridden.
func (a *app) printStanding(ctx context.Context, store open.LimitStore, r ratelimit.Result, all []ratelimit.LimitResult, allows, keys []string, asJSON bool) error {
	if asJSON {
		v := limitJSON(r)
		v.decided = nil
		for i := range v.Limits {
			v.Limits[i].decided = nil
		}
		return printJSON(a.stdout, v, false)
	}
	rows := [][]string{{"LIMIT", "ALLOWS", "USED", "REMAIN", "FRESH IN"}}
	for i, l := range all {
		row := []string{"-", allows[i], strconv.FormatInt(max(0, l.Limit-l.Remaining), 10), strconv.FormatInt(l.Remaining, 10), "-"}
		if l.Name != "" {
			row[0] = safe(l.Name)
		}
		if l.ResetAfter > 0 {
			row[4] = shortUp(l.ResetAfter)
		}
		rows = append(rows, row)
	}
	if err := table(a.stdout, rows); err != nil {
		return err
	}
	return a.printOverrides(ctx, store, keys)
}

// printOverrides prints which of the keys are overridden. If the store has no overrides it
// prints nothing.
func (a *app) printOverrides(ctx context.Context, store open.LimitStore, keys []string) error {
	in, err := overridesOf(ctx, store, keys)
	for _, o := range in {
		if _, err := fmt.Fprintf(a.stdout, "%q is overridden: %s, for %s more\n", safe(o.Key), overrideRate(o), short(o.Left)); err != nil {
			return err
		}
	}
	return err
}

func overridesOf(ctx context.Context, store open.LimitStore, keys []string) ([]limits.Override, error) {
	in, ok := limits.OverriderOf(store)
	if !ok {
		return nil, nil
	}
	all, err := in.Overrides(ctx)
	return slices.DeleteFunc(all, func(o limits.Override) bool { return !slices.Contains(keys, o.Key) }), err
}

// showState shows what the store keeps of the key in args.
func (a *app) showState(ctx context.Context, args []string, asJSON bool) error {
	key := args[0]
	st := limits.State{Key: key}
	store, err := a.openLimits(ctx, openWait{})
	if err != nil {
		return err
	}
	defer shut(store)
	// In the list the key precedes all others that begin with it.
	err = a.states(ctx, store, args, &listingLimits{}, func(first limits.State) bool {
		if first.Key == key {
			st = first
		}
		return false
	})
	if err != nil {
		return err
	}
	if asJSON {
		over, err := overridesOf(ctx, store, args)
		v := struct {
			stateView
			Override *overrideView `json:"override,omitempty"`
		}{stateView: viewOf(st)}
		if len(over) > 0 {
			one := viewOverride(over[0])
			v.Override = &one
		}
		if err != nil {
			return err
		}
		return printJSON(a.stdout, v, true)
	}
	if st.Kind == "" {
		if _, err := fmt.Fprintf(a.stdout, "%q is fresh: nothing of it is used\n", safe(key)); err != nil {
			return err
		}
		return a.printOverrides(ctx, store, args)
	}
	row := stateRow(st)
	rows := [][]string{{"KIND", "ALLOWS", "USED", "OF", "FRESH IN"}, {row[1], "-", row[2], row[3], row[4]}}
	if st.N > 0 {
		rows[1][1] = fmt.Sprintf("%d per %s", st.N, short(st.Period))
	}
	if err := table(a.stdout, rows); err != nil {
		return err
	}
	return a.printOverrides(ctx, store, args)
}

// completeLimit proposes keys that the store keeps a state of.
func (a *app) completeLimit(_ *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	return a.complete(args, func(ctx context.Context, store driver.Store, propose func(key, about string) bool) {
		in, ok := driver.As[limits.Lister](store)
		if !ok {
			return
		}
		for st, err := range in.ListStates(ctx, typed, "") {
			if err != nil || !propose(st.Key, fmt.Sprintf("%d used", st.Used)) {
				return
			}
		}
	})
}

func (a *app) limitRemoveCommand() *cobra.Command {
	var override bool
	cmd := &cobra.Command{
		Use:   "rm [flags] KEY",
		Short: "Forget what a key has used of its limits, or end its override",
		Long: `Makes KEY fresh: what was taken from its limits counts no more. KEY is as "baton limit ls"
shows it. With --override it ends what "baton limit set" has begun instead, and what was
taken stays taken.

` + exitTableOverride,
		Example: `  baton limit rm mail/alice
  baton limit rm --override api/acme`,
		Args:              noLimit(oneArg("KEY")),
		ValidArgsFunction: a.completeLimit,
	}
	cmd.Flags().BoolVar(&override, "override", false, "end the override of the key")
	cmd.RunE = does(func(ctx context.Context, args []string) error {
		key := args[0]
		if err := check.Key(key); err != nil {
			return usage("%w", err)
		}
		if override {
			return a.endOverride(ctx, key)
		}
		store, err := a.openLimits(ctx, openWait{})
		if err != nil {
			return err
		}
		defer shut(store)
		if err := outlives(store.Traits()); err != nil {
			return err
		}
		// The limit does not matter here.
		any := limits.Take{Key: key, Limit: limits.Limit{Algorithm: limits.FixedWindow, N: 1, Period: time.Second}}
		if _, err := store.Take(ctx, limits.Request{Takes: []limits.Take{any}, Mode: limits.Forget}); err != nil {
			return err
		}
		a.say("%q is fresh", safe(key))
		return nil
	})
	return cmd
}
