package check

import (
	"slices"
	"time"

	"github.com/batonhq/baton/lab/verify/history"
)

// lost looks for leases that ended before their release without a fault that explains it. A
// fault explains it if it was present at the time, or had ended less than Rules.Explains before,
// unless it is one that costs no lease. A holder keeps the lock while the store can be reached; a
// late renewal is no excuse. Only for a lease that was younger than Rules.Young at the fault's
// beginning it may be one: a handed-over lease has a short life until its first renewal, which may
// then take longer.
func (f *Findings) lost(h *history.History, keys []locked, r Rules) {
	if r.Explains == 0 {
		return
	}
	episodes := history.Episodes(h.Marks)
	for _, k := range keys {
		for _, o := range k.holds {
			at := o.LostAt
			if at == 0 && o.Result == history.Granted && o.Released == history.Refused {
				at = o.ReleaseReturned
			}
			if at == 0 {
				continue
			}
			f.Looked.Lost++
			explained := slices.ContainsFunc(episodes, func(e history.Episode) bool {
				if r.Keeps {
					return o.Returned <= e.From && e.From <= at && history.Duration(o.Returned, e.From) <= r.Young
				}
				return e.From <= at && (e.To >= at || history.Duration(e.To, at) <= r.Explains)
			})
			if explained {
				continue
			}
			why := "no fault explains it"
			if r.Keeps {
				why = "what was broken costs nobody a lease"
			}
			f.violation(Violation{Promise: Lively, Check: "lost", Key: k.key, From: max(o.Called, at-int64(r.TTL)), To: at, Ops: []history.Op{o.Op}},
				"%s lost its lease %v after it was granted (%s): %s", who(o), history.Duration(o.Returned, at).Round(time.Millisecond), o.Cause, why)
		}
	}
}
