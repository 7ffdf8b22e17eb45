// Package simulate replays requests under limits, in simulated time, and draws the
// decisions.
package simulate

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
)

// An Event is a request.
type Event struct {
	At   time.Time
	Key  string
	Cost int64
}

// Verdict is the decision about a request.
type Verdict struct {
	OK    bool
	Wait  time.Duration // if OK
	Retry time.Duration // if not
}

// Outcome is the result of all requests under one limit.
type Outcome struct {
	Limit    limits.Limit
	Verdicts []Verdict

	Allowed, Refused int64 // sums of costs; math.MaxInt64 for Refused means that or more
	FirstRefused     int   // the index of the first refused request, -1 if there is none

	// Most is the largest cost that one key was allowed, at its turn, within any time as
	// long as Window. That time begins at MostFrom.
	Most     int64
	MostFrom time.Time
	Window   time.Duration

	LongestWait time.Duration

	Kept int // the largest number of values that a store had to keep for one key
}

// Sort sorts events by time.
func Sort(events []Event) {
	slices.SortStableFunc(events, func(a, b Event) int { return a.At.Compare(b.At) })
}

// Run replays events, which must be sorted by time. Each key is counted separately. window
// is the length of time for Most.
func Run(limit limits.Limit, events []Event, window time.Duration) (Outcome, error) {
	out := Outcome{Limit: limit, Verdicts: make([]Verdict, len(events)), FirstRefused: -1, Window: window}
	var known rate.Known
	states := make(map[string]rate.State)
	turns := make(map[string][]turn)
	for i, e := range events {
		now := e.At.UnixMicro()
		r, err := known.NewRequest(limits.Request{Takes: []limits.Take{{Key: cmp.Or(e.Key, "-"), Limit: limit, Cost: e.Cost}}, Now: now})
		if err != nil {
			return out, err
		}
		s := []rate.State{states[e.Key]}
		d, _ := r.Decide(s, now)
		states[e.Key] = s[0]
		out.Kept = max(out.Kept, len(s[0]))
		out.Verdicts[i] = Verdict{d.OK, d.Wait, d.Retry}
		if !d.OK {
			out.Refused = sum(out.Refused, e.Cost)
			if out.FirstRefused < 0 {
				out.FirstRefused = i
			}
			continue
		}
		if out.Allowed > math.MaxInt64-e.Cost { // Most and the picture add parts of it
			return out, &limits.Error{Reason: fmt.Sprintf("it allows more than %d in all, which cannot be counted", int64(math.MaxInt64))}
		}
		out.Allowed += e.Cost
		out.LongestWait = max(out.LongestWait, d.Wait)
		turns[e.Key] = append(turns[e.Key], turn{e.At.Add(d.Wait), e.Cost})
	}
	for _, all := range turns {
		most, from := densest(all, window)
		if most > out.Most || most == out.Most && from.Before(out.MostFrom) {
			out.Most, out.MostFrom = most, from
		}
	}
	return out, nil
}

// sum is a sum of costs, or math.MaxInt64 if it is larger.
func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

type turn struct {
	at   time.Time
	cost int64
}

// densest is the largest sum within any half-open interval as long as window.
func densest(all []turn, window time.Duration) (most int64, from time.Time) {
	slices.SortStableFunc(all, func(a, b turn) int { return a.at.Compare(b.at) })
	first, sum := 0, int64(0)
	for _, t := range all {
		sum += t.cost
		for t.at.Sub(all[first].at) >= window {
			sum -= all[first].cost
			first++
		}
		if sum > most {
			most, from = sum, all[first].at
		}
	}
	return most, from
}
