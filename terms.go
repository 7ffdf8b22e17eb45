package baton

import (
	"math/rand/v2"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

const (
	// minPause is the least of all pauses: one that shrinks with the time that
	// is left would become a busy loop just before a loss.
	minPause = 5 * time.Millisecond

	maxPause = 500 * time.Millisecond

	// maxReleasePause is the longest pause between the tries of a release in the
	// background: there may be one such release for each lock of the process.
	maxReleasePause = 5 * time.Second

	// minTries is how often a store is asked before it is said not to answer.
	minTries = 2

	// pollAgain is how soon a waiter asks again beside a request that was not
	// answered. The request is not given up: a store that is far away answers
	// all, and a position in its queue, or a grant of its own, lives as long as
	// the requests arrive one after the other in time.
	pollAgain = 700 * time.Millisecond

	// pollPatience is when such a request is given up. An answer that took
	// longer would be about a position that is gone, or that a later request
	// has confirmed.
	pollPatience = driver.WaiterTTL + driver.ClaimTTL

	// maxInFlight is how many requests about one claim are under way at a time.
	maxInFlight = 5
)

// How long a lock may be handed over inside a process before others get their
// turn, whichever comes first. The store's token is multiplied by
// tokensPerGrant to leave room for the leases' own tokens.
const (
	maxHandOvers   = 32
	maxLocalTime   = 250 * time.Millisecond
	tokensPerGrant = 64
)

// A moment is a point in time, counted from shortly before its Locker was made.
// Zero is none.
type moment time.Duration

func (m moment) add(d time.Duration) moment { return m + moment(d) }
func (m moment) sub(n moment) time.Duration { return time.Duration(m - n) }

// floor rounds m down to a multiple of quantum, so that what is due at about the
// same time is done together.
func (m moment) floor(quantum time.Duration) moment {
	if quantum > 0 {
		m -= m % moment(quantum)
	}
	return m
}

// A clock tells the moments of one Locker: see bootclock, which it follows.
type clock struct{ base time.Time }

func newClock() clock { return clock{bootclock.Coarse().Add(-time.Second)} }

func (c clock) now() moment    { return moment(bootclock.Now().Sub(c.base)) }
func (c clock) coarse() moment { return moment(bootclock.Coarse().Sub(c.base)) }

// at is a moment as bootclock tells it.
func (c clock) at(m moment) time.Time { return c.base.Add(time.Duration(m)) }

// terms are the times that the acquisitions of a Locker keep to. They never
// change.
type terms struct {
	ttl, margin, lockDelay, maxHold time.Duration

	jitter func(time.Duration) time.Duration // a random duration that is shorter
}

func newTerms(cfg Config) *terms {
	return &terms{ttl: cfg.TTL, margin: cfg.Margin, lockDelay: cfg.LockDelay, maxHold: cfg.MaxHold, jitter: rand.N[time.Duration]}
}

// storeTTL is how long the store is to keep a claim that is not renewed.
func (t *terms) storeTTL() time.Duration { return t.ttl + t.lockDelay }

// trustFor is how long a grant of ttl by the store may be believed in. A
// claim that is shorter than asked for leaves half of it at the least, so that
// there is time to renew it.
func (t *terms) trustFor(ttl time.Duration) time.Duration {
	ttl -= min(max(ttl-t.ttl, 0), t.lockDelay)
	return ttl - min(t.margin, ttl/2)
}

// renewAt is when a grant of ttl is renewed: a third of it after it was asked
// for, a LockDelay not counted, or earlier. All leases are renewed at the same
// ticks, so that a period takes one request however many there are.
func (t *terms) renewAt(sent moment, ttl time.Duration) moment {
	every := min(ttl, t.ttl) / 3
	return sent.add(every).floor(every)
}

// shortClaims reports whether a short claim, which the store makes on its own,
// may be believed in at all: not if more time than usual is wanted to stop
// working, or if a crash is to leave the lock taken for LockDelay.
func (t *terms) shortClaims() bool {
	return t.lockDelay == 0 && t.margin <= defaultMargin(t.ttl)
}

// patience is how long a store may be out of reach before waiting for a lock
// is given up: long enough for a fail-over.
func (t *terms) patience() time.Duration { return max(t.ttl, 5*time.Second) }

// acquiring is how long one attempt may take: half of the TTL, with the quarter
// that a bound may be longer. A grant that needs more than that to arrive would
// have to be confirmed anyway.
func (t *terms) acquiring() time.Duration { return t.ttl * 2 / 5 }

// releasing is how long one release may take.
func (t *terms) releasing() time.Duration {
	return min(max(t.ttl/2, 500*time.Millisecond), 2*time.Second)
}

// pause is how long to leave a store alone that has not answered for so long:
// about a quarter of it, so that a short trouble is over soon and a long one
// is not made worse.
func (t *terms) pause(failing time.Duration) time.Duration { return t.pauseUpTo(failing, maxPause) }

func (t *terms) pauseUpTo(failing, most time.Duration) time.Duration {
	d := min(max(failing/4, minPause), most)
	return d/2 + t.jitter(d)
}

// pollEvery is how often a position in the store's queue is confirmed, after an
// answer that says when the store wants that.
func pollEvery(g driver.Grant) time.Duration {
	if g.Again > 0 {
		return min(max(g.Again, time.Millisecond), driver.RefreshEvery)
	}
	return driver.RefreshEvery
}

// An outage is how long the store has not answered those who were the front of a
// local queue, one after the other. It is waited out once for all of them. The
// zero outage is none.
type outage struct {
	since moment
	tries int   // without an answer: this process may have stood still meanwhile
	err   error // the store's last one
}

// failed notes a request that was not answered.
func (o *outage) failed(sent moment, err error) outage {
	if o.tries == 0 {
		o.since = sent
	}
	o.tries++
	o.err = err
	return *o
}

// asSeenBy is the outage as one has met it who came to the queue when it was
// known already. Zero is one who came before.
func (o outage) asSeenBy(came moment) outage {
	o.since = max(o.since, came)
	return o
}

// over reports that a store that failed for so long is not waited for any
// longer.
func (o outage) over(now moment, patience time.Duration) bool {
	return now.sub(o.since) >= patience && o.tries >= minTries
}
