package baton

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
)

const ms = time.Millisecond

// at is a moment of these tests, whose machines begin at 10s.
func at(d time.Duration) moment { return moment(10*time.Second + d) }

// machine is an acquisition whose time a test sets.
type machine struct {
	*acquisition
	slow time.Duration
}

// newMachine has a TTL of 3s, of which 2.7s are trusted, renewals at ticks of 1s,
// and pauses that are not random.
func newMachine(change ...func(*terms)) *machine {
	t := &terms{ttl: 3000 * ms, margin: 300 * ms, jitter: func(d time.Duration) time.Duration { return d / 2 }}
	for _, f := range change {
		f(t)
	}
	return &machine{acquisition: &acquisition{terms: t, claim: driver.Claim{Key: "k", ID: "id", Weight: driver.Whole, Capacity: driver.Whole}}}
}

func withLockDelay(t *terms) { t.lockDelay = 1000 * ms }
func withMargin(t *terms)    { t.margin = 310 * ms }
func withMaxHold(t *terms)   { t.maxHold = 2000 * ms }

// The store's answers.
var (
	grant    = driver.Grant{Token: 7, Ticket: 7, TTL: 3000 * ms}
	position = driver.Grant{Waiting: true, Ticket: 5, TTL: driver.WaiterTTL}
	push     = driver.Hint{Granted: true, Grant: driver.Grant{Token: 7, Ticket: 7, TTL: driver.ClaimTTL}}
	look     = driver.Hint{}

	sayHeld    = driver.Renewal{State: driver.Held, Grant: grant}
	sayWaiting = driver.Renewal{State: driver.Waiting, Grant: position}
	sayLost    = driver.Renewal{State: driver.Lost}
	saysNot    = driver.Renewal{Err: driver.ErrUnavailable}
)

// The states before the events below. Requests were sent at 0.

func (m *machine) isQueued() *machine {
	m.answered(at(10*ms), at(0), position, m.slow)
	return m
}

func (m *machine) isGranted() *machine {
	m.answered(at(10*ms), at(0), grant, m.slow)
	return m
}

func (m *machine) isLeased() *machine {
	m.isGranted().issue(at(10*ms), false)
	return m
}

func (m *machine) isAsked(when time.Duration) (*machine, question) {
	m.wake = at(when)
	q, e := m.due(at(when))
	if e != askStore {
		panic(fmt.Sprint("the machine does not ask: ", e))
	}
	return m, q
}

func (m *machine) isLost(cause Cause) *machine {
	m.isLeased().lose(cause)
	return m
}

func (m *machine) isDowngrading() *machine {
	if err := m.isLeased().downgrade(); err != nil {
		panic(err)
	}
	return m
}

func (m *machine) with(change func(*machine)) *machine { change(m); return m }

// TestMachineIsPure reads the source: the machine may use only what it is told.
func TestMachineIsPure(t *testing.T) {
	t.Parallel()
	for _, file := range []string{machineFile, heldFile} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, foreign := range []string{"\"sync", "bootclock", "time.Now", "rand.", "Locker", "keeper)", "go func", "chan ", "driver.Locks", "<-"} {
			if bytes.Contains(text, []byte(foreign)) {
				t.Errorf("%s has %q", file, foreign)
			}
		}
	}
}

// A row is one transition: an event in a state, with the expected effects, the
// phase after it, and the moment to wake (0: never).
type row struct {
	name  string
	m     *machine
	event func(m *machine) effects
	want  effects
	phase phase
	wake  time.Duration
	also  func(m *machine) error
}

const (
	never  = -1 << 40
	ending = endLease | leaveQueue | stopWatching | startAgain
)

func TestTransitions(t *testing.T) {
	names := map[string]bool{}
	for _, rows := range [][]row{requestRows(), queuedRows(), heldRows(), leaseRows(), downgradeRows(), passedRows(), endRows()} {
		for _, r := range rows {
			if names[r.name] {
				t.Errorf("two rows %q", r.name)
			}
			names[r.name] = true
			t.Run(r.name, func(t *testing.T) {
				if got := r.event(r.m); got != r.want {
					t.Errorf("effects %v, want %v", got, r.want)
				}
				if r.m.phase != r.phase {
					t.Errorf("phase %d, want %d", r.m.phase, r.phase)
				}
				wake := at(r.wake)
				if r.wake == never {
					wake = 0
				}
				if r.m.wake != wake {
					t.Errorf("wakes at %v, want %v", r.m.wake.sub(at(0)), r.wake)
				}
				if r.also != nil {
					if err := r.also(r.m); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

func (e effects) String() string {
	var names []string
	for i, name := range []string{"grantWaiter", "startAgain", "failWaiter", "retryRequest", "askStore", "noteOutage", "endLease", "leaveQueue", "mayHandOver", "stopWatching", "reportLoss", "releaseClaim", "releasePending"} {
		if e&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return "{" + strings.Join(names, " ") + "}"
}

// want is nil if the two are the same.
func want[T comparable](name string, got, wanted T) error {
	if got == wanted {
		return nil
	}
	return fmt.Errorf("%s: %v, want %v", name, got, wanted)
}

func deadline(d time.Duration) func(*machine) error {
	return func(m *machine) error { return want("believed in until", m.deadline.sub(at(0)), d) }
}

func lostBy(c Cause, token int64) func(*machine) error {
	return func(m *machine) error {
		return errors.Join(want("cause", m.lost.Cause, c), want("token", m.lost.Token, token))
	}
}

func fails(err error, sent, now time.Duration) func(*machine) effects {
	return func(m *machine) effects { return m.requestFailed(at(now), at(sent), err, true) }
}

func requestRows() []row {
	answer := func(now time.Duration, g driver.Grant) func(*machine) effects {
		return func(m *machine) effects { return m.answered(at(now), at(0), g, m.slow) }
	}
	slow := func(d time.Duration) *machine { return newMachine().with(func(m *machine) { m.slow = d }) }
	request := func(m *machine) effects { m.request(at(0), true, m.slow); return 0 }
	failed := func(err error) *machine {
		return newMachine().with(func(m *machine) { m.requestFailed(at(0), at(0), err, true) })
	}
	hinted := func(h driver.Hint) *machine {
		return newMachine().with(func(m *machine) { m.hint(at(0), h, 0) })
	}
	again := position
	again.Again = 100 * ms
	return []row{
		{"a request needs no waking", newMachine(), request, 0, requesting, never, nil},
		{"where the store is slow the position is confirmed before it is known", slow(800 * ms), request, 0, requesting, 700 * ms, nil},
		{"who does not wait has no position to confirm", slow(800 * ms), func(m *machine) effects { m.request(at(0), false, m.slow); return 0 }, 0, requesting, never, nil},

		{"a store that is away is asked again", newMachine(), fails(driver.ErrUnavailable, 0, 10*ms), noteOutage | retryRequest, requesting, never, func(m *machine) error {
			return want("the next request is a repetition", m.request(at(0), true, 0).Retry, false)
		}},
		{"a request whose answer is lost is repeated as one that may have taken effect", newMachine(), fails(driver.ErrUnknown, 0, 10*ms), noteOutage | retryRequest, requesting, never, func(m *machine) error {
			return want("the next request is a repetition", m.request(at(0), true, 0).Retry, true)
		}},
		{"that it may have taken effect is not forgotten", failed(driver.ErrUnknown), fails(driver.ErrUnavailable, 0, 10*ms), noteOutage | retryRequest, requesting, never, func(m *machine) error {
			return want("the next request is a repetition", m.request(at(0), true, 0).Retry, true)
		}},
		{"patience ends", failed(driver.ErrUnavailable), fails(driver.ErrUnavailable, 4900*ms, 5000*ms), noteOutage, requesting, never, nil},
		{"patience does not end after one try: this process stood still", newMachine(), fails(driver.ErrUnavailable, 0, time.Hour), noteOutage | retryRequest, requesting, never, nil},
		{"a caller that has left asks no more", newMachine(), func(m *machine) effects { return m.requestFailed(at(0), at(0), driver.ErrUnavailable, false) }, 0, requesting, never, nil},
		{"a refusal is an answer", failed(driver.ErrUnavailable), fails(driver.ErrHeld, 10*ms, 20*ms), noteOutage, requesting, never, func(m *machine) error {
			return want("failures", m.outage.tries, 0)
		}},
		{"an attempt that the store has ended is made again under another ID", failed(driver.ErrUnknown), fails(driver.ErrLost, 10*ms, 20*ms), startAgain | stopWatching, ended, never, nil},
		{"a first attempt that is lost is an error", newMachine(), fails(driver.ErrLost, 10*ms, 20*ms), 0, requesting, never, nil},

		{"held", newMachine(), answer(10*ms, grant), grantWaiter, held, 1000 * ms, func(m *machine) error {
			return errors.Join(deadline(2700*ms)(m), want("ticket", m.claim.Ticket, 7))
		}},
		{"held, and half of it is left", newMachine(), answer(1350*ms, grant), grantWaiter, held, 1000 * ms, deadline(2700 * ms)},
		{"held, but the answer took too long: it is to be confirmed", newMachine(), answer(1351*ms, grant), 0, queued, 1351 * ms, nil},
		{"held for as long as the LockDelay, too", newMachine(withLockDelay), answer(10*ms, driver.Grant{Token: 7, Ticket: 7, TTL: 4000 * ms}), grantWaiter, held, 1000 * ms, deadline(2700 * ms)},
		{"an answer ends an outage", failed(driver.ErrUnavailable), answer(10*ms, grant), noteOutage | grantWaiter, held, 1000 * ms, nil},
		{"queued", newMachine(), answer(10*ms, position), 0, queued, 400 * ms, func(m *machine) error { return want("ticket", m.claim.Ticket, 5) }},
		{"queued, and the store wants to be asked soon", newMachine(), answer(10*ms, again), 0, queued, 100 * ms, nil},
		{"queued in a slow store: asked as often as it answers, but together", slow(300 * ms), answer(300*ms, again), 0, queued, 300 * ms, nil},
		{"queued in a very slow store: the position must not end", slow(2000 * ms), answer(600*ms, position), 0, queued, 400 * ms, nil},
		{"a hint overtook the answer", hinted(look), answer(10*ms, position), 0, queued, 5 * ms, nil},
		{"a push overtook the answer", hinted(push), answer(10*ms, position), grantWaiter, held, 10*ms + 1340*ms/3, deadline(1350 * ms)},
		{"the higher of two pushes counts", hinted(push).with(func(m *machine) {
			m.hint(at(0), driver.Hint{Granted: true, Grant: driver.Grant{Token: 3, TTL: driver.ClaimTTL}}, 0)
		}), answer(10*ms, position), grantWaiter, held, 10*ms + 1340*ms/3, nil},
		{"a push of an earlier position overtook the answer", hinted(driver.Hint{Granted: true, Grant: driver.Grant{Token: 4, TTL: driver.ClaimTTL}}), answer(10*ms, position), 0, queued, 400 * ms, nil},
	}
}

func queuedRows() []row {
	hint := func(now time.Duration, h driver.Hint) func(*machine) effects {
		return func(m *machine) effects { return m.hint(at(now), h, m.slow) }
	}
	with := func(change ...func(*terms)) *machine { return newMachine(change...).isQueued() }
	slow := func(d time.Duration) *machine { return with().with(func(m *machine) { m.slow = d }) }
	asked := func(when time.Duration, then ...func(*machine)) (*machine, question) {
		m, q := with().isAsked(when)
		for _, f := range then {
			f(m)
		}
		return m, q
	}
	renewal := func(name string, now time.Duration, r driver.Renewal, want effects, p phase, wake time.Duration, also func(*machine) error, then ...func(*machine)) row {
		m, q := asked(400*ms, then...)
		return row{name, m, func(m *machine) effects { return m.renewed(at(now), at(400*ms), q, r, m.slow) }, want, p, wake, also}
	}
	due := func(m *machine) effects { _, e := m.due(at(400 * ms)); return e }
	busy, _ := asked(100 * ms)
	unsure := with().with(func(m *machine) { m.hint(at(1300*ms), push, 0) })
	ahead := newMachine()
	_, early := ahead.with(func(m *machine) { m.request(at(-700*ms), true, 800*ms) }).isAsked(0)
	ahead.isQueued()
	failing, second := asked(400*ms, func(m *machine) { m.unanswered(at(400*ms), at(400*ms), driver.ErrUnavailable) })
	unanswered := with().with(func(m *machine) { m.unanswered(at(50*ms), at(0), driver.ErrUnavailable) })
	return []row{
		{"queued: a push ends an outage, for those behind, too", unanswered, hint(100*ms, push), noteOutage | grantWaiter, held, 100*ms + 1250*ms/3, nil},
		{"queued: a hint", with(), hint(100*ms, look), 0, queued, 5 * ms, nil},
		{"queued: a hint while an answer is under way", busy, hint(200*ms, look), 0, queued, 800 * ms, nil},
		renewal("queued: the answer may be older than a hint", 420*ms, sayWaiting, 0, queued, 405*ms, nil, func(m *machine) { m.hint(at(410*ms), look, 0) }),
		{"queued: a push is relied on", with(), hint(100*ms, push), grantWaiter, held, 100*ms + 1250*ms/3, func(m *machine) error {
			return errors.Join(deadline(1350*ms)(m), want("ticket", m.claim.Ticket, 7))
		}},
		{"queued: a push just in time", with(), hint(850*ms, push), grantWaiter, held, 850*ms + 500*ms/3, deadline(1350 * ms)},
		{"queued: a push too late is a hint", with(), hint(851*ms, push), 0, queued, 851 * ms, nil},
		{"queued: a push from a store so slow that it is renewed at once", slow(300 * ms), hint(100*ms, push), grantWaiter, held, 100 * ms, nil},
		{"queued: a push from a store too slow to renew it", slow(626 * ms), hint(100*ms, push), 0, queued, 100 * ms, nil},
		{"queued: a push where a LockDelay is wanted", with(withLockDelay), hint(100*ms, push), 0, queued, 100 * ms, nil},
		{"queued: a push where a margin is wanted", with(withMargin), hint(100*ms, push), 0, queued, 100 * ms, nil},
		{"queued: a push for an earlier position", with(), hint(100*ms, driver.Hint{Granted: true, Grant: driver.Grant{Token: 4, TTL: driver.ClaimTTL}}), 0, queued, 5 * ms, nil},
		{"queued: a push that is older than one not relied on", unsure, hint(1310*ms, driver.Hint{Granted: true, Grant: driver.Grant{Token: 6, TTL: driver.ClaimTTL}}), 0, queued, 5 * ms, nil},
		{"queued: due", with(), due, askStore, queued, 1100 * ms, func(m *machine) error { return want("asked", m.asked, at(400*ms)) }},
		{"queued: woken for nothing", with().with(func(m *machine) { m.wake = at(401 * ms) }), due, 0, queued, 401 * ms, nil},
		{"queued: due, and many answers are under way", with().with(func(m *machine) { m.inFlight = maxInFlight }), due, 0, queued, 1100 * ms, nil},
		renewal("queued: held", 450*ms, sayHeld, grantWaiter, held, 1000*ms, deadline(3100*ms)),
		renewal("queued: held, and not even a quarter is left", 2450*ms, sayHeld, noteOutage, queued, 2450*ms+pauseOf(2050*ms), nil),
		renewal("queued: still", 450*ms, sayWaiting, 0, queued, 800*ms, func(m *machine) error { return want("confirmed", m.confirmed, at(400*ms)) }),
		renewal("queued: the position is lost", 450*ms, sayLost, startAgain|stopWatching, ended, never, nil),
		renewal("queued: no answer", 450*ms, saysNot, noteOutage, queued, 450*ms+pauseOf(50*ms), nil),
		{"queued: an answer after none ends the outage", failing, func(m *machine) effects { return m.renewed(at(450*ms), at(400*ms), second, sayWaiting, 0) }, noteOutage, queued, 800 * ms, nil},
		renewal("queued: the store does not answer for too long", 5400*ms, saysNot, noteOutage|failWaiter, queued, 1100*ms, nil, func(m *machine) { m.outage.failed(at(400*ms), driver.ErrUnavailable) }),
		{"queued: a confirmation that overtook the request finds nothing", ahead, func(m *machine) effects { return m.renewed(at(20*ms), at(0), early, sayLost, 0) }, 0, queued, 20 * ms, nil},
		renewal("queued: an answer about an earlier ID", 450*ms, sayLost, 0, queued, 800*ms, nil, func(m *machine) {
			m.lose(Gone)
			m.restart("id 2")
			m.answered(at(410*ms), at(405*ms), position, 0)
		}),
		renewal("queued: an answer to one who has left", 450*ms, sayHeld, 0, ended, never, nil, func(m *machine) { m.quit() }),
	}
}

// pauseOf is the pause after failing for d, with the jitter of these tests.
func pauseOf(d time.Duration) time.Duration { return min(max(d/4, minPause), maxPause) }

func heldRows() []row {
	due := func(now time.Duration) func(*machine) effects {
		return func(m *machine) effects { m.wake = at(now); _, e := m.due(at(now)); return e }
	}
	renewal := func(name string, now time.Duration, r driver.Renewal, want effects, p phase, wake time.Duration, also func(*machine) error, then ...func(*machine)) row {
		m, q := newMachine().isLeased().isAsked(1000 * ms)
		for _, f := range then {
			f(m)
		}
		return row{name, m, func(m *machine) effects { return m.renewed(at(now), at(1000*ms), q, r, m.slow) }, want, p, wake, also}
	}
	beforePush := func(name string, r driver.Renewal, wake time.Duration) row {
		m, q := newMachine().isQueued().isAsked(400 * ms)
		m.hint(at(410*ms), push, 0)
		m.issue(at(410*ms), false)
		m.inFlight-- // another question, which was answered
		return row{name, m, func(m *machine) effects { m.inFlight++; return m.renewed(at(450*ms), at(400*ms), q, r, 0) }, 0, held, wake, nil}
	}
	pushedAt := 410*ms + 940*ms/3
	patience := func(m *machine) error {
		m.wake = at(1000 * ms)
		q, _ := m.due(at(1000 * ms))
		return want("patience", q.patience, 1700*ms*7/8)
	}
	return []row{
		{"held: due, and asked again meanwhile if no answer comes", newMachine().isLeased(), due(1000 * ms), askStore, held, 1750 * ms, patience},
		{"held: due, and little is left", newMachine().isLeased(), due(2699 * ms), askStore, held, 2700 * ms, nil},
		{"held: due at the end", newMachine().isLeased(), due(2700 * ms), ending | reportLoss, ended, never, lostBy(Expired, 7*64)},
		{"held: due at the end of MaxHold", newMachine(withMaxHold).isLeased(), due(2010 * ms), ending | reportLoss, ended, never, lostBy(Overheld, 7*64)},
		{"held: due at the end, and nobody has a lease", newMachine().isGranted(), due(2700 * ms), startAgain | stopWatching | releaseClaim, ended, never, nil},
		renewal("held: renewed", 1010*ms, sayHeld, 0, held, 2000*ms, deadline(3700*ms)),
		renewal("held: a shorter renewal takes nothing away", 1010*ms, driver.Renewal{State: driver.Held, Grant: driver.Grant{TTL: 1500 * ms}}, 0, held, 1500*ms, deadline(2700*ms)),
		renewal("held: renewed after the end", 2700*ms, sayHeld, ending|reportLoss, ended, never, lostBy(Expired, 7*64)),
		renewal("held: lost", 1010*ms, sayLost, ending|reportLoss, ended, never, lostBy(Gone, 7*64)),
		renewal("held: no answer", 1100*ms, saysNot, 0, held, 1300*ms, nil),
		renewal("held: no answer until the end", 2699*ms, saysNot, 0, held, 2700*ms, func(m *machine) error {
			return want("the trouble is known", errors.Is(m.lastErr, driver.ErrUnavailable), true)
		}),
		renewal("held: an answer from before a downgrade", 1010*ms, sayLost, 0, downgrading, 1750*ms, nil, func(m *machine) { _ = m.downgrade() }),
		renewal("held: a hint came with the answer under way", 1010*ms, sayHeld, 0, held, 1005*ms, nil, func(m *machine) { m.hint(at(1005*ms), look, 0) }),
		beforePush("held: the position was lost before the push", sayLost, 405*ms),
		beforePush("held: the position waited before the push", sayWaiting, pushedAt),
		{"held: a hint", newMachine().isLeased(), func(m *machine) effects { return m.hint(at(100*ms), look, 0) }, 0, held, 5 * ms, nil},
		{"held: a push", newMachine().isLeased(), func(m *machine) effects { return m.hint(at(100*ms), push, 0) }, 0, held, 1000 * ms, nil},
	}
}

func leaseRows() []row {
	issue := func(now time.Duration) func(*machine) effects {
		return func(m *machine) effects { return m.issue(at(now), false) }
	}
	unlock := func(now time.Duration) func(*machine) effects {
		return func(m *machine) effects { return m.unlock(at(now)) }
	}
	nest := func(a ask, wanted error) func(*machine) effects {
		return func(m *machine) effects {
			if err := m.nest(&a); !errors.Is(err, wanted) || (err != nil) != (wanted != nil) {
				panic(fmt.Sprint("nest: ", err))
			}
			return 0
		}
	}
	refs := func(n int) func(*machine) error {
		return func(m *machine) error { return want("Unlocks it takes", m.refs, n) }
	}
	writer := ask{weight: driver.Whole, capacity: driver.Whole, reentrant: true}
	reader := ask{weight: 1, capacity: driver.Whole, reentrant: true}
	isReader := func(m *machine) { m.claim.Weight = 1 }
	nested := func() *machine { return newMachine().isLeased().with(func(m *machine) { _ = m.nest(&writer) }) }
	renamed := func(err error) func(*machine) effects {
		return func(m *machine) effects { return m.renamed("new", err) }
	}
	owner := func(name string) func(*machine) error {
		return func(m *machine) error { return want("owner", m.claim.Owner, name) }
	}
	return []row{
		{"issued", newMachine().isGranted(), issue(10 * ms), 0, held, 1000 * ms, func(m *machine) error { return want("token", m.leaseToken(), 7*64) }},
		{"issued again: the next token", newMachine().isLeased().with(func(m *machine) { m.unlock(at(20 * ms)) }), issue(20 * ms), 0, held, 1000 * ms, func(m *machine) error { return want("token", m.leaseToken(), 7*64+1) }},
		{"issued with a MaxHold", newMachine(func(t *terms) { t.maxHold = 500 * ms }).isGranted(), issue(10 * ms), 0, held, 510 * ms, nil},
		{"issued as a part: MaxHold begins later", newMachine(func(t *terms) { t.maxHold = 500 * ms }).isGranted(), func(m *machine) effects { return m.issue(at(10*ms), true) }, 0, held, 1000 * ms, nil},
		{"issued too late: given back", newMachine().isGranted(), issue(2700 * ms), startAgain | stopWatching | releaseClaim, ended, never, nil},
		{"issued after the loss: nothing", newMachine().isGranted().with(func(m *machine) { m.lose(Gone) }), issue(20 * ms), 0, ended, never, nil},
		{"looked at in time", newMachine().isLeased(), func(m *machine) effects { return m.look(at(2699 * ms)) }, 0, held, 1000 * ms, nil},
		{"looked at after the end", newMachine().isLeased(), func(m *machine) effects { return m.look(at(2700 * ms)) }, ending | reportLoss, ended, never, lostBy(Expired, 7*64)},

		{"nested", newMachine().isLeased(), nest(writer, nil), 0, held, 1000 * ms, refs(2)},
		{"nested without saying so", newMachine().isLeased(), nest(ask{weight: driver.Whole, capacity: driver.Whole}, ErrNested), 0, held, 1000 * ms, refs(1)},
		{"nested: a writer covers a reader", newMachine().isLeased(), nest(reader, nil), 0, held, 1000 * ms, refs(2)},
		{"nested: a reader does not cover a writer", newMachine().with(isReader).isLeased(), nest(writer, ErrNested), 0, held, 1000 * ms, refs(1)},

		{"renamed", newMachine().isLeased(), renamed(nil), 0, held, 1000 * ms, owner("new")},
		{"renamed while it is downgraded", newMachine().isDowngrading(), renamed(nil), 0, downgrading, 1000 * ms, owner("new")},
		{"not renamed: the store does not answer", newMachine().isLeased(), renamed(driver.ErrUnknown), 0, held, 1000 * ms, owner("")},
		{"not renamed: the lock is lost", newMachine().isLeased(), renamed(driver.ErrLost), ending | reportLoss, ended, never, lostBy(Gone, 7*64)},
		{"not renamed, after the lease was lost", newMachine().isLost(Expired), renamed(driver.ErrLost), 0, ended, never, lostBy(Expired, 7*64)},

		{"unlocked while others count on it", nested(), unlock(100 * ms), 0, held, 1000 * ms, refs(1)},
		{"unlocked after others that counted on it", nested().with(func(m *machine) { m.unlock(at(50 * ms)) }), unlock(100 * ms), endLease | mayHandOver, held, 1000 * ms, nil},
		{"unlocked: may be handed over", newMachine().isLeased(), unlock(259 * ms), endLease | mayHandOver, held, 1000 * ms, nil},
		{"unlocked: others have waited for long enough", newMachine().isLeased(), unlock(260 * ms), endLease, held, 1000 * ms, nil},
		{"unlocked: handed over often enough", newMachine().isLeased().with(func(m *machine) { m.issued = 32 }), unlock(100 * ms), endLease, held, 1000 * ms, nil},
		{"unlocked: one hand-over is left", newMachine().isLeased().with(func(m *machine) { m.issued = 31 }), unlock(100 * ms), endLease | mayHandOver, held, 1000 * ms, nil},
		{"unlocked: its claim is known", newMachine().isLeased().with(func(m *machine) { m.pin() }), unlock(100 * ms), endLease, held, 1000 * ms, nil},
		{"unlocked: a reader", newMachine().with(isReader).isLeased(), unlock(100 * ms), endLease, held, 1000 * ms, nil},
		{"unlocked: too little is left to hand over", newMachine().isLeased().with(func(m *machine) { m.deadline = at(475 * ms) }), unlock(100 * ms), endLease, held, 1000 * ms, nil},
		{"unlocked while it is downgraded", newMachine().isDowngrading(), unlock(100 * ms), endLease, downgrading, 1000 * ms, nil},
		{"unlocked after the end, which nobody has noticed", newMachine().isLeased(), unlock(2700 * ms), ending | reportLoss | releaseClaim, ended, never, nil},
		{"unlocked after it expired", newMachine().isLost(Expired), unlock(100 * ms), releaseClaim, ended, never, nil},
		{"unlocked after MaxHold", newMachine(withLockDelay).isLost(Overheld), unlock(100 * ms), releaseClaim, ended, never, nil},
		{"unlocked after it expired, with a LockDelay", newMachine(withLockDelay).isLost(Expired), unlock(100 * ms), releasePending, ended, never, pendingIs(0)},
		{"unlocked after it was lost", newMachine().isLost(Gone), unlock(100 * ms), releasePending, ended, never, pendingIs(0)},
		{"a lost lease is unlocked while others count on it", nested().with(func(m *machine) { m.lose(Expired) }), unlock(100 * ms), 0, ended, never, nil},
	}
}

func pendingIs(n int) func(*machine) error {
	return func(m *machine) error { return want("claims to forget", len(m.pending), n) }
}

func downgradeRows() []row {
	begin := func(wanted error) func(*machine) effects {
		return func(m *machine) effects {
			if err := m.downgrade(); !errors.Is(err, wanted) {
				panic(fmt.Sprint("downgrade: ", err))
			}
			return 0
		}
	}
	done := func(m *machine) effects { return m.downgraded(at(100*ms), grant) }
	failed := func(err error, unsure bool) func(*machine) effects {
		return func(m *machine) effects { return m.downgradeFailed(at(100*ms), err, unsure) }
	}
	weight := func(w int64) func(*machine) error {
		return func(m *machine) error { return want("weight", m.claim.Weight, w) }
	}
	unlocked := func(minHold time.Duration) *machine {
		return newMachine().isDowngrading().with(func(m *machine) {
			m.keepUntil = at(minHold)
			m.unlock(at(50 * ms))
			m.quit()
		})
	}
	return []row{
		{"a downgrade begins", newMachine().isLeased(), begin(nil), 0, downgrading, 1000 * ms, func(m *machine) error { return want("round", m.round, 1) }},
		{"a downgrade while others count on the lease", newMachine().isLeased().with(func(m *machine) { m.refs = 2 }), begin(ErrCountedOn), 0, held, 1000 * ms, nil},
		{"a second downgrade", newMachine().isDowngrading(), begin(ErrCountedOn), 0, downgrading, 1000 * ms, nil},
		{"downgrading: not renewed", newMachine().isDowngrading(), func(m *machine) effects { _, e := m.due(at(1000 * ms)); return e }, 0, downgrading, 1750 * ms, nil},
		{"downgrading: due at the end", newMachine().isDowngrading(), func(m *machine) effects { m.wake = at(2700 * ms); _, e := m.due(m.wake); return e }, ending | reportLoss, ended, never, nil},
		{"downgrading: nothing can be nested", newMachine().isDowngrading(), func(m *machine) effects {
			if m.nest(&ask{weight: 1, capacity: driver.Whole, reentrant: true}) == nil {
				panic("nested in a lease that changes")
			}
			return 0
		}, 0, downgrading, 1000 * ms, nil},
		{"downgraded", newMachine().isDowngrading(), done, leaveQueue, held, 1000 * ms, func(m *machine) error { return errors.Join(deadline(2800*ms)(m), weight(1)(m)) }},
		{"downgraded after the lease was lost", newMachine().isDowngrading().with(func(m *machine) { m.lose(Expired) }), done, 0, ended, never, pendingIs(1)},
		{"downgraded after the lease was lost and unlocked", newMachine().isDowngrading().with(func(m *machine) { m.lose(Expired); m.unlock(at(50 * ms)) }), done, releasePending, ended, never, pendingIs(1)},
		{"not downgraded, for sure", newMachine().isDowngrading(), failed(driver.ErrUnavailable, false), 0, held, 100 * ms, weight(driver.Whole)},
		{"not downgraded: the lock is lost", newMachine().isDowngrading(), failed(driver.ErrLost, false), ending | reportLoss, ended, never, lostBy(Gone, 7*64)},
		{"perhaps downgraded: the lease is given up, and both kinds are forgotten", newMachine().isDowngrading(), failed(driver.ErrUnknown, true), ending | reportLoss, ended, never, func(m *machine) error {
			return errors.Join(pendingIs(2)(m), want("explained", errors.Is(m.lost, ErrUnknown), true))
		}},
		{"perhaps downgraded, after the lease was unlocked", newMachine().isDowngrading().with(func(m *machine) { m.unlock(at(50 * ms)); m.quit() }), failed(driver.ErrUnknown, true), releasePending, ended, never, pendingIs(2)},
		{"downgraded, after an unlock that leaves it taken", unlocked(time.Minute), done, 0, ended, never, func(m *machine) error { return errors.Join(pendingIs(0)(m), weight(1)(m)) }},
		{"perhaps downgraded, after an unlock that leaves it taken", unlocked(time.Minute), failed(driver.ErrUnknown, true), 0, ended, never, pendingIs(0)},
		{"downgraded, after an unlock when the MinHold was over", unlocked(20 * ms), done, releasePending, ended, never, pendingIs(1)},
	}
}

// passedRows are about an acquisition that another goroutine waits for from now on. The
// event has no effects, so that refused stands for one that has nothing to pass on.
func passedRows() []row {
	const refused = failWaiter
	pass := func(m *machine) effects {
		if !m.passOn(at(300 * ms)) {
			return refused
		}
		return 0
	}
	failed := func(err error) *machine {
		return newMachine().with(func(m *machine) { m.requestFailed(at(0), at(0), err, true) })
	}
	away := newMachine().isQueued().with(func(m *machine) { m.unanswered(at(50*ms), at(0), driver.ErrUnavailable) })
	same := func(m *machine) error {
		return errors.Join(want("ID", m.claim.ID, "id"), want("ticket", m.claim.Ticket, 5), want("confirmed", m.confirmed, at(0)), want("round", m.round, 0))
	}
	return []row{
		{"passed on: a position, with all that is known of it", newMachine().isQueued(), pass, 0, queued, 400 * ms, same},
		{"passed on: a request that may have taken effect", failed(driver.ErrUnknown), pass, 0, requesting, never, func(m *machine) error {
			return want("the next request is a repetition", m.request(at(300*ms), true, 0).Retry, true)
		}},
		{"passed on in an outage, which the other has not waited out", away, pass, 0, queued, 50*ms + pauseOf(50*ms), func(m *machine) error {
			return errors.Join(want("since", m.outage.since, at(300*ms)), want("tries", m.outage.tries, 1))
		}},
		{"not passed on: nothing was requested", newMachine(), pass, refused, requesting, never, nil},
		{"not passed on: nothing is in the store", failed(driver.ErrUnavailable), pass, refused, requesting, never, nil},
		{"not passed on: the lock itself", newMachine().isGranted(), pass, refused, held, 1000 * ms, nil},
		{"not passed on: what has ended", newMachine().isQueued().with(func(m *machine) { m.lose(Gone) }), pass, refused, ended, never, nil},
	}
}

func endRows() []row {
	quit := func(m *machine) effects { return m.quit() }
	failed := func(err error) *machine {
		return newMachine().with(func(m *machine) { m.requestFailed(at(0), at(0), err, true) })
	}
	restart := func(m *machine) effects { m.restart("id 2"); return 0 }
	lost := func() *machine {
		return newMachine().isQueued().with(func(m *machine) { m.hinted, m.early = true, push.Grant; m.lose(Gone) })
	}
	return []row{
		{"given up before the store heard of it", newMachine(), quit, stopWatching, ended, never, nil},
		{"given up after the store was away", failed(driver.ErrUnavailable), quit, stopWatching, ended, never, nil},
		{"given up after an answer was lost", failed(driver.ErrUnknown), quit, stopWatching | releaseClaim, ended, never, nil},
		{"given up in the queue", newMachine().isQueued(), quit, stopWatching | releaseClaim, ended, never, nil},
		{"given up while it is held", newMachine().isGranted(), quit, stopWatching | releaseClaim, ended, never, nil},
		{"given up twice", newMachine().isQueued().with(func(m *machine) { m.quit() }), quit, 0, ended, never, nil},
		{"lost twice", newMachine().isLost(Expired), func(m *machine) effects { return m.lose(Gone) }, 0, ended, never, lostBy(Expired, 7*64)},
		{"detached", newMachine().isLeased(), func(m *machine) effects { return m.lose(Detached) }, ending, ended, never, lostBy(Detached, 7*64)},
		{"attached", newMachine(), func(m *machine) effects { return m.attached(at(10*ms), at(0), grant, 9*64+3) }, grantWaiter, held, 1000 * ms, func(m *machine) error {
			m.issue(at(10*ms), false)
			return want("token", m.leaseToken(), 9*64+3)
		}},
		{"attached after one whose renewals are shorter", newMachine().with(func(m *machine) { m.ttlCap = 1500 * ms }), func(m *machine) effects { return m.attached(at(10*ms), at(0), grant, 9*64) }, grantWaiter, held, 500 * ms, deadline(1200 * ms)},
		{"begun again", lost(), restart, 0, requesting, never, func(m *machine) error {
			return errors.Join(want("ID", m.claim.ID, "id 2"), want("ticket", m.claim.Ticket, 0), want("an early push", m.early.Token, 0), want("a hint", m.hinted, false), want("lost", m.lost == nil, true))
		}},
		{"a hint after the end", newMachine().isLost(Gone), func(m *machine) effects { return m.hint(at(100*ms), push, 0) }, 0, ended, never, nil},
		{"due after the end", newMachine().isLost(Gone), func(m *machine) effects { m.wake = at(1 * ms); _, e := m.due(at(100 * ms)); return e }, 0, ended, never, nil},
	}
}
