package redislock

import (
	"errors"
	"sync/atomic"
	"time"
)

// ErrOption refuses a Refresh with another Token or Metadata than the lock's, which the
// original library ignores.
var ErrOption = errors.New("a lock keeps its token and metadata: pass the same ones, or none")

// Options are those of Obtain and Refresh. The zero Options, and nil, are ready to use.
type Options struct {
	// RetryStrategy says when to try again. Defaults to one attempt.
	RetryStrategy RetryStrategy

	// Metadata is the shown owner: at most 128 bytes of printable UTF-8.
	Metadata string

	// Token identifies the holder: callers with the same one hold the lock together, and
	// any of them releases it. Defaults to a random one.
	Token string
}

// A RetryStrategy says how long to wait before the next attempt.
type RetryStrategy interface {
	// NextBackoff is the next wait. Less than a nanosecond ends the attempts.
	NextBackoff() time.Duration
}

type linear time.Duration

func (l linear) NextBackoff() time.Duration { return time.Duration(l) }

// LinearBackoff tries again after the same time, without an end.
func LinearBackoff(backoff time.Duration) RetryStrategy { return linear(backoff) }

// NoRetry makes one attempt.
func NoRetry() RetryStrategy { return linear(0) }

type limited struct {
	of   RetryStrategy
	left atomic.Int64
}

// LimitRetry allows max more attempts. They are counted over all calls of Obtain with
// this strategy: make one for each call.
func LimitRetry(s RetryStrategy, max int) RetryStrategy {
	l := &limited{of: s}
	l.left.Store(int64(max))
	return l
}

func (l *limited) NextBackoff() time.Duration {
	if l.left.Add(-1) < 0 {
		l.left.Store(0)
		return 0
	}
	return l.of.NextBackoff()
}

type exponential struct {
	tries    atomic.Int64
	min, max time.Duration
}

// ExponentialBackoff waits for 4ms, 8ms, 16ms and so on, but at least min and, unless it
// is 0, at most max. Attempts are counted over all calls of Obtain with this strategy:
// make one for each call.
func ExponentialBackoff(min, max time.Duration) RetryStrategy {
	return &exponential{min: min, max: max}
}

func (e *exponential) NextBackoff() time.Duration {
	d := time.Millisecond << min(e.tries.Add(1)+1, 26)
	switch {
	case d < e.min:
		return e.min
	case e.max != 0 && d > e.max:
		return e.max
	}
	return d
}
