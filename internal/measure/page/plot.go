package page

import (
	"fmt"
	"math"
	"regexp"
	"strconv"

	"github.com/batonhq/baton/internal/markup"
	"github.com/batonhq/baton/internal/measure"
)

// A plot in units of its own, which the page scales.
const (
	wide, high  = 360, 250
	left, right = 58, 348
	top, bottom = 14, 214
	colours     = 8 // that the style sheet has
)

// plot is a picture of one metric: a line for each target, the median of the
// repetitions, and from the lowest to the highest of them a bar.
type plot struct {
	Title          string
	Wide, High     int
	Left, Right    int
	Top, Bottom    int
	Columns, Lines []tick
	Series         []series
}

type tick struct {
	At    string
	Label string
	Text  string // where the label stands
}

type series struct {
	N     int    // its colour
	Line  string // points
	Mark  string // path of a mark around 0,0
	Marks []mark
	Bars  []bar
}

type mark struct{ X, Y, Title string }

type bar struct{ X, From, To string }

// marks tell lines apart without colours.
var marks = []string{
	"M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",               // disc
	"M-3.2-3.2h6.4v6.4h-6.4z",                                     // square
	"M0-4.4L4.2 3.2H-4.2z",                                        // triangle
	"M0-4.6L4.6 0L0 4.6L-4.6 0z",                                  // diamond
	"M0 4.4L4.2-3.2H-4.2z",                                        // triangle, on its head
	"M-4.4-1.2h3.2v-3.2h2.4v3.2h3.2v2.4h-3.2v3.2h-2.4v-3.2h-3.2z", // cross
	"M-4.4-1.8h8.8v3.6h-8.8z",                                     // bar, lying
	"M-1.8-4.4h3.6v8.8h-3.6z",                                     // bar, standing
}

// class is that of a colour.
func class(name string, colour int) string { return name + strconv.Itoa(colour) }

func (p plot) write(m *markup.Writer) {
	m.Raw("\n")
	m.Start("figure")
	m.Element("figcaption", p.Title)
	m.Start("svg", "viewBox", fmt.Sprintf("0 0 %d %d", p.Wide, p.High), "role", "img", "aria-label", p.Title)
	for _, l := range p.Lines {
		m.Empty("path", "class", "rule", "d", fmt.Sprintf("M%d %sH%d", p.Left, l.At, p.Right))
		m.Element("text", l.Label, "x", p.Left, "y", l.Text, "dx", -5, "text-anchor", "end")
	}
	for _, c := range p.Columns {
		m.Element("text", c.Label, "x", c.At, "y", c.Text, "text-anchor", "middle")
	}
	m.Element("text", "goroutines", "x", p.Right, "y", p.High, "dy", -6, "text-anchor", "end")
	for _, s := range p.Series {
		m.Raw("\n")
		m.Start("g")
		for _, b := range s.Bars {
			m.Empty("path", "class", class("bar s", s.N), "d", "M"+b.X+" "+b.From+"V"+b.To)
		}
		m.Empty("polyline", "class", class("line s", s.N), "points", s.Line)
		for _, k := range s.Marks {
			m.Start("path", "class", class("mark f", s.N), "transform", "translate("+k.X+" "+k.Y+")", "d", s.Mark)
			m.Element("title", k.Title)
			m.End()
		}
		m.End()
	}
	m.End()
	m.End()
}

func draw(r *measure.Result, s measure.Shape, m measure.Metric) plot {
	p := plot{Title: m.Title, Wide: wide, High: high, Left: left, Right: right, Top: top, Bottom: bottom}
	x := func(i int) float64 {
		if len(r.Goroutines) == 1 {
			return (left + right) / 2
		}
		return left + 10 + float64(i)*(right-left-20)/float64(len(r.Goroutines)-1)
	}
	for i, n := range r.Goroutines {
		p.Columns = append(p.Columns, tick{At: number(x(i)), Label: strconv.Itoa(n), Text: number(bottom + 14)})
	}

	// The values that can be drawn give the scale.
	value := func(f measure.Figures) (v float64, ok bool) {
		v = m.Get(f)
		return v, !math.IsNaN(v) && !math.IsInf(v, 0) && v > 0
	}
	low, most := math.Inf(1), 0.0
	for _, c := range r.Cells {
		if c.Shape != s || m.Shared && c.Goroutines == 1 {
			continue
		}
		for _, f := range c.Repetitions {
			if v, ok := value(f); ok {
				low, most = min(low, v), max(most, v)
			}
		}
	}
	scale := decades(low, most)
	if m.Name == "jain" {
		scale = linear()
	}
	for _, v := range scale.ticks {
		at := scale.y(v)
		p.Lines = append(p.Lines, tick{At: number(at), Label: short(m.Format(v)), Text: number(at + 3.5)})
	}

	for t, target := range r.Targets {
		line := series{N: t % colours, Mark: marks[t%len(marks)]}
		for i, n := range r.Goroutines {
			c := r.Cell(target, s, n)
			if c == nil || m.Shared && n == 1 {
				continue
			}
			v, ok := value(c.Median())
			if !ok {
				continue
			}
			at := mark{X: number(x(i)), Y: number(scale.y(v)), Title: fmt.Sprintf("%s, %d: %s", target, n, m.Format(v))}
			line.Marks = append(line.Marks, at)
			line.Line += at.X + "," + at.Y + " "
			from, to := v, v
			for _, f := range c.Repetitions {
				if v, ok := value(f); ok {
					from, to = min(from, v), max(to, v)
				}
			}
			line.Bars = append(line.Bars, bar{at.X, number(scale.y(from)), number(scale.y(to))})
		}
		if len(line.Marks) > 0 {
			p.Series = append(p.Series, line)
		}
	}
	return p
}

// scale places values between top and bottom.
type scale struct {
	place func(v float64) float64 // 0 at the bottom, 1 at the top
	ticks []float64
}

func (s scale) y(v float64) float64 {
	return bottom - (bottom-top)*min(max(s.place(v), 0), 1)
}

func linear() scale {
	return scale{func(v float64) float64 { return v }, []float64{0, 0.25, 0.5, 0.75, 1}}
}

// decades is logarithmic, from a power of ten (or, within few of them, a step
// below) to another.
func decades(low, high float64) scale {
	if high <= 0 {
		low, high = 1, 10
	}
	from, to := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	if to == from {
		to++
	}
	s := scale{place: func(v float64) float64 { return (math.Log10(v) - from) / (to - from) }}
	every := max(1, int(to-from)/6+1)
	for d := 0; d <= int(to-from); d++ {
		if d%every == 0 {
			s.ticks = append(s.ticks, math.Pow(10, from+float64(d)))
		}
		if to-from <= 2 && d < int(to-from) {
			for _, step := range []float64{2, 5} {
				s.ticks = append(s.ticks, step*math.Pow(10, from+float64(d)))
			}
		}
	}
	return s
}

var zeros = regexp.MustCompile(`\.0+( |[kM]|$)`)

// short writes a round value without the zeros behind its point.
func short(label string) string { return zeros.ReplaceAllString(label, "$1") }

// number writes a coordinate.
func number(v float64) string {
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}
