package baton

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/leasemath"
)

const (
	// minPause is the shortest pause. A pause that shrinks with the time that is
	// left would become a busy loop just before a loss.
	minPause = 5 * time.Millisecond

	maxPause = 500 * time.Millisecond

	// maxReleasePause is the longest pause between two tries of a release in the
	// background: each lock of the process may have such a release.
	maxReleasePause = 5 * time.Second

	// minTries is how often the store must fail to answer before a wait is given
	// up.
	minTries = 2

	// pollAgain is how soon a waiter sends another request beside one that was not
	// answered. It does not give the first one up: a distant store answers all of
	// them, and a position in its queue, or a grant that it made on its own, lives
	// as long as the requests arrive one after the other in time.
	pollAgain = 700 * time.Millisecond

	// pollPatience is when such a request is given up. A later answer would be
	// about a position that is gone, or that a later request has renewed.
	pollPatience = driver.WaiterTTL + driver.ClaimTTL

	// maxInFlight is how many requests about one claim are under way at a time.
	maxInFlight = 5
)

// How long goroutines of one process may hand a lock over among themselves before
// another process gets it; the limit that is reached first counts. leasemath.TokensPerGrant
// leaves room for the tokens of the leases.
const (
	maxHandOvers = 32
	maxLocalTime = 250 * time.Millisecond
)

// A moment is a point in time, counted from shortly before its Locker was made.
// Zero means no moment.
type moment time.Duration

func (m moment) add(d time.Duration) moment { return m + moment(d) }
func (m moment) sub(n moment) time.Duration { return time.Duration(m - n) }

// floor rounds m down to a multiple of quantum, so that events due at about the
// same time are handled together.
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

// at returns m as a time of bootclock.
func (c clock) at(m moment) time.Time { return c.base.Add(time.Duration(m)) }

// terms are the durations that acquisitions keep to. They never change.
type terms struct {
	ttl, margin, lockDelay, maxHold, minHold time.Duration

	jitter func(time.Duration) time.Duration // a random duration that is shorter
}

func newTerms(cfg Config) *terms {
	return &terms{ttl: cfg.TTL, margin: cfg.Margin, lockDelay: cfg.LockDelay, maxHold: cfg.MaxHold, jitter: rand.N[time.Duration]}
}

// termsOf are the terms of one call.
func (l *Locker) termsOf(a *ask) (*terms, error) {
	if a.ttl == 0 && a.minHold == 0 {
		return l.terms, nil
	}
	ttl := cmp.Or(a.ttl, l.terms.ttl)
	if t := l.other.Load(); t != nil && t.ttl == ttl && t.minHold == a.minHold {
		return t, nil
	}
	cfg := l.cfg
	if cfg.TTL = ttl; l.marginFollows {
		cfg.Margin = 0
	}
	if err := cfg.complete(l.traits); err != nil {
		return nil, err
	}
	if a.minHold > 0 && l.traits.Sessions {
		return nil, fmt.Errorf("baton: store %s ties a lock to the process that took it, and cannot keep it taken for a MinHold: %w", l.traits.Store, ErrUnsupported)
	}
	if most := l.traits.MaxTTL; most > 0 && a.minHold > most {
		return nil, &ConfigError{"MinHold", fmt.Sprintf("is %v; store %s accepts at most %v", a.minHold, l.traits.Store, most)}
	}
	t := newTerms(cfg)
	t.minHold = a.minHold
	l.other.Store(t)
	return t, nil
}

// same reports whether these are the terms of the same options, for the same Locker.
func (t *terms) same(o *terms) bool { return t.ttl == o.ttl && t.minHold == o.minHold }

// storeTTL is how long the store is to keep a claim that is not renewed.
func (t *terms) storeTTL() time.Duration { return t.ttl + t.lockDelay }

// trustFor is how long the process may believe in a grant with this ttl. Of a TTL
// shorter than asked for at least half is trusted, so that there is time to renew.
func (t *terms) trustFor(ttl time.Duration) time.Duration {
	ttl -= min(max(ttl-t.ttl, 0), t.lockDelay)
	return ttl - min(t.margin, ttl/2)
}

// renewAt is when to renew a grant with this ttl: a third of it, not counting a
// LockDelay, after the request was sent, or earlier. All leases are renewed at the
// same ticks, so that each period takes one request for all of them.
func (t *terms) renewAt(sent moment, ttl time.Duration) moment {
	every := min(ttl, t.ttl) / 3
	return sent.add(every).floor(every)
}

// shortClaims reports whether the process may believe in a short grant that the
// store made on its own. It may not if Config asks for more than the default
// margin, or if a crash must leave the lock taken for LockDelay.
func (t *terms) shortClaims() bool {
	return t.lockDelay == 0 && t.margin <= leasemath.Margin(t.ttl)
}

// patience is how long a Lock call waits for a store that is out of reach: long
// enough for a fail-over.
func (t *terms) patience() time.Duration { return max(t.ttl, 5*time.Second) }

// acquiring is how long one attempt may take: half of the TTL, including the
// quarter by which a bound may be exceeded. A grant that takes longer to arrive
// must be renewed before use anyway.
func (t *terms) acquiring() time.Duration { return t.ttl * 2 / 5 }

// releasing is how long one release may take.
func (t *terms) releasing() time.Duration {
	return min(max(t.ttl/2, 500*time.Millisecond), 2*time.Second)
}

// pause is how long to wait before the next request to a store that has not
// answered for the time failing: about a quarter of it, so that a short outage is
// over soon and a long one does not get worse.
func (t *terms) pause(failing time.Duration) time.Duration { return t.pauseUpTo(failing, maxPause) }

func (t *terms) pauseUpTo(failing, most time.Duration) time.Duration {
	d := min(max(failing/4, minPause), most)
	return d/2 + t.jitter(d)
}

// pollEvery is how often a waiter renews its position in the store's queue, after
// an answer that says how soon the store wants that.
func pollEvery(g driver.Grant) time.Duration {
	if g.Again > 0 {
		return min(max(g.Again, time.Millisecond), driver.RefreshEvery)
	}
	return driver.RefreshEvery
}

// An outage is the time for which the store has not answered the fronts of a local
// queue, one after the other. All of them wait it out together, once. The zero
// outage is none.
type outage struct {
	since moment
	tries int   // without an answer; counted because this process may have stood still meanwhile
	err   error // the last one
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

// asSeenBy is the outage for a caller that joined the queue at came, when the
// outage was already known. A zero came stands for a caller that joined before.
func (o outage) asSeenBy(came moment) outage {
	o.since = max(o.since, came)
	return o
}

// explain adds what the store said last to err, the reason why a caller's context has ended:
// without it, an outage looks like a lock that others hold. said may be nil.
func explain(ctx context.Context, err, said error) error {
	if ctx.Err() == nil || said == nil {
		return err
	}
	return fmt.Errorf("%w; the store said last: %v", err, said)
}

// over reports that the outage has lasted long enough to give up.
func (o outage) over(now moment, patience time.Duration) bool {
	return now.sub(o.since) >= patience && o.tries >= minTries
}
