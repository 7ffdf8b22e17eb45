package check

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/batonhq/baton/lab/verify/history"
)

const never = int64(math.MaxInt64)

// A world is the facts about a run for the checks of liveness.
type world struct {
	Rules
	healed, drains, ends int64
	killed               map[int]int64
}

// owed returns the instant from which waiters are owed a grant.
func (w *world) owed() int64 {
	if w.Always {
		return 0
	}
	return w.healed
}

// limit bounds the time of any request without faults.
func (w *world) limit() int64 { return int64(w.TTL + w.Bound) }

// alive returns the end of a client's life.
func (w *world) alive(client int) int64 {
	if at, ok := w.killed[client]; ok {
		return min(at, w.ends)
	}
	return w.ends
}

// over returns when the client saw the end of its hold, was killed, or never.
func (w *world) over(o *history.Hold) int64 {
	at := never
	for _, t := range []int64{o.ReleaseReturned, o.LostAt} {
		if t != 0 {
			at = min(at, t)
		}
	}
	if t, ok := w.killed[o.Client]; ok {
		at = min(at, t)
	}
	return at
}

// last returns when the client had finished an attempt and its lease, or never.
func (w *world) last(o *history.Hold) int64 {
	switch {
	case o.Result == history.Granted && o.Freed():
		return o.ReleaseReturned
	case o.Result == history.Granted || o.Returned == 0:
		return w.over(o)
	}
	return o.Returned
}

// until returns the last instant at which an attempt may have a trace in the store.
func (w *world) until(o *history.Hold) int64 {
	at := w.last(o)
	if at == never || o.Result == history.Refused || o.Result == history.Failed || o.Result == history.Granted && o.Freed() {
		return at
	}
	return at + w.limit()
}

// answered returns when an attempt was answered, or the instant until which it was not.
func (w *world) answered(o *history.Hold) int64 {
	if o.Returned != 0 {
		return o.Returned
	}
	return w.alive(o.Client)
}

// A stretch is an interval of time.
type stretch struct{ from, to int64 }

// waiting looks for waiters that waited for longer than TTL + Bound while no fault was present and
// no live client held the lock. A lock cannot promise more, because it does not bound how long
// other clients hold it.
func (f *Findings) waiting(w *world, keys []locked) {
	for _, k := range keys {
		idle := w.idle(k)
		late := make(map[stretch][]*history.Hold) // by the interval without a holder
		for _, o := range k.holds {
			from, to := max(o.Called, w.owed()), w.answered(o)
			if !o.Waits || from >= to {
				continue
			}
			f.Looked.Waiters++
			found := false
			i, _ := slices.BinarySearchFunc(idle, from, func(s stretch, t int64) int { return cmp.Compare(s.to, t) })
			for _, s := range idle[i:] {
				if s.from >= to {
					break
				}
				d := min(s.to, to) - max(s.from, from)
				f.Looked.Idle = max(f.Looked.Idle, time.Duration(d))
				if d > w.limit() {
					late[s] = append(late[s], o)
					found = true
				}
			}
			if !found && o.Returned == 0 && to == w.ends {
				f.undecided("waiting", k.key, "%s still waited when the run ended", who(o))
			}
		}
		for s, waiters := range late {
			first := waiters[0] // the earliest call
			v := Violation{
				Promise: Lively, Check: "waiting", Key: k.key,
				From: max(s.from, first.Called, w.owed()), To: min(s.to, w.answered(first)), Ops: opsOf(waiters),
			}
			f.violation(v, "%s and %d others waited for %v while nobody held the lock: owed are %v",
				who(first), len(waiters)-1, history.Duration(v.From, v.To), time.Duration(w.limit()))
		}
		f.unanswered(w, k)
	}
}

// idle returns the intervals in which no live client held the lock, according to the clients, in
// order. A lock is held from the return of the attempt: before that the grant has not arrived,
// and one whose attempt was given up is cleaned up within the limit.
func (w *world) idle(k locked) []stretch {
	var busy []stretch
	for _, o := range k.holds {
		if o.Result == history.Granted {
			busy = append(busy, stretch{o.Returned, w.over(o)})
		}
	}
	slices.SortFunc(busy, func(a, b stretch) int { return cmp.Compare(a.from, b.from) })
	var idle []stretch
	at := int64(math.MinInt64)
	for _, b := range busy {
		if b.from > at {
			idle = append(idle, stretch{at, b.from})
		}
		at = max(at, b.to)
	}
	if at < never {
		idle = append(idle, stretch{at, never})
	}
	return idle
}

// unanswered looks for requests that do not wait and never returned.
func (f *Findings) unanswered(w *world, k locked) {
	see := func(o *history.Hold, what string, called, returned int64) {
		from, to := max(called, w.healed), w.alive(o.Client)
		if called != 0 && returned == 0 && to-from > w.limit() {
			f.violation(Violation{Promise: Lively, Check: "waiting", Key: k.key, From: from, To: to, Ops: []history.Op{o.Op}},
				"the %s of %s did not return within %v", what, who(o), history.Duration(from, to))
		}
	}
	for _, o := range k.holds {
		if !o.Waits {
			see(o, "attempt", o.Called, o.Returned)
		}
		see(o, "release", o.ReleaseCalled, o.ReleaseReturned)
	}
}

// refused looks for attempts that were refused although the history has no reason: no holder, no
// waiter, no attempt at the same time, and no remains of an attempt that was given up or killed.
func (f *Findings) refused(w *world, keys []locked) {
	for _, k := range keys {
		// The two latest instants that earlier attempts reach. One may be of the attempt itself.
		var first, second int64
		for i, o := range k.holds {
			reach := w.until(o)
			if reach < never && o.Result != history.Granted {
				reach += int64(w.Bound) // for a withdrawal after the call has returned
			}
			free := max(first, second) < o.Called && (i+1 == len(k.holds) || k.holds[i+1].Called > o.Returned)
			if !o.Waits && o.Result == history.Refused && o.Called >= w.healed+w.limit() {
				f.Looked.Refused++
				if free {
					f.violation(Violation{Promise: Lively, Check: "refused", Key: k.key, From: o.Called, To: o.Returned, Ops: []history.Op{o.Op}},
						"%s was refused a lock that nobody held or wanted", who(o))
				}
			}
			if first < second {
				first = max(first, reach)
			} else {
				second = max(second, reach)
			}
		}
	}
}

func opsOf(holds []*history.Hold) []history.Op {
	var ops []history.Op
	for _, o := range holds {
		ops = append(ops, o.Op)
	}
	return ops
}
