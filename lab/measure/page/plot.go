package page

import (
	"fmt"
	"math"
	"regexp"
	"strconv"

	"github.com/batonhq/baton/internal/textwidth"
	"github.com/batonhq/baton/lab/charts"
	"github.com/batonhq/baton/lab/language"
	"github.com/batonhq/baton/lab/markup"
	"github.com/batonhq/baton/lab/measure"
)

// A plot in units of its own, which the page scales.
const (
	wide, high  = 400, 250
	left, top   = 50, 14
	leastBottom = 214
	apart       = 12.5 // between two labels at the ends of lines
	letter      = 5.8  // how wide a letter of a label is, at most, in the mean
	mostLetters = 20   // of a label
	colours     = 10   // that the style sheet has
)

// plot is a picture of one metric: a line for each target, the median of the
// repetitions, and from the lowest to the highest of them a bar. At its end a line has its
// name.
type plot struct {
	Title          string
	Below          string // what the columns are
	Right, Bottom  int    // of the lines
	Columns, Lines []tick
	Series         []series
}

type tick struct {
	At    string
	Label string
	Text  string // where the label stands
}

type series struct {
	N     int // its colour
	Label label
	Line  string // points
	Mark  string // path of a mark around 0,0
	Marks []mark
	Bars  []bar
}

// A label stands at X, Y; End is where the line ends.
type label struct {
	Text string
	X, Y float64
	End  mark
}

type mark struct{ X, Y, Title string }

type bar struct{ X, From, To string }

// markOf is the mark of a target: with its colour, no other of a hundred has it.
func markOf(target int) string { return charts.Marks[(target+target/colours)%len(charts.Marks)] }

// class is that of a colour.
func class(name string, colour int) string { return name + strconv.Itoa(colour) }

func (p plot) write(m *markup.Writer) {
	m.Raw("\n")
	m.Start("figure")
	m.Element("figcaption", p.Title)
	m.Start("svg", "viewBox", fmt.Sprintf("0 0 %d %d", wide, p.Bottom+high-leastBottom), "role", "img", "aria-label", p.Title)
	for _, l := range p.Lines {
		m.Empty("path", "class", "rule", "d", fmt.Sprintf("M%d %sH%d", left, l.At, p.Right))
		m.Element("text", l.Label, "x", left, "y", l.Text, "dx", -5, "text-anchor", "end")
	}
	for _, c := range p.Columns {
		m.Element("text", c.Label, "x", c.At, "y", c.Text, "text-anchor", "middle")
	}
	m.Element("text", p.Below, "x", p.Right, "y", p.Bottom+high-leastBottom, "dy", -6, "text-anchor", "end")
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
		m.Empty("path", "class", class("lead s", s.N), "d", "M"+s.Label.End.X+" "+s.Label.End.Y+"L"+charts.Length(s.Label.X-9)+" "+charts.Length(s.Label.Y))
		m.Empty("path", "class", class("mark f", s.N), "transform", "translate("+charts.Length(s.Label.X-6)+" "+charts.Length(s.Label.Y)+")", "d", s.Mark)
		m.Element("text", s.Label.Text, "class", "name", "x", charts.Length(s.Label.X), "y", charts.Length(s.Label.Y+3.5))
		m.End()
	}
	m.End()
	m.End()
}

// cut shortens a name to what a label has room for.
func cut(name string) string {
	if letters := []rune(name); len(letters) > mostLetters {
		return string(letters[:mostLetters-1]) + "…"
	}
	return name
}

// extent is the lowest and the highest median.
func extent(r *measure.Result, s measure.Shape, m measure.Metric) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, c := range r.Cells {
		if c.Shape != s || m.Shared && c.Goroutines == 1 {
			continue
		}
		if v := m.Get(c.Median()); !math.IsNaN(v) {
			low, high = min(low, v), max(high, v)
		}
	}
	return low, high
}

func draw(r *measure.Result, s measure.Shape, m measure.Metric, l language.Language) plot {
	longest := 0
	for _, target := range r.Targets {
		longest = max(longest, textwidth.Of(cut(target)))
	}
	right := wide - 14 - float64(longest)*letter
	bottom := max(leastBottom, top+math.Ceil(apart*float64(len(r.Targets))))
	p := plot{Title: measure.Capital(m.In(l)), Below: measure.Goroutines(l), Right: int(right) - 8, Bottom: int(bottom)}
	x := func(i int) float64 {
		from, to := left+8.0, right-18
		if len(r.Goroutines) == 1 {
			return (from + to) / 2
		}
		return from + float64(i)*(to-from)/float64(len(r.Goroutines)-1)
	}
	for i, n := range r.Goroutines {
		p.Columns = append(p.Columns, tick{At: charts.Length(x(i)), Label: strconv.Itoa(n), Text: charts.Length(bottom + 14)})
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
	y := func(v float64) float64 { return bottom - (bottom-top)*min(max(scale.place(v), 0), 1) }
	for _, v := range scale.ticks {
		p.Lines = append(p.Lines, tick{At: charts.Length(y(v)), Label: short(m.Format(v)), Text: charts.Length(y(v) + 3.5)})
	}

	for t, target := range r.Targets {
		line := series{N: t % colours, Mark: markOf(t)}
		for i, n := range r.Goroutines {
			c := r.Cell(target, s, n)
			if c == nil || m.Shared && n == 1 {
				continue
			}
			v, ok := value(c.Median())
			if !ok {
				continue
			}
			at := mark{X: charts.Length(x(i)), Y: charts.Length(y(v)), Title: fmt.Sprintf("%s, %d: %s", target, n, m.Format(v))}
			line.Marks = append(line.Marks, at)
			line.Line += at.X + "," + at.Y + " "
			line.Label = label{Text: cut(target), X: right + 12, Y: y(v), End: at}
			from, to := v, v
			for _, f := range c.Repetitions {
				if v, ok := value(f); ok {
					from, to = min(from, v), max(to, v)
				}
			}
			line.Bars = append(line.Bars, bar{at.X, charts.Length(y(from)), charts.Length(y(to))})
		}
		if len(line.Marks) > 0 {
			p.Series = append(p.Series, line)
		}
	}
	wanted := make([]float64, len(p.Series))
	for i, line := range p.Series {
		wanted[i] = line.Label.Y
	}
	for i, at := range charts.Spread(wanted, apart, top, bottom) {
		p.Series[i].Label.Y = at
	}
	return p
}

// scale places values between top and bottom.
type scale struct {
	place func(v float64) float64 // 0 at the bottom, 1 at the top
	ticks []float64
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
