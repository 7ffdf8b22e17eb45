package ratelimit

import (
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// standing is how one limit stands.
type standing struct {
	limit Limit
	full  time.Time // of a bucket: when it is full; of a queue: when it is empty
	left  int64     // of a window: how much is left
	more  time.Time // of a window: when more comes back
}

func (s *standing) bucket() bool {
	return s.limit.rule.Algorithm == limits.TokenBucket || s.queue()
}

func (s *standing) queue() bool { return s.limit.rule.Algorithm == limits.LeakyBucket }

// span is how long a bucket takes to refill cost.
func (s *standing) span(cost int64) time.Duration {
	us, ok := share(cost, s.limit.rule.Period.Microseconds(), s.limit.rule.N)
	if !ok {
		return longestTurn
	}
	return time.Duration(us) * time.Microsecond
}

// longestTurn is the longest time until a turn that is computed.
const longestTurn = 100 * 365 * 24 * time.Hour

// turn is when the turn for cost comes, behind others who wait for ahead: in the
// past if it can be at once.
func (s *standing) turn(cost, ahead int64, now time.Time) time.Time {
	switch full := later(s.full, now); {
	case s.queue():
		return full.Add(s.span(ahead) - s.span(s.limit.rule.Ahead))
	case s.bucket():
		return full.Add(s.span(ahead) + s.span(cost) - s.span(s.limit.rule.Burst))
	case s.left-ahead >= cost:
		return now
	}
	return s.more
}

// over is how long until a queue has room for cost.
func (s *standing) over(cost, ahead int64, now time.Time) time.Duration {
	return later(s.full, now).Sub(now) + s.span(ahead) + s.span(cost) - s.span(s.limit.rule.Burst)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// take notes that n is asked for.
func (s *standing) take(n int64, now time.Time) {
	cost := s.limit.cost(n)
	if s.bucket() {
		s.full = later(s.full, now).Add(s.span(cost))
	} else {
		s.left -= cost
	}
}
