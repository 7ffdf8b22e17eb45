package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/batonhq/baton/lab/verify/history"
)

// served looks for limits that served less than half of the demanded turns in a time without
// faults.
//
// A turn was certainly demanded if it came between two refusals that are close: the second request
// would have got it if it had been free. If the refusals are further apart than turns are saved
// (Limit.Saved, and the patience of the first), there may have been no request, and those turns
// do not count.
//
// A demanded turn that was not served may have been promised to a caller that canceled, or whose
// answer was lost: to each of them what it asked for. That decision may have come until TTL +
// Bound after the caller had left. If such callers can explain the missing turns, the check does
// not decide. Refused requests took nothing, so they explain nothing.
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
	var refused []*history.Decision
	var served, unsure amount
	for _, d := range all {
		switch {
		case d.Result == history.Granted:
			served.add(d.Called, d.Returned, d.N)
		case d.Result == history.Refused && d.Called >= w.healed && d.Returned <= w.drains:
			refused = append(refused, d)
		case d.Result == history.Unknown:
			to := never
			if d.Returned != 0 {
				to = d.Returned + w.limit()
			}
			unsure.add(d.Called, to, d.N)
		}
	}
	served.sort()
	unsure.sort()
	refused = oneByOne(refused)
	thin := ""
	for i := 0; i < len(refused); i++ {
		first, unwanted, least := refused[i], int64(0), int64(max(minShare, 10*l.Every))
		for j := i + 1; j < len(refused); j++ {
			before, last := refused[j-1], refused[j]
			if slices.ContainsFunc(episodes, func(e history.Episode) bool { return e.From <= last.Returned && e.To >= first.Called-int64(w.TTL) }) {
				break
			}
			unwanted += max(0, last.Returned-before.Called-int64(max(before.Patience, time.Duration(l.Saved)*l.Every)))
			wanted := last.Called - first.Returned - unwanted
			if wanted < least {
				continue
			}
			came := wanted / int64(l.Every)
			got, maybe := served.between(first.Called, last.Returned), unsure.between(first.Called, last.Returned)
			f.Looked.Shares++
			f.Looked.Share = leastShare(f.Looked, float64(got)/float64(came))
			if got >= came/2-2 {
				break
			}
			within := history.Duration(first.Called, last.Called).Round(time.Millisecond)
			if got+maybe < came-2 {
				f.violation(Violation{Promise: Lively, Check: "share", Key: key, From: first.Called, To: last.Returned, Ops: []history.Op{first.Op, last.Op}},
					"%d were served within %v, in which at least %d came that were wanted, and callers that hung up or had no answer explain %d", got, within, came, maybe)
				i = j - 1
				break
			}
			if thin == "" {
				thin = fmt.Sprintf("%d were served within %v, in which at least %d came that were wanted, but callers that hung up or had no answer may have got the others: %d", got, within, came, maybe)
			}
			// A longer interval may decide: more turns, with the same number of callers at its ends.
			if least *= 2; least > int64(maxShare) {
				break
			}
		}
	}
	if thin != "" {
		f.undecided("share", key, "%s", thin)
	}
}

// minShare is the shortest interval that is checked. maxShare is the longest, if no shorter
// one decides.
const (
	minShare = 2 * time.Second
	maxShare = time.Minute
)

// oneByOne is a largest sequence of refusals of which each was requested after the answer to the
// previous one.
func oneByOne(all []*history.Decision) (some []*history.Decision) {
	slices.SortFunc(all, func(a, b *history.Decision) int { return cmp.Compare(a.Returned, b.Returned) })
	for _, d := range all {
		if n := len(some); n == 0 || d.Called > some[n-1].Returned {
			some = append(some, d)
		}
	}
	return some
}

// An amount is the sum of the requests that were running, over time.
type amount struct{ begins, ends []total }

// A total is the sum of what had begun, or ended, until an instant.
type total struct{ at, sum int64 }

func (a *amount) add(from, to, n int64) {
	a.begins, a.ends = append(a.begins, total{from, n}), append(a.ends, total{to, n})
}

func (a *amount) sort() {
	for _, s := range [][]total{a.begins, a.ends} {
		slices.SortFunc(s, func(x, y total) int { return cmp.Compare(x.at, y.at) })
		for i := 1; i < len(s); i++ {
			s[i].sum += s[i-1].sum
		}
	}
}

// between is how much was running at some moment between two instants.
func (a *amount) between(from, to int64) int64 {
	return upTo(a.begins, to+1) - upTo(a.ends, from)
}

func upTo(s []total, at int64) int64 {
	i, _ := slices.BinarySearchFunc(s, at, func(s total, at int64) int { return cmp.Compare(s.at, at) })
	if i == 0 {
		return 0
	}
	return s[i-1].sum
}

// leastShare is the smallest share so far.
func leastShare(l Looked, share float64) float64 {
	if l.Shares == 1 {
		return share
	}
	return min(l.Share, share)
}
