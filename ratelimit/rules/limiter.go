package rules

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
)

// A Limiter decides about requests by rules. All methods are safe for concurrent use. It
// needs no Close; the caller closes the store.
//
// The key of a named rule's limit is that of a ratelimit.Limiter with a limit of the same
// name: the name of the rule, or with a named limit the rule's name, a dot and the
// limit's name. Both count together. The key for descriptions is {DOMAIN}/KEY=VALUE,…
// with the entries of the request.
type Limiter struct {
	store limits.Store
	opts  []ratelimit.Option
	now   atomic.Pointer[state]

	settles  *ratelimit.Decider
	mu       sync.Mutex
	deciders map[Failure]*ratelimit.Decider
}

// state is what Reload changes.
type state struct {
	rules    Rules
	compiled *compiled
	deciders map[Failure]*ratelimit.Decider
}

// New makes a Limiter. Its options are ratelimit.Observe and ratelimit.Logger. It sends
// no request to the store. It refuses rules with mistakes with Errors.
//
// If the store keeps overrides, the Limiter applies them: see ratelimit.Overridable.
// Rules with the same OnFailure share their looks. An override does not apply to a limit
// of 0, which needs no store.
func New(store limits.Store, r Rules, opts ...ratelimit.Option) (*Limiter, error) {
	if _, keeps := limits.OverriderOf(store); keeps {
		opts = append(slices.Clone(opts), ratelimit.Overridable())
	}
	l := &Limiter{store: store, opts: opts}
	var err error
	if l.settles, err = ratelimit.NewDecider(store); err != nil {
		return nil, err
	}
	if err := l.Reload(r); err != nil {
		return nil, err
	}
	return l, nil
}

// Reload changes the rules. What was taken stays taken under rules and limits with the
// same names, or in a domain with the same entries. After an error the Limiter keeps its
// rules.
func (l *Limiter) Reload(r Rules) error {
	c, problems := compile(r)
	if len(problems) > 0 {
		var all Errors
		for _, p := range problems {
			all = append(all, &Error{Where: p.where, Reason: p.reason})
		}
		return all
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	used := make(map[Failure]*ratelimit.Decider)
	use := func(f Failure) error {
		d := l.deciders[f] // it knows whether the store works
		if d == nil {
			var err error
			if d, err = ratelimit.NewDecider(l.store, append(f.options(), l.opts...)...); err != nil {
				return err
			}
		}
		used[f] = d
		return nil
	}
	for _, one := range c.rules {
		if err := use(one.failure); err != nil {
			return err
		}
	}
	for _, d := range c.domains {
		if err := use(d.failure); err != nil {
			return err
		}
	}
	l.deciders = used
	l.now.Store(&state{r, c, used})
	return nil
}

// Rules are the rules in force. The caller must not change them.
func (l *Limiter) Rules() Rules { return l.now.Load().rules }

// A Request asks for a decision: about a rule and a key, or about a domain and
// descriptions.
type Request struct {
	Rule string
	Key  string

	// Domain and Descriptions are a request to envoyproxy/ratelimit. A description
	// without a matching descriptor is allowed.
	Domain       string
	Descriptions []Description

	Tier string // "" is none
	Cost int64  // 0 is 1

	// Also are more rules that must allow the request: all allow it, or nothing is taken.
	// They must have the same OnFailure, else the error is a *RequestError: one decision
	// cannot follow both.
	Also []Part

	// At is the present, for tests and simulations. With the zero time the store
	// uses its clock.
	At time.Time

	// Within, unless 0, is how long the caller can wait for the decision. OnFailure
	// decides what the store has not decided by then. The request continues for as long
	// as OnFailure gives the store, so what it takes counts. Without an OnFailure the
	// error wraps context.DeadlineExceeded.
	Within time.Duration
}

// A Part is one more rule of a request, with its own key.
type Part struct {
	Rule, Key, Tier string
	Cost            int64 // 0 takes nothing
}

// An Entry is a part of a description.
type Entry struct{ Key, Value string }

// A Description is a descriptor of a request in envoyproxy/ratelimit.
type Description struct {
	Entries []Entry

	// Cost is the cost of this description, if not nil: Envoy's hits_addend. With 0 it
	// takes nothing, and is refused by a limit that was exceeded.
	Cost *int64

	// Limit, if not nil, replaces that of the rules.
	Limit *Limit
}

// Describe makes a Description of alternating keys and values. It panics at a key without
// a value.
func Describe(keysAndValues ...string) (d Description) {
	if len(keysAndValues)%2 != 0 {
		panic("rules: Describe: a key without a value")
	}
	for i := 0; i < len(keysAndValues); i += 2 {
		d.Entries = append(d.Entries, Entry{keysAndValues[i], keysAndValues[i+1]})
	}
	return d
}

// A Decision is the answer to a request.
type Decision struct {
	// Result is the decision of all limits together. If no limit was asked it is an OK
	// whose Limit and Remaining are math.MaxInt64.
	ratelimit.Result

	// Matches are the parts of the decision: one for the rule of the request and each of
	// Also, or one for each of its Descriptions, in order.
	Matches []Match
}

// A Match is the result of one rule.
type Match struct {
	// Rule is the name of the rule, or the path of the descriptor: "shop/path=/api/user".
	// It is "" if no rule matched, which is allowed.
	Rule string

	// Name is the name of the rule, even of a descriptor's rule.
	Name string

	OK        bool // the limits of the rule allow it, even if others refuse
	Unlimited bool // the rule has no limits
	Replaced  bool // another rule of the request replaces it

	// Limits are the results of the limits, in the order of the rule. One that is a
	// Shadow and not OK would have refused.
	Limits []ratelimit.LimitResult

	// Set are the same limits in the rules.
	Set []Limit
}

// Tightest is the index of the limit that refuses for longest, else of the one with the
// least remaining. It is -1 if all are shadows.
func (m Match) Tightest() int {
	best := -1
	for i := range m.Limits {
		if l := &m.Limits[i]; !l.Shadow && (best < 0 || tighter(l, &m.Limits[best])) {
			best = i
		}
	}
	return best
}

// Allow asks whether a request may proceed now. A refusal is no error and has consumed
// nothing. The error is an *UnknownError if the rules do not have what the request names,
// a *RequestError if the request is invalid, and otherwise one of
// ratelimit.Limiter.Allow.
//
// Under a LeakyBucket an allowed caller must wait for Decision.Wait before it acts.
func (l *Limiter) Allow(ctx context.Context, r Request) (Decision, error) {
	if r.Cost == 0 {
		r.Cost = 1
	}
	p, err := l.now.Load().plan(r)
	if err != nil {
		return Decision{}, err
	}
	return p.decide(ctx, r)
}

// Reserve is Allow for work whose cost is known only at its end: Settle settles the
// difference, if the decision is OK.
func (l *Limiter) Reserve(ctx context.Context, r Request) (Decision, ratelimit.Receipt, error) {
	if r.Cost == 0 {
		r.Cost = 1
	}
	p, err := l.now.Load().plan(r)
	if err != nil {
		return Decision{}, ratelimit.Receipt{}, err
	}
	p.receipt = new(ratelimit.Receipt)
	d, err := p.decide(ctx, r)
	return d, *p.receipt, err
}

// Settle settles what Reserve took, at any Limiter over the same store, with the actual
// cost: see ratelimit.Decider.Settle. It does so by the limits that were in force at
// Reserve.
func (l *Limiter) Settle(ctx context.Context, r ratelimit.Receipt, actual int64) error {
	return l.settles.Settle(ctx, r, actual)
}

// GiveBack returns what a request has taken: see ratelimit.Decider.GiveBack. The costs
// say how much; 0 is none.
func (l *Limiter) GiveBack(ctx context.Context, r Request) (Decision, error) {
	p, err := l.now.Load().plan(r)
	if err != nil {
		return Decision{}, err
	}
	p.gives = true
	return p.decide(ctx, r)
}

// Take is for servers whose clients choose by the sign of a cost: above 0 it is Allow, or
// Reserve if the cost is an estimate; below 0 GiveBack; and Peek for 0, which is no 1
// here. It refuses mixed signs with a *RequestError, and an estimate that is not the same
// cost, above 0, for all rules.
func (l *Limiter) Take(ctx context.Context, r Request, estimate bool) (d Decision, receipt ratelimit.Receipt, err error) {
	r.Also = slices.Clone(r.Also)
	costs := []*int64{&r.Cost}
	for i := range r.Also {
		costs = append(costs, &r.Also[i].Cost)
	}
	takes, gives := false, false
	for _, cost := range costs {
		takes, gives = takes || *cost > 0, gives || *cost < 0
		switch {
		case estimate && (*cost < 1 || *cost != r.Cost):
			return d, receipt, &RequestError{"an estimate is one cost, above 0, of all rules"}
		case *cost == math.MinInt64:
			return d, receipt, &RequestError{fmt.Sprintf("no limit counts %d", *cost)}
		case takes && gives:
			return d, receipt, &RequestError{"costs above 0 take and costs below 0 give back: they are two requests"}
		}
	}
	switch {
	case estimate:
		return l.Reserve(ctx, r)
	case gives:
		for _, cost := range costs {
			*cost = -*cost
		}
		d, err = l.GiveBack(ctx, r)
	default: // not Allow: the first may take nothing
		var p *plan
		if p, err = l.now.Load().plan(r); err == nil {
			d, err = p.decide(ctx, r)
		}
	}
	return d, receipt, err
}

// Peek returns the state for a request. It takes nothing and adds no key.
func (l *Limiter) Peek(ctx context.Context, r Request) (Decision, error) {
	r.Cost = 0
	r.Also = slices.Clone(r.Also)
	for i := range r.Also {
		r.Also[i].Cost = 0
	}
	r.Descriptions = slices.Clone(r.Descriptions)
	for i := range r.Descriptions {
		r.Descriptions[i].Cost = nil
	}
	p, err := l.now.Load().plan(r)
	if err != nil {
		return Decision{}, err
	}
	return p.decide(ctx, r)
}

// Forget resets what the request counts. It does not change limits that count ForAll.
func (l *Limiter) Forget(ctx context.Context, r Request) error {
	p, err := l.now.Load().plan(r)
	if err != nil {
		return err
	}
	q := ratelimit.Question{Key: p.key, At: r.At}
	for _, a := range p.asks {
		if !a.set.ForAll && a.set.N > 0 {
			q.Asks = append(q.Asks, a.ask)
		}
	}
	if len(q.Asks) == 0 {
		return nil
	}
	return p.decider.Forget(ctx, q)
}
