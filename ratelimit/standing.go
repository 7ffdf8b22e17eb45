package ratelimit

import (
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// standing is the state of one limit.
type standing struct {
	limit Limit
	full  time.Time // bucket: when it is full; queue: when it is empty
	left  int64     // window: how much remains
	more  time.Time // window: when more comes back
}

func (s *standing) bucket() bool {
	return s.limit.rule.Algorithm == limits.TokenBucket || s.queue()
}

func (s *standing) queue() bool { return s.limit.rule.Algorithm == limits.LeakyBucket }

// span is the time in which cost flows into a bucket.
func (s *standing) span(cost int64) time.Duration {
	us, ok := share(cost, s.limit.rule.Period.Microseconds(), s.limit.rule.N)
	if !ok {
		return longestTurn
	}
	return time.Duration(us) * time.Microsecond
}

const longestTurn = 100 * 365 * 24 * time.Hour

// turn is the time of the turn for cost, behind waiters for ahead. It is in the past if
// the turn can be at once.
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

// over is the time until a queue has room for cost.
func (s *standing) over(cost, ahead int64, now time.Time) time.Duration {
	return later(s.full, now).Sub(now) + s.span(ahead) + s.span(cost) - s.span(s.limit.rule.Burst)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// take notes a request for n.
func (s *standing) take(n int64, now time.Time) {
	cost := s.limit.cost(n)
	if s.bucket() {
		s.full = later(s.full, now).Add(s.span(cost))
	} else {
		s.left -= cost
	}
}
