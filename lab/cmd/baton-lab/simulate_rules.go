package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton/internal/cli"
	"github.com/batonhq/baton/lab/simulate"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/store/memstore"
)

// replay has the flags that choose the rules for the requests.
type replay struct {
	rule, tier, domain string
	files, describe    []string
}

func (r *replay) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&r.files, "rules", nil, "replay through the rules of a `FILE`, or of those of a folder; may be repeated")
	f.StringVar(&r.rule, "rule", "", "the `NAME` of a rule (default: each)")
	f.StringVar(&r.tier, "tier", "", "the `TIER` of all requests (default: each of the rule)")
	f.StringVar(&r.domain, "domain", "", "the `NAME` of a domain, in place of a rule")
	f.StringArrayVar(&r.describe, "describe", nil, "what is described in the domain, `KEY=VALUE[,...]`, with {key} for a request's key; may be repeated")
	cmd.MarkFlagsMutuallyExclusive("rule", "domain")
}

func (r *replay) check(cmd *cobra.Command) error {
	if len(r.files) == 0 {
		for _, flag := range []string{"rules", "rule", "tier", "domain", "describe"} {
			if cmd.Flags().Changed(flag) {
				return usage("--%s goes with --rules FILE", flag)
			}
		}
		return nil
	}
	for _, flag := range []string{"rate", "burst", "parts", "max-wait", "svg"} {
		if cmd.Flags().Changed(flag) {
			return usage("--%s does not go with --rules", flag)
		}
	}
	if (r.domain == "") != (len(r.describe) == 0) {
		return usage("--domain NAME and --describe KEY=VALUE go together")
	}
	return nil
}

// scenario is a rule and a tier for the requests.
type scenario struct {
	Rule         string             `json:"rule"`
	Tier         string             `json:"tier,omitempty"`
	Allowed      int64              `json:"allowed"`
	Refused      int64              `json:"refused"`
	FirstRefused int                `json:"firstRefused"`        // counted from 1; 0 if none
	RefusedBy    string             `json:"refusedBy,omitempty"` // the limit that refused that request
	LongestWait  float64            `json:"longestWait"`
	Near         int64              `json:"near"`        // allowed with a warning
	WouldRefuse  int64              `json:"wouldRefuse"` // allowed where a shadow would have refused
	Verdicts     []simulatedVerdict `json:"verdicts"`

	retry, wait time.Duration
}

func (a *app) replayRules(by *replay, events []simulate.Event, asJSON bool) error {
	all, err := rules.Load(by.files...)
	if mistakes, ok := errors.AsType[rules.Errors](err); ok {
		for _, one := range mistakes { // each escapes control characters
			a.complain("%s", one)
		}
		return &exit{Code: cli.ExitUsage, Err: nil}
	} else if err != nil {
		return usage("%w", err)
	}
	var out []scenario
	if by.domain != "" {
		s := scenario{Rule: by.domain, Tier: by.tier}
		if err := s.run(all, by, events); err != nil {
			return err
		}
		out = append(out, s)
	}
	for _, one := range all.Rules {
		if by.domain != "" || by.rule != "" && by.rule != one.Name {
			continue
		}
		tiers := slices.Sorted(maps.Keys(one.Tiers))
		if one.Unlimited || len(one.Limits) > 0 {
			tiers = append([]string{""}, tiers...)
		}
		if by.tier != "" {
			tiers = []string{by.tier}
		}
		for _, tier := range tiers {
			s := scenario{Rule: one.Name, Tier: tier}
			if err := s.run(all, by, events); err != nil {
				return err
			}
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		if by.rule == "" {
			return usage("%s names no rules: say a domain with --domain, and what is described with --describe", cli.Safe(strings.Join(by.files, ", ")))
		}
		return usage("%s has no rule %q", cli.Safe(strings.Join(by.files, ", ")), by.rule)
	}
	if asJSON {
		return cli.JSON(a.stdout, out, false)
	}
	rows := [][]string{{"RULE", "TIER", "ALLOWED", "REFUSED", "NEAR", "SHADOW", "LONGEST WAIT", "FIRST REFUSED"}}
	for _, s := range out {
		first, wait := "-", "-"
		if s.FirstRefused > 0 {
			retry := "never allowed"
			if s.retry != ratelimit.Never {
				retry = "retry after " + s.retry.String()
			}
			first = fmt.Sprintf("number %d, by %s, %s", s.FirstRefused, cli.Safe(s.RefusedBy), retry)
		}
		if s.wait > 0 {
			wait = s.wait.String()
		}
		rows = append(rows, []string{
			cli.Safe(s.Rule), cli.Safe(cmp.Or(s.Tier, "-")), fmt.Sprint(s.Allowed), fmt.Sprint(s.Refused), fmt.Sprint(s.Near), fmt.Sprint(s.WouldRefuse), wait, first,
		})
	}
	return cli.Table(a.stdout, rows)
}

// run replays the events. Their times are the clock of the store.
func (s *scenario) run(all rules.Rules, by *replay, events []simulate.Event) error {
	l, err := rules.New(memstore.New(), all)
	if err != nil {
		return usage("%w", err)
	}
	for i, e := range events {
		key := cmp.Or(e.Key, "-")
		r := rules.Request{Rule: s.Rule, Key: key, Tier: s.Tier, Cost: e.Cost, At: e.At}
		if by.domain != "" {
			r.Rule, r.Key, r.Domain = "", "", by.domain
			for _, text := range by.describe {
				d, err := described(text, key)
				if err != nil {
					return err
				}
				r.Descriptions = append(r.Descriptions, d)
			}
		}
		d, err := l.Allow(context.Background(), r)
		if err != nil {
			unknown, is := errors.AsType[*rules.UnknownError](err)
			if is && unknown.Kind == "tier" && s.Tier == "" {
				return usage("%s has limits for tiers alone: name one with --tier", cli.Safe(s.Rule))
			}
			return usage("number %d: %w", i+1, err)
		}
		v := simulatedVerdict{At: e.At.UTC(), Key: e.Key, Cost: e.Cost, OK: d.OK, Wait: cli.Seconds(d.Wait)}
		if d.OK {
			if s.Allowed > math.MaxInt64-e.Cost {
				return usage("they allow more than %d in all, which cannot be counted", int64(math.MaxInt64))
			}
			s.Allowed += e.Cost
			s.wait = max(s.wait, d.Wait)
			if d.Near {
				s.Near++
			}
			if d.WouldRefuse {
				s.WouldRefuse++
			}
		} else {
			v.RetryAfter = retrySeconds(d.RetryAfter)
			if s.Refused += min(e.Cost, math.MaxInt64-s.Refused); s.FirstRefused == 0 {
				s.FirstRefused, s.RefusedBy, s.retry = i+1, d.Name, d.RetryAfter
			}
		}
		s.Verdicts = append(s.Verdicts, v)
	}
	s.LongestWait = cli.Seconds(s.wait)
	return nil
}

// described reads the KEY=VALUE,… of --describe.
func described(text, key string) (d rules.Description, err error) {
	for entry := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || name == "" {
			return d, usage("--describe %s: it is KEY=VALUE, or several with commas", cli.Safe(text))
		}
		d.Entries = append(d.Entries, rules.Entry{Key: name, Value: strings.ReplaceAll(value, "{key}", key)})
	}
	return d, nil
}
