package acquire

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/leasemath"
	"github.com/batonhq/baton/internal/lockstate"
)

// TestModel lets the acquisitions of three processes contend for one key of
// internal/lockstate, over a network that delays, reorders and loses requests,
// answers and hints, with processes that stand still, give up and crash. After
// every event it checks what must hold for ever. BATON_MODEL_SEEDS=100000 makes
// more histories.
func TestModel(t *testing.T) {
	seeds := 3000
	if n, err := strconv.Atoi(os.Getenv("BATON_MODEL_SEEDS")); err == nil {
		seeds = n
	}
	leases, passed := 0, 0
	for seed := range uint64(seeds) {
		w := newWorld(seed)
		if err := w.run(); err != nil {
			t.Fatalf("seed %d, after %v: %v", seed, w.now.Sub(0), err)
		}
		leases, passed = leases+w.leases, passed+w.passed
	}
	if passed < seeds/4 {
		t.Errorf("only %d acquisitions were passed on in %d histories", passed, seeds)
	}
	if leases < 5*seeds {
		t.Errorf("only %d leases in %d histories", leases, seeds)
	}
}

// world is one history.
type world struct {
	rng       *rand.Rand
	now       Moment
	events    happenings
	count     int
	tokens    lockstate.Counter
	store     *lockstate.State
	processes []*process
	err       error

	// How the network behaves.
	delay, longDelay time.Duration // of messages: usually up to delay, sometimes up to longDelay
	lose             int           // percent of the messages
	late             int           // percent that take long
	calm             bool          // at the end: no faults

	leases    int
	passed    int // how many acquisitions another goroutine has waited for in the end
	lastToken int64
}

// happening is an event at its time.
type happening struct {
	at    Moment
	order int
	do    func()
}

type happenings []happening

func (h happenings) Len() int { return len(h) }
func (h happenings) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h happenings) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *happenings) Push(x any)   { *h = append(*h, x.(happening)) }
func (h *happenings) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// process is one acquisition after the other, each with what a keeper would do.
type process struct {
	*world
	name    string
	a       *Machine
	slow    Latency
	still   Moment // the process does not run until then
	armed   Moment // when due is called
	waits   bool   // waits for the acquisition's outcome
	section int    // how many sections it has still to do
	life    int    // rises with a crash: answers to earlier requests are dropped
}

func newWorld(seed uint64) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 9)), now: Moment(time.Second)}
	w.store = lockstate.New("k", &w.tokens)
	w.delay = []time.Duration{2 * ms, 20 * ms, 150 * ms, 300 * ms}[w.n(4)]
	w.longDelay = []time.Duration{200 * ms, 800 * ms, 4000 * ms}[w.n(3)]
	w.lose, w.late = []int{0, 3, 20}[w.n(3)], []int{1, 10, 30}[w.n(3)]
	t := &Terms{TTL: []time.Duration{1000 * ms, 3000 * ms, 15000 * ms}[w.n(3)], Jitter: func(d time.Duration) time.Duration { return w.upTo(d) }}
	t.Margin = leasemath.Margin(t.TTL)
	if w.n(5) == 0 {
		t.LockDelay = 500 * ms
	}
	if w.n(5) == 0 {
		t.MaxHold = 2000 * ms
	}
	for i := range 3 {
		p := &process{world: w, name: fmt.Sprint("process ", i), section: 4}
		w.processes = append(w.processes, p)
		w.after(w.upTo(500*ms), func() { p.start(t) })
	}
	return w
}

func (w *world) n(n int) int                        { return w.rng.IntN(n) }
func (w *world) chance(percent int) bool            { return w.n(100) < percent }
func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d) + 1)) }

func (w *world) storeTime() time.Duration         { return 30*365*24*time.Hour + time.Duration(w.now) }
func (w *world) after(d time.Duration, do func()) { w.when(w.now.Add(d), do) }
func (w *world) fail(format string, args ...any)  { w.err = fmt.Errorf(format, args...) }

func (w *world) when(at Moment, do func()) {
	w.count++
	heap.Push(&w.events, happening{max(at, w.now), w.count, do})
}

// way is how long a message takes.
func (w *world) way() (d time.Duration, lost bool) {
	switch {
	case w.calm:
		return w.upTo(5 * ms), false
	case w.chance(w.late):
		return w.upTo(w.longDelay), w.chance(w.lose)
	}
	return w.upTo(w.delay), w.chance(w.lose)
}

func (w *world) run() error {
	stormy := Moment(time.Second) + Moment(20*time.Second)
	for len(w.events) > 0 && w.err == nil {
		h := heap.Pop(&w.events).(happening)
		w.now = h.at
		w.calm = w.now > stormy
		h.do()
		w.tell()
		w.check()
		if w.now > stormy.Add(10*time.Minute) {
			w.fail("somebody is not done: %d, %d, %d", w.processes[0].section, w.processes[1].section, w.processes[2].section)
		}
	}
	for _, p := range w.processes {
		if w.err == nil && p.section > 0 {
			w.fail("%s waits for ever", p.name)
		}
	}
	return w.err
}

// tell delivers the store's hints.
func (w *world) tell() {
	for _, e := range w.store.Events() {
		h := driver.Hint{Granted: e.Held, Grant: e.Grant}
		for _, p := range w.processes {
			if p.a == nil || p.a.claim.ID != e.ID {
				continue
			}
			a := p.a
			for range 1 + w.n(2) {
				if d, lost := w.way(); !lost {
					p.after(d, func() {
						// A hint finds its process by the acquisition, which may have
						// begun again since.
						if p.a == a {
							p.commit(a.Hint(w.now, h, p.slow.Last()))
						}
					})
				}
			}
		}
	}
}

// check is called after every event.
func (w *world) check() {
	var believer *process
	for _, p := range w.processes {
		a := p.a
		if a == nil {
			continue
		}
		switch {
		case a.phase == ended && a.wake != 0:
			w.fail("%s: ended, and will be woken", p.name)
		case (a.phase == queued && p.waits || a.phase == held) && a.wake == 0:
			w.fail("%s: nothing will ever happen in phase %d", p.name, a.phase)
		case a.inFlight < 0 || a.inFlight > maxInFlight:
			w.fail("%s: %d requests are in flight", p.name, a.inFlight)
		}
		if end, _ := a.ValidUntil(); !a.leased || w.now >= end {
			continue
		}
		if believer != nil {
			w.fail("%s and %s believe in the lock at once", believer.name, p.name)
		}
		believer = p
		known := false
		for _, h := range w.store.Inspect(w.storeTime()).Holders {
			known = known || h.Owner == p.name && h.Token == a.token
		}
		if !known {
			w.fail("%s believes in a grant that the store does not have", p.name)
		}
	}
}

// after makes the process do something after d, when it runs again.
func (p *process) after(d time.Duration, do func()) {
	life := p.life
	var try func()
	try = func() {
		switch {
		case p.life != life:
		case p.now < p.still:
			p.when(p.still, try)
		default:
			do()
		}
	}
	p.world.after(d, try)
}

func (p *process) start(t *Terms) {
	a := New(t, driver.Claim{Key: "k", ID: p.newID(), Owner: p.name, Weight: driver.Whole, Capacity: driver.Whole}, 0, 0, Outage{})
	p.a = &a
	p.armed, p.waits = 0, false
	p.request()
	if p.chance(20) && !p.calm { // it gives up early
		a := p.a
		p.after(p.upTo(5*time.Second), func() {
			switch {
			case p.a != a:
			case p.chance(60) && a.PassOn(p.now): // another goroutine, which came just now, waits on
				p.passed++
				p.commit(0)
			case a.phase == queued:
				p.commit(a.Quit())
				p.next()
			}
		})
	}
	switch {
	case p.chance(15) && !p.calm:
		p.world.after(p.upTo(5*time.Second), func() { p.still = p.now.Add(p.upTo(6 * time.Second)) })
	case p.chance(3) && !p.calm:
		p.world.after(p.upTo(5*time.Second), func() { // a crash
			p.life++
			p.a = nil
			p.world.after(p.upTo(time.Second), func() { p.start(t) })
		})
	}
}

func (p *process) newID() string { p.count++; return fmt.Sprint("id-", p.count) }

// next begins the next section.
func (p *process) next() {
	t := p.a.terms
	if p.section--; p.section > 0 {
		p.after(p.upTo(300*ms), func() { p.start(t) })
	}
}

// exchange sends a request, and calls back once: with true if the answer came in
// time.
func (p *process) exchange(patience time.Duration, at func(), back func(answered bool)) {
	done := false
	once := func(answered bool) func() {
		return func() {
			if !done {
				done = true
				back(answered)
			}
		}
	}
	p.after(patience, once(false))
	there, lost := p.way()
	if lost {
		return
	}
	p.world.after(there, func() { // even if the process has crashed
		at()
		if home, lost := p.way(); !lost {
			p.after(home, once(true))
		}
	})
}

func (p *process) request() {
	a, sent := p.a, p.now
	r := a.Request(sent, true, p.slow.Last())
	p.commit(0)
	var g driver.Grant
	var err error
	p.exchange(a.terms.Acquiring(), func() { g, err = p.store.Acquire(p.storeTime(), r) }, func(answered bool) {
		if p.a != a {
			return
		}
		if !answered {
			err = driver.ErrUnknown
		}
		if err != nil {
			e := a.RequestFailed(p.now, sent, err, true)
			p.waits = true
			p.commit(e)
			p.waits = false
			switch {
			case e&StartAgain != 0: // commit has handled it
			case e&RetryRequest != 0:
				p.after(a.terms.Pause(p.now.Sub(a.outage.Since)), func() { p.request() })
			default:
				p.commit(a.Quit())
				p.section++
				p.next()
			}
			return
		}
		p.slow.Saw(p.now.Sub(sent))
		p.waits = true
		p.commit(a.Answered(p.now, sent, g, p.slow.Last()))
	})
}

// commit performs effects.
func (p *process) commit(e Effects) {
	a := p.a
	if p.armed != a.wake {
		p.armed = a.wake
		p.wakeUp(a)
	}
	switch {
	case e&GrantWaiter != 0 && p.waits:
		p.waits = false
		p.after(p.upTo(2*ms), func() { p.hold(a) })
	case e&FailWaiter != 0 && p.waits:
		p.waits = false
		p.commit(a.Quit())
		p.section++
		p.next()
	case e&StartAgain != 0 && p.waits:
		p.waits = false
		if e&ReleaseClaim != 0 {
			p.release(a.claim)
		}
		a.Restart(p.newID())
		p.request()
		return
	}
	if e&ReleaseClaim != 0 {
		p.release(a.claim)
	}
	if e&ReleasePending != 0 {
		for _, c := range a.pending {
			p.release(c)
		}
		a.pending = nil
	}
}

// wakeUp calls due when the acquisition wants it.
func (p *process) wakeUp(a *Machine) {
	at := p.armed
	if at == 0 {
		return
	}
	p.after(max(at.Sub(p.now), 0), func() {
		if p.a != a || p.armed != at {
			return
		}
		p.armed = 0
		q, e := a.Due(p.now)
		p.commit(e)
		if e&AskStore == 0 {
			return
		}
		sent := p.now
		var r driver.Renewal
		p.exchange(q.Patience, func() { r = p.store.Renew(p.storeTime(), q.Claim, a.terms.StoreTTL()) }, func(answered bool) {
			if !answered {
				r = driver.Renewal{Err: driver.ErrUnknown}
			}
			p.slow.Saw(p.now.Sub(sent))
			if p.a == a {
				p.commit(a.Renewed(p.now, sent, q, r, p.slow.Last()))
			}
		})
	})
}

// hold issues a lease, works and unlocks; and perhaps hands over.
func (p *process) hold(a *Machine) {
	if p.a != a {
		return
	}
	e := a.Issue(p.now, false)
	p.commit(e)
	if !a.leased {
		p.start(a.terms)
		return
	}
	p.leases++
	if token := a.LeaseToken(); token <= p.lastToken {
		p.fail("%s: token %d after %d", p.name, token, p.lastToken)
	} else {
		p.lastToken = token
	}
	work := p.upTo([]time.Duration{50 * ms, 500 * ms, 6000 * ms}[p.n(3)])
	p.after(work, func() {
		if p.a != a {
			return
		}
		e := a.Unlock(p.now)
		p.commit(e)
		switch {
		case a.lost != nil:
		case e&MayHandOver != 0 && p.chance(50):
			p.after(p.upTo(20*ms), func() { p.hold(a) })
			return
		default:
			p.commit(a.Quit())
		}
		p.next()
	})
}

// release makes the store forget a claim, and repeats the request until it is
// answered.
func (p *process) release(c driver.Claim) {
	p.exchange(time.Second, func() { _ = p.store.Release(p.storeTime(), c) }, func(answered bool) {
		if !answered && !p.calm {
			p.release(c)
		}
	})
}
