package acquire

import (
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/leasemath"
)

const (
	// MinPause is the shortest pause. A pause in proportion to the time left would become
	// a busy loop just before a loss.
	MinPause = 5 * time.Millisecond

	maxPause = 500 * time.Millisecond

	// MinTries is how many requests must fail before a wait is given up.
	MinTries = 2

	// pollAgain is when a waiter sends another request beside one without an answer. It
	// continues to wait for the first one: a distant store answers all of them. The
	// position, or a grant that the store made on its own, stays valid while the requests
	// arrive in time.
	pollAgain = 700 * time.Millisecond

	// pollPatience is when such a request is given up. A later answer would be about a
	// position that has expired, or that a later request has renewed.
	pollPatience = driver.WaiterTTL + driver.ClaimTTL

	// maxInFlight is the greatest number of concurrent requests about one claim.
	maxInFlight = 5
)

// Bounds of the hand-overs within one process before another process gets the lock.
// leasemath.TokensPerGrant leaves room for their tokens.
const (
	maxHandOvers = 32
	maxLocalTime = 250 * time.Millisecond
)

// A Moment is a time since shortly before its Locker was made. Zero means no moment.
type Moment time.Duration

func (m Moment) Add(d time.Duration) Moment { return m + Moment(d) }
func (m Moment) Sub(n Moment) time.Duration { return time.Duration(m - n) }

// floor rounds m down to a multiple of quantum, so that events due at about the same time
// are handled together.
func (m Moment) floor(quantum time.Duration) Moment {
	if quantum > 0 {
		m -= m % Moment(quantum)
	}
	return m
}

// A Clock returns the moments of one Locker, by package bootclock.
type Clock struct{ base time.Time }

func NewClock() Clock { return Clock{bootclock.Now().Add(-time.Second)} }

func (c Clock) Now() Moment { return Moment(bootclock.Now().Sub(c.base)) }

// At returns m as a time of bootclock.
func (c Clock) At(m Moment) time.Time { return c.base.Add(time.Duration(m)) }

// Terms are the durations of acquisitions. They are constant.
type Terms struct {
	TTL, Margin, LockDelay, MaxHold, MinHold time.Duration

	Jitter func(time.Duration) time.Duration // a random duration that is shorter
}

// Same reports whether two Terms of one Locker come from the same options.
func (t *Terms) Same(o *Terms) bool { return t.TTL == o.TTL && t.MinHold == o.MinHold }

// StoreTTL is the TTL that the store is asked for.
func (t *Terms) StoreTTL() time.Duration { return t.TTL + t.LockDelay }

// TrustFor is how long the process may rely on a grant with this ttl. For a shorter ttl
// than asked for it is at least half, so that there is time to renew.
func (t *Terms) TrustFor(ttl time.Duration) time.Duration {
	ttl -= min(max(ttl-t.TTL, 0), t.LockDelay)
	return ttl - min(t.Margin, ttl/2)
}

// renewAt is when to renew a grant with this ttl: a third of it (without LockDelay) after
// the request was sent, or earlier. All leases are renewed at the same ticks, so that one
// request renews all.
func (t *Terms) renewAt(sent Moment, ttl time.Duration) Moment {
	every := min(ttl, t.TTL) / 3
	return sent.Add(every).floor(every)
}

// shortClaims reports whether the process may rely on a short grant that the store made
// on its own. It may not with more than the default margin, or if the lock must stay
// taken for LockDelay after a crash.
func (t *Terms) shortClaims() bool {
	return t.LockDelay == 0 && t.Margin <= leasemath.Margin(t.TTL)
}

// Patience is how long a Lock call waits for a store that is out of reach: long enough
// for a failover.
func (t *Terms) Patience() time.Duration { return max(t.TTL, 5*time.Second) }

// Acquiring bounds one attempt: with the quarter that bound.Contexts may add, half of the
// TTL. A grant that takes longer must be renewed before use anyway.
func (t *Terms) Acquiring() time.Duration { return t.TTL * 2 / 5 }

// Releasing bounds one release.
func (t *Terms) Releasing() time.Duration {
	return min(max(t.TTL/2, 500*time.Millisecond), 2*time.Second)
}

// Pause is the time until the next request to a store that has failed for the time
// failing. It is about a quarter of that: a short outage ends soon, and a long one causes
// few requests.
func (t *Terms) Pause(failing time.Duration) time.Duration { return t.PauseUpTo(failing, maxPause) }

// PauseUpTo is Pause with another maximum.
func (t *Terms) PauseUpTo(failing, most time.Duration) time.Duration {
	d := min(max(failing/4, MinPause), most)
	return d/2 + t.Jitter(d)
}

// pollEvery is the period in which a waiter renews its position, after the answer g.
func pollEvery(g driver.Grant) time.Duration {
	if g.Again > 0 {
		return min(max(g.Again, time.Millisecond), driver.RefreshEvery)
	}
	return driver.RefreshEvery
}

// An Outage is a time in which the store answers no front of a local queue. It is one for
// all goroutines of the queue, even if several become the front meanwhile. The zero
// Outage is none.
type Outage struct {
	Since Moment
	Tries int   // requests without an answer; counted because this process may have been paused meanwhile
	Err   error // the last one
}

func (o *Outage) failed(sent Moment, err error) Outage {
	if o.Tries == 0 {
		o.Since = sent
	}
	o.Tries++
	o.Err = err
	return *o
}

// AsSeenBy is the outage for a caller that joined the queue at came, or, if came is zero,
// before the outage was known.
func (o Outage) AsSeenBy(came Moment) Outage {
	o.Since = max(o.Since, came)
	return o
}

// Over reports whether the outage has lasted long enough to give up.
func (o Outage) Over(now Moment, patience time.Duration) bool {
	return now.Sub(o.Since) >= patience && o.Tries >= MinTries
}
