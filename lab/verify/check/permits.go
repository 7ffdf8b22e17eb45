package check

import (
	"slices"

	"github.com/batonhq/baton/lab/verify/history"
)

// permits checks the count of all permits at the end (history.Drains): all of them can be taken,
// and not one more.
func (f *Findings) permits(w *world, keys []locked) {
	for _, k := range keys {
		if !slices.ContainsFunc(k.holds, func(o *history.Hold) bool { return o.Mode == history.Permits }) {
			continue
		}
		counts := k.holds[len(k.holds)-1].Client
		var before, count []*history.Hold
		for _, o := range k.holds {
			if o.Called >= w.drains && o.Client == counts {
				count = append(count, o)
			} else {
				before = append(before, o)
			}
		}
		if len(count) == 0 {
			f.undecided("permits", k.key, "nobody counted the permits in the end")
			continue
		}
		f.count(w, k.key, before, count)
	}
}

func (f *Findings) count(w *world, key string, before, count []*history.Hold) {
	var last, free int64 // from when on no client has anything from before, and neither has the store
	for _, o := range before {
		last, free = max(last, w.last(o)), max(free, w.until(o))
	}
	full, found := false, false
	for _, o := range count {
		v := Violation{Check: "permits", Key: key, From: o.Called, To: w.answered(o), Ops: []history.Op{o.Op}}
		surely, atMost := int64(0), int64(0) // permits of other holds
		for _, a := range count {
			switch {
			case a == o || a.Result == history.Refused || a.Result == history.Failed:
				continue
			case a.Called <= w.answered(o) && w.until(a) >= o.Called:
				atMost += a.Weight
			}
			if a.Result == history.Granted && a.Returned < o.Called && a.Freed() && a.ReleaseCalled > o.Returned {
				surely += a.Weight
			}
		}
		room := atMost+o.Weight <= o.Of
		switch {
		case o.Result == history.Granted && surely+o.Weight > o.Of:
			v.Promise, found = Exclusive, true
			f.violation(v, "%s was granted a permit when all %d were taken", who(o), o.Of)
		case o.Result == history.Refused && surely == o.Of:
			full = true
		case !room:
		case !o.Waits && o.Result == history.Refused && o.Called > free,
			o.Waits && last < never && w.answered(o)-max(o.Called, last) > w.limit():
			v.Promise, found = Lively, true
			f.violation(v, "%s could not take one of %d permits, of which at most %d were taken: the others are lost", who(o), o.Of, atMost)
		}
	}
	if full {
		f.Looked.Counted++
	} else if !found {
		f.undecided("permits", key, "the count of the permits did not come to its end")
	}
}
