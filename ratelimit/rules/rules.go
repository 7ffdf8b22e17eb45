package rules

import (
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
)

// Rules are the rules of a Limiter, written in code, or from Load, Parse or a File. The
// zero Rules are empty. A Limiter keeps them: the caller must not change the slices and
// maps later.
type Rules struct {
	Rules   []Rule
	Domains []Domain
}

// A Rule is a set of limits that must all allow a request.
type Rule struct {
	// Name is the rule's name in a Request: up to 40 of A-Z a-z 0-9 - _ and dots. The
	// rule of a descriptor needs none: there it is the name for the Replaces of other
	// rules, may be any text, and several may share it.
	Name string

	// Limits are for requests whose key and tier have none of their own. Without any the
	// rule allows everything if Unlimited, otherwise only keys and tiers that have some.
	Limits    []Limit
	Unlimited bool

	// Tiers have limits in place of Limits. An empty list is no limit. A limit counts
	// together with those of the same name in other tiers, so that what a key has taken
	// stays taken when its tier changes.
	Tiers map[string][]Limit

	// Keys have limits in place of those of their tier. An empty list is no limit. The
	// rule of a descriptor has none: see Descriptor.Value.
	Keys map[string][]Limit

	// Replaces are the names of rules that this rule removes from a decision. Only rules
	// of descriptors replace.
	Replaces []string

	// OnFailure says what happens when the store fails. For rules of descriptors that of
	// their Domain applies.
	OnFailure Failure
}

// A Limit is one limit of a rule, as settings of a ratelimit.Limit.
type Limit struct {
	// Name distinguishes the limits of one rule. One of them may have none. It is a part
	// of the keys in the store, together with the name of the rule: at most 40 bytes with
	// that and a dot.
	Name string

	N      int64         // 0: none is allowed
	Period time.Duration // whole microseconds

	// Calendar replaces Period by days and more, in Zone (nil is UTC). Only a FixedWindow
	// has one.
	Calendar Calendar
	Zone     *time.Location

	// Algorithm defaults to SlidingWindow, or to FixedWindow with a Calendar.
	Algorithm limits.Algorithm

	Burst   int64         // of a TokenBucket; 0 is N
	MaxWait time.Duration // of a LeakyBucket: the longest wait for a turn; 0 is Period
	Ahead   int64         // of a LeakyBucket
	Parts   int64         // of a SlidingWindow; 0 is ten or sixty
	Classic bool          // of a SlidingWindow
	Offset  time.Duration // of a FixedWindow

	ForAll  bool // counts all keys together; not for the rule of a descriptor
	PerCall bool // counts each request as one, at any cost

	Shadow bool    // counts, and never refuses: see ratelimit.Limit.Shadow
	Warn   float64 // the used share at which Decision.Near is true; 0 is never
}

// A Calendar is a period of the calendar.
type Calendar uint8

const (
	Day Calendar = iota + 1
	Week
	Month
	Year
)

func (c Calendar) String() string {
	return [...]string{"", "day", "week", "month", "year"}[min(c, Year)]
}

// A Failure says what happens when the store fails, as the options of package ratelimit
// do. The zero Failure makes it an error.
type Failure struct {
	By        ratelimit.Source // ByOpen, ByClosed, ByLocal, or 0
	After     time.Duration    // how long the store may take to answer
	Instances int64            // ByLocal: how many processes share the limits
}

func (f Failure) options() []ratelimit.Option {
	switch f.By {
	case ratelimit.ByOpen:
		return []ratelimit.Option{ratelimit.FailOpen(f.After)}
	case ratelimit.ByClosed:
		return []ratelimit.Option{ratelimit.FailClosed(f.After)}
	case ratelimit.ByLocal:
		return []ratelimit.Option{ratelimit.FailLocal(f.Instances, f.After)}
	}
	return nil
}

// A Domain is a tree of descriptors, as in a configuration of envoyproxy/ratelimit.
type Domain struct {
	Name        string // at most 80 bytes
	Descriptors []Descriptor
	OnFailure   Failure
}

// A Descriptor matches one entry of a description. Its Rule is for requests that end with
// that entry, its Descriptors are for longer ones.
//
// In a list the descriptor with the entry's key and value matches; otherwise the first
// with the key and a pattern that fits; otherwise the one with the key and no value. Each
// * of a pattern stands for any text, even none.
type Descriptor struct {
	Key   string
	Value string // "" matches every value, and counts each by itself

	// Rule may be nil: a request that ends here is allowed.
	Rule *Rule

	Shadow bool // all limits of the Rule count and never refuse

	// Quota makes the Rule one of several pools: a request whose descriptors match
	// several such rules is refused when all of them refuse, and takes from those that
	// allow it.
	Quota bool

	// Share makes all values that match the pattern of Value count together.
	Share bool

	Descriptors []Descriptor
}
