package check

import (
	"math"

	"github.com/batonhq/baton/lab/verify/history"
)

// trust looks for leases that a client trusted for longer than TTL after its requests were no
// longer answered. The last answer was to a request from before that. A longer silence ends a
// lease for good.
func (f *Findings) trust(h *history.History, keys []locked, r Rules) {
	if !r.Trust {
		return
	}
	silences := silencesOf(h.Marks)
	for _, k := range keys {
		for _, o := range k.granted() {
			if !o.Sure() {
				continue
			}
			for _, s := range silences {
				if s.client != 0 && s.client != o.Client {
					continue
				}
				end := s.from + int64(r.TTL)
				from, to := max(o.SureFrom, end), o.SureTo
				if s.to <= end || o.Returned > s.to { // renewed, or granted, after the silence
					to = min(to, s.to)
				}
				if o.SureFrom <= s.from && o.SureTo > s.from {
					f.Looked.Silenced++
				}
				if from < to {
					f.violation(Violation{Promise: Exclusive, Check: "trust", Key: k.key, From: end, To: to, Ops: []history.Op{o.Op}},
						"%s trusted its lease for %v after the last answer: at most the TTL of %v is right", who(o), history.Duration(s.from, to), r.TTL)
					break
				}
			}
		}
	}
}

// A silence is a time in which a client's requests are not answered; client 0 means all clients.
type silence struct {
	from, to int64
	client   int
}

func silencesOf(marks []history.Mark) (all []silence) {
	for _, m := range marks {
		switch m.What {
		case history.Silent:
			all = append(all, silence{m.At, math.MaxInt64, m.Client})
		case history.Answers:
			for i := range all {
				if all[i].client == m.Client {
					all[i].to = min(all[i].to, m.At)
				}
			}
		}
	}
	return all
}
