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

// A Limiter decides about requests by rules. All methods are safe for concurrent
// use. It needs no Close; the caller closes the store.
//
// A limit of a named rule counts under the key that a ratelimit.Limiter with a limit
// of the same name gives it, which is the name of the rule, with a dot and the name
// of the limit if that has one: both count together. What is described counts under
// {DOMAIN}/KEY=VALUE,… with the entries of the request.
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

// New makes a Limiter. Its options are ratelimit.Observe and ratelimit.Logger. It
// never talks to the store. It refuses rules that are not right with Errors.
//
// If the store keeps overrides, the Limiter obeys them, as ratelimit.Overridable says: the
// rules that share an OnFailure look together. No override reaches a limit of 0, about
// which no store is asked.
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

// Reload decides by other rules from now on. What was taken stays taken under rules
// and limits whose names, or in a domain whose entries, stay the same. After an
// error the Limiter goes on with the rules that it has.
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
		d := l.deciders[f] // continues: it knows whether the store works
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

// A Request is what a decision is about: a rule and the key that it counts, or a
// domain and what is described.
type Request struct {
	Rule string
	Key  string

	// Domain and Descriptions are a request to envoyproxy/ratelimit. A description
	// that no descriptor matches is allowed.
	Domain       string
	Descriptions []Description

	Tier string // "" is none
	Cost int64  // 0 is 1

	// Also are further rules that the request asks: all of them allow it, or none is
	// taken from. Those that do not decide alike when the store fails are a
	// *RequestError, as one decision cannot obey both.
	Also []Part

	// At is the present, for tests and simulations. With the zero time the store
	// uses its clock.
	At time.Time

	// Within, unless 0, is how long the caller can wait for the decision. What the store
	// has not decided by then OnFailure decides. The request goes on for as long as
	// OnFailure gives the store, so that what it takes counts. A rule without an OnFailure
	// gives an error that wraps context.DeadlineExceeded.
	Within time.Duration
}

// A Part is one more rule of a request, with a key of its own.
type Part struct {
	Rule, Key, Tier string
	Cost            int64 // 0 takes nothing
}

// An Entry is a part of a description.
type Entry struct{ Key, Value string }

// A Description is what envoyproxy/ratelimit calls a descriptor of a request.
type Description struct {
	Entries []Entry

	// Cost is that of this description, if it has one: the hits_addend of Envoy.
	// With 0 it takes nothing, and is refused by what is used up beyond its limit.
	Cost *int64

	// Limit, if it is there, is used in place of the one that the rules have.
	Limit *Limit
}

// Describe makes a Description of keys and values, alternating. It panics if there
// is a key without a value.
func Describe(keysAndValues ...string) (d Description) {
	if len(keysAndValues)%2 != 0 {
		panic("rules: Describe: a key without a value")
	}
	for i := 0; i < len(keysAndValues); i += 2 {
		d.Entries = append(d.Entries, Entry{keysAndValues[i], keysAndValues[i+1]})
	}
	return d
}

// A Decision is what the rules say about a request.
type Decision struct {
	// Result is the decision of all limits together. If no limit was asked it is an
	// OK whose Limit and Remaining are math.MaxInt64.
	ratelimit.Result

	// Matches say what was decided by: one for the rule of the request and each in Also,
	// or one for each of its Descriptions, in their order.
	Matches []Match
}

// A Match is what one rule says.
type Match struct {
	// Rule is the name of the rule, or the way to the descriptor:
	// "shop/path=/api/user". It is "" if nothing matched, which is allowed.
	Rule string

	// Name is that of the rule: of a descriptor's rule the name that it may have.
	Name string

	OK        bool // the limits of the rule have room, whether or not others refuse
	Unlimited bool // the rule has no limits
	Replaced  bool // another rule of the request replaces it

	// Limits is what each limit says, in the order of the rule. One that is a Shadow
	// and not OK would have refused.
	Limits []ratelimit.LimitResult

	// Set are the same limits, as the rules have them.
	Set []Limit
}

// Tightest is the place of the limit that says most: the one that refuses for longest, else
// the one with the least remaining. It is -1 if there is none but shadows.
func (m Match) Tightest() int {
	best := -1
	for i := range m.Limits {
		if l := &m.Limits[i]; !l.Shadow && (best < 0 || tighter(l, &m.Limits[best])) {
			best = i
		}
	}
	return best
}

// Allow asks whether a request may go on now. A refusal is no error and has consumed
// nothing. It is an *UnknownError if the rules do not have what the request names, a
// *RequestError if the request makes no sense, and otherwise the errors of
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

// Reserve is Allow for work whose cost is known only when it is over: Settle settles the
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

// Settle settles what Reserve took, at this Limiter or at another one over the same store,
// with the actual cost: see ratelimit.Decider.Settle. It does so by the limits that were in
// force then.
func (l *Limiter) Settle(ctx context.Context, r ratelimit.Receipt, actual int64) error {
	return l.settles.Settle(ctx, r, actual)
}

// GiveBack returns what a request has taken: see ratelimit.Decider.GiveBack. The costs are
// how much; 0 is none.
func (l *Limiter) GiveBack(ctx context.Context, r Request) (Decision, error) {
	p, err := l.now.Load().plan(r)
	if err != nil {
		return Decision{}, err
	}
	p.gives = true
	return p.decide(ctx, r)
}

// Take is for servers whose clients say by the sign of a cost what they want: above 0 it is
// Allow, or Reserve if the cost is an estimate, below 0 GiveBack, and Peek if it is 0, which
// stands for no 1 here. It refuses with a *RequestError what is both, and an estimate that
// is not one cost, above 0, of all rules.
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
	default: // not by Allow: the first may take nothing
		var p *plan
		if p, err = l.now.Load().plan(r); err == nil {
			d, err = p.decide(ctx, r)
		}
	}
	return d, receipt, err
}

// Peek tells how a request stands. It takes nothing and adds no key.
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

// Forget makes what the request counts fresh. It does not change limits that count
// ForAll.
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
