package rules

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
)

// compiled is the form of rules for decisions.
type compiled struct {
	rules   map[string]*rule
	tiers   map[string]bool
	domains map[string]*domain
}

type rule struct {
	name     string
	base     []counted
	hasBase  bool
	tiers    map[string][]counted
	keys     map[string][]counted
	replaces []string
	failure  Failure
	quota    bool
}

// counted is a limit with its names in results and in the store.
type counted struct {
	Limit
	limit ratelimit.Limit
	name  string
}

type domain struct {
	top     *node
	prefix  string // of its keys in the store
	failure Failure
}

// node is one level of descriptors.
type node struct {
	path     string // for people: shop/remote_address=50.0.0.5
	pattern  string // the value in keys, if all values count together
	rule     *rule
	exact    map[Entry]*node
	patterns []pattern
	any      map[string]*node
}

type pattern struct {
	key   string
	parts []string
	node  *node
}

// problem is a mistake. Its path identifies the place: names and numbers of the fields of
// Rules, separated by slashes.
type problem struct{ path, where, reason string }

type compiler struct {
	out      *compiled
	problems []problem
	full     map[string]string // by name in the store, the rule with it
	shadow   bool              // the rule is of a shadow descriptor
}

func (c *compiler) report(path, where, format string, args ...any) {
	c.problems = append(c.problems, problem{path, where, fmt.Sprintf(format, args...)})
}

// compile returns all problems, or, without any, the compiled rules.
func compile(r Rules) (*compiled, []problem) {
	c := &compiler{
		out:  &compiled{rules: make(map[string]*rule), tiers: make(map[string]bool), domains: make(map[string]*domain)},
		full: make(map[string]string),
	}
	for _, one := range r.Rules {
		for tier := range one.Tiers {
			c.out.tiers[tier] = true
		}
	}
	for _, d := range r.Domains {
		c.findTiers(d.Descriptors)
	}
	for i, one := range r.Rules {
		path, where := fmt.Sprintf("rules/%d", i), fmt.Sprintf("rule %q", one.Name)
		switch {
		case one.Name == "":
			c.report(path, fmt.Sprintf("rule %d", i+1), "it has no name")
			continue
		case c.out.rules[one.Name] != nil:
			c.report(path+"/name", where, "another rule has this name")
			continue
		case len(one.Replaces) > 0:
			c.report(path+"/replaces", where, "only rules of descriptors replace others")
		}
		c.failure(path, where, one.OnFailure)
		c.out.rules[one.Name] = c.rule(path, where, one, false)
	}
	for i, d := range r.Domains {
		path, where := fmt.Sprintf("domains/%d", i), fmt.Sprintf("domain %q", d.Name)
		switch err := check.Key(d.Name); {
		case d.Name == "":
			c.report(path, "", "a domain has no name")
			continue
		case err != nil || len(d.Name) > 80:
			c.report(path+"/name", where, "a domain has a name of up to 80 bytes of UTF-8 without control characters")
			continue
		case c.out.domains[d.Name] != nil:
			c.report(path+"/name", where, "another domain has this name")
			continue
		}
		c.failure(path, where, d.OnFailure)
		top := &node{path: d.Name}
		c.out.domains[d.Name] = &domain{top: top, prefix: "{" + escape(d.Name) + "}/", failure: d.OnFailure}
		c.descriptors(path, top, d.Descriptors)
	}
	if len(c.problems) > 0 {
		return nil, c.problems
	}
	return c.out, nil
}

func (c *compiler) findTiers(all []Descriptor) {
	for _, d := range all {
		if d.Rule != nil {
			for tier := range d.Rule.Tiers {
				c.out.tiers[tier] = true
			}
		}
		c.findTiers(d.Descriptors)
	}
}

func (c *compiler) failure(path, where string, f Failure) {
	if f == (Failure{}) {
		return
	}
	_, err := ratelimit.NewDecider(nil, f.options()...)
	if f.By == ratelimit.ByStore || f.By > ratelimit.ByLocal {
		err = fmt.Errorf("%v cannot decide when the store fails", f.By)
	}
	if err != nil {
		c.report(path+"/on_failure", where, "%s", reason(err))
	}
}

// reason is the text of a LimitError, without its head.
func reason(err error) string {
	if of, ok := errors.AsType[*limits.Error](err); ok {
		return of.Reason
	}
	return err.Error()
}

// rule compiles one rule. Its problems are below path.
func (c *compiler) rule(path, where string, r Rule, described bool) *rule {
	out := &rule{
		name: r.Name, replaces: r.Replaces, failure: r.OnFailure,
		hasBase: r.Unlimited || len(r.Limits) > 0,
		tiers:   make(map[string][]counted, len(r.Tiers)), keys: make(map[string][]counted, len(r.Keys)),
	}
	switch {
	case r.Unlimited && len(r.Limits) > 0:
		c.report(path+"/unlimited", where, "it is unlimited and has limits: it can be one of them")
	case !out.hasBase && len(r.Tiers) == 0:
		c.report(path, where, "it has no limits: give it some, or say that it is unlimited")
	case !out.hasBase:
		for _, tier := range slices.Sorted(maps.Keys(c.out.tiers)) {
			if _, has := r.Tiers[tier]; !has {
				c.report(path, where, "it has limits for some tiers, and none for the tier %q: give it some, or limits for all other tiers", tier)
				break
			}
		}
	}
	if described && len(r.Keys) > 0 {
		c.report(path+"/keys", where, "the rule of a descriptor has no keys of its own: a descriptor with a value does that")
	}
	if described && r.OnFailure != (Failure{}) {
		c.report(path+"/on_failure", where, "the domain says for all its descriptors what to do when the store fails")
	}
	if described && r.Name != "" && slices.Contains(r.Replaces, r.Name) {
		c.report(path+"/replaces", where, "it replaces itself")
	}
	if described && slices.Contains(r.Replaces, "") {
		c.report(path+"/replaces", where, "it replaces a rule without a name")
	}
	out.base = c.limits(path+"/limits", where, r.Name, r.Limits, described)
	for _, tier := range slices.Sorted(maps.Keys(r.Tiers)) {
		at, where := path+"/tiers/"+strconv.Quote(tier), fmt.Sprintf("%s, tier %q", where, tier)
		if tier == "" {
			c.report(at, where, "a tier has no name")
		}
		out.tiers[tier] = c.limits(at, where, r.Name, r.Tiers[tier], described)
	}
	for _, key := range slices.Sorted(maps.Keys(r.Keys)) {
		at, where := path+"/keys/"+strconv.Quote(key), fmt.Sprintf("%s, key %q", where, key)
		if err := check.Key(key); err != nil {
			c.report(at, where, "%v", err)
		}
		out.keys[key] = c.limits(at, where, r.Name, r.Keys[key], described)
	}
	return out
}

func (c *compiler) limits(path, where, rule string, all []Limit, described bool) []counted {
	if len(all) > limits.MaxTakes {
		c.report(path, where, "it has %d limits: at most %d are decided at once", len(all), limits.MaxTakes)
		return nil
	}
	out := make([]counted, 0, len(all))
	names := make(map[string]bool)
	for i, l := range all {
		at, where := fmt.Sprintf("%s/%d", path, i), where
		l.Shadow = l.Shadow || c.shadow
		if l.Name != "" {
			where = fmt.Sprintf("%s, limit %q", where, l.Name)
		}
		if names[l.Name] {
			if l.Name == "" {
				c.report(at, where, "two limits have no name: each but one needs a name of its own")
			} else {
				c.report(at+"/name", where, "another limit of the rule has this name")
			}
			continue
		}
		names[l.Name] = true
		one := counted{Limit: l, name: l.Name}
		if !described {
			one.name = rule
			if l.Name != "" {
				one.name += "." + l.Name
			}
			if other, taken := c.full[one.name]; taken && other != rule {
				c.report(at+"/name", where, "the rule %q counts under this name, too", other)
			}
			c.full[one.name] = rule
		}
		if described && l.ForAll {
			c.report(at+"/for_all", where, "the rule of a descriptor counts what is described, and cannot count all keys together")
			continue
		}
		limit, err := l.limit()
		if err == nil && l.N > 0 {
			limit = limit.Named(one.name)
			if described { // any name that a key in the store can have
				limit = limit.Named("")
			}
			err = limit.Check()
		}
		if described && len(l.Name) > 40 {
			err = fmt.Errorf("its name has %d bytes: at most 40 are allowed", len(l.Name))
		}
		if !described && l.N == 0 {
			err = errors.Join(err, ratelimit.FixedWindow(1, 1000).Named(one.name).Check())
		}
		if err != nil {
			c.report(at, where, "%s", reason(err))
			continue
		}
		one.limit = limit
		out = append(out, one)
	}
	return out
}

// descriptors compiles one level below a node.
func (c *compiler) descriptors(path string, into *node, all []Descriptor) {
	into.exact, into.any = make(map[Entry]*node), make(map[string]*node)
	for i, d := range all {
		at := fmt.Sprintf("%s/%d", path, i)
		n := &node{path: into.path + "/" + d.Key}
		if d.Value != "" {
			n.path += "=" + d.Value
		}
		where := fmt.Sprintf("descriptor %q", n.path)
		starred := strings.Contains(d.Value, "*")
		switch {
		case d.Key == "":
			c.report(at, where, "a descriptor has no key")
			continue
		case d.Value != "" && into.exact[Entry{d.Key, d.Value}] != nil, d.Value == "" && into.any[d.Key] != nil:
			c.report(at, where, "another descriptor of the list has this key and value")
			continue
		case d.Share && !starred:
			c.report(at+"/share_threshold", where, "only values that match a pattern can count together: the value has no *")
		}
		if d.Value == "" {
			into.any[d.Key] = n
		} else {
			into.exact[Entry{d.Key, d.Value}] = n
		}
		if starred {
			into.patterns = append(into.patterns, pattern{d.Key, strings.Split(d.Value, "*"), n})
			if d.Share {
				n.pattern = d.Value
			}
		}
		if d.Rule != nil {
			c.shadow = d.Shadow
			n.rule = c.rule(at+"/rule", where, *d.Rule, true)
			n.rule.quota, c.shadow = d.Quota, false
		}
		c.descriptors(at, n, d.Descriptors)
	}
}

// next is the node that matches an entry, and the value for keys.
func (n *node) next(e Entry) (*node, string) {
	if e.Value != "" {
		if to := n.exact[e]; to != nil {
			return to, to.counts(e)
		}
	}
	for _, p := range n.patterns {
		if p.key == e.Key && fits(p.parts, e.Value) {
			return p.node, p.node.counts(e)
		}
	}
	return n.any[e.Key], escape(e.Value)
}

// counts is the value in keys for an entry that the node matches.
func (n *node) counts(e Entry) string {
	if n.pattern != "" {
		return escapePattern(n.pattern)
	}
	return escape(e.Value)
}

// fits reports whether text consists of the parts with any text between them.
func fits(parts []string, text string) bool {
	first, last := parts[0], parts[len(parts)-1]
	if len(text) < len(first)+len(last) || !strings.HasPrefix(text, first) || !strings.HasSuffix(text, last) {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return true
}
