package acquire

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
func at(d time.Duration) Moment { return Moment(10*time.Second + d) }

// machine is an acquisition whose time a test sets.
type machine struct {
	*Machine
	slow time.Duration
}

// newMachine has a TTL of 3s, of which 2.7s are trusted, renewals at ticks of 1s,
// and pauses that are not random.
func newMachine(change ...func(*Terms)) *machine {
	t := &Terms{TTL: 3000 * ms, Margin: 300 * ms, Jitter: func(d time.Duration) time.Duration { return d / 2 }}
	for _, f := range change {
		f(t)
	}
	m := New(t, driver.Claim{Key: "k", ID: "id", Weight: driver.Whole, Capacity: driver.Whole}, 0, 0, Outage{})
	return &machine{Machine: &m}
}

func withLockDelay(t *Terms) { t.LockDelay = 1000 * ms }
func withMargin(t *Terms)    { t.Margin = 310 * ms }
func withMaxHold(t *Terms)   { t.MaxHold = 2000 * ms }

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
	m.Answered(at(10*ms), at(0), position, m.slow)
	return m
}

func (m *machine) isGranted() *machine {
	m.Answered(at(10*ms), at(0), grant, m.slow)
	return m
}

func (m *machine) isLeased() *machine {
	m.isGranted().Issue(at(10*ms), false)
	return m
}

func (m *machine) isAsked(when time.Duration) (*machine, Question) {
	m.wake = at(when)
	q, e := m.Due(at(when))
	if e != AskStore {
		panic(fmt.Sprint("the machine does not ask: ", e))
	}
	return m, q
}

func (m *machine) isLost(why Cause) *machine {
	m.isLeased().Lose(why)
	return m
}

func (m *machine) isDowngrading() *machine {
	if err := m.isLeased().Downgrade(); err != nil {
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
	event func(m *machine) Effects
	want  Effects
	phase phase
	wake  time.Duration
	also  func(m *machine) error
}

const (
	never  = -1 << 40
	ending = EndLease | LeaveQueue | StopWatching | StartAgain
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
					t.Errorf("wakes at %v, want %v", r.m.wake.Sub(at(0)), r.wake)
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

func (e Effects) String() string {
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
	return func(m *machine) error { return want("believed in until", m.deadline.Sub(at(0)), d) }
}

func lostBy(c Cause, token int64) func(*machine) error {
	return func(m *machine) error {
		return errors.Join(want("cause", m.lost.Cause, c), want("token", m.lost.Token, token))
	}
}

func fails(err error, sent, now time.Duration) func(*machine) Effects {
	return func(m *machine) Effects { return m.RequestFailed(at(now), at(sent), err, true) }
}

func requestRows() []row {
	answer := func(now time.Duration, g driver.Grant) func(*machine) Effects {
		return func(m *machine) Effects { return m.Answered(at(now), at(0), g, m.slow) }
	}
	slow := func(d time.Duration) *machine { return newMachine().with(func(m *machine) { m.slow = d }) }
	request := func(m *machine) Effects { m.Request(at(0), true, m.slow); return 0 }
	failed := func(err error) *machine {
		return newMachine().with(func(m *machine) { m.RequestFailed(at(0), at(0), err, true) })
	}
	hinted := func(h driver.Hint) *machine {
		return newMachine().with(func(m *machine) { m.Hint(at(0), h, 0) })
	}
	again := position
	again.Again = 100 * ms
	return []row{
		{"a request needs no waking", newMachine(), request, 0, requesting, never, nil},
		{"where the store is slow the position is confirmed before it is known", slow(800 * ms), request, 0, requesting, 700 * ms, nil},
		{"who does not wait has no position to confirm", slow(800 * ms), func(m *machine) Effects { m.Request(at(0), false, m.slow); return 0 }, 0, requesting, never, nil},

		{"a store that is away is asked again", newMachine(), fails(driver.ErrUnavailable, 0, 10*ms), NoteOutage | RetryRequest, requesting, never, func(m *machine) error {
			return want("the next request is a repetition", m.Request(at(0), true, 0).Retry, false)
		}},
		{"a request whose answer is lost is repeated as one that may have taken effect", newMachine(), fails(driver.ErrUnknown, 0, 10*ms), NoteOutage | RetryRequest, requesting, never, func(m *machine) error {
			return want("the next request is a repetition", m.Request(at(0), true, 0).Retry, true)
		}},
		{"that it may have taken effect is not forgotten", failed(driver.ErrUnknown), fails(driver.ErrUnavailable, 0, 10*ms), NoteOutage | RetryRequest, requesting, never, func(m *machine) error {
			return want("the next request is a repetition", m.Request(at(0), true, 0).Retry, true)
		}},
		{"patience ends", failed(driver.ErrUnavailable), fails(driver.ErrUnavailable, 4900*ms, 5000*ms), NoteOutage, requesting, never, nil},
		{"patience does not end after one try: this process stood still", newMachine(), fails(driver.ErrUnavailable, 0, time.Hour), NoteOutage | RetryRequest, requesting, never, nil},
		{"a caller that has left asks no more", newMachine(), func(m *machine) Effects { return m.RequestFailed(at(0), at(0), driver.ErrUnavailable, false) }, 0, requesting, never, nil},
		{"a refusal is an answer", failed(driver.ErrUnavailable), fails(driver.ErrHeld, 10*ms, 20*ms), NoteOutage, requesting, never, func(m *machine) error {
			return want("failures", m.outage.Tries, 0)
		}},
		{"an attempt that the store has ended is made again under another ID", failed(driver.ErrUnknown), fails(driver.ErrLost, 10*ms, 20*ms), StartAgain | StopWatching, ended, never, nil},
		{"a first attempt that is lost is an error", newMachine(), fails(driver.ErrLost, 10*ms, 20*ms), 0, requesting, never, nil},

		{"held", newMachine(), answer(10*ms, grant), GrantWaiter, held, 1000 * ms, func(m *machine) error {
			return errors.Join(deadline(2700*ms)(m), want("ticket", m.claim.Ticket, 7))
		}},
		{"held, and half of it is left", newMachine(), answer(1350*ms, grant), GrantWaiter, held, 1000 * ms, deadline(2700 * ms)},
		{"held, but the answer took too long: it is to be confirmed", newMachine(), answer(1351*ms, grant), 0, queued, 1351 * ms, nil},
		{"held for as long as the LockDelay, too", newMachine(withLockDelay), answer(10*ms, driver.Grant{Token: 7, Ticket: 7, TTL: 4000 * ms}), GrantWaiter, held, 1000 * ms, deadline(2700 * ms)},
		{"an answer ends an outage", failed(driver.ErrUnavailable), answer(10*ms, grant), NoteOutage | GrantWaiter, held, 1000 * ms, nil},
		{"queued", newMachine(), answer(10*ms, position), 0, queued, 400 * ms, func(m *machine) error { return want("ticket", m.claim.Ticket, 5) }},
		{"queued, and the store wants to be asked soon", newMachine(), answer(10*ms, again), 0, queued, 100 * ms, nil},
		{"queued in a slow store: asked as often as it answers, but together", slow(300 * ms), answer(300*ms, again), 0, queued, 300 * ms, nil},
		{"queued in a very slow store: the position must not end", slow(2000 * ms), answer(600*ms, position), 0, queued, 400 * ms, nil},
		{"a hint overtook the answer", hinted(look), answer(10*ms, position), 0, queued, 5 * ms, nil},
		{"a push overtook the answer", hinted(push), answer(10*ms, position), GrantWaiter, held, 10*ms + 1340*ms/3, deadline(1350 * ms)},
		{"the higher of two pushes counts", hinted(push).with(func(m *machine) {
			m.Hint(at(0), driver.Hint{Granted: true, Grant: driver.Grant{Token: 3, TTL: driver.ClaimTTL}}, 0)
		}), answer(10*ms, position), GrantWaiter, held, 10*ms + 1340*ms/3, nil},
		{"a push of an earlier position overtook the answer", hinted(driver.Hint{Granted: true, Grant: driver.Grant{Token: 4, TTL: driver.ClaimTTL}}), answer(10*ms, position), 0, queued, 400 * ms, nil},
	}
}

func queuedRows() []row {
	hint := func(now time.Duration, h driver.Hint) func(*machine) Effects {
		return func(m *machine) Effects { return m.Hint(at(now), h, m.slow) }
	}
	with := func(change ...func(*Terms)) *machine { return newMachine(change...).isQueued() }
	slow := func(d time.Duration) *machine { return with().with(func(m *machine) { m.slow = d }) }
	asked := func(when time.Duration, then ...func(*machine)) (*machine, Question) {
		m, q := with().isAsked(when)
		for _, f := range then {
			f(m)
		}
		return m, q
	}
	renewal := func(name string, now time.Duration, r driver.Renewal, want Effects, p phase, wake time.Duration, also func(*machine) error, then ...func(*machine)) row {
		m, q := asked(400*ms, then...)
		return row{name, m, func(m *machine) Effects { return m.Renewed(at(now), at(400*ms), q, r, m.slow) }, want, p, wake, also}
	}
	due := func(m *machine) Effects { _, e := m.Due(at(400 * ms)); return e }
	busy, _ := asked(100 * ms)
	unsure := with().with(func(m *machine) { m.Hint(at(1300*ms), push, 0) })
	ahead := newMachine()
	_, early := ahead.with(func(m *machine) { m.Request(at(-700*ms), true, 800*ms) }).isAsked(0)
	ahead.isQueued()
	failing, second := asked(400*ms, func(m *machine) { m.unanswered(at(400*ms), at(400*ms), driver.ErrUnavailable) })
	unanswered := with().with(func(m *machine) { m.unanswered(at(50*ms), at(0), driver.ErrUnavailable) })
	return []row{
		{"queued: a push ends an outage, for those behind, too", unanswered, hint(100*ms, push), NoteOutage | GrantWaiter, held, 100*ms + 1250*ms/3, nil},
		{"queued: a hint", with(), hint(100*ms, look), 0, queued, 5 * ms, nil},
		{"queued: a hint while an answer is under way", busy, hint(200*ms, look), 0, queued, 800 * ms, nil},
		renewal("queued: the answer may be older than a hint", 420*ms, sayWaiting, 0, queued, 405*ms, nil, func(m *machine) { m.Hint(at(410*ms), look, 0) }),
		{"queued: a push is relied on", with(), hint(100*ms, push), GrantWaiter, held, 100*ms + 1250*ms/3, func(m *machine) error {
			return errors.Join(deadline(1350*ms)(m), want("ticket", m.claim.Ticket, 7))
		}},
		{"queued: a push just in time", with(), hint(850*ms, push), GrantWaiter, held, 850*ms + 500*ms/3, deadline(1350 * ms)},
		{"queued: a push too late is a hint", with(), hint(851*ms, push), 0, queued, 851 * ms, nil},
		{"queued: a push from a store so slow that it is renewed at once", slow(300 * ms), hint(100*ms, push), GrantWaiter, held, 100 * ms, nil},
		{"queued: a push from a store too slow to renew it", slow(626 * ms), hint(100*ms, push), 0, queued, 100 * ms, nil},
		{"queued: a push where a LockDelay is wanted", with(withLockDelay), hint(100*ms, push), 0, queued, 100 * ms, nil},
		{"queued: a push where a margin is wanted", with(withMargin), hint(100*ms, push), 0, queued, 100 * ms, nil},
		{"queued: a push for an earlier position", with(), hint(100*ms, driver.Hint{Granted: true, Grant: driver.Grant{Token: 4, TTL: driver.ClaimTTL}}), 0, queued, 5 * ms, nil},
		{"queued: a push that is older than one not relied on", unsure, hint(1310*ms, driver.Hint{Granted: true, Grant: driver.Grant{Token: 6, TTL: driver.ClaimTTL}}), 0, queued, 5 * ms, nil},
		{"queued: due", with(), due, AskStore, queued, 1100 * ms, func(m *machine) error { return want("asked", m.asked, at(400*ms)) }},
		{"queued: woken for nothing", with().with(func(m *machine) { m.wake = at(401 * ms) }), due, 0, queued, 401 * ms, nil},
		{"queued: due, and many answers are under way", with().with(func(m *machine) { m.inFlight = maxInFlight }), due, 0, queued, 1100 * ms, nil},
		renewal("queued: held", 450*ms, sayHeld, GrantWaiter, held, 1000*ms, deadline(3100*ms)),
		renewal("queued: held, and not even a quarter is left", 2450*ms, sayHeld, NoteOutage, queued, 2450*ms+pauseOf(2050*ms), nil),
		renewal("queued: still", 450*ms, sayWaiting, 0, queued, 800*ms, func(m *machine) error { return want("confirmed", m.confirmed, at(400*ms)) }),
		renewal("queued: the position is lost", 450*ms, sayLost, StartAgain|StopWatching, ended, never, nil),
		renewal("queued: no answer", 450*ms, saysNot, NoteOutage, queued, 450*ms+pauseOf(50*ms), nil),
		{"queued: an answer after none ends the outage", failing, func(m *machine) Effects { return m.Renewed(at(450*ms), at(400*ms), second, sayWaiting, 0) }, NoteOutage, queued, 800 * ms, nil},
		renewal("queued: the store does not answer for too long", 5400*ms, saysNot, NoteOutage|FailWaiter, queued, 1100*ms, nil, func(m *machine) { m.outage.failed(at(400*ms), driver.ErrUnavailable) }),
		{"queued: a confirmation that overtook the request finds nothing", ahead, func(m *machine) Effects { return m.Renewed(at(20*ms), at(0), early, sayLost, 0) }, 0, queued, 20 * ms, nil},
		renewal("queued: an answer about an earlier ID", 450*ms, sayLost, 0, queued, 800*ms, nil, func(m *machine) {
			m.Lose(Gone)
			m.Restart("id 2")
			m.Answered(at(410*ms), at(405*ms), position, 0)
		}),
		renewal("queued: an answer to one who has left", 450*ms, sayHeld, 0, ended, never, nil, func(m *machine) { m.Quit() }),
	}
}

// pauseOf is the pause after failing for d, with the jitter of these tests.
func pauseOf(d time.Duration) time.Duration { return min(max(d/4, MinPause), maxPause) }

func heldRows() []row {
	due := func(now time.Duration) func(*machine) Effects {
		return func(m *machine) Effects { m.wake = at(now); _, e := m.Due(at(now)); return e }
	}
	renewal := func(name string, now time.Duration, r driver.Renewal, want Effects, p phase, wake time.Duration, also func(*machine) error, then ...func(*machine)) row {
		m, q := newMachine().isLeased().isAsked(1000 * ms)
		for _, f := range then {
			f(m)
		}
		return row{name, m, func(m *machine) Effects { return m.Renewed(at(now), at(1000*ms), q, r, m.slow) }, want, p, wake, also}
	}
	beforePush := func(name string, r driver.Renewal, wake time.Duration) row {
		m, q := newMachine().isQueued().isAsked(400 * ms)
		m.Hint(at(410*ms), push, 0)
		m.Issue(at(410*ms), false)
		m.inFlight-- // another question, which was answered
		return row{name, m, func(m *machine) Effects { m.inFlight++; return m.Renewed(at(450*ms), at(400*ms), q, r, 0) }, 0, held, wake, nil}
	}
	pushedAt := 410*ms + 940*ms/3
	patience := func(m *machine) error {
		m.wake = at(1000 * ms)
		q, _ := m.Due(at(1000 * ms))
		return want("patience", q.Patience, 1700*ms*7/8)
	}
	return []row{
		{"held: due, and asked again meanwhile if no answer comes", newMachine().isLeased(), due(1000 * ms), AskStore, held, 1750 * ms, patience},
		{"held: due, and little is left", newMachine().isLeased(), due(2699 * ms), AskStore, held, 2700 * ms, nil},
		{"held: due at the end", newMachine().isLeased(), due(2700 * ms), ending | ReportLoss, ended, never, lostBy(Expired, 7*64)},
		{"held: due at the end of MaxHold", newMachine(withMaxHold).isLeased(), due(2010 * ms), ending | ReportLoss, ended, never, lostBy(Overheld, 7*64)},
		{"held: due at the end, and nobody has a lease", newMachine().isGranted(), due(2700 * ms), StartAgain | StopWatching | ReleaseClaim, ended, never, nil},
		renewal("held: renewed", 1010*ms, sayHeld, 0, held, 2000*ms, deadline(3700*ms)),
		renewal("held: a shorter renewal takes nothing away", 1010*ms, driver.Renewal{State: driver.Held, Grant: driver.Grant{TTL: 1500 * ms}}, 0, held, 1500*ms, deadline(2700*ms)),
		renewal("held: renewed after the end", 2700*ms, sayHeld, ending|ReportLoss, ended, never, lostBy(Expired, 7*64)),
		renewal("held: another grant, by an attempt that came late", 1010*ms, driver.Renewal{State: driver.Held, Grant: driver.Grant{Token: 9, Ticket: 9, TTL: 3000 * ms}}, ending|ReportLoss, ended, never, func(m *machine) error {
			return errors.Join(lostBy(Gone, 7*64)(m), want("claims to forget", fmt.Sprint(len(m.pending), m.pending[0].Ticket), "1 9"))
		}),
		renewal("held: lost", 1010*ms, sayLost, ending|ReportLoss, ended, never, lostBy(Gone, 7*64)),
		renewal("held: no answer", 1100*ms, saysNot, 0, held, 1300*ms, nil),
		renewal("held: no answer until the end", 2699*ms, saysNot, 0, held, 2700*ms, func(m *machine) error {
			return want("the trouble is known", errors.Is(m.lastErr, driver.ErrUnavailable), true)
		}),
		renewal("held: an answer from before a downgrade", 1010*ms, sayLost, 0, downgrading, 1750*ms, nil, func(m *machine) { _ = m.Downgrade() }),
		renewal("held: a hint came with the answer under way", 1010*ms, sayHeld, 0, held, 1005*ms, nil, func(m *machine) { m.Hint(at(1005*ms), look, 0) }),
		beforePush("held: the position was lost before the push", sayLost, 405*ms),
		beforePush("held: the position waited before the push", sayWaiting, pushedAt),
		{"held: a hint", newMachine().isLeased(), func(m *machine) Effects { return m.Hint(at(100*ms), look, 0) }, 0, held, 5 * ms, nil},
		{"held: a push", newMachine().isLeased(), func(m *machine) Effects { return m.Hint(at(100*ms), push, 0) }, 0, held, 1000 * ms, nil},
	}
}

func leaseRows() []row {
	issue := func(now time.Duration) func(*machine) Effects {
		return func(m *machine) Effects { return m.Issue(at(now), false) }
	}
	unlock := func(now time.Duration) func(*machine) Effects {
		return func(m *machine) Effects { return m.Unlock(at(now)) }
	}
	nest := func(a wish, wanted error) func(*machine) Effects {
		return func(m *machine) Effects {
			if err := m.Nest(a.reentrant, a.weight, a.capacity); !errors.Is(err, wanted) || (err != nil) != (wanted != nil) {
				panic(fmt.Sprint("nest: ", err))
			}
			return 0
		}
	}
	refs := func(n int) func(*machine) error {
		return func(m *machine) error { return want("Unlocks it takes", m.refs, n) }
	}
	writer := wish{weight: driver.Whole, capacity: driver.Whole, reentrant: true}
	reader := wish{weight: 1, capacity: driver.Whole, reentrant: true}
	isReader := func(m *machine) { m.claim.Weight = 1 }
	nested := func() *machine {
		return newMachine().isLeased().with(func(m *machine) { _ = m.Nest(writer.reentrant, writer.weight, writer.capacity) })
	}
	renamed := func(err error) func(*machine) Effects {
		return func(m *machine) Effects { return m.Renamed(at(20*ms), "new", err) }
	}
	renamedLate := func(m *machine) Effects {
		return m.Renamed(at(2700*ms), "new", driver.ErrLost)
	}
	owner := func(name string) func(*machine) error {
		return func(m *machine) error { return want("owner", m.claim.Owner, name) }
	}
	return []row{
		{"issued", newMachine().isGranted(), issue(10 * ms), 0, held, 1000 * ms, func(m *machine) error { return want("token", m.LeaseToken(), 7*64) }},
		{"issued again: the next token", newMachine().isLeased().with(func(m *machine) { m.Unlock(at(20 * ms)) }), issue(20 * ms), 0, held, 1000 * ms, func(m *machine) error { return want("token", m.LeaseToken(), 7*64+1) }},
		{"issued with a MaxHold", newMachine(func(t *Terms) { t.MaxHold = 500 * ms }).isGranted(), issue(10 * ms), 0, held, 510 * ms, nil},
		{"issued as a part: MaxHold begins later", newMachine(func(t *Terms) { t.MaxHold = 500 * ms }).isGranted(), func(m *machine) Effects { return m.Issue(at(10*ms), true) }, 0, held, 1000 * ms, nil},
		{"issued too late: given back", newMachine().isGranted(), issue(2700 * ms), StartAgain | StopWatching | ReleaseClaim, ended, never, nil},
		{"issued after the loss: nothing", newMachine().isGranted().with(func(m *machine) { m.Lose(Gone) }), issue(20 * ms), 0, ended, never, nil},
		{"looked at in time", newMachine().isLeased(), func(m *machine) Effects { return m.Look(at(2699 * ms)) }, 0, held, 1000 * ms, nil},
		{"looked at after the end", newMachine().isLeased(), func(m *machine) Effects { return m.Look(at(2700 * ms)) }, ending | ReportLoss, ended, never, lostBy(Expired, 7*64)},

		{"nested", newMachine().isLeased(), nest(writer, nil), 0, held, 1000 * ms, refs(2)},
		{"nested without saying so", newMachine().isLeased(), nest(wish{weight: driver.Whole, capacity: driver.Whole}, ErrNested), 0, held, 1000 * ms, refs(1)},
		{"nested: a writer covers a reader", newMachine().isLeased(), nest(reader, nil), 0, held, 1000 * ms, refs(2)},
		{"nested: a reader does not cover a writer", newMachine().with(isReader).isLeased(), nest(writer, ErrNested), 0, held, 1000 * ms, refs(1)},

		{"renamed", newMachine().isLeased(), renamed(nil), 0, held, 1000 * ms, owner("new")},
		{"renamed while it is downgraded", newMachine().isDowngrading(), renamed(nil), 0, downgrading, 1000 * ms, owner("new")},
		{"not renamed: the store does not answer", newMachine().isLeased(), renamed(driver.ErrUnknown), 0, held, 1000 * ms, owner("")},
		{"not renamed: the lock is lost", newMachine().isLeased(), renamed(driver.ErrLost), ending | ReportLoss, ended, never, lostBy(Gone, 7*64)},
		{"not renamed: the lock has expired meanwhile", newMachine().isLeased(), renamedLate, ending | ReportLoss, ended, never, lostBy(Expired, 7*64)},
		{"not renamed, after the lease was lost", newMachine().isLost(Expired), renamed(driver.ErrLost), 0, ended, never, lostBy(Expired, 7*64)},

		{"unlocked while others count on it", nested(), unlock(100 * ms), 0, held, 1000 * ms, refs(1)},
		{"unlocked after others that counted on it", nested().with(func(m *machine) { m.Unlock(at(50 * ms)) }), unlock(100 * ms), EndLease | MayHandOver, held, 1000 * ms, nil},
		{"unlocked: may be handed over", newMachine().isLeased(), unlock(259 * ms), EndLease | MayHandOver, held, 1000 * ms, nil},
		{"unlocked: others have waited for long enough", newMachine().isLeased(), unlock(260 * ms), EndLease, held, 1000 * ms, nil},
		{"unlocked: handed over often enough", newMachine().isLeased().with(func(m *machine) { m.issued = 32 }), unlock(100 * ms), EndLease, held, 1000 * ms, nil},
		{"unlocked: one hand-over is left", newMachine().isLeased().with(func(m *machine) { m.issued = 31 }), unlock(100 * ms), EndLease | MayHandOver, held, 1000 * ms, nil},
		{"unlocked: its claim is known", newMachine().isLeased().with(func(m *machine) { m.Pin() }), unlock(100 * ms), EndLease, held, 1000 * ms, nil},
		{"unlocked: a reader", newMachine().with(isReader).isLeased(), unlock(100 * ms), EndLease, held, 1000 * ms, nil},
		{"unlocked: too little is left to hand over", newMachine().isLeased().with(func(m *machine) { m.deadline = at(475 * ms) }), unlock(100 * ms), EndLease, held, 1000 * ms, nil},
		{"unlocked while it is downgraded", newMachine().isDowngrading(), unlock(100 * ms), EndLease, downgrading, 1000 * ms, nil},
		{"unlocked after the end, which nobody has noticed", newMachine().isLeased(), unlock(2700 * ms), ending | ReportLoss | ReleaseClaim, ended, never, nil},
		{"unlocked after it expired", newMachine().isLost(Expired), unlock(100 * ms), ReleaseClaim, ended, never, nil},
		{"unlocked after MaxHold", newMachine(withLockDelay).isLost(Overheld), unlock(100 * ms), ReleaseClaim, ended, never, nil},
		{"unlocked after it expired, with a LockDelay", newMachine(withLockDelay).isLost(Expired), unlock(100 * ms), ReleasePending, ended, never, pendingIs(0)},
		{"unlocked after it was lost", newMachine().isLost(Gone), unlock(100 * ms), ReleasePending, ended, never, pendingIs(0)},
		{"a lost lease is unlocked while others count on it", nested().with(func(m *machine) { m.Lose(Expired) }), unlock(100 * ms), 0, ended, never, nil},
	}
}

func pendingIs(n int) func(*machine) error {
	return func(m *machine) error { return want("claims to forget", len(m.pending), n) }
}

func downgradeRows() []row {
	begin := func(wanted error) func(*machine) Effects {
		return func(m *machine) Effects {
			if err := m.Downgrade(); !errors.Is(err, wanted) {
				panic(fmt.Sprint("downgrade: ", err))
			}
			return 0
		}
	}
	done := func(m *machine) Effects { return m.Downgraded(at(100*ms), grant) }
	failed := func(err error, unsure bool) func(*machine) Effects {
		return func(m *machine) Effects { return m.DowngradeFailed(at(100*ms), err, unsure) }
	}
	weight := func(w int64) func(*machine) error {
		return func(m *machine) error { return want("weight", m.claim.Weight, w) }
	}
	unlocked := func(minHold time.Duration) *machine {
		return newMachine().isDowngrading().with(func(m *machine) {
			m.keepUntil = at(minHold)
			m.Unlock(at(50 * ms))
			m.Quit()
		})
	}
	return []row{
		{"a downgrade begins", newMachine().isLeased(), begin(nil), 0, downgrading, 1000 * ms, func(m *machine) error { return want("round", m.round, 1) }},
		{"a downgrade while others count on the lease", newMachine().isLeased().with(func(m *machine) { m.refs = 2 }), begin(ErrCountedOn), 0, held, 1000 * ms, nil},
		{"a second downgrade", newMachine().isDowngrading(), begin(ErrCountedOn), 0, downgrading, 1000 * ms, nil},
		{"downgrading: not renewed", newMachine().isDowngrading(), func(m *machine) Effects { _, e := m.Due(at(1000 * ms)); return e }, 0, downgrading, 1750 * ms, nil},
		{"downgrading: due at the end", newMachine().isDowngrading(), func(m *machine) Effects { m.wake = at(2700 * ms); _, e := m.Due(m.wake); return e }, ending | ReportLoss, ended, never, nil},
		{"downgrading: nothing can be nested", newMachine().isDowngrading(), func(m *machine) Effects {
			if m.Nest(true, 1, driver.Whole) == nil {
				panic("nested in a lease that changes")
			}
			return 0
		}, 0, downgrading, 1000 * ms, nil},
		{"downgraded", newMachine().isDowngrading(), done, LeaveQueue, held, 1000 * ms, func(m *machine) error { return errors.Join(deadline(2800*ms)(m), weight(1)(m)) }},
		{"downgraded after the lease was lost", newMachine().isDowngrading().with(func(m *machine) { m.Lose(Expired) }), done, 0, ended, never, pendingIs(1)},
		{"downgraded after the lease was lost and unlocked", newMachine().isDowngrading().with(func(m *machine) { m.Lose(Expired); m.Unlock(at(50 * ms)) }), done, ReleasePending, ended, never, pendingIs(1)},
		{"not downgraded, for sure", newMachine().isDowngrading(), failed(driver.ErrUnavailable, false), 0, held, 100 * ms, weight(driver.Whole)},
		{"not downgraded: the lock is lost", newMachine().isDowngrading(), failed(driver.ErrLost, false), ending | ReportLoss, ended, never, lostBy(Gone, 7*64)},
		{"perhaps downgraded: the lease is given up, and both kinds are forgotten", newMachine().isDowngrading(), failed(driver.ErrUnknown, true), ending | ReportLoss, ended, never, func(m *machine) error {
			return errors.Join(pendingIs(2)(m), want("explained", errors.Is(m.lost.Err, driver.ErrUnknown), true))
		}},
		{"perhaps downgraded, after the lease was unlocked", newMachine().isDowngrading().with(func(m *machine) { m.Unlock(at(50 * ms)); m.Quit() }), failed(driver.ErrUnknown, true), ReleasePending, ended, never, pendingIs(2)},
		{"downgraded, after an unlock that leaves it taken", unlocked(time.Minute), done, 0, ended, never, func(m *machine) error { return errors.Join(pendingIs(0)(m), weight(1)(m)) }},
		{"perhaps downgraded, after an unlock that leaves it taken", unlocked(time.Minute), failed(driver.ErrUnknown, true), 0, ended, never, pendingIs(0)},
		{"downgraded, after an unlock when the MinHold was over", unlocked(20 * ms), done, ReleasePending, ended, never, pendingIs(1)},
	}
}

// passedRows are about an acquisition that another goroutine waits for from now on. The
// event has no effects, so that refused stands for one that has nothing to pass on.
func passedRows() []row {
	const refused = FailWaiter
	pass := func(m *machine) Effects {
		if !m.PassOn(at(300 * ms)) {
			return refused
		}
		return 0
	}
	failed := func(err error) *machine {
		return newMachine().with(func(m *machine) { m.RequestFailed(at(0), at(0), err, true) })
	}
	away := newMachine().isQueued().with(func(m *machine) { m.unanswered(at(50*ms), at(0), driver.ErrUnavailable) })
	same := func(m *machine) error {
		return errors.Join(want("ID", m.claim.ID, "id"), want("ticket", m.claim.Ticket, 5), want("confirmed", m.confirmed, at(0)), want("round", m.round, 0))
	}
	return []row{
		{"passed on: a position, with all that is known of it", newMachine().isQueued(), pass, 0, queued, 400 * ms, same},
		{"passed on: a request that may have taken effect", failed(driver.ErrUnknown), pass, 0, requesting, never, func(m *machine) error {
			return want("the next request is a repetition", m.Request(at(300*ms), true, 0).Retry, true)
		}},
		{"passed on in an outage, which the other has not waited out", away, pass, 0, queued, 50*ms + pauseOf(50*ms), func(m *machine) error {
			return errors.Join(want("since", m.outage.Since, at(300*ms)), want("tries", m.outage.Tries, 1))
		}},
		{"not passed on: nothing was requested", newMachine(), pass, refused, requesting, never, nil},
		{"not passed on: nothing is in the store", failed(driver.ErrUnavailable), pass, refused, requesting, never, nil},
		{"not passed on: the lock itself", newMachine().isGranted(), pass, refused, held, 1000 * ms, nil},
		{"not passed on: what has ended", newMachine().isQueued().with(func(m *machine) { m.Lose(Gone) }), pass, refused, ended, never, nil},
	}
}

func endRows() []row {
	quit := func(m *machine) Effects { return m.Quit() }
	failed := func(err error) *machine {
		return newMachine().with(func(m *machine) { m.RequestFailed(at(0), at(0), err, true) })
	}
	restart := func(m *machine) Effects { m.Restart("id 2"); return 0 }
	lost := func() *machine {
		return newMachine().isQueued().with(func(m *machine) { m.hinted, m.early = true, push.Grant; m.Lose(Gone) })
	}
	return []row{
		{"given up before the store heard of it", newMachine(), quit, StopWatching, ended, never, nil},
		{"given up after the store was away", failed(driver.ErrUnavailable), quit, StopWatching, ended, never, nil},
		{"given up after an answer was lost", failed(driver.ErrUnknown), quit, StopWatching | ReleaseClaim, ended, never, nil},
		{"given up in the queue", newMachine().isQueued(), quit, StopWatching | ReleaseClaim, ended, never, nil},
		{"given up while it is held", newMachine().isGranted(), quit, StopWatching | ReleaseClaim, ended, never, nil},
		{"given up twice", newMachine().isQueued().with(func(m *machine) { m.Quit() }), quit, 0, ended, never, nil},
		{"lost twice", newMachine().isLost(Expired), func(m *machine) Effects { return m.Lose(Gone) }, 0, ended, never, lostBy(Expired, 7*64)},
		{"detached", newMachine().isLeased(), func(m *machine) Effects { return m.Lose(Detached) }, ending, ended, never, lostBy(Detached, 7*64)},
		{"attached", newMachine(), func(m *machine) Effects { return m.Attached(at(10*ms), at(0), grant, 9*64+3) }, GrantWaiter, held, 1000 * ms, func(m *machine) error {
			m.Issue(at(10*ms), false)
			return want("token", m.LeaseToken(), 9*64+3)
		}},
		{"attached after one whose renewals are shorter", newMachine().with(func(m *machine) { m.ttlCap = 1500 * ms }), func(m *machine) Effects { return m.Attached(at(10*ms), at(0), grant, 9*64) }, GrantWaiter, held, 500 * ms, deadline(1200 * ms)},
		{"begun again", lost(), restart, 0, requesting, never, func(m *machine) error {
			return errors.Join(want("ID", m.claim.ID, "id 2"), want("ticket", m.claim.Ticket, 0), want("an early push", m.early.Token, 0), want("a hint", m.hinted, false), want("lost", m.lost == nil, true))
		}},
		{"a hint after the end", newMachine().isLost(Gone), func(m *machine) Effects { return m.Hint(at(100*ms), push, 0) }, 0, ended, never, nil},
		{"due after the end", newMachine().isLost(Gone), func(m *machine) Effects { m.wake = at(1 * ms); _, e := m.Due(at(100 * ms)); return e }, 0, ended, never, nil},
	}
}

// wish is what a nested Lock asks for.
type wish struct {
	weight, capacity int64
	reentrant        bool
}
