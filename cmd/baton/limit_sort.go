package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/batonhq/baton/driver/limits"
)

// mostTop bounds the memory of a sorted list.
const mostTop = 10_000

// topStates keeps the states with the highest use.
type topStates struct {
	n     int
	share bool // sort by the share; else by the number

	all          []limits.State
	seen, untold int
}

func (t *topStates) add(st limits.State) bool {
	t.seen++
	if _, ok := shareOf(st); t.share && !ok {
		t.untold++
		return true
	}
	if t.all = append(t.all, st); len(t.all) >= 2*t.n {
		t.all = t.sorted()
	}
	return true
}

// sorted returns the highest n, the highest first.
func (t *topStates) sorted() []limits.State {
	slices.SortFunc(t.all, func(x, y limits.State) int {
		order := cmp.Compare(y.Used, x.Used)
		if t.share {
			one, _ := shareOf(x)
			two, _ := shareOf(y)
			order = cmp.Or(cmp.Compare(two, one), order)
		}
		return cmp.Or(order, strings.Compare(x.Key, y.Key))
	})
	return t.all[:min(t.n, len(t.all))]
}

// shareOf is the used share of what the key allows. ok is false if it is unknown.
func shareOf(st limits.State) (share float64, ok bool) {
	if st.Of == 0 || st.Kind == limits.Unknown {
		return 0, false
	}
	return float64(st.Used) / float64(st.Of), true
}

// barWidth is how many columns the longest bar takes.
const barWidth = 20

// rows makes the table. A bar shows the share, or else the number relative to the
// highest.
func (t *topStates) rows(all []limits.State) [][]string {
	rows := [][]string{{"KEY", "KIND", "USED", "OF", "FRESH IN", "USE"}}
	for _, st := range all {
		part := float64(st.Used) / float64(max(all[0].Used, 1))
		if t.share {
			part, _ = shareOf(st)
		}
		n := int(math.Ceil(min(part, 1) * barWidth))
		bar := strings.Repeat("█", n)
		if s, ok := shareOf(st); ok {
			bar += strings.Repeat(" ", barWidth-n) + fmt.Sprintf(" %3.0f%%", math.Floor(100*s))
		}
		rows = append(rows, append(stateRow(st), bar))
	}
	return rows
}
