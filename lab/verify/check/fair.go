package check

import (
	"cmp"
	"slices"

	"github.com/batonhq/baton/lab/verify/history"
)

// How many later requests of one other process may be served while a waiter's process waits for
// one grant: this many leases, and this many of the store's grants. A process before it in the
// queue may hand a grant over 32 times, to later callers of its own. The rest is for a process
// that was delayed and lost its position.
const (
	maxOvertakes = 100
	maxTurns     = 8
)

// overtaken looks for exclusive waiters that are passed over again and again by attempts that
// were called when the waiters had already waited for TTL + Bound. A process has one position
// for all its waiters, and joins the end of the queue after each grant. So a waiter may be
// passed over once more for each earlier attempt of its own process that ends.
//
// Fairness does not bound how long other processes hold the lock. So the longest wait that it
// allows is that many grants of each of them, however long.
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
				if a.Mode == history.Exclusive { // readers may hold together
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
