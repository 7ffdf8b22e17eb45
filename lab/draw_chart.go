package lab

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/batonhq/baton/lab/markup"
)

const (
	plotHigh = 250.0
	colours  = 10 // of lines in Style
)

// scale maps values to pixels, linearly or by their logarithm.
type scale struct {
	log      bool
	from, to float64 // values
	a, b     float64 // pixels
}

func (s scale) at(v float64) float64 {
	if s.log {
		return s.a + (s.b-s.a)*(math.Log(v)-math.Log(s.from))/(math.Log(s.to)-math.Log(s.from))
	}
	return s.a + (s.b-s.a)*(v-s.from)/(s.to-s.from)
}

// ticks are the values that the axis names.
func (s scale) ticks(want int) (all []float64) {
	if !s.log {
		return ticks(s.to, want)
	}
	for _, steps := range [][]float64{{1}, {1, 2, 5}} {
		if len(all) >= 3 {
			break
		}
		all = nil
		for p := math.Floor(math.Log10(s.from)); p <= math.Ceil(math.Log10(s.to)); p++ {
			for _, step := range steps {
				if v := step * math.Pow(10, p); v >= s.from*.999 && v <= s.to*1.001 {
					all = append(all, v)
				}
			}
		}
	}
	for len(all) > want {
		var fewer []float64
		for i := 0; i < len(all); i += 2 {
			fewer = append(fewer, all[i])
		}
		all = fewer
	}
	return all
}

// axis makes the scale of an axis that shows these values.
func axis(values []float64, log bool, a, b float64) scale {
	s := scale{log: log, a: a, b: b}
	s.from, s.to = slices.Min(values), slices.Max(values)
	if !log {
		s.from, s.to = 0, s.to*1.06
		if s.to <= 0 {
			s.to = 1
		}
		return s
	}
	s.from = math.Pow(10, math.Floor(math.Log10(max(s.from, leastLog))+1e-9))
	s.to = max(s.to*1.1, s.from*10)
	return s
}

// DrawChart writes a chart, wide pixels wide, as an element of a page that has Style.
func DrawChart(m *markup.Writer, chart *Chart, title string, wide float64) {
	c := &canvas{m: m, wide: wide}
	high, draw := c.lines(chart)
	m.Start("svg", "viewBox", "0 0 "+length(wide)+" "+length(high), "role", "img", "aria-label", title)
	draw()
	m.End()
}

// DrawSign writes the sign of line n, for a legend.
func DrawSign(m *markup.Writer, n int) {
	m.Start("svg", "viewBox", "0 0 38 16", "aria-hidden", "true", "class", "s"+strconv.Itoa(n%colours))
	m.Empty("path", "class", "line", "d", "M2 8H36")
	m.Empty("path", "class", "dot", "transform", "translate(19 8)", "d", markOf(n))
	m.End()
}

// markOf is the mark of line n. Its combination with the colour is unique among a hundred.
func markOf(n int) string { return marks[(n+n/colours)%len(marks)] }

// lines draws a line for each series, with its name at its end.
func (c *canvas) lines(chart *Chart) (height float64, draw func()) {
	var xs, ys []float64
	names := 0.0
	for _, l := range chart.Lines {
		for _, p := range l.Points {
			xs, ys = append(xs, p[0]), append(ys, p[1])
		}
		for _, r := range l.Ranges {
			ys = append(ys, r[0], r[1])
		}
		names = max(names, breadth(l.Name.In(c.in), 12))
	}
	if chart.Bound != nil {
		ys = append(ys, chart.Bound.At)
	}
	left, right := 58.0, c.wide-14-(min(names, 200)+20) // the names are at the ends of the lines
	top, bottom := 24.0, 24+plotHigh
	x := axis(xs, chart.LogX, left, right)
	x.to = max(slices.Max(xs), 1e-9)
	columns := x.ticks(int((right - left) / 60))
	if chart.LogX {
		x.to = max(x.to, x.from*1.1)
		slices.Sort(xs)
		if xs = slices.Compact(xs); float64(len(xs)) <= (right-left)/25 { // each point has a tick of its own
			columns = xs
		}
	}
	label := short
	if chart.Format != nil {
		label = chart.Format
	}
	y := axis(ys, chart.LogY, bottom, top)
	height = bottom + 44
	type place struct {
		n          int
		name       string
		y          float64
		endX, endY float64 // of the line
	}
	var ends []place
	var wanted []float64
	for i, l := range chart.Lines {
		if len(l.Points) > 0 {
			end := y.at(l.Points[len(l.Points)-1][1])
			ends, wanted = append(ends, place{i, l.Name.In(c.in), end, x.at(l.Points[len(l.Points)-1][0]), end}), append(wanted, end)
		}
	}
	for i, at := range spread(wanted, 15, top, bottom+10) {
		ends[i].y = at
	}
	slices.SortStableFunc(ends, func(a, b place) int { return cmp.Compare(a.y, b.y) })
	return height, func() {
		for _, v := range y.ticks(6) {
			c.m.Empty("path", "class", "rule", "d", "M"+length(left)+" "+length(y.at(v))+"H"+length(right))
			c.m.Element("text", label(v), "x", length(left-6), "y", length(y.at(v)+4), "class", "small soft", "text-anchor", "end")
		}
		for _, v := range columns {
			c.m.Element("text", short(v), "x", length(x.at(v)), "y", length(bottom+16), "class", "small soft", "text-anchor", "middle")
		}
		c.m.Element("text", chart.Y.In(c.in), "x", 12, "y", length(top-10), "class", "small soft")
		c.m.Element("text", chart.X.In(c.in), "x", length(right), "y", length(bottom+34), "class", "small soft", "text-anchor", "end")
		c.m.Raw("\n")
		if b := chart.Bound; b != nil {
			c.m.Empty("path", "class", "rule", "d", "M"+length(left)+" "+length(y.at(b.At))+"H"+length(right), "stroke-dasharray", "5 4", "style", "stroke-opacity:1")
			c.m.Element("text", b.Name.In(c.in), "x", length(left+5), "y", length(y.at(b.At)-5), "class", "small soft")
			c.m.Raw("\n")
		}
		for i, l := range chart.Lines {
			c.m.Start("g", "class", "s"+strconv.Itoa(i%colours))
			d := ""
			for j, p := range l.Points {
				d += map[bool]string{true: "M", false: "L"}[j == 0] + length(x.at(p[0])) + " " + length(y.at(p[1]))
			}
			if d != "" {
				c.m.Empty("path", "class", "line", "d", d)
			}
			for j, p := range l.Points {
				if len(l.Ranges) > j {
					c.m.Empty("path", "class", "range", "d", "M"+length(x.at(p[0]))+" "+length(y.at(l.Ranges[j][0]))+"V"+length(y.at(l.Ranges[j][1])))
				}
				c.m.Start("path", "class", "dot", "d", markOf(i), "transform", "translate("+length(x.at(p[0]))+" "+length(y.at(p[1]))+")")
				c.m.Element("title", fmt.Sprintf("%s, %s: %s", l.Name.In(c.in), short(p[0]), label(p[1])))
				c.m.End()
			}
			c.m.End()
			c.m.Raw("\n")
		}
		for _, e := range ends {
			c.m.Start("g", "class", "s"+strconv.Itoa(e.n%colours))
			c.m.Empty("path", "class", "lead", "d", "M"+length(e.endX)+" "+length(e.endY)+"L"+length(right+8)+" "+length(e.y))
			c.m.Empty("path", "class", "dot", "d", markOf(e.n), "transform", "translate("+length(right+12)+" "+length(e.y)+")")
			c.m.Element("text", e.name, "x", length(right+20), "y", length(e.y+4), "class", "small name")
			c.m.End()
		}
	}
}

// bars draws a bar for each value, with the value at its end.
func (c *canvas) bars(chart *Chart) (height float64, draw func()) {
	left := 12.0
	most, shown := 0.0, 0.0
	for _, b := range chart.Bars {
		left = max(left, min(22+breadth(b.Name.In(c.in), 13), 300))
		most, shown = max(most, b.Value), max(shown, breadth(b.Shown.In(c.in), 13))
	}
	if chart.Bound != nil {
		most = max(most, chart.Bound.At)
	}
	right := c.wide - 20 - shown
	to := func(v float64) float64 {
		if most <= 0 {
			return left
		}
		return left + (right-left)*v/most
	}
	const step = 34.0
	top := 8.0
	if chart.Bound != nil {
		top += 16
	}
	bottom := top + step*float64(len(chart.Bars))
	return bottom + 28, func() {
		for i, b := range chart.Bars {
			y := top + step*float64(i)
			c.m.Element("text", b.Name.In(c.in), "x", 12, "y", length(y+16))
			class, text := "holds", "bold"
			if b.Bad {
				class, text = "wrong", "bold bad"
			}
			c.m.Empty("rect", "x", length(left), "y", length(y), "width", length(max(to(b.Value)-left, 1)), "height", length(barHigh), "rx", 3, "class", class)
			c.m.Element("text", b.Shown.In(c.in), "x", length(to(b.Value)+6), "y", length(y+16), "class", text)
			c.m.Raw("\n")
		}
		if b := chart.Bound; b != nil {
			c.m.Empty("path", "class", "lane", "stroke-dasharray", "5 4", "d", "M"+length(to(b.At))+" "+length(top-4)+"V"+length(bottom-6), "fill", "none")
			anchor := "middle"
			if to(b.At) > c.wide*.7 {
				anchor = "end"
			}
			c.m.Element("text", b.Name.In(c.in), "x", length(to(b.At)), "y", length(top-8), "class", "small soft", "text-anchor", anchor)
		}
		c.m.Element("text", chart.X.In(c.in), "x", length(c.wide-12), "y", length(bottom+14), "class", "small soft", "text-anchor", "end")
	}
}

// flow draws what each limiter allowed and refused over time.
func (c *canvas) flow(f *Flow) (height float64, draw func()) {
	left, right := 12.0, c.wide-14.0
	high, step, top := 44.0, 62.0, 26.0
	for _, r := range f.Rows {
		left = max(left, min(24+max(breadth(r.Name.In(c.in), 13*bold), breadth(r.Note.In(c.in), 12)), 250))
	}
	most := 1
	for _, r := range f.Rows {
		for _, p := range r.Parts {
			most = max(most, p.Allowed+p.Refused)
		}
	}
	bottom := top + step*float64(len(f.Rows))
	allowed, refused := Text{"allowed", "放行"}.In(c.in), Text{"refused", "拒绝"}.In(c.in)
	return bottom + 26, func() {
		c.m.Empty("rect", "x", 12, "y", 2, "width", 11, "height", 11, "class", "holds")
		c.m.Element("text", allowed, "x", 28, "y", 12, "class", "small soft")
		x := 44 + breadth(allowed, 12)
		c.m.Empty("rect", "x", length(x), "y", 2, "width", 11, "height", 11, "class", "waits")
		c.m.Element("text", refused, "x", length(x+16), "y", 12, "class", "small soft")
		c.m.Raw("\n")
		for _, ms := range ticks(float64(f.Length), int((right-left)/70)) {
			x, when := left+(right-left)*ms/float64(f.Length), moment(ms, f.Length)
			c.m.Empty("path", "class", "rule", "d", "M"+length(x)+" "+length(top-6)+"V"+length(bottom))
			anchor := "middle"
			if x+breadth(when, 12)/2 > c.wide {
				x, anchor = c.wide, "end"
			}
			c.m.Element("text", when, "x", length(x), "y", length(bottom+15), "class", "small soft", "text-anchor", anchor)
		}
		c.m.Raw("\n")
		for i, r := range f.Rows {
			y := top + step*float64(i)
			note := "small soft"
			if r.Bad {
				note = "small bad"
			}
			c.m.Element("text", r.Name.In(c.in), "x", 12, "y", length(y+15), "class", "bold")
			for j, line := range c.wrap(r.Note.In(c.in), 12, left-14) {
				c.m.Element("text", line, "x", 12, "y", length(y+32+14*float64(j)), "class", note)
			}
			w := (right - left) / float64(len(r.Parts))
			for j, p := range r.Parts {
				x := left + w*float64(j)
				a, n := high*float64(p.Allowed)/float64(most), high*float64(p.Refused)/float64(most)
				class := "holds"
				if r.Bad {
					class = "wrong"
				}
				if a > 0 {
					c.m.Empty("rect", "x", length(x), "y", length(y+high-a), "width", length(max(w-1, 1)), "height", length(a), "class", class)
				}
				if n > 0 {
					c.m.Empty("rect", "x", length(x), "y", length(y+high-a-n), "width", length(max(w-1, 1)), "height", length(n), "class", "waits")
				}
			}
			c.m.Empty("path", "class", "rule", "d", "M"+length(left)+" "+length(y+high)+"H"+length(right))
			c.m.Raw("\n")
		}
	}
}
