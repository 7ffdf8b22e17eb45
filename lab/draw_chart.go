package lab

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	"github.com/batonhq/baton/lab/charts"
)

const (
	plotHigh = 250.0
	colours  = 8 // of lines, that the style has
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
	for p := math.Floor(math.Log10(s.from)); p <= math.Ceil(math.Log10(s.to)); p++ {
		if v := math.Pow(10, p); v >= s.from*.999 && v <= s.to*1.001 {
			all = append(all, v)
		}
	}
	if len(all) < 2 {
		all = []float64{s.from, s.to}
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

// axis makes the scale of an axis that has to show these values.
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

// lines draws a line for each series, with its name at its end.
func (c *canvas) lines(chart *Chart) (height float64, draw func()) {
	var xs, ys []float64
	names := 0.0
	for _, l := range chart.Lines {
		for _, p := range l.Points {
			xs, ys = append(xs, p[0]), append(ys, p[1])
		}
		names = max(names, breadth(l.Name.In(c.in), 12))
	}
	if chart.Bound != nil {
		ys = append(ys, chart.Bound.At)
	}
	left, right := 58.0, wide-14-(min(names, 200)+8) // the names are at the ends of the lines
	top, bottom := 24.0, 24+plotHigh
	x := axis(xs, chart.LogX, left, right)
	if chart.LogX {
		x.to = slices.Max(xs)
	} else {
		x.to = max(slices.Max(xs), 1e-9)
	}
	y := axis(ys, chart.LogY, bottom, top)
	height = bottom + 44
	type label struct {
		n    int
		name string
		y    float64
	}
	var ends []label
	var wanted []float64
	for i, l := range chart.Lines {
		if len(l.Points) > 0 {
			end := y.at(l.Points[len(l.Points)-1][1])
			ends, wanted = append(ends, label{i, l.Name.In(c.in), end}), append(wanted, end)
		}
	}
	for i, at := range charts.Spread(wanted, 15, top, bottom+10) {
		ends[i].y = at
	}
	slices.SortStableFunc(ends, func(a, b label) int { return cmp.Compare(a.y, b.y) })
	return height, func() {
		for _, v := range y.ticks(6) {
			c.m.Empty("path", "class", "rule", "d", "M"+charts.Length(left)+" "+charts.Length(y.at(v))+"H"+charts.Length(right))
			c.m.Element("text", short(v), "x", charts.Length(left-6), "y", charts.Length(y.at(v)+4), "class", "small soft", "text-anchor", "end")
		}
		for _, v := range x.ticks(int((right - left) / 60)) {
			c.m.Element("text", short(v), "x", charts.Length(x.at(v)), "y", charts.Length(bottom+16), "class", "small soft", "text-anchor", "middle")
		}
		c.m.Element("text", chart.Y.In(c.in), "x", 12, "y", charts.Length(top-10), "class", "small soft")
		c.m.Element("text", chart.X.In(c.in), "x", charts.Length(right), "y", charts.Length(bottom+34), "class", "small soft", "text-anchor", "end")
		c.m.Raw("\n")
		if b := chart.Bound; b != nil {
			c.m.Empty("path", "class", "rule", "d", "M"+charts.Length(left)+" "+charts.Length(y.at(b.At))+"H"+charts.Length(right), "stroke-dasharray", "5 4", "style", "stroke-opacity:1")
			c.m.Element("text", b.Name.In(c.in), "x", charts.Length(left+5), "y", charts.Length(y.at(b.At)-5), "class", "small soft")
			c.m.Raw("\n")
		}
		for i, l := range chart.Lines {
			c.m.Start("g", "class", "s"+strconv.Itoa(i%colours))
			c.m.Element("title", l.Name.In(c.in))
			d := ""
			for j, p := range l.Points {
				d += map[bool]string{true: "M", false: "L"}[j == 0] + charts.Length(x.at(p[0])) + " " + charts.Length(y.at(p[1]))
			}
			if d != "" {
				c.m.Empty("path", "class", "line", "d", d)
			}
			for _, p := range l.Points {
				c.m.Empty("path", "class", "dot", "d", charts.Marks[i%len(charts.Marks)], "transform", "translate("+charts.Length(x.at(p[0]))+" "+charts.Length(y.at(p[1]))+")")
			}
			c.m.End()
			c.m.Raw("\n")
		}
		for _, e := range ends {
			c.m.Start("g", "class", "s"+strconv.Itoa(e.n%colours))
			c.m.Element("text", e.name, "x", charts.Length(right+8), "y", charts.Length(e.y+4), "class", "small name")
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
	right := wide - 20 - shown
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
			c.m.Element("text", b.Name.In(c.in), "x", 12, "y", charts.Length(y+16))
			class, text := "holds", "bold"
			if b.Bad {
				class, text = "wrong", "bold bad"
			}
			c.m.Empty("rect", "x", charts.Length(left), "y", charts.Length(y), "width", charts.Length(max(to(b.Value)-left, 1)), "height", charts.Length(barHigh), "rx", 3, "class", class)
			c.m.Element("text", b.Shown.In(c.in), "x", charts.Length(to(b.Value)+6), "y", charts.Length(y+16), "class", text)
			c.m.Raw("\n")
		}
		if b := chart.Bound; b != nil {
			c.m.Empty("path", "class", "lane", "stroke-dasharray", "5 4", "d", "M"+charts.Length(to(b.At))+" "+charts.Length(top-4)+"V"+charts.Length(bottom-6), "fill", "none")
			anchor := "middle"
			if to(b.At) > wide*.7 {
				anchor = "end"
			}
			c.m.Element("text", b.Name.In(c.in), "x", charts.Length(to(b.At)), "y", charts.Length(top-8), "class", "small soft", "text-anchor", anchor)
		}
		c.m.Element("text", chart.X.In(c.in), "x", charts.Length(wide-12), "y", charts.Length(bottom+14), "class", "small soft", "text-anchor", "end")
	}
}

// flow draws what each limiter allowed and refused over time.
func (c *canvas) flow(f *Flow) (height float64, draw func()) {
	left, right := 12.0, wide-14.0
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
		c.m.Empty("rect", "x", charts.Length(x), "y", 2, "width", 11, "height", 11, "class", "waits")
		c.m.Element("text", refused, "x", charts.Length(x+16), "y", 12, "class", "small soft")
		c.m.Raw("\n")
		for _, ms := range ticks(float64(f.Length), int((right-left)/70)) {
			x := left + (right-left)*ms/float64(f.Length)
			c.m.Empty("path", "class", "rule", "d", "M"+charts.Length(x)+" "+charts.Length(top-6)+"V"+charts.Length(bottom))
			anchor := "middle"
			if x+breadth(charts.Length(ms/1000)+" s", 12)/2 > wide {
				x, anchor = wide, "end"
			}
			c.m.Element("text", charts.Length(ms/1000)+" s", "x", charts.Length(x), "y", charts.Length(bottom+15), "class", "small soft", "text-anchor", anchor)
		}
		c.m.Raw("\n")
		for i, r := range f.Rows {
			y := top + step*float64(i)
			note := "small soft"
			if r.Bad {
				note = "small bad"
			}
			c.m.Element("text", r.Name.In(c.in), "x", 12, "y", charts.Length(y+15), "class", "bold")
			c.m.Element("text", r.Note.In(c.in), "x", 12, "y", charts.Length(y+32), "class", note)
			w := (right - left) / float64(len(r.Parts))
			for j, p := range r.Parts {
				x := left + w*float64(j)
				a, n := high*float64(p.Allowed)/float64(most), high*float64(p.Refused)/float64(most)
				class := "holds"
				if r.Bad {
					class = "wrong"
				}
				if a > 0 {
					c.m.Empty("rect", "x", charts.Length(x), "y", charts.Length(y+high-a), "width", charts.Length(max(w-1, 1)), "height", charts.Length(a), "class", class)
				}
				if n > 0 {
					c.m.Empty("rect", "x", charts.Length(x), "y", charts.Length(y+high-a-n), "width", charts.Length(max(w-1, 1)), "height", charts.Length(n), "class", "waits")
				}
			}
			c.m.Empty("path", "class", "rule", "d", "M"+charts.Length(left)+" "+charts.Length(y+high)+"H"+charts.Length(right))
			c.m.Raw("\n")
		}
	}
}
