package rate

import (
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// Of is the algorithm of a limit, or a *limits.Error.
func Of(l limits.Limit) (Algorithm, error) {
	if l == (limits.Limit{}) {
		return nil, refuse("it is the zero Limit: make one, such as ratelimit.SlidingWindow(100, time.Minute)")
	}
	if l.Period > 0 && l.Period < time.Microsecond {
		return nil, refuse("a period of %v: times are whole microseconds; did you mean %d*time.Second?", l.Period, int64(l.Period))
	}
	if l.Period%time.Microsecond != 0 {
		return nil, refuse("a period of %v: times are whole microseconds", l.Period)
	}
	if l.Offset%time.Microsecond != 0 {
		return nil, refuse("an offset of %v: times are whole microseconds", l.Offset)
	}
	if field := strange(l); field != "" {
		return nil, refuse("a %v has no %s", l.Algorithm, field)
	}
	period := l.Period.Microseconds()
	switch l.Algorithm {
	case limits.FixedWindow:
		if l.Windows != [4]int64{} {
			return ok(NewCalendar(l.N, l.Windows))
		}
		return ok(NewFixed(l.N, period, l.Offset.Microseconds()))
	case limits.SlidingWindow:
		return ok(NewSliding(l.N, period, l.Parts, !l.Classic))
	case limits.SlidingLog:
		return ok(NewLog(l.N, period))
	case limits.EstimatedWindow:
		return ok(NewApprox(l.N, period))
	case limits.TokenBucket:
		return ok(NewBucket(l.N, period, l.Burst))
	case limits.LeakyBucket:
		return ok(NewQueue(l.N, period, l.Burst, l.Ahead))
	}
	return nil, refuse("%v is not known", l.Algorithm)
}

// ok prevents an Algorithm with a nil pointer.
func ok[A Algorithm](a A, err error) (Algorithm, error) {
	if err != nil {
		return nil, err
	}
	return a, nil
}

// strange is the name of a field that is set although the algorithm does not have it.
func strange(l limits.Limit) string {
	bucket := l.Algorithm == limits.TokenBucket || l.Algorithm == limits.LeakyBucket
	switch {
	case l.Burst != 0 && !bucket:
		return "burst"
	case l.Ahead != 0 && l.Algorithm != limits.LeakyBucket:
		return "part that need not wait"
	case l.Parts != 0 && l.Algorithm != limits.SlidingWindow:
		return "sub-windows"
	case l.Classic && l.Algorithm != limits.SlidingWindow:
		return "classic form"
	case l.Offset != 0 && l.Algorithm != limits.FixedWindow:
		return "offset"
	case l.Windows != [4]int64{} && (l.Algorithm != limits.FixedWindow || l.Period != 0):
		return "windows of a calendar beside a period"
	}
	return ""
}

// Request is a limits.Request with the algorithms of its limits.
type Request struct {
	limits.Request
	Limits []Algorithm
}

// NewRequest checks a request. Known.NewRequest is faster for frequent limits.
func NewRequest(r limits.Request) (*Request, error) { return newRequest(r, Of) }

func newRequest(r limits.Request, of func(limits.Limit) (Algorithm, error)) (*Request, error) {
	if err := limits.Check(r); err != nil {
		return nil, err
	}
	q := &Request{r, make([]Algorithm, len(r.Takes))}
	for i, t := range r.Takes {
		a, err := of(t.Limit)
		if err != nil {
			return nil, err
		}
		q.Limits[i] = a
	}
	return q, nil
}

// AnyTurn is later than every turn.
const AnyTurn = exact - 1

// ahead is how far ahead a turn of a limit may be, in microseconds.
func (r *Request) ahead(l Algorithm) int64 {
	if b, ok := l.(*Bucket); ok && b.Queue {
		return r.Within()
	}
	return r.MaxWait.Microseconds()
}

// Within is TurnWithin in microseconds, or AnyTurn.
func (r *Request) Within() int64 {
	if r.Mode != limits.TakeIfAllowed || r.TurnWithin == 0 {
		return AnyTurn
	}
	return min(r.TurnWithin.Microseconds(), AnyTurn)
}

// Keep is how long the store must keep a state with that reset, or the memory of an ID.
func (r *Request) Keep(reset time.Duration) time.Duration {
	if r.Now != 0 {
		return max(reset, limits.ReplayTTL)
	}
	return reset
}

// Outside reports whether a moment is outside the windows of a calendar, and by how much.
func (r *Request) Outside(now int64) (by time.Duration, outside bool) {
	for _, t := range r.Takes {
		if w := t.Limit.Windows; w != [4]int64{} {
			switch {
			case now < w[0]:
				return micros(now - w[1]), true
			case now >= w[3]:
				return micros(now - w[2]), true
			}
		}
	}
	return 0, false
}

// Past is the memory of an allowed request with an ID: the time, and the wait for its
// turn, in microseconds.
type Past struct{ At, Wait int64 }

// Answer is the store's answer to the request by its clock, from the states of its keys
// and the memory of its ID, nil if there is none. changed says that the states must be
// kept, as for Decide. The only error is a *limits.ClockError.
func (r *Request) Answer(store string, clock int64, states []State, past *Past) (d limits.Taken, changed bool, err error) {
	now := r.Now
	if now == 0 {
		now = clock
	}
	if ahead, outside := r.Outside(now); outside {
		return d, false, &limits.ClockError{Store: store, Ahead: ahead}
	}
	if past != nil {
		return r.Repeated(states, now, past.At, past.Wait), false, nil
	}
	d, changed = r.Decide(states, now)
	return d, changed, nil
}

// Repeated is the answer to a request that was allowed at at, for a turn wait µs later:
// the present state, and the rest of the wait. It overwrites the states: clone them if
// they are kept.
func (r *Request) Repeated(states []State, now, at, wait int64) limits.Taken {
	d := limits.Taken{OK: true, Repeated: true, At: at, Wait: max(micros(at+wait-now), 0), Limits: make([]limits.Decision, len(r.Limits))}
	for i, l := range r.Limits {
		m := split(l, states[i], now)
		m.own, _ = l.Settle(m.own, now)
		st := m.status(l, now)
		d.Limits[i] = limits.Decision{OK: true, Wait: d.Wait, Remaining: st.Remaining, Next: micros(st.Next), Reset: micros(st.Reset)}
	}
	return d
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// Decide decides the request. changed says that the states must be kept. There is one
// state for each of the request's limits, settled or not. A refused request, or a look,
// changes nothing unless the clock did. Decide overwrites the states; use them only if
// they must be kept. The store must check the request's ID first.
func (r *Request) Decide(states []State, now int64) (d limits.Taken, changed bool) {
	d = limits.Taken{OK: true, At: now, Limits: make([]limits.Decision, len(r.Limits))}
	converted := false
	var space [2]mixed
	all := space[:0]
	for i, l := range r.Limits {
		m := split(l, states[i], now)
		var c bool
		m.own, c = l.Settle(m.own, now)
		all = append(all, m)
		converted = converted || c
		cost, a := r.Takes[i].Cost, Answer{OK: true}
		switch {
		case r.Mode > limits.TakeAnyway || cost == 0:
		case r.Mode == limits.TakeAnyway:
			a = m.ask(l, now, min(cost, l.Capacity()), r.ahead(l))
			if m.n > 0 {
				alone := l.Ask(m.own, now, min(cost, l.Capacity()), r.ahead(l))
				a.Wait = max(a.Wait, alone.Wait, alone.Retry)
			}
			a, changed = Answer{OK: true, Wait: max(a.Wait, a.Retry)}, true // a refused take has a later turn
		case cost > l.Capacity():
			a = Answer{Retry: -1}
		default:
			a, changed = m.ask(l, now, cost, r.ahead(l)), true
		}
		x := &d.Limits[i]
		if x.OK, x.Wait, x.Retry = a.OK, micros(a.Wait), micros(a.Retry); a.Retry < 0 {
			x.Retry = limits.Never
		}
		d.OK = d.OK && x.OK
		d.Wait, d.Retry = max(d.Wait, x.Wait), max(d.Retry, x.Retry)
	}
	if !d.OK {
		changed, d.Wait = false, 0
	}
	for i, l := range r.Limits {
		m, cost := &all[i], r.Takes[i].Cost
		x := &d.Limits[i]
		switch {
		case r.Mode == limits.Forget:
			changed = changed || len(m.own) > 0 || m.others != nil
			*m = mixed{own: m.own[:0]}
		case cost == 0 || !d.OK:
		case r.Mode == limits.TakeIfAllowed:
			m.own = l.Take(m.own, now, cost)
		case r.Mode == limits.TakeAnyway:
			m.own = l.Charge(m.own, now, cost)
			if cost > l.Capacity() {
				x.Wait = max(x.Wait, micros(l.Debt(m.own, now)))
				d.Wait = max(d.Wait, x.Wait)
			}
		case r.Mode == limits.GiveBack:
			if len(m.own) > 0 {
				m.own, changed = l.Give(m.own, now, cost, r.At, r.Wait.Microseconds()), true
			}
		}
		st := m.status(l, now)
		x.Remaining, x.Next, x.Reset = st.Remaining, micros(st.Next), micros(st.Reset)
		states[i] = m.join()
	}
	return d, changed || converted
}
