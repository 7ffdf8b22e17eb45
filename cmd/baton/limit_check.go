package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/rules"
)

func (a *app) checkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [flags] FILE…",
		Short: "Check files of rules for limits",
		Long: `Reads files of rules for limits ("-" is standard input), tells every mistake with its
line and column, and shows what the rules say. No store is needed. What the format is
stands in docs/rules.md; a configuration of envoyproxy/ratelimit is such a file.

Several files are checked together, as agent and serve read them; of a folder, the files
in it whose names end in .yaml or .yml. With -o json: a list of what each rule says for a tier
or a key, or for those that it names none for.`,
		Example: `  baton limit check rules.yaml
  baton limit check /etc/baton/rules/
  baton limit check -o json rules.yaml | jq '.[].rule'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("FILE is missing: baton limit check FILE")
			}
			return nil
		},
	}
	a.queryFlags(cmd)
	cmd.RunE = does(func(_ context.Context, args []string) error {
		asJSON, err := a.json()
		if err != nil {
			return err
		}
		r, err := a.readRules(args)
		if err != nil {
			return a.mistakes(err)
		}
		all := ruleLines(r)
		if asJSON {
			if all == nil {
				all = []ruleLine{}
			}
			return printJSON(a.stdout, all, false)
		}
		rows := [][]string{{"RULE", "FOR", "LIMITS", "STORE FAILS"}}
		for _, line := range all {
			rows = append(rows, []string{safe(line.Rule), safe(line.who()), safe(line.says()), line.OnFailure.says()})
		}
		return table(a.stdout, rows)
	})
	return cmd
}

// mistakes reports what is wrong with rules, each mistake with its line of the file. The
// errors are already escaped for a terminal.
func (a *app) mistakes(err error) error {
	all, ok := errors.AsType[rules.Errors](err)
	if !ok {
		if codeOf(err) == exitFailed {
			err = &exit{Code: exitConfig, Err: ofPage(err)}
		}
		return err
	}
	for _, one := range all {
		a.complain("%s", one)
	}
	return &exit{Code: exitConfig, Err: nil}
}

// readRules reads files of rules, or standard input.
func (a *app) readRules(names []string) (rules.Rules, error) {
	switch {
	case !slices.Contains(names, "-"):
		return rules.Load(names...)
	case len(names) > 1:
		return rules.Rules{}, usage("standard input is read alone, and not with other files")
	}
	text, err := io.ReadAll(io.LimitReader(a.stdin, rules.MaxFile+1))
	if err != nil {
		return rules.Rules{}, err
	}
	return rules.Parse("-", text)
}

// ruleLine is what a rule says for some requests.
type ruleLine struct {
	Rule      string      `json:"rule"`
	Tier      string      `json:"tier,omitempty"`
	Key       string      `json:"key,omitempty"`
	Unlimited bool        `json:"unlimited,omitempty"`
	Limits    []limitLine `json:"limits"`
	Replaces  []string    `json:"replaces,omitempty"`
	Quota     bool        `json:"quota,omitempty"`
	Share     bool        `json:"share,omitempty"`
	OnFailure failureLine `json:"onFailure"`
}

type limitLine struct {
	Name      string  `json:"name,omitempty"`
	Requests  int64   `json:"requests"`
	Period    float64 `json:"period,omitempty"` // seconds
	Calendar  string  `json:"calendar,omitempty"`
	Zone      string  `json:"zone,omitempty"`
	Algorithm string  `json:"algorithm"`
	Burst     int64   `json:"burst,omitempty"`
	MaxWait   float64 `json:"maxWait,omitempty"`
	ForAll    bool    `json:"forAll,omitempty"`
	PerCall   bool    `json:"perCall,omitempty"`
	Shadow    bool    `json:"shadow,omitempty"`
	Warn      float64 `json:"warn,omitempty"`

	text string
}

type failureLine struct {
	Mode      string  `json:"mode"`
	After     float64 `json:"after,omitempty"`
	Instances int64   `json:"instances,omitempty"`
}

func (l ruleLine) who() string {
	switch {
	case l.Tier != "":
		return "tier " + l.Tier
	case l.Key != "":
		return "key " + l.Key
	}
	return "-"
}

func (l ruleLine) says() string {
	var parts []string
	for _, one := range l.Limits {
		parts = append(parts, one.text)
	}
	if len(parts) == 0 {
		parts = []string{"unlimited"}
	}
	if l.Quota {
		parts = append(parts, "one of several quotas")
	}
	if l.Share {
		parts = append(parts, "all values together")
	}
	if len(l.Replaces) > 0 {
		parts = append(parts, "replaces "+strings.Join(l.Replaces, ", "))
	}
	return strings.Join(parts, "; ")
}

func (f failureLine) says() string {
	switch {
	case f.Mode == "error":
		return f.Mode
	case f.Instances > 0:
		return fmt.Sprintf("%s, 1/%d, after %gs", f.Mode, f.Instances, f.After)
	}
	return fmt.Sprintf("%s, after %gs", f.Mode, f.After)
}

// ruleLines lists rules in the order of the file, tiers and keys by name.
func ruleLines(r rules.Rules) (all []ruleLine) {
	add := func(name string, one rules.Rule, f rules.Failure, d rules.Descriptor) {
		line := ruleLine{Rule: name, Replaces: one.Replaces, Quota: d.Quota, Share: d.Share, OnFailure: failureLine{Mode: "error"}}
		if f.By != ratelimit.ByStore {
			line.OnFailure = failureLine{f.By.String(), seconds(f.After), f.Instances}
		}
		put := func(tier, key string, of []rules.Limit) {
			line.Tier, line.Key, line.Unlimited, line.Limits = tier, key, len(of) == 0, make([]limitLine, len(of))
			for i, l := range of {
				l.Shadow = l.Shadow || d.Shadow
				line.Limits[i] = lineOf(l)
			}
			all = append(all, line)
		}
		if one.Unlimited || len(one.Limits) > 0 {
			put("", "", one.Limits)
		}
		for _, tier := range slices.Sorted(maps.Keys(one.Tiers)) {
			put(tier, "", one.Tiers[tier])
		}
		for _, key := range slices.Sorted(maps.Keys(one.Keys)) {
			put("", key, one.Keys[key])
		}
	}
	for _, one := range r.Rules {
		add(one.Name, one, one.OnFailure, rules.Descriptor{})
	}
	for _, d := range r.Domains {
		var walk func(path string, all []rules.Descriptor)
		walk = func(path string, list []rules.Descriptor) {
			for _, one := range list {
				path := path + "/" + one.Key
				if one.Value != "" {
					path += "=" + one.Value
				}
				switch {
				case one.Rule != nil:
					add(path, *one.Rule, d.OnFailure, one)
				case len(one.Descriptors) == 0:
					add(path, rules.Rule{Unlimited: true}, d.OnFailure, one)
				}
				walk(path, one.Descriptors)
			}
		}
		walk(d.Name, d.Descriptors)
	}
	return all
}

func lineOf(l rules.Limit) limitLine {
	line := limitLine{
		Name: l.Name, Requests: l.N, Period: l.Period.Seconds(), Calendar: l.Calendar.String(), Burst: l.Burst, MaxWait: l.MaxWait.Seconds(),
		ForAll: l.ForAll, PerCall: l.PerCall, Shadow: l.Shadow, Warn: l.Warn, text: l.String(),
	}
	if l.Zone != nil {
		line.Zone = l.Zone.String()
	}
	a := limits.SlidingWindow
	if l.Calendar != 0 {
		a = limits.FixedWindow
	}
	line.Algorithm = cmp.Or(l.Algorithm, a).String()
	if l.Algorithm == limits.TokenBucket {
		line.Burst = cmp.Or(l.Burst, l.N)
	}
	if l.Algorithm == limits.LeakyBucket {
		line.MaxWait = cmp.Or(l.MaxWait, l.Period).Seconds()
	}
	return line
}
