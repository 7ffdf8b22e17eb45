package check

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/batonhq/baton/lab/verify/history"
)

// windows looks for intervals as long as a limit's window in which a limiter allowed too much. A
// request counts only if it was called and answered within the interval. The interval is a little
// shorter than the limit's window, because stores count whole microseconds on adjusted clocks.
func (f *Findings) windows(h *history.History, limits map[string]Limit) {
	admits := make(map[string][]*history.Decision)
	for i := range h.Decisions {
		if d := &h.Decisions[i]; d.Result == history.Granted {
			admits[d.Key] = append(admits[d.Key], d)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(admits)) {
		l, ok := limits[key]
		if !ok {
			f.undecided("windows", key, "nobody said what the limit is")
			continue
		}
		f.window(key, l, admits[key])
	}
}

func (f *Findings) window(key string, l Limit, admits []*history.Decision) {
	window := int64(l.Window - l.Window/1000 - time.Millisecond)
	f.Looked.Admits += len(admits)
	slices.SortStableFunc(admits, func(a, b *history.Decision) int { return cmp.Compare(a.Called, b.Called) })
	returns := make([]int64, len(admits))
	for i, d := range admits {
		returns[i] = d.Returned
	}
	slices.Sort(returns)

	// From the last to the first: within has the allowed requests that were called from there on,
	// by their return.
	within := make(sums, len(admits))
	admitted := make([]int64, len(admits)) // in the window that begins with each
	for i := len(admits) - 1; i >= 0; i-- {
		d := admits[i]
		at, _ := slices.BinarySearch(returns, d.Returned)
		within.add(at, d.N)
		end, _ := slices.BinarySearch(returns, d.Called+window+1)
		admitted[i] = within.first(end)
		f.Looked.Windows++
	}
	var told int64 // the end of the last window that was reported
	for i, n := range admitted {
		d := admits[i]
		if n <= l.Most || d.Called < told {
			continue
		}
		told = d.Called + window
		v := Violation{Promise: Bounded, Check: "windows", Key: key, From: d.Called, To: told}
		for _, e := range admits[i:] {
			if e.Called <= told && e.Returned <= told {
				v.Ops = append(v.Ops, e.Op)
			}
		}
		f.violation(v, "%d were admitted within %v: at most %d are allowed in %v", n, time.Duration(window), l.Most, l.Window)
	}
}

// sums adds numbers at indices, and returns prefix sums, in logarithmic time: a Fenwick tree.
type sums []int64

func (s sums) add(at int, n int64) {
	for at++; at <= len(s); at += at & -at {
		s[at-1] += n
	}
}

func (s sums) first(count int) (sum int64) {
	for ; count > 0; count -= count & -count {
		sum += s[count-1]
	}
	return sum
}
