package ratelimit

import (
	"fmt"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
)

// A Limit is a rule of a Limiter: so many per period, counted by an algorithm.
// Its methods return changed copies. A Limit that cannot be kept exactly is
// refused by New.
type Limit struct {
	rule     limits.Limit
	name     string
	calendar calendar
	all      bool
	calls    bool
	err      error
}

// FixedWindow allows n in every window of a period. Windows begin at multiples of
// the period since 1 January 1970, 0:00 UTC. Around a boundary up to 2·n are
// allowed within less than a period.
func FixedWindow(n int64, period time.Duration) Limit {
	return Limit{rule: limits.Limit{Algorithm: limits.FixedWindow, N: n, Period: period}}
}

// SlidingWindow allows n within any stretch of time that is a period long, by
// sub-windows: ten of them if the period is at most ten seconds, else sixty. What
// was taken comes back when its sub-window has left the period, so up to a tenth
// or a sixtieth of the period late.
func SlidingWindow(n int64, period time.Duration) Limit {
	parts := int64(60)
	if period <= 10*time.Second {
		parts = 10
	}
	for parts > 1 && period.Microseconds()%parts != 0 {
		parts--
	}
	return Limit{rule: limits.Limit{Algorithm: limits.SlidingWindow, N: n, Period: period, Parts: parts}}
}

// SlidingLog allows n within any stretch of time that is a period long, to the
// microsecond. It remembers each request, so n is at most 10 000.
func SlidingLog(n int64, period time.Duration) Limit {
	return Limit{rule: limits.Limit{Algorithm: limits.SlidingLog, N: n, Period: period}}
}

// EstimatedWindow estimates a sliding window from two counters, as if what came
// in the last fixed window had come evenly. It allows less than 2·n within
// any stretch that is a period long, and may refuse what SlidingWindow allows.
func EstimatedWindow(n int64, period time.Duration) Limit {
	return Limit{rule: limits.Limit{Algorithm: limits.EstimatedWindow, N: n, Period: period}}
}

// TokenBucket holds up to burst tokens and is refilled with n per period, evenly
// (GCRA). It allows at most burst + n·t/period within any time t; for no more than
// n in any period, choose a burst and an n that add up to that.
func TokenBucket(n int64, period time.Duration, burst int64) Limit {
	return Limit{rule: limits.Limit{Algorithm: limits.TokenBucket, N: n, Period: period, Burst: burst}}
}

// LeakyBucket lets n per period through, evenly. Whoever asks sooner is queued if
// his turn comes within longest, which makes the queue's size n·longest/period, at
// least one; else he is refused. Result.Wait says how long his turn is away:
// Limiter.Wait waits for it, and whoever calls Allow has to do so by himself.
func LeakyBucket(n int64, period, longest time.Duration) Limit {
	l := Limit{rule: limits.Limit{Algorithm: limits.LeakyBucket, N: n, Period: period}}
	size, ok := share(longest.Microseconds(), n, period.Microseconds())
	if !ok {
		l.err = &limits.Error{Reason: fmt.Sprintf("%d per %v with waits of %v cannot be counted", n, period, longest)}
	}
	l.rule.Burst = max(size, 1)
	return l
}

// Ahead lets the first k of a LeakyBucket's queue through at once.
func (l Limit) Ahead(k int64) Limit {
	l.rule.Ahead = k
	return l
}

// Parts cuts the period of a SlidingWindow into so many sub-windows, which must
// divide it.
func (l Limit) Parts(parts int64) Limit {
	l.rule.Parts = parts
	return l
}

// Classic makes a SlidingWindow count one sub-window less, as most books have it:
// what was taken comes back up to one sub-window early, and up to 2·n are
// allowed within a period at worst.
func (l Limit) Classic() Limit {
	l.rule.Classic = true
	return l
}

// Offset makes the windows of a FixedWindow begin so much later.
func (l Limit) Offset(d time.Duration) Limit {
	l.rule.Offset = d
	return l
}

// Named gives the limit a name, for results and headers, which becomes a part
// of its keys in the store. A Limiter with several limits needs one for each.
// Legal are up to 40 of A-Z a-z 0-9 - _ and dots.
func (l Limit) Named(name string) Limit {
	l.name = name
	return l
}

// ForAll makes the limit count all keys of the Limiter together, under its name,
// which is no caller's key.
func (l Limit) ForAll() Limit {
	l.all = true
	return l
}

// PerCall makes the limit count each decision as one, whatever its cost: so
// that requests and what they cost can be limited at once.
func (l Limit) PerCall() Limit {
	l.calls = true
	return l
}

// check refuses what cannot be kept.
func (l Limit) check(now time.Time) error {
	if l.err != nil {
		return l.err
	}
	if len(l.name) > 40 {
		return &limits.Error{Reason: fmt.Sprintf("the name %q is too long: at most 40 bytes", l.name)}
	}
	for i := range len(l.name) {
		switch c := l.name[i]; {
		case 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		default:
			return &limits.Error{Reason: fmt.Sprintf("the name %q has a character other than A-Z a-z 0-9 - _ and dots", l.name)}
		}
	}
	_, err := rate.Of(l.at(now))
	return err
}

// at is the rule at a moment.
func (l Limit) at(now time.Time) limits.Limit {
	if l.calendar.unit == 0 {
		return l.rule
	}
	r := l.rule
	r.Windows = l.calendar.around(now)
	return r
}

// cost is what a decision about n costs under the limit.
func (l Limit) cost(n int64) int64 {
	if l.calls {
		return min(n, 1)
	}
	return n
}

// String describes the limit: "sliding-window 100 per 1m0s".
func (l Limit) String() string {
	s := fmt.Sprintf("%v %d per ", l.rule.Algorithm, l.rule.N)
	if l.calendar.unit != 0 {
		s += l.calendar.String()
	} else {
		s += l.rule.Period.String()
	}
	if l.rule.Burst > 0 {
		s += fmt.Sprintf(", burst %d", l.rule.Burst)
	}
	if l.name != "" {
		s = l.name + ": " + s
	}
	return s
}
