package ratelimit

import (
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// standing is how one limit stands.
type standing struct {
	limit Limit
	full  time.Time // a bucket: when it is full, or the queue empty
	left  int64     // a window: how much there is now
	more  time.Time // a window: when there will be more
}

func (s *standing) bucket() bool {
	return s.limit.rule.Algorithm == limits.TokenBucket || s.queue()
}

func (s *standing) queue() bool { return s.limit.rule.Algorithm == limits.LeakyBucket }

// span is how long a bucket takes for so much.
func (s *standing) span(cost int64) time.Duration {
	us, ok := share(cost, s.limit.rule.Period.Microseconds(), s.limit.rule.N)
	if !ok {
		return longestTurn
	}
	return time.Duration(us) * time.Microsecond
}

// longestTurn is how far ahead turns are reckoned with.
const longestTurn = 100 * 365 * 24 * time.Hour

// turn is when the turn for so much comes, behind ahead of others who wait: in the past if it
// can be at once.
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

// over is how much later a queue has room for so much.
func (s *standing) over(cost, ahead int64, now time.Time) time.Duration {
	return later(s.full, now).Sub(now) + s.span(ahead) + s.span(cost) - s.span(s.limit.rule.Burst)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// take notes that so much is asked for.
func (s *standing) take(n int64, now time.Time) {
	cost := s.limit.cost(n)
	if s.bucket() {
		s.full = later(s.full, now).Add(s.span(cost))
	} else {
		s.left -= cost
	}
}
