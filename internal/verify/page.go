package verify

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton/internal/verify/check"
	"github.com/batonhq/baton/internal/verify/history"
)

//go:embed page.html
var pageText string

var pageLayout = template.Must(template.New("page").Parse(pageText))

// How much of one trial a page shows. The report has the rest.
const (
	mostKeys       = 6    // timelines of whole runs
	mostBars       = 1500 // the longest ones, in one of them
	mostViolations = 10   // with their own timeline
)

// A timeline in its own units, which the page scales.
const (
	timeLeft, timeRight = 84, 1000
	timeTop, laneHigh   = 18, 16
)

// A timeline is what happened to one key.
type timeline struct {
	Title, Note   string
	Wide, High    int
	Left, Right   int
	Top, Bottom   int
	Lanes         []timelineLane
	Ticks         []timelineTick
	Faults, Wrong []timelineBand
	Bars          []timelineBar
	Stale, Lost   []timelineTick
	from, to      int64
	lanes         map[int]int
	began         int64
}

type timelineLane struct {
	Y    int
	Name string
}

type timelineTick struct{ X, Y, Text string }

type timelineBand struct{ X, W, Text string }

type timelineBar struct{ X, Y, W, H, Kind, Text string }

// pageTrial is a trial with its pictures.
type pageTrial struct {
	*Trial
	Signs  []pageSign
	Zooms  []timeline
	Whole  []timeline
	Hidden int // violations without a picture
}

type pageSign struct {
	Promise check.Promise
	Text    string
	Bad     bool
}

// WriteHTML writes the report as one page that loads nothing else: no script, no font,
// no picture. It is also well-formed XML.
func (r *Report) WriteHTML(w io.Writer) error {
	var trials []pageTrial
	for _, t := range r.Trials {
		p := pageTrial{Trial: t}
		for _, promise := range Promises {
			kept, looked := t.Promises[promise]
			s := pageSign{Promise: promise, Bad: looked && !kept}
			switch {
			case s.Bad:
				s.Text = "broken"
			case looked:
				s.Text = "held"
			}
			p.Signs = append(p.Signs, s)
		}
		if t.History != nil {
			p.draw()
		}
		trials = append(trials, p)
	}
	return pageLayout.Execute(w, struct {
		*Report
		Heads  []check.Promise
		Trials []pageTrial
	}{r, Promises, trials})
}

// draw makes the pictures: one for each of the first violations, and the whole run for
// the keys that broke or that were held most.
func (p *pageTrial) draw() {
	h := p.History
	held := make(map[string]int)
	for i := range h.Holds {
		if h.Holds[i].Result == history.Granted {
			held[h.Holds[i].Key]++
		}
	}
	for i, v := range p.Violations {
		if held[v.Key] == 0 {
			continue // there is nothing to draw
		}
		held[v.Key] += len(h.Holds) // keys that broke come first
		if i < mostViolations {
			around := max(v.To-v.From, int64(50*time.Millisecond)) * 2
			p.Zooms = append(p.Zooms, p.timeline(v.Key, v.From-around, v.To+around, fmt.Sprintf("%s, %s: %s", v.Promise, v.Check, v.Text)))
		} else {
			p.Hidden++
		}
	}
	keys := make([]string, 0, len(held))
	for key := range held {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Or(held[b]-held[a], strings.Compare(a, b)) })
	for _, key := range keys[:min(len(keys), mostKeys)] {
		p.Whole = append(p.Whole, p.timeline(key, h.Mark(history.Begins), h.Mark(history.Ends), key))
	}
}

// timeline draws one key from one instant to another.
func (p *pageTrial) timeline(key string, from, to int64, title string) timeline {
	l := timeline{
		Title: title, Wide: timeRight + 12, Left: timeLeft, Right: timeRight, Top: timeTop,
		from: from, to: max(to, from+1), began: p.Began, lanes: make(map[int]int),
	}
	var holds []*history.Hold
	for i := range p.History.Holds {
		o := &p.History.Holds[i]
		if o.Key == key && o.Result == history.Granted && o.Sure() && o.SureTo >= from && o.SureFrom <= to {
			holds = append(holds, o)
		}
	}
	if all := len(holds); all > mostBars {
		slices.SortFunc(holds, func(a, b *history.Hold) int {
			return cmp.Compare(b.SureTo-b.SureFrom, a.SureTo-a.SureFrom)
		})
		holds = holds[:mostBars]
		l.Note = fmt.Sprintf("the %d longest of %d holds", mostBars, all)
	}
	l.clients(holds)
	for _, o := range holds {
		l.bar(o)
	}
	for _, w := range p.History.Writes {
		if w.Key == key && w.Stale && l.shows(w.At) {
			l.Stale = append(l.Stale, timelineTick{l.x(w.At), l.laneAt(w.Client), fmt.Sprintf("stale write with token %d at %s", w.Token, l.moment(w.At))})
		}
	}
	l.bands(p.History.Marks)
	for _, v := range p.Violations {
		if v.Key == key && v.To >= from && v.From <= to {
			l.Wrong = append(l.Wrong, l.band(v.From, v.To, fmt.Sprintf("%s, %s: %s", v.Promise, v.Check, v.Text)))
		}
	}
	l.ticks()
	return l
}

// clients gives each client a lane.
func (l *timeline) clients(holds []*history.Hold) {
	var ids []int
	for _, o := range holds {
		if !slices.Contains(ids, o.Client) {
			ids = append(ids, o.Client)
		}
	}
	slices.Sort(ids)
	for i, id := range ids {
		l.lanes[id] = timeTop + i*laneHigh
		l.Lanes = append(l.Lanes, timelineLane{l.lanes[id] + laneHigh - 4, "client " + strconv.Itoa(id)})
	}
	l.Bottom = timeTop + max(len(ids), 1)*laneHigh
	l.High = l.Bottom + 18
}

// kindHigh distinguishes kinds of locks without colours.
var kindHigh = map[history.Mode]int{history.Exclusive: 11, history.Shared: 7, history.Permits: 4}

func (l *timeline) bar(o *history.Hold) {
	high := kindHigh[o.Mode]
	text := fmt.Sprintf("client %d, operation %d: %s, token %d, believed in from %s for %v",
		o.Client, o.Number, o.Mode, o.Token, l.moment(o.SureFrom), history.Duration(o.SureFrom, o.SureTo).Round(time.Microsecond))
	if o.LostAt != 0 {
		text += ", then lost: " + o.Cause
		if l.shows(o.LostAt) {
			l.Lost = append(l.Lost, timelineTick{l.x(o.LostAt), l.laneAt(o.Client), fmt.Sprintf("client %d saw at %s that its lease was lost", o.Client, l.moment(o.LostAt))})
		}
	}
	from, to := l.place(max(o.SureFrom, l.from)), l.place(min(o.SureTo, l.to))
	l.Bars = append(l.Bars, timelineBar{
		X: coordinate(from), W: coordinate(max(to-from, 0.8)), Y: strconv.Itoa(l.lanes[o.Client] + laneHigh - 3 - high), H: strconv.Itoa(high),
		Kind: string(o.Mode), Text: text,
	})
}

// bands are the times in which something was broken.
func (l *timeline) bands(marks []history.Mark) {
	for _, e := range history.Episodes(marks) {
		if e.To >= l.from && e.From <= l.to {
			l.Faults = append(l.Faults, l.band(e.From, e.To, e.Text))
		}
	}
}

func (l *timeline) band(from, to int64, text string) timelineBand {
	x, end := l.place(max(from, l.from)), l.place(min(to, l.to))
	return timelineBand{coordinate(x), coordinate(max(end-x, 1.5)), text}
}

// ticks are round times.
func (l *timeline) ticks() {
	step := int64(time.Microsecond)
	for _, d := range []time.Duration{
		time.Microsecond, 10 * time.Microsecond, 100 * time.Microsecond, time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond,
		100 * time.Millisecond, 500 * time.Millisecond, time.Second, 5 * time.Second, 10 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute,
	} {
		if step = int64(d); (l.to-l.from)/step <= 12 {
			break
		}
	}
	first := (l.from - l.began + step - 1) / step
	for n := first; l.began+n*step <= l.to; n++ {
		if at := l.began + n*step; at >= l.from {
			l.Ticks = append(l.Ticks, timelineTick{X: l.x(at), Text: time.Duration(n * step).String()})
		}
	}
}

func (l *timeline) shows(at int64) bool { return at >= l.from && at <= l.to }

func (l *timeline) place(at int64) float64 {
	return timeLeft + (timeRight-timeLeft)*float64(at-l.from)/float64(l.to-l.from)
}

func (l *timeline) x(at int64) string { return coordinate(l.place(at)) }

func (l *timeline) laneAt(client int) string { return strconv.Itoa(l.lanes[client] + laneHigh/2) }

func (l *timeline) moment(at int64) string {
	return history.Duration(l.began, at).Round(time.Microsecond).String()
}

func coordinate(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }
