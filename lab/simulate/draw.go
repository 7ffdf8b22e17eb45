package simulate

import (
	"fmt"
	"io"
	"time"

	"github.com/batonhq/baton/lab/markup"
)

// A Line of a picture is one limit.
type Line struct {
	Title   string
	Outcome Outcome
}

const (
	left, right  = 190, 20
	width        = 720 // of the time
	rowHeight    = 62
	barHeight    = 40
	top          = 64
	bins         = 96
	labelOfBelow = 34
)

type picture struct {
	Width, Height int
	Title         string
	Rows          []row
	Ticks         []tick
	Bottom        int
}

type row struct {
	Y                   int
	Title, Figure, Most string
	Over                bool // more than the limit
	Bars                []bar
}

type bar struct {
	X, W               float64
	OKY, OKH, NoY, NoH float64
	Tip                string
}

type tick struct {
	X    float64
	Text string
}

const style = `
svg { background: #fff; color: #1a1a1a; font: 13px system-ui, sans-serif }
text { fill: currentColor } .small { font-size: 11px; opacity: .8 } .title { font-weight: 600; font-size: 15px }
.ok { fill: #2a7f62 } .no { fill: #d1495b } .axis { stroke: currentColor; stroke-opacity: .25 }
@media (prefers-color-scheme: dark) { svg { background: #15181c; color: #e8e6e3 } .ok { fill: #4fb894 } .no { fill: #f0707f } }
`

func (p picture) write(w io.Writer) error {
	m := markup.New(w)
	m.Start("svg", "xmlns", "http://www.w3.org/2000/svg", "viewBox", fmt.Sprintf("0 0 %d %d", p.Width, p.Height),
		"width", p.Width, "height", p.Height, "role", "img", "aria-label", p.Title)
	m.Raw("\n<style>" + style + "</style>\n")
	m.Element("text", p.Title, "x", 12, "y", 24, "class", "title")
	for _, sign := range []struct {
		x              int
		class, meaning string
	}{{12, "ok", "allowed"}, {87, "no", "refused"}} {
		m.Raw("\n")
		m.Empty("rect", "x", sign.x, "y", 36, "width", 10, "height", 10, "class", sign.class)
		m.Element("text", sign.meaning, "x", sign.x+15, "y", 45, "class", "small")
	}
	m.Raw("\n")
	for _, t := range p.Ticks {
		m.Empty("line", "x1", t.X, "x2", t.X, "y1", 56, "y2", p.Bottom, "class", "axis")
		m.Element("text", t.Text, "x", t.X, "y", p.Bottom, "dy", 16, "text-anchor", "middle", "class", "small")
		m.Raw("\n")
	}
	for _, r := range p.Rows {
		r.write(m)
	}
	m.End()
	m.Raw("\n")
	return m.Flush()
}

func (r row) write(m *markup.Writer) {
	m.Start("g", "transform", fmt.Sprintf("translate(0 %d)", r.Y))
	m.Element("text", r.Title, "x", 12, "y", 18)
	m.Element("text", r.Figure, "x", 12, "y", 33, "class", "small")
	most := "small"
	if r.Over {
		most = "small no"
	}
	m.Element("text", r.Most, "x", 12, "y", 47, "class", most)
	m.Raw("\n")
	for _, b := range r.Bars {
		m.Start("g")
		m.Element("title", b.Tip)
		if b.NoH > 0 {
			m.Empty("rect", "x", b.X, "y", b.NoY, "width", b.W, "height", b.NoH, "class", "no")
		}
		if b.OKH > 0 {
			m.Empty("rect", "x", b.X, "y", b.OKY, "width", b.W, "height", b.OKH, "class", "ok")
		}
		m.End()
		m.Raw("\n")
	}
	m.End()
	m.Raw("\n")
}

// Draw writes the timeline of all outcomes of the same events as SVG: what was allowed,
// at its turn, above what was refused.
func Draw(w io.Writer, title string, events []Event, lines []Line) error {
	if len(events) == 0 {
		return fmt.Errorf("there is nothing to draw")
	}
	start, end, step := extent(events, lines)
	span := end.Sub(start)
	p := picture{Width: left + width + right, Height: top + rowHeight*len(lines) + labelOfBelow, Title: title, Bottom: top + rowHeight*len(lines)}
	for t := start; !t.After(end); t = t.Add(step) {
		p.Ticks = append(p.Ticks, tick{left + width*float64(t.Sub(start))/float64(span), label(t)})
	}
	type count struct{ ok, no int64 }
	all := make([][bins]count, len(lines))
	highest := int64(1)
	for n, line := range lines {
		c := &all[n]
		for i, e := range events {
			v := line.Outcome.Verdicts[i]
			at := e.At
			if v.OK {
				at = at.Add(v.Wait)
			}
			b := min(int(float64(at.Sub(start))/float64(span)*bins), bins-1)
			if v.OK {
				c[b].ok += e.Cost
			} else {
				c[b].no = sum(c[b].no, e.Cost)
			}
			highest = max(highest, sum(c[b].ok, c[b].no))
		}
	}
	for n, line := range lines {
		o := line.Outcome
		r := row{Y: top + n*rowHeight, Title: line.Title, Figure: fmt.Sprintf("%d allowed, %d refused", o.Allowed, o.Refused)}
		r.Most, r.Over = fmt.Sprintf("at most %d in %v", o.Most, o.Window), o.Most > o.Limit.N
		for b, c := range all[n] {
			if c.ok == 0 && c.no == 0 {
				continue
			}
			ok, no := barHeight*float64(c.ok)/float64(highest), barHeight*float64(c.no)/float64(highest)
			r.Bars = append(r.Bars, bar{
				X: left + float64(width*b)/bins, W: float64(width)/bins - .6,
				OKY: barHeight - ok, OKH: ok, NoY: barHeight - ok - no, NoH: no,
				Tip: fmt.Sprintf("%s: %d allowed, %d refused", label(start.Add(span*time.Duration(b)/bins)), c.ok, c.no),
			})
		}
		p.Rows = append(p.Rows, r)
	}
	return p.write(w)
}

// steps are the possible divisions of the time axis.
var steps = []time.Duration{
	time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour, 28 * 24 * time.Hour,
}

// extent is the time that the picture shows: all of it, in round steps.
func extent(events []Event, lines []Line) (start, end time.Time, step time.Duration) {
	start, end = events[0].At, events[len(events)-1].At
	for _, line := range lines {
		for i, v := range line.Outcome.Verdicts {
			if t := events[i].At.Add(v.Wait); v.OK && t.After(end) {
				end = t
			}
		}
	}
	if start.Sub(Origin) < 10*time.Minute && !start.Before(Origin) { // offsets
		start = Origin
	}
	for _, step = range steps {
		if end.Sub(start) < 8*step {
			break
		}
	}
	start = start.Truncate(step)
	return start, start.Add((end.Sub(start)/step + 1) * step), step
}

// label writes an offset, or a time of day.
func label(t time.Time) string {
	if d := t.Sub(Origin); d >= 0 && d < 24*time.Hour {
		d = d.Round(100 * time.Millisecond)
		text := fmt.Sprintf("%d:%02d", int(d.Minutes()), int(d.Seconds())%60)
		if tenth := d % time.Second / (100 * time.Millisecond); tenth > 0 {
			text += fmt.Sprintf(".%d", tenth)
		}
		return text
	}
	if t.Equal(t.Truncate(24 * time.Hour)) {
		return t.UTC().Format("2 Jan")
	}
	return t.UTC().Format("15:04:05")
}
