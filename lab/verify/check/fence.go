package check

import (
	"cmp"
	"slices"

	"github.com/batonhq/baton/lab/verify/history"
)

// tokens looks for grants whose tokens do not rise. All tokens of a key differ. Of two leases
// that exclude each other, the later has the higher token, if the earlier was certainly granted
// before the request for the later. Leases with overlapping requests may have been granted in
// any order, and readers that hold together may have their tokens in any order.
//
// A process that hands a lease over among its own callers gives them tokens that follow that of
// the grant. If it has lost the grant, those may be lower than the tokens of the next holder.
// Then the process trusted a lost lease: that breaks exclusion, while the store's tokens still
// rise.
func (f *Findings) tokens(keys []locked, rules Rules) {
	for _, k := range keys {
		granted := k.granted()
		handed := handOversOf(granted, rules.PerGrant)
		byReturn := slices.Clone(granted)
		slices.SortStableFunc(byReturn, func(a, b *history.Hold) int { return cmp.Compare(a.Returned, b.Returned) })

		first := make(map[int64]*history.Hold, len(granted))
		highest := make(map[kind]*history.Hold) // of the holds that had returned
		for _, b := range granted {
			for ; len(byReturn) > 0 && byReturn[0].Returned < b.Called; byReturn = byReturn[1:] {
				a := byReturn[0]
				if h := highest[kindOf(a)]; h == nil || a.Token > h.Token {
					highest[kindOf(a)] = a
				}
			}
			if a := first[b.Token]; a != nil && rules.EqualReaders && a.Mode == history.Shared && b.Mode == history.Shared && a.Returned >= b.Called {
				continue // comparing the first of them with the others is enough
			} else if a != nil {
				f.violation(Violation{Promise: Fenced, Check: "tokens", Key: k.key, From: a.Returned, To: b.Returned, Ops: []history.Op{a.Op, b.Op}},
					"%s and %s were both granted token %d", who(a), who(b), b.Token)
				continue
			}
			first[b.Token] = b
			var before *history.Hold
			for _, a := range highest {
				if excludes(a, b) && (before == nil || a.Token > before.Token) {
					before = a
				}
			}
			if before == nil {
				continue
			}
			f.Looked.Tokens++
			v := Violation{Promise: Fenced, Check: "tokens", Key: k.key, From: before.Returned, To: b.Returned, Ops: []history.Op{before.Op, b.Op}}
			switch {
			case before.Token < b.Token:
			case handed.on(b):
				v.Promise = Exclusive
				f.violation(v, "%s was granted token %d, and the process of %s, which asked after that, handed on a lease that it had lost, with the lower %d",
					who(before), before.Token, who(b), b.Token)
			default:
				f.violation(v, "%s was granted token %d, and %s, which asked after that, the lower %d", who(before), before.Token, who(b), b.Token)
			}
		}
	}
}

// handOvers has the client of each of the store's grants.
type handOvers struct {
	per     int64
	clients map[int64]int // the client, or severalClients
}

const severalClients = -1

func handOversOf(granted []*history.Hold, per int64) handOvers {
	g := handOvers{per, make(map[int64]int)}
	if per == 0 {
		return g
	}
	for _, o := range granted {
		at := o.Token / per
		if client, known := g.clients[at]; known && client != o.Client {
			g.clients[at] = severalClients
		} else {
			g.clients[at] = o.Client
		}
	}
	return g
}

// on reports whether a hold got its lease from an earlier hold of the same process, and not from
// the store.
func (g handOvers) on(o *history.Hold) bool {
	return g.per != 0 && o.Token%g.per != 0 && g.clients[o.Token/g.per] == o.Client
}

// A kind decides which other holds a hold excludes.
type kind struct {
	mode       history.Mode
	weight, of int64
}

func kindOf(o *history.Hold) kind {
	if o.Mode != history.Permits {
		return kind{mode: o.Mode}
	}
	return kind{o.Mode, o.Weight, o.Of}
}

// writes checks the accepted writes of the resource that checks tokens. Only writes of exclusive
// holders count: other holders' tokens need not rise.
func (f *Findings) writes(h *history.History) {
	holds := make(map[history.Op]*history.Hold, len(h.Holds))
	for i := range h.Holds {
		holds[h.Holds[i].Op] = &h.Holds[i]
	}
	last := make(map[string]*history.Write) // the last that was accepted
	for i := range h.Writes {
		w := &h.Writes[i]
		o := holds[w.Op]
		if o == nil || o.Key != w.Key {
			f.undecided("writes", w.Key, "a write of %s, which asked for no such lock", name(w.Op))
			continue
		}
		if o.Mode != history.Exclusive {
			continue
		}
		f.Looked.Writes++
		if w.Stale {
			f.Looked.Stale++
		}
		v := Violation{Promise: Fenced, Check: "writes", Key: w.Key, From: w.At, To: w.At, Ops: []history.Op{w.Op}}
		if o.Result == history.Granted && o.Token != w.Token {
			f.violation(v, "%s was granted token %d and wrote with %d", name(w.Op), o.Token, w.Token)
		}
		a := last[w.Key]
		if a != nil {
			v.From, v.Ops = a.At, []history.Op{a.Op, w.Op}
		}
		stale := a != nil && (w.Token < a.Token || w.Token == a.Token && w.Op != a.Op)
		switch {
		case w.Accepted && stale && w.Token < a.Token:
			f.violation(v, "the write of %s with token %d was accepted after one with %d", name(w.Op), w.Token, a.Token)
		case w.Accepted && stale:
			f.violation(v, "writes of %s and of %s with the same token %d were accepted", name(a.Op), name(w.Op), w.Token)
		case !w.Accepted && !stale:
			f.violation(v, "the write of %s with token %d was refused, though no higher one came before", name(w.Op), w.Token)
		case w.Stale != stale:
			f.undecided("writes", w.Key, "the two forms of the resource disagree about the write of %s with token %d", name(w.Op), w.Token)
		}
		if w.Accepted && !stale {
			last[w.Key] = w
		}
	}
}
