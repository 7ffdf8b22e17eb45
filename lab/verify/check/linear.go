package check

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/batonhq/baton/lab/verify/history"
)

const maxPart = 2000 // operations: two of each hold

var patience = time.Minute // for all parts of a history

// A span is a hold as a sequential store would see it: granted at some instant from Called to
// Returned, and ended at some instant from lo to hi. A lease that was not certainly released may
// have expired at any time after it was last seen valid, so the end of that time is unknown.
type span struct {
	*history.Hold
	lo, hi int64
}

func spanOf(o *history.Hold) span {
	if o.Freed() {
		return span{o, o.ReleaseCalled, o.ReleaseReturned}
	}
	return span{o, max(o.SureTo, o.Called), math.MaxInt64}
}

// linear asks porcupine whether there is an order of all grants and ends in which a store with
// one operation at a time gives the clients' results. It finds what the other checks do not:
// contradictions with what is certain about a lease before it was first and after it was last
// seen valid, and tokens that contradict the order of the grants.
//
// It leaves out attempts without a grant, also those with an unknown result. An order that fits
// still fits without such an attempt, so leaving it out causes no false violation. It hides none
// either, because the attempt could always have had no effect.
func (f *Findings) linear(keys []locked, maxPart int, patience time.Duration) {
	deadline := time.Now().Add(patience)
	for _, k := range keys {
		var ordered []span
		permits := make(map[int64][]span)
		for _, o := range k.granted() {
			switch {
			case o.Mode != history.Permits:
				ordered = append(ordered, spanOf(o))
			case o.Freed() || o.Sure(): // otherwise it may have ended before it was seen
				permits[o.Of] = append(permits[o.Of], spanOf(o))
			}
		}
		slices.SortStableFunc(ordered, func(a, b span) int { return cmp.Compare(a.Token, b.Token) })
		f.parts(k.key, ordered, readWrite, func(s span) int64 { return s.Called }, maxPart, deadline)
		for _, all := range permits {
			slices.SortStableFunc(all, func(a, b span) int { return cmp.Compare(a.Returned, b.Returned) })
			f.parts(k.key, all, semaphore, func(s span) int64 { return s.Returned }, maxPart, deadline)
		}
	}
}

// parts checks spans, which are in the order of their grants, in pieces. A piece also has the
// earlier spans that may reach into it: those that have not certainly ended when its first span
// can begin. Other spans do not constrain it. If the clients pause, no span reaches in.
func (f *Findings) parts(key string, all []span, model func([]span) []porcupine.Operation, begins func(span) int64, maxPart int, deadline time.Time) {
	maxCarried := maxPart / 10
	piece := maxPart/2 - maxCarried
	for from := 0; from < len(all); from += piece {
		next := all[from:min(from+piece, len(all))]
		first := int64(math.MaxInt64)
		for _, s := range next {
			first = min(first, begins(s))
		}
		var part []span
		for _, s := range all[:from] {
			if s.lo > first {
				part = append(part, s)
			}
		}
		if len(part) > maxCarried { // any choice is sound
			part = part[len(part)-maxCarried:]
		}
		part = append(part, next...)
		f.Looked.Parts++
		f.Looked.PartOps += 2 * len(part)
		check := func(p []span) porcupine.CheckResult {
			left := time.Until(deadline)
			if left <= 0 {
				return porcupine.Unknown
			}
			return porcupine.CheckOperationsTimeout(steps, model(p), left)
		}
		switch check(part) {
		case porcupine.Unknown:
			f.undecided("linear", key, "porcupine found no answer in time for a part of %d operations", 2*len(part))
		case porcupine.Illegal:
			f.unordered(key, part, check)
		}
	}
}

// unordered reports a part without a fitting order, by the first span that does not fit.
func (f *Findings) unordered(key string, part []span, check func([]span) porcupine.CheckResult) {
	n := sort.Search(len(part), func(n int) bool { return check(part[:n+1]) != porcupine.Ok })
	b := part[min(n, len(part)-1)]
	v := Violation{Promise: Exclusive, Check: "linear", Key: key, From: b.Called, To: b.Returned, Ops: []history.Op{b.Op}}
	for i := n - 1; i >= 0; i-- {
		if a := part[i]; check([]span{a, b}) == porcupine.Illegal {
			v.Ops = []history.Op{a.Op, b.Op}
			f.violation(v, "%s, with token %d, was granted while %s still held its lease with token %d, or before it", who(b.Hold), b.Token, who(a.Hold), a.Token)
			return
		}
	}
	f.violation(v, "%s was granted when others still held too much", who(b.Hold))
}

// A step is a grant or an end, for porcupine. The grants of a part have one order, and so have
// its ends; porcupine searches how the two interleave.
type step struct {
	grant bool
	at    int // its index among the grants, or among the ends
	// For a grant: the number of ends before it. For an end: that of grants.
	after int
}

// progress is the number of grants and ends so far.
type progress struct{ grants, ends int }

var steps = porcupine.Model{
	Init: func() any { return progress{} },
	Step: func(state, input, _ any) (bool, any) {
		p, s := state.(progress), input.(step)
		if s.grant {
			return p.grants == s.at && p.ends >= s.after, progress{p.grants + 1, p.ends}
		}
		return p.ends == s.at && p.grants >= s.after, progress{p.grants, p.ends + 1}
	},
}

// readWrite makes the steps of exclusive and shared holds, which are ordered by their tokens.
// Every writer comes after the end of all holds before it, and so do the readers between two
// writers. These readers may begin and end in any order: if one order fits, so does the one in
// which they begin in the order of their calls and end as early as possible.
func readWrite(all []span) []porcupine.Operation {
	var ops []porcupine.Operation
	for from := 0; from < len(all); {
		to := from + 1
		for all[from].Mode == history.Shared && to < len(all) && all[to].Mode == history.Shared {
			to++
		}
		group := slices.Clone(all[from:to])
		slices.SortStableFunc(group, func(a, b span) int { return cmp.Compare(a.Called, b.Called) })
		for i, s := range group {
			ops = append(ops, grantOf(s, step{true, from + i, from}))
		}
		ops = append(ops, endsOf(group, from, func(s span) int64 { return max(s.lo, s.Called) })...)
		from = to
	}
	return ops
}

// semaphore makes the steps of permits of one capacity, which are ordered by their returns. If
// any order fits, so does the one in which each is granted as late and ends as early as
// possible.
func semaphore(all []span) []porcupine.Operation {
	ends := endsOf(all, 0, func(s span) int64 { return s.lo }) // which is after its return
	// The number of ends until a grant has room.
	var ops []porcupine.Operation
	used, ended := int64(0), 0
	for i, s := range all {
		used += s.Weight
		for used > s.Of && ended < len(ends) {
			used -= all[ends[ended].Input.(step).after-1].Weight
			ended++
		}
		ops = append(ops, grantOf(s, step{true, i, ended}))
	}
	return append(ops, ends...)
}

func grantOf(s span, x step) porcupine.Operation {
	return porcupine.Operation{ClientId: s.Client, Input: x, Call: s.Called, Return: s.Returned}
}

// endsOf makes the ends of spans whose grants begin at the index at, in the order of their
// earliest ends.
func endsOf(all []span, at int, instant func(span) int64) []porcupine.Operation {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(instant(all[a]), instant(all[b])) })
	var ops []porcupine.Operation
	for k, i := range order {
		s := all[i]
		ops = append(ops, porcupine.Operation{ClientId: s.Client, Input: step{false, at + k, at + i + 1}, Call: s.lo, Return: s.hi})
	}
	return ops
}
