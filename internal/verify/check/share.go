package check

import (
	"cmp"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/batonhq/baton/internal/verify/history"
)

// served looks for limits that served too little while more was asked for. Between two
// refusals every turn was wanted: if it had not been promised to other requests, the
// second request would not have been refused. So what was served between them, each at
// its turn, has to be at least half of what came; the other half is for turns that were
// promised to callers that hung up, or whose answer was lost.
//
// It checks only times without faults, since slow answers come to callers that have
// hung up, and no time shorter than two seconds or ten turns.
func (f *Findings) served(w *world, h *history.History) {
	all := make(map[string][]*history.Decision)
	for i := range h.Decisions {
		if d := &h.Decisions[i]; w.Limits[d.Key].Every > 0 {
			all[d.Key] = append(all[d.Key], d)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		f.share(w, key, w.Limits[key], history.Episodes(h.Marks), all[key])
	}
}

func (f *Findings) share(w *world, key string, l Limit, episodes []history.Episode, all []*history.Decision) {
	var refused, served []*history.Decision
	var unknown []*history.Decision
	for _, d := range all {
		switch {
		case d.Result == history.Granted:
			served = append(served, d)
		case d.Result == history.Refused && d.Called >= w.healed && d.Returned <= w.drains:
			refused = append(refused, d)
		case d.Result == history.Unknown && !d.Hung:
			unknown = append(unknown, d)
		}
	}
	slices.SortFunc(refused, func(a, b *history.Decision) int { return cmp.Compare(a.Called, b.Called) })
	slices.SortFunc(served, func(a, b *history.Decision) int { return cmp.Compare(a.Returned, b.Returned) })
	sums := make([]int64, len(served)+1)
	for i, d := range served {
		sums[i+1] = sums[i] + d.N
	}
	before := func(at int64) int64 {
		return sums[sort.Search(len(served), func(i int) bool { return served[i].Returned >= at })]
	}
	for i := 0; i < len(refused); {
		first := refused[i]
		least := first.Called + int64(max(minShare, 10*l.Every))
		j := sort.Search(len(refused), func(j int) bool { return refused[j].Called >= least })
		if j == len(refused) {
			return
		}
		last := refused[j]
		if slices.ContainsFunc(episodes, func(e history.Episode) bool { return e.From <= last.Returned && e.To >= first.Called-int64(w.TTL) }) {
			i++
			continue
		}
		came := (last.Called - first.Called) / int64(l.Every)
		got := before(last.Returned+int64(last.Patience)+1) - before(first.Called)
		f.Looked.Shares++
		f.Looked.Share = leastShare(f.Looked, float64(got)/float64(came))
		for _, d := range unknown { // it may have been served
			if d.Called <= last.Returned && (d.Returned == 0 || d.Returned >= first.Called) {
				got += d.N
			}
		}
		if got < came/2-2 {
			f.violation(Violation{Promise: Lively, Check: "share", Key: key, From: first.Called, To: last.Returned, Ops: []history.Op{first.Op, last.Op}},
				"%d were served within %v, in which %d came, and others were refused", got, history.Duration(first.Called, last.Called).Round(time.Millisecond), came)
			i = j
			continue
		}
		i++
	}
}

// minShare is the shortest time that is checked.
const minShare = 2 * time.Second

// leastShare is the least of what was seen.
func leastShare(l Looked, share float64) float64 {
	if l.Shares == 1 {
		return share
	}
	return min(l.Share, share)
}
