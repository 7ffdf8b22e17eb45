package check

import (
	"cmp"
	"slices"

	"github.com/batonhq/baton/internal/verify/history"
)

// How often one other process may be served what it asked for later while a waiter's
// process waits for one turn: so many leases, and so many of the store's grants. Who
// was before it in line may hand a grant on inside its process, 32 times, to callers
// that came later. The rest is for a process that was delayed and lost its place.
const (
	maxOvertakes = 100
	maxTurns     = 8
)

// overtaken looks for exclusive waiters that are passed over again and again, by
// attempts that were called when they had waited for TTL + Bound already. A
// process has one place in line for all who wait in it, and goes to the end of
// the line after each turn: so it may be passed over once more for each of its own
// attempts that comes to an end before.
//
// For how long the others hold the lock is their affair. So the longest wait that
// fairness allows is so many turns of the others, however long.
func (f *Findings) overtaken(w *world, keys []locked) {
	for _, k := range keys {
		returns := make(map[int][]int64) // by client
		for _, o := range k.holds {
			if o.Returned != 0 {
				returns[o.Client] = append(returns[o.Client], o.Returned)
			}
		}
		for _, all := range returns {
			slices.Sort(all)
		}
		for _, o := range k.holds {
			from, to := max(o.Called, w.healed)+w.limit(), w.answered(o)
			if !o.Waits || o.Mode != history.Exclusive || from >= to {
				continue
			}
			first, _ := slices.BinarySearch(returns[o.Client], o.Called)
			last, _ := slices.BinarySearch(returns[o.Client], to)
			own := 1 + last - first
			leases, turns := make(map[int]int), make(map[int]map[int64]bool)
			i, _ := slices.BinarySearchFunc(k.holds, from, func(a *history.Hold, t int64) int { return cmp.Compare(a.Called, t) })
			for _, a := range k.holds[i:] {
				if a.Called >= to {
					break
				}
				if a.Client == o.Client || a.Result != history.Granted || a.Returned >= to {
					continue
				}
				leases[a.Client]++
				if a.Mode == history.Exclusive { // readers are let in beside each other
					if turns[a.Client] == nil {
						turns[a.Client] = make(map[int64]bool)
					}
					turns[a.Client][a.Token/max(w.PerGrant, 1)] = true
				}
			}
			for client, n := range leases {
				t := len(turns[client])
				f.Looked.Passed = max(f.Looked.Passed, t/own)
				if n > maxOvertakes*own || t > maxTurns*own {
					f.violation(Violation{Promise: Lively, Check: "overtaken", Key: k.key, From: o.Called, To: to, Ops: []history.Op{o.Op}},
						"%s waited for %v, while client %d was granted the lock %d times, in %d turns, that it had asked for later",
						who(o), history.Duration(o.Called, to), client, n, t)
				}
			}
		}
	}
}
