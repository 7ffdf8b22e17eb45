package rules

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/suggest"
	"github.com/batonhq/baton/ratelimit"
)

// plan is what a request asks of which limits.
type plan struct {
	decider *ratelimit.Decider
	key     string // for results and errors
	matches []Match
	rules   []*rule // of the matches; nil: no limits to ask
	asks    []ask

	gives   bool               // it returns the costs
	receipt *ratelimit.Receipt // of a reservation
}

// ask is what one limit is asked, for one match or several.
type ask struct {
	ask     ratelimit.Ask
	set     Limit
	matches []int
	out     bool // it is not asked, or not again
	result  *ratelimit.LimitResult
}

func (s *state) plan(r Request) (*plan, error) {
	refuse := func(format string, args ...any) (*plan, error) {
		return nil, &RequestError{fmt.Sprintf(format, args...)}
	}
	switch {
	case r.Cost < 0:
		return refuse("a cost of %d: it must not be negative", r.Cost)
	case r.Within < 0:
		return refuse("a decision within %v: it must not be negative", r.Within)
	case (r.Rule == "") == (r.Domain == ""):
		return refuse("it names a rule %q and a domain %q: it must be one of them", r.Rule, r.Domain)
	case r.Rule != "" && len(r.Descriptions) > 0:
		return refuse("descriptions are for a domain, and it names the rule %q", r.Rule)
	case r.Domain != "" && len(r.Descriptions) == 0:
		return refuse("it describes nothing in the domain %q", r.Domain)
	case r.Domain != "" && len(r.Also) > 0:
		return refuse("further rules go with a rule, and it names the domain %q", r.Domain)
	case r.Domain != "" && r.Key != "":
		return refuse("a key %q is for a rule, and it names the domain %q", r.Key, r.Domain)
	case r.Domain != "":
		return s.described(r)
	}
	p := &plan{key: r.Key}
	for _, one := range append([]Part{{r.Rule, r.Key, r.Tier, r.Cost}}, r.Also...) {
		if err := s.named(p, one); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func unknown(kind, name string, known []string) error {
	return &UnknownError{kind, name, suggest.Nearest(name, known)}
}

func (s *state) named(p *plan, r Part) error {
	one := s.compiled.rules[r.Rule]
	switch {
	case one == nil:
		return unknown("rule", r.Rule, slices.Sorted(maps.Keys(s.compiled.rules)))
	case r.Cost < 0:
		return &RequestError{fmt.Sprintf("a cost of %d: it must not be negative", r.Cost)}
	case p.decider != nil && p.decider != s.deciders[one.failure]:
		return &RequestError{fmt.Sprintf("the rules %q and %q have another on_failure: one decision cannot obey both", p.rules[0].name, one.name)}
	}
	if err := s.tier(r.Tier); err != nil {
		return err
	}
	if err := check.Key(r.Key); err != nil {
		return err
	}
	all, own := one.keys[r.Key]
	if !own {
		var err error
		if all, err = one.of(r.Tier); err != nil {
			return err
		}
	}
	i := len(p.rules)
	p.decider, p.rules = s.deciders[one.failure], append(p.rules, one)
	p.matches = append(p.matches, Match{Rule: one.name, Name: one.name, OK: true, Unlimited: len(all) == 0})
	for _, l := range all {
		key := l.name // of a limit of 0, which is asked nowhere
		if l.N > 0 {
			key = l.limit.StoreKey(r.Key)
		}
		if err := p.add(i, l, key, r.Cost); err != nil {
			return err
		}
	}
	return nil
}

// tier refuses a tier that is in no rule.
func (s *state) tier(name string) error {
	if name != "" && !s.compiled.tiers[name] {
		return unknown("tier", name, slices.Sorted(maps.Keys(s.compiled.tiers)))
	}
	return nil
}

// of are the limits of a tier.
func (r *rule) of(tier string) ([]counted, error) {
	if all, has := r.tiers[tier]; has {
		return all, nil
	}
	if !r.hasBase {
		return nil, unknown("tier", tier, slices.Sorted(maps.Keys(r.tiers)))
	}
	return r.base, nil
}

// described plans a request to a domain.
func (s *state) described(r Request) (*plan, error) {
	d := s.compiled.domains[r.Domain]
	if d == nil {
		return nil, unknown("domain", r.Domain, slices.Sorted(maps.Keys(s.compiled.domains)))
	}
	if err := s.tier(r.Tier); err != nil {
		return nil, err
	}
	p := &plan{decider: s.deciders[d.failure], key: r.Domain, matches: make([]Match, len(r.Descriptions)), rules: make([]*rule, len(r.Descriptions))}
	parts := make([][]string, len(r.Descriptions))
	replaced := make(map[string]bool)
	for i, what := range r.Descriptions {
		if len(what.Entries) == 0 {
			return nil, &RequestError{fmt.Sprintf("description %d has no entries", i+1)}
		}
		if what.Cost != nil && *what.Cost < 0 {
			return nil, &RequestError{fmt.Sprintf("description %d has a cost of %d: it must not be negative", i+1, *what.Cost)}
		}
		n := d.top
		for _, e := range what.Entries {
			value := escape(e.Value)
			if n != nil {
				n, value = n.next(e)
			}
			parts[i] = append(parts[i], escape(e.Key)+"="+value)
		}
		m := &p.matches[i]
		m.OK = true
		switch {
		case what.Limit != nil:
			m.Rule = r.Domain + "/" + strings.Join(parts[i], ",")
			c := &compiler{full: make(map[string]string)}
			base := c.limits("", "", "", []Limit{*what.Limit}, true)
			if len(c.problems) > 0 {
				return nil, &RequestError{fmt.Sprintf("the limit of description %d: %s", i+1, c.problems[0].reason)}
			}
			p.rules[i] = &rule{base: base, hasBase: true}
		case n != nil && n.rule != nil:
			m.Rule, m.Name, p.rules[i] = n.path, n.rule.name, n.rule
		case n != nil:
			m.Rule, m.Unlimited = n.path, true
		}
		if p.rules[i] != nil {
			for _, name := range p.rules[i].replaces {
				replaced[name] = true
			}
		}
	}
	for i, one := range p.rules {
		if one == nil {
			continue
		}
		all, err := one.of(r.Tier)
		if err != nil {
			return nil, err
		}
		m := &p.matches[i]
		if m.Unlimited = len(all) == 0; m.Unlimited {
			p.rules[i] = nil
			continue
		}
		if m.Replaced = replaced[one.name] && one.name != ""; m.Replaced {
			p.rules[i] = nil
			continue
		}
		cost := r.Cost
		if own := r.Descriptions[i].Cost; own != nil {
			cost = *own
		}
		for _, l := range all {
			if err := p.add(i, l, storeKey(d.prefix, parts[i], l.Name), cost); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

// add adds an ask to a limit. Two equal descriptions cost the sum of their costs.
func (p *plan) add(match int, l counted, key string, cost int64) error {
	for i := range p.asks {
		a := &p.asks[i]
		if a.ask.Key != key {
			continue
		}
		if a.set != l.Limit {
			return &RequestError{fmt.Sprintf("two descriptions count as %q under different limits", key)}
		}
		if cost > math.MaxInt64-a.ask.Cost {
			return &RequestError{fmt.Sprintf("the costs of %q are above %d", key, int64(math.MaxInt64))}
		}
		a.ask.Cost += cost
		a.matches = append(a.matches, match)
		return nil
	}
	name := l.name
	if name == "" {
		name = p.matches[match].Rule
	}
	p.asks = append(p.asks, ask{
		ask: ratelimit.Ask{Name: name, Limit: l.limit, Key: key, Cost: cost}, set: l.Limit, matches: []int{match},
	})
	return nil
}

// decide asks the limits. If only some of several quotas refuse, it asks the others
// without them: a refusal has taken nothing.
func (p *plan) decide(ctx context.Context, r Request) (Decision, error) {
	if err := ctx.Err(); err != nil {
		return Decision{}, err
	}
	var refusing []*ask
	for i := range p.asks {
		if a := &p.asks[i]; a.set.N == 0 { // that needs no store
			a.out, a.result = true, &ratelimit.LimitResult{Name: a.ask.Name, OK: a.ask.Cost == 0 || p.gives, Shadow: a.set.Shadow, Period: a.set.Period}
			if !a.result.OK {
				a.result.RetryAfter = ratelimit.Never
				if !a.set.Shadow {
					refusing = append(refusing, a)
				}
			}
		}
	}
	res := ratelimit.Result{At: r.At}
	if r.At.IsZero() {
		res.At = time.Now()
	}
	var due time.Time
	if r.Within > 0 {
		due = time.Now().Add(r.Within)
	}
	for {
		if len(refusing) > 0 && !p.leaveOut(refusing) {
			return p.tell(r, res, false), nil
		}
		q := ratelimit.Question{Key: p.key, Cost: r.Cost, At: r.At, AnswerBy: due}
		var asked []*ask
		for i := range p.asks {
			if a := &p.asks[i]; !a.out {
				q.Asks, asked = append(q.Asks, a.ask), append(asked, a)
			}
		}
		if len(asked) == 0 {
			return p.tell(r, res, true), nil
		}
		var err error
		switch {
		case p.gives:
			res, err = p.decider.GiveBack(ctx, q)
		case p.receipt != nil:
			res, *p.receipt, err = p.decider.Reserve(ctx, q)
		default:
			res, err = p.decider.Decide(ctx, q)
		}
		if err != nil {
			return Decision{}, err
		}
		refusing = refusing[:0]
		results := res.Limits()
		for i, a := range asked {
			if a.result = &results[i]; !a.result.OK && !a.result.Shadow {
				refusing = append(refusing, a)
			}
		}
		if res.OK || len(refusing) == 0 {
			return p.tell(r, res, res.OK), nil
		}
	}
}

// leaveOut leaves out the refusing quotas. It reports whether the request may be allowed
// without them.
func (p *plan) leaveOut(refusing []*ask) bool {
	for _, a := range refusing {
		for _, m := range a.matches {
			if !p.rules[m].quota {
				return false
			}
		}
	}
	for i := range p.asks {
		if a := &p.asks[i]; slices.ContainsFunc(a.matches, p.spent) {
			a.out = true
		}
	}
	for m, one := range p.rules {
		if one != nil && one.quota && !p.spent(m) {
			return true
		}
	}
	return false
}

// spent reports whether a limit of a match, other than a shadow, refuses.
func (p *plan) spent(match int) bool {
	for i := range p.asks {
		a := &p.asks[i]
		if a.result != nil && !a.result.OK && !a.set.Shadow && slices.Contains(a.matches, match) {
			return true
		}
	}
	return false
}

// quotaAfter is the time until a quota has room: 0 if one has or there is none.
func (p *plan) quotaAfter() time.Duration {
	first, some := ratelimit.Never, false
	for m, one := range p.rules {
		if one == nil || !one.quota {
			continue
		}
		var own time.Duration // all limits of a quota must have room
		for i := range p.asks {
			if a := &p.asks[i]; a.result != nil && !a.result.OK && !a.set.Shadow && slices.Contains(a.matches, m) {
				own = max(own, a.result.RetryAfter)
			}
		}
		first, some = min(first, own), true
	}
	if !some {
		return 0
	}
	return first
}

// tell makes the decision from the results of the limits.
func (p *plan) tell(r Request, res ratelimit.Result, ok bool) Decision {
	res.OK, res.Key, res.Cost = ok, p.key, r.Cost
	res.Near, res.WouldRefuse = false, false
	res.Wait, res.RetryAfter, res.ResetAfter = 0, 0, 0
	var one *ratelimit.LimitResult
	for i := range p.asks {
		a := &p.asks[i]
		if a.result == nil {
			continue
		}
		quota := true // its refusal is one of several
		for _, m := range a.matches {
			match := &p.matches[m]
			match.Limits, match.Set = append(match.Limits, *a.result), append(match.Set, a.set)
			match.OK = match.OK && (a.result.OK || a.set.Shadow)
			quota = quota && p.rules[m].quota
		}
		switch {
		case a.set.Shadow:
			res.WouldRefuse = res.WouldRefuse || !a.result.OK
			continue
		case ok && a.out && a.set.N > 0: // it is allowed without this quota
			continue
		case ok:
			res.Wait = max(res.Wait, a.result.Wait)
		case !a.result.OK && !quota:
			res.RetryAfter = max(res.RetryAfter, a.result.RetryAfter)
		}
		res.Near = res.Near || a.result.Near
		res.ResetAfter = max(res.ResetAfter, a.result.ResetAfter)
		if one == nil || tighter(a.result, one) {
			one = a.result
		}
	}
	if !ok {
		res.RetryAfter = max(res.RetryAfter, p.quotaAfter())
	}
	if one == nil {
		one = &ratelimit.LimitResult{Limit: math.MaxInt64, Remaining: math.MaxInt64}
	}
	res.Name, res.Limit, res.Period, res.Remaining, res.NextAfter = one.Name, one.Limit, one.Period, one.Remaining, one.NextAfter
	return Decision{res, p.matches}
}

// tighter reports whether a refuses for longer than b, or else is nearer to a refusal.
func tighter(a, b *ratelimit.LimitResult) bool {
	switch {
	case a.OK != b.OK:
		return !a.OK
	case !a.OK && a.RetryAfter != b.RetryAfter:
		return a.RetryAfter > b.RetryAfter
	}
	return a.Remaining < b.Remaining
}
