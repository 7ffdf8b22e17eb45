package check

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/batonhq/baton/lab/verify/history"
)

// A Bucket is refilled with Tokens every Period, evenly, up to Burst.
type Bucket struct {
	Tokens, Burst int64
	Period        time.Duration
}

// counts replays the decisions of limiters in the order of the store's clock, which is in each
// decision. It checks that they are those of a limiter that takes requests one by one: it
// allows what the limit allows and nothing else, and a refusal takes nothing. No other order
// is possible, so no search is needed: decisions of the same microsecond are in the order of
// what remained.
//
// Unknown amounts are between two bounds. A request whose answer was lost may have taken its
// cost at any later time. A refusal, which changes nothing, may have been read before another
// decision was committed or answered. If the clock went back, the order is not known, and only
// windows checks the key.
func (f *Findings) counts(h *history.History, limits map[string]Limit) {
	all := make(map[string][]*history.Decision)
	for i := range h.Decisions {
		d := &h.Decisions[i]
		all[d.Key] = append(all[d.Key], d)
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if l, ok := limits[key]; ok && (l.Bucket != nil || l.Late > 0) {
			f.replay(key, l, all[key])
		}
	}
}

func (f *Findings) replay(key string, l Limit, all []*history.Decision) {
	var known, lost []*history.Decision
	for _, d := range all {
		switch {
		case d.Result == history.Unknown:
			lost = append(lost, d) // in the order of Called
		case d.Result == history.Failed: // nothing was taken
		case d.At == 0:
			return // the time of the decision is not known
		default:
			known = append(known, d)
		}
	}
	if wentBack(known) {
		return
	}
	slices.SortStableFunc(known, func(a, b *history.Decision) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(b.Remaining, a.Remaining), cmp.Compare(a.Result, b.Result)) // "granted" before "refused"
	})
	slices.SortStableFunc(lost, func(a, b *history.Decision) int { return cmp.Compare(a.Called, b.Called) })
	var room interface {
		at(d *history.Decision) (least, most int64) // the bounds of what was available, if no lost request took anything
		is(d *history.Decision, unseen int64)       // sets the known state, if at most unseen was taken besides
	}
	if l.Bucket != nil {
		room = &bucket{Bucket: *l.Bucket}
	} else {
		room = &window{Limit: l}
	}
	open := answers{}
	for _, d := range known {
		f.Looked.Replayed++
		least, most := room.at(d)
		unseen := int64(0)
		if d.Result == history.Refused {
			unseen = open.at(d.Called)
		}
		most += unseen
		for _, u := range lost {
			if u.Called <= d.Returned {
				least -= u.N
			}
		}
		least = max(least, 0)
		left := d.Remaining
		if d.Result == history.Granted {
			left += d.N
		}
		v := Violation{Promise: Bounded, Check: "counts", Key: key, From: d.Called, To: d.Returned, Ops: []history.Op{d.Op}}
		switch {
		case d.Result == history.Granted && d.N > most:
			f.violation(v, "%s was allowed %d, when there was room for %d at most", name(d.Op), d.N, most)
		case left > most:
			f.violation(v, "%s was told that there was room for %d, when it was for %d at most", name(d.Op), left, most)
		case d.Result == history.Refused && d.N <= least:
			f.violation(v, "%s was refused %d, when there was room for %d at least: the others are lost", name(d.Op), d.N, least)
		case left < least:
			f.violation(v, "%s was told that there was room for %d, when it was for %d at least: the others are lost", name(d.Op), left, least)
		}
		room.is(d, unseen)
		if d.Result == history.Granted {
			open.add(d)
		}
	}
}

// answers are the allowed decisions, in the order of the store's clock.
type answers struct {
	allowed []*history.Decision
	last    []int64 // when the last of all decisions until here was answered
}

func (a *answers) add(d *history.Decision) {
	last := d.Returned
	if n := len(a.last); n > 0 {
		last = max(last, a.last[n-1])
	}
	a.allowed, a.last = append(a.allowed, d), append(a.last, last)
}

// at is the sum that was allowed to requests without an answer at an instant of the history.
func (a *answers) at(instant int64) (n int64) {
	for i := len(a.last) - 1; i >= 0 && a.last[i] >= instant; i-- {
		if d := a.allowed[i]; d.Returned >= instant {
			n += d.N
		}
	}
	return n
}

// wentBack reports whether a decision has an earlier time than another one that was answered
// before its request.
func wentBack(known []*history.Decision) bool {
	byReturn := slices.Clone(known)
	slices.SortStableFunc(byReturn, func(a, b *history.Decision) int { return cmp.Compare(a.Returned, b.Returned) })
	byCall := slices.Clone(known)
	slices.SortStableFunc(byCall, func(a, b *history.Decision) int { return cmp.Compare(a.Called, b.Called) })
	last := int64(0)
	for _, d := range byCall {
		for ; len(byReturn) > 0 && byReturn[0].Returned < d.Called; byReturn = byReturn[1:] {
			last = max(last, byReturn[0].At)
		}
		if d.At < last {
			return true
		}
	}
	return false
}

// bucket is a Bucket over time. Its level is between low and high, in parts of a token: as many
// parts as the period has microseconds.
type bucket struct {
	Bucket
	last      int64 // 0 before the first decision: the bucket is full
	low, high int64
}

// rounded is the largest difference of two times, in microseconds, that still count as equal.
const rounded = 2

func (b *bucket) share() int64 { return b.Period.Microseconds() }

func (b *bucket) at(d *history.Decision) (least, most int64) {
	full := b.Burst * b.share()
	since := d.At - b.last
	if b.last == 0 || since > full/b.Tokens { // more than the time to fill it
		b.low, b.high = full, full
	} else {
		b.low, b.high = min(b.low+since*b.Tokens, full), min(b.high+since*b.Tokens, full)
	}
	b.last = d.At
	return max(b.low-rounded*b.Tokens, 0) / b.share(), min(b.high+rounded*b.Tokens, full) / b.share()
}

func (b *bucket) is(d *history.Decision, unseen int64) {
	if d.Result == history.Granted {
		b.low, b.high = b.low-d.N*b.share(), b.high-d.N*b.share()
	}
	from, to := max(d.Remaining-unseen, 0)*b.share(), (d.Remaining+1)*b.share()
	if b.high < from || b.low > to { // the level is not as computed
		b.low, b.high = from, to
	}
	b.low, b.high = max(b.low, from), min(b.high, to)
}

// window is a limit of Most per Window. What was taken comes back at the end of the window, or
// up to Late afterwards.
type window struct {
	Limit
	taken []*history.Decision
}

func (w *window) at(d *history.Decision) (least, most int64) {
	least, most = w.Most, w.Most
	for i := len(w.taken) - 1; i >= 0; i-- {
		t := w.taken[i]
		if d.At-t.At > (w.Window+w.Late).Microseconds()+rounded {
			w.taken = w.taken[i+1:] // this one and all earlier ones have come back
			break
		}
		least -= t.N
		if d.At-t.At < w.Window.Microseconds()-rounded {
			most -= t.N
		}
	}
	return max(least, 0), max(most, 0)
}

func (w *window) is(d *history.Decision, _ int64) {
	if d.Result == history.Granted {
		w.taken = append(w.taken, d)
	}
}
