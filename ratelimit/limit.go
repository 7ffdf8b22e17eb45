package ratelimit

import (
	"fmt"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
)

// A Limit is a rule of a Limiter: n per period, counted by an algorithm. Its methods
// return changed copies. New refuses a Limit that cannot be kept exactly.
type Limit struct {
	rule     limits.Limit
	name     string
	calendar calendar
	all      bool
	calls    bool
	shadow   bool
	warn     float64 // 0: none
	err      error

	longest    time.Duration // LeakyBucket: the longest wait in its queue
	overridden bool          // by an override
	blocked    bool          // by an override that allows nothing
}

// FixedWindow allows n in every window of a period. Windows begin at multiples of the
// period since 1 January 1970, 0:00 UTC. Around a boundary up to 2·n are allowed within
// less than a period.
func FixedWindow(n int64, period time.Duration) Limit {
	return Limit{rule: limits.Limit{Algorithm: limits.FixedWindow, N: n, Period: period}}
}

// SlidingWindow allows n within any stretch of time that is a period long. It counts in
// sub-windows: ten if the period is at most ten seconds, else sixty. What was taken comes
// back when its sub-window has left the period, so up to a tenth or a sixtieth of the
// period late.
func SlidingWindow(n int64, period time.Duration) Limit {
	return Limit{rule: limits.Limit{Algorithm: limits.SlidingWindow, N: n, Period: period, Parts: usualParts(period)}}
}

func usualParts(period time.Duration) int64 {
	parts := int64(60)
	if period <= 10*time.Second {
		parts = 10
	}
	for parts > 1 && period.Microseconds()%parts != 0 {
		parts--
	}
	return parts
}

// SlidingLog allows n within any stretch of time that is a period long, to the
// microsecond. It remembers each request, so n is at most 10 000.
func SlidingLog(n int64, period time.Duration) Limit {
	return Limit{rule: limits.Limit{Algorithm: limits.SlidingLog, N: n, Period: period}}
}

// EstimatedWindow estimates a sliding window from two counters, as if the requests of the
// last fixed window had come evenly
// (https://blog.cloudflare.com/counting-things-a-lot-of-different-things/). It allows
// less than 2·n within any stretch that is a period long, and may refuse what
// SlidingWindow allows.
func EstimatedWindow(n int64, period time.Duration) Limit {
	return Limit{rule: limits.Limit{Algorithm: limits.EstimatedWindow, N: n, Period: period}}
}

// TokenBucket holds up to burst tokens and is refilled with n per period, evenly (GCRA:
// https://en.wikipedia.org/wiki/Generic_cell_rate_algorithm). It allows at most burst +
// n·t/period within any time t. To allow at most m in any period, choose a burst and an n
// whose sum is m.
func TokenBucket(n int64, period time.Duration, burst int64) Limit {
	return Limit{rule: limits.Limit{Algorithm: limits.TokenBucket, N: n, Period: period, Burst: burst}}
}

// LeakyBucket allows n per period, evenly. A request that comes sooner is queued if its
// turn comes within longest, otherwise it is refused: the queue's size is
// n·longest/period, at least one. Result.Wait is the time until its turn. Limiter.Wait
// waits for it; a caller of Allow must wait by itself.
func LeakyBucket(n int64, period, longest time.Duration) Limit {
	l := Limit{rule: limits.Limit{Algorithm: limits.LeakyBucket, N: n, Period: period}, longest: longest}
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

// Parts sets the number of sub-windows of a SlidingWindow. It must divide the period.
func (l Limit) Parts(parts int64) Limit {
	l.rule.Parts = parts
	return l
}

// Classic makes a SlidingWindow count one sub-window less, as most books do: what was
// taken comes back up to one sub-window early, and up to 2·n may be allowed within a
// period.
func (l Limit) Classic() Limit {
	l.rule.Classic = true
	return l
}

// Offset makes the windows of a FixedWindow begin later by d.
func (l Limit) Offset(d time.Duration) Limit {
	l.rule.Offset = d
	return l
}

// Named gives the limit a name, for results and headers. The name becomes a part of its
// keys in the store. With several limits in a Limiter each needs a name, of up to 40 of
// the characters A-Z a-z 0-9 - _ and dots.
func (l Limit) Named(name string) Limit {
	l.name = name
	return l
}

// ForAll makes the limit count all keys of the Limiter together, under its name, which
// cannot be a caller's key.
func (l Limit) ForAll() Limit {
	l.all = true
	return l
}

// PerCall makes the limit count each decision as one, at any cost, so that a Limiter can
// limit both requests and their cost.
func (l Limit) PerCall() Limit {
	l.calls = true
	return l
}

// check refuses a limit that cannot be kept.
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

func (l Limit) at(now time.Time) limits.Limit {
	if l.calendar.unit == 0 {
		return l.rule
	}
	r := l.rule
	r.Windows = l.calendar.around(now)
	return r
}

// cost is the cost under the limit of a decision about n.
func (l Limit) cost(n int64) int64 {
	if l.calls {
		return min(n, 1)
	}
	return n
}

// asks is the cost to ask the store for: if an override allows nothing, more than the
// store ever gives.
func (l Limit) asks(n int64) int64 {
	if l.blocked && n > 0 {
		return l.rule.Capacity() + 1
	}
	return l.cost(n)
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
	if l.shadow {
		s += ", shadow"
	}
	if l.name != "" {
		s = l.name + ": " + s
	}
	return s
}
