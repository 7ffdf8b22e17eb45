package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/batonhq/baton/lab/verify/history"
)

// overlap looks for leases that exclude each other and were trusted at the same instant. It
// counts a lease only from when it was first to when it was last seen valid.
func (f *Findings) overlap(keys []locked) {
	lag, lapsed := lagOf{}, lagOf{}
	for _, k := range keys {
		var sure []*history.Hold
		for _, o := range k.granted() {
			if o.Sure() {
				sure = append(sure, o)
				f.revived(o)
			}
		}
		f.Looked.Sure += len(sure)
		slices.SortStableFunc(sure, func(a, b *history.Hold) int { return cmp.Compare(a.SureFrom, b.SureFrom) })

		var active []*history.Hold // those before b that end after it begins
		var last, lastLapsed latest
		for _, b := range sure {
			if a := last.excluding(b); a != nil {
				f.Looked.Pairs++
				lag.see(a, b)
			}
			if a := lastLapsed.excluding(b); a != nil {
				lapsed.see(a, b)
			}
			last.add(b)
			if !b.Freed() {
				lastLapsed.add(b)
			}
			active = slices.DeleteFunc(active, func(a *history.Hold) bool { return a.SureTo <= b.SureFrom })
			if f.told[[2]string{"overlap", k.key}] < enough { // each costs as many comparisons as there are active holds
				f.together(k.key, active, b)
				active = append(active, b)
			}
		}
	}
	f.Looked.Lag, f.Looked.LapsedLag = lag.duration(), lapsed.duration()
}

// revived looks for a lease that was seen valid after its end: after the client found it lost, or
// after its release returned.
func (f *Findings) revived(o *history.Hold) {
	for _, end := range []int64{o.LostAt, o.ReleaseReturned} {
		if end != 0 && end < o.SureTo {
			f.violation(Violation{Promise: Exclusive, Check: "revived", Key: o.Key, From: end, To: o.SureTo, Ops: []history.Op{o.Op}},
				"%s believed in its lease for %v after it had seen its end", who(o), history.Duration(end, o.SureTo))
			return
		}
	}
}

// together compares b with the holds that were trusted when the trust in b began.
func (f *Findings) together(key string, active []*history.Hold, b *history.Hold) {
	var ops []history.Op
	var first *history.Hold
	to, sum := b.SureTo, b.Weight
	note := func(a *history.Hold) {
		if first == nil {
			first = a
		}
		ops = append(ops, a.Op)
		to = min(to, a.SureTo)
	}
	for _, a := range active {
		if a.SureFrom >= b.SureTo {
			continue // b was seen at one instant only
		}
		if excludes(a, b) {
			note(a)
		}
		if a.Mode == history.Permits {
			sum += a.Weight
		}
	}
	v := Violation{Promise: Exclusive, Check: "overlap", Key: key, From: b.SureFrom}
	switch {
	case first != nil:
		v.To, v.Ops = to, append(ops, b.Op)
		f.violation(v, "%s (%s) and %s (%s) both believed in their lease for %v",
			who(first), first.Mode, who(b), b.Mode, history.Duration(b.SureFrom, min(b.SureTo, first.SureTo)))
	case b.Mode == history.Permits && sum > b.Of: // all active holds are permits of the same capacity
		for _, a := range active {
			if a.SureFrom < b.SureTo {
				note(a)
			}
		}
		v.To, v.Ops = to, append(ops, b.Op)
		f.violation(v, "%d of %d permits were believed in at the same instant", sum, b.Of)
	}
}

// latest keeps the last trusted hold of each kind.
type latest struct{ exclusive, shared, permits *history.Hold }

func (l *latest) add(o *history.Hold) {
	kind := &l.exclusive
	switch o.Mode {
	case history.Shared:
		kind = &l.shared
	case history.Permits:
		kind = &l.permits
	}
	if *kind == nil || o.SureTo > (*kind).SureTo {
		*kind = o
	}
}

// excluding returns the hold that ended last among those that b excludes. It compares
// permits only with other modes.
func (l *latest) excluding(b *history.Hold) *history.Hold {
	var found *history.Hold
	for _, a := range []*history.Hold{l.exclusive, l.shared, l.permits} {
		if a != nil && (a.Mode != b.Mode || a.Mode == history.Exclusive) && (found == nil || a.SureTo > found.SureTo) {
			found = a
		}
	}
	return found
}

// lagOf keeps the highest lag.
type lagOf struct {
	most int64
	any  bool
}

func (l *lagOf) duration() time.Duration { return time.Duration(l.most) }

func (l *lagOf) see(a, b *history.Hold) {
	if lag := a.SureTo - b.SureFrom; !l.any || lag > l.most {
		l.most, l.any = lag, true
	}
}
