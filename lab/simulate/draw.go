package simulate

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/batonhq/baton/lab"
	"github.com/batonhq/baton/lab/language"
)

// A Line of a picture is one limit.
type Line struct {
	Title   string
	Outcome Outcome
}

// Parts are the decisions about events in equal parts of the time that begins at start: the
// cost that was allowed, at its turn, and the cost that was refused.
func Parts(events []Event, o Outcome, start time.Time, length time.Duration, parts int) []lab.Part {
	all := make([]lab.Part, parts)
	for i, e := range events {
		v := o.Verdicts[i]
		part := int(e.At.Add(v.Wait).Sub(start).Microseconds() * int64(parts) / length.Microseconds())
		if part >= parts {
			continue
		}
		count := &all[part].Refused
		if v.OK {
			count = &all[part].Allowed
		}
		*count = int(min(sum(int64(*count), e.Cost), math.MaxInt64/2)) // two of them are added
	}
	return all
}

// Draw writes the timeline of all outcomes of the same events as SVG.
func Draw(w io.Writer, title string, events []Event, lines []Line) error {
	if len(events) == 0 {
		return fmt.Errorf("there is nothing to draw")
	}
	start, end := events[0].At, events[len(events)-1].At
	if start.Sub(Origin) < 10*time.Minute && !start.Before(Origin) { // offsets
		start = Origin
	} else {
		title += ", from " + start.UTC().Format("2 Jan 15:04:05 UTC")
	}
	for _, line := range lines {
		for i, v := range line.Outcome.Verdicts {
			if t := events[i].At.Add(v.Wait); v.OK && t.After(end) {
				end = t
			}
		}
	}
	length := (end.Sub(start) + time.Millisecond) * 21 / 20
	f := &lab.Flow{Length: int(length.Milliseconds())}
	for _, line := range lines {
		o := line.Outcome
		f.Rows = append(f.Rows, lab.FlowRow{
			Name: lab.Plain(line.Title), Bad: o.Most > o.Limit.N, Parts: Parts(events, o, start, length, 96),
			Note: lab.Plain(fmt.Sprintf("%d allowed, %d refused; at most %d in %v", o.Allowed, o.Refused, o.Most, o.Window)),
		})
	}
	r := lab.Record{Question: "simulate", Flow: f}
	return r.Draw(w, title, language.English)
}
