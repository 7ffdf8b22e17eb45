package verify

import (
	"cmp"
	_ "embed"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton/lab/markup"
	"github.com/batonhq/baton/lab/verify/check"
	"github.com/batonhq/baton/lab/verify/history"
)

//go:embed page.css
var pageStyle string

// The bounds for one trial on a page. The report has the rest.
const (
	mostKeys       = 6    // timelines of a run
	mostBars       = 1500 // the longest ones, in one timeline
	mostViolations = 10   // with their own timeline
)

// The units of a timeline, which the page scales.
const (
	timeLeft, timeRight = 84, 1000
	timeTop, laneHigh   = 18, 16
)

// A timeline shows the holds of one key.
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

// WriteHTML writes the report as one self-contained page: no script, font or picture from
// elsewhere. It is also well-formed XML.
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
	m := markup.New(w)
	m.Raw("<!doctype html>\n")
	m.Start("html", "lang", "en")
	m.Inside("head", func() {
		m.Empty("meta", "charset", "utf-8")
		m.Empty("meta", "name", "viewport", "content", "width=device-width")
		m.Element("title", "baton-lab verify: "+r.URL)
		m.Raw("<style>\n" + pageStyle + "</style>")
	})
	m.Raw("\n")
	m.Inside("body", func() {
		m.Element("h1", "What held on "+r.URL)
		m.Start("p")
		m.Text(fmt.Sprintf("%d clients, a TTL of %v, %v under each fault, seed %d, on %s UTC (%s).\nAgain: ",
			r.Clients, r.TTL, r.For, r.Seed, r.Began.Format("2 January 2006, 15:04"), r.Platform))
		m.Element("code", r.Repeat)
		m.End()
		writeVerdicts(m, trials)
		m.Raw(pageLegend)
		for _, t := range trials {
			if t.Verdict != Skipped {
				t.write(m)
			}
		}
	})
	m.End()
	m.Raw("\n")
	return m.Flush()
}

// writeVerdicts writes the table of all trials.
func writeVerdicts(m *markup.Writer, trials []pageTrial) {
	m.Start("div", "class", "wide")
	m.Start("table")
	m.Start("thead")
	m.Start("tr")
	heads := []any{"fault", "verdict"}
	for _, p := range Promises {
		heads = append(heads, p)
	}
	for _, head := range append(heads, "locks", "writes", "stale", "lost", "limits") {
		m.Element("th", head, "scope", "col")
	}
	m.End()
	m.End()
	m.Start("tbody")
	for _, t := range trials {
		m.Start("tr")
		name := t.Fault + " " + t.Name
		if t.Verdict == Skipped {
			m.Element("th", name, "scope", "row")
			m.Element("td", t.Verdict, "class", "dim")
			m.Element("td", strings.Join(t.Why, ""), "colspan", len(Promises)+5, "class", "dim")
		} else {
			m.Start("th", "scope", "row")
			m.Element("a", name, "href", "#"+t.Fault)
			m.End()
			class := "dim"
			switch t.Verdict {
			case Broken:
				class = "bad"
			case Held:
				class = "good"
			}
			m.Element("td", t.Verdict, "class", class)
			for _, s := range t.Signs {
				if s.Bad {
					m.Element("td", s.Text, "class", "bad")
				} else {
					m.Element("td", s.Text)
				}
			}
			for _, n := range []int{t.Looked.Granted, t.Looked.Writes, t.Looked.Stale, t.Lost, t.Decisions} {
				m.Element("td", n)
			}
		}
		m.End()
		m.Raw("\n")
	}
	m.End()
	m.End()
	m.End()
}

// write writes one trial.
func (p *pageTrial) write(m *markup.Writer) {
	m.Raw("\n")
	m.Start("h2", "id", p.Fault)
	m.Text(p.Fault + " " + p.Name + " ")
	m.Element("small", p.Verdict)
	m.End()
	m.Start("p")
	m.Text(fmt.Sprintf("%s. %d times; %d goroutines wanted %d keys", p.Does, p.Rounds, p.Goroutines, p.Keys))
	if p.Killed > 0 {
		m.Text(fmt.Sprintf("; %d clients were killed", p.Killed))
	}
	m.Text(". Again: ")
	m.Element("code", p.Repeat)
	m.End()
	if len(p.Why) > 0 {
		m.Start("ul")
		for _, why := range p.Why {
			m.Element("li", why)
		}
		m.End()
	}
	for _, l := range p.Zooms {
		l.write(m)
	}
	if p.Hidden > 0 {
		m.Element("p", fmt.Sprintf("%d more violations are in the report alone.", p.Hidden))
	}
	if len(p.Whole) > 0 {
		m.Start("details")
		m.Element("summary", "Timelines of the whole run")
		for _, l := range p.Whole {
			l.write(m)
		}
		m.End()
	}
}

func (l timeline) write(m *markup.Writer) {
	m.Raw("\n")
	m.Start("figure")
	m.Start("figcaption")
	m.Text(l.Title)
	if l.Note != "" {
		m.Raw(" ")
		m.Element("span", "("+l.Note+")", "class", "dim")
	}
	m.End()
	m.Start("svg", "viewBox", fmt.Sprintf("0 0 %d %d", l.Wide, l.High), "role", "img", "aria-label", l.Title)
	titled := func(name, title string, attributes ...any) {
		m.Start(name, attributes...)
		m.Element("title", title)
		m.End()
	}
	for _, f := range l.Faults {
		titled("rect", f.Text, "class", "fault", "x", f.X, "y", l.Top, "width", f.W, "height", l.High)
	}
	for _, t := range l.Ticks {
		m.Empty("path", "class", "rule", "d", fmt.Sprintf("M%s %dV%d", t.X, l.Top, l.Bottom))
		m.Element("text", t.Text, "x", t.X, "y", l.High, "dy", -5, "text-anchor", "middle")
	}
	for _, n := range l.Lanes {
		m.Element("text", n.Name, "x", l.Left, "y", n.Y, "dx", -6, "text-anchor", "end")
	}
	for _, b := range l.Bars {
		titled("rect", b.Text, "class", b.Kind, "x", b.X, "y", b.Y, "width", b.W, "height", b.H)
	}
	at := func(t timelineTick) string { return "translate(" + t.X + " " + t.Y + ")" }
	for _, t := range l.Lost {
		titled("path", t.Text, "class", "lost", "transform", at(t), "d", "M0-7v14")
	}
	for _, t := range l.Stale {
		titled("path", t.Text, "class", "stale", "transform", at(t), "d", "M-4-4l8 8m0-8l-8 8")
	}
	for _, w := range l.Wrong {
		titled("rect", w.Text, "class", "wrong", "x", w.X, "y", 4, "width", w.W, "height", l.Bottom)
	}
	m.End()
	m.End()
}

// pageLegend explains the table and the pictures.
const pageLegend = `
<p class="dim">E: no two that exclude each other believe in their lease at the same instant. F: tokens rise, and what checks them takes no stale write. L: when all
is whole again everybody gets in in time, and nothing is left. B: no limit admits more than it allows. Stale writes are those that a resource
without a check of tokens would have taken from a holder that was not the last. That nothing was found proves nothing: it says that so many operations held.</p>
<ul class="legend">
<li><svg viewBox="0 0 32 16" aria-hidden="true"><rect class="exclusive" x="2" y="3" width="28" height="11"/></svg> exclusive, as long as it was certainly believed in</li>
<li><svg viewBox="0 0 32 16" aria-hidden="true"><rect class="shared" x="2" y="7" width="28" height="7"/></svg> shared</li>
<li><svg viewBox="0 0 32 16" aria-hidden="true"><rect class="permits" x="2" y="10" width="28" height="4"/></svg> permits</li>
<li><svg viewBox="0 0 32 16" aria-hidden="true"><rect class="fault" x="2" y="0" width="28" height="16"/></svg> a fault</li>
<li><svg viewBox="0 0 32 16" aria-hidden="true"><rect class="wrong" x="10" y="0" width="12" height="16"/></svg> a violation</li>
<li><svg viewBox="0 0 32 16" aria-hidden="true"><path class="stale" d="M11 3l10 10m0-10l-10 10"/></svg> a stale write</li>
<li><svg viewBox="0 0 32 16" aria-hidden="true"><path class="lost" d="M16 2v12"/></svg> a lease seen to be lost</li>
</ul>
`

// draw makes the pictures: one for each of the first violations, and a run's timeline for the
// keys with violations or the most holds.
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
		held[v.Key] += len(h.Holds) // keys with violations come first
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

// bands are the times of faults.
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
