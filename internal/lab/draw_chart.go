package lab

import (
	"cmp"
	"math"
	"slices"
)

const plotHigh = 250.0

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
	beside := c.width >= 600 // the names stand at the ends of the lines, or in a legend below
	left, right := 58.0, c.width-14
	if beside {
		right -= min(names, 200) + 8
	}
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
	for i, l := range chart.Lines {
		if len(l.Points) > 0 {
			ends = append(ends, label{i, l.Name.In(c.in), y.at(l.Points[len(l.Points)-1][1])})
		}
	}
	slices.SortStableFunc(ends, func(a, b label) int { return cmp.Compare(a.y, b.y) })
	spread(len(ends), 15, top, bottom+10, func(i int) *float64 { return &ends[i].y })
	if !beside {
		height += 18 * float64(len(ends))
	}
	return height, func() {
		for _, v := range y.ticks(6) {
			c.m.Empty("path", "class", "rule", "d", "M"+num(left)+" "+num(y.at(v))+"H"+num(right))
			c.m.Element("text", short(v), "x", num(left-6), "y", num(y.at(v)+4), "class", "small soft", "text-anchor", "end")
		}
		for _, v := range x.ticks(int((right - left) / 60)) {
			c.m.Element("text", short(v), "x", num(x.at(v)), "y", num(bottom+16), "class", "small soft", "text-anchor", "middle")
		}
		c.m.Element("text", chart.Y.In(c.in), "x", 12, "y", num(top-10), "class", "small soft")
		c.m.Element("text", chart.X.In(c.in), "x", num(right), "y", num(bottom+34), "class", "small soft", "text-anchor", "end")
		c.m.Raw("\n")
		if b := chart.Bound; b != nil {
			c.m.Empty("path", "class", "rule", "d", "M"+num(left)+" "+num(y.at(b.At))+"H"+num(right), "stroke-dasharray", "5 4", "style", "stroke-opacity:1")
			c.m.Element("text", b.Name.In(c.in), "x", num(left+5), "y", num(y.at(b.At)-5), "class", "small soft")
			c.m.Raw("\n")
		}
		for i, l := range chart.Lines {
			c.m.Start("g", "class", "s"+num(float64(i%8)))
			c.m.Element("title", l.Name.In(c.in))
			d := ""
			for j, p := range l.Points {
				d += map[bool]string{true: "M", false: "L"}[j == 0] + num(x.at(p[0])) + " " + num(y.at(p[1]))
			}
			if d != "" {
				c.m.Empty("path", "class", "line", "d", d)
			}
			for _, p := range l.Points {
				c.m.Empty("path", "class", "dot", "d", dots[i%len(dots)], "transform", "translate("+num(x.at(p[0]))+" "+num(y.at(p[1]))+")")
			}
			c.m.End()
			c.m.Raw("\n")
		}
		for i, e := range ends {
			c.m.Start("g", "class", "s"+num(float64(e.n%8)))
			if beside {
				c.m.Element("text", e.name, "x", num(right+8), "y", num(e.y+4), "class", "small name")
			} else {
				ly := bottom + 56 + 18*float64(i)
				c.m.Empty("path", "class", "dot", "d", dots[e.n%len(dots)], "transform", "translate(20 "+num(ly-4)+")")
				c.m.Element("text", e.name, "x", 32, "y", num(ly), "class", "small name")
			}
			c.m.End()
		}
	}
}

// dots tell lines apart without colours.
var dots = []string{
	"M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",
	"M-3.2-3.2h6.4v6.4h-6.4z",
	"M0-4.4L4.2 3.2H-4.2z",
	"M0-4.6L4.6 0L0 4.6L-4.6 0z",
	"M0 4.4L4.2-3.2H-4.2z",
	"M-4.4-1.2h3.2v-3.2h2.4v3.2h3.2v2.4h-3.2v3.2h-2.4v-3.2h-3.2z",
	"M-4.4-1.8h8.8v3.6h-8.8z",
	"M-1.8-4.4h3.6v8.8h-3.6z",
}

// spread moves n values, which rise, apart until they are a gap from each other.
func spread(n int, gap, top, bottom float64, at func(int) *float64) {
	for i := 1; i < n; i++ {
		*at(i) = max(*at(i), *at(i - 1)+gap)
	}
	if n > 0 && *at(n - 1) > bottom {
		*at(n - 1) = bottom
		for i := n - 2; i >= 0; i-- {
			*at(i) = max(min(*at(i), *at(i + 1)-gap), top-10)
		}
	}
}

// bars draws a bar for each value, with the value at its end.
func (c *canvas) bars(chart *Chart) (height float64, draw func()) {
	beside := c.width >= 600
	left := 12.0
	most, shown := 0.0, 0.0
	for _, b := range chart.Bars {
		if beside {
			left = max(left, min(22+breadth(b.Name.In(c.in), 13), 300))
		}
		most, shown = max(most, b.Value), max(shown, breadth(b.Shown.In(c.in), 13))
	}
	if chart.Bound != nil {
		most = max(most, chart.Bound.At)
	}
	right := c.width - 20 - shown
	to := func(v float64) float64 {
		if most <= 0 {
			return left
		}
		return left + (right-left)*v/most
	}
	step := 34.0
	if !beside {
		step = 48
	}
	top := 8.0
	if chart.Bound != nil {
		top += 16
	}
	bottom := top + step*float64(len(chart.Bars))
	return bottom + 28, func() {
		for i, b := range chart.Bars {
			y := top + step*float64(i)
			if beside {
				c.m.Element("text", b.Name.In(c.in), "x", 12, "y", num(y+16))
			} else {
				c.m.Element("text", b.Name.In(c.in), "x", 12, "y", num(y+12))
				y += 17
			}
			class, text := "holds", "bold"
			if b.Bad {
				class, text = "wrong", "bold bad"
			}
			c.m.Empty("rect", "x", num(left), "y", num(y), "width", num(max(to(b.Value)-left, 1)), "height", num(barHigh), "rx", 3, "class", class)
			c.m.Element("text", b.Shown.In(c.in), "x", num(to(b.Value)+6), "y", num(y+16), "class", text)
			c.m.Raw("\n")
		}
		if b := chart.Bound; b != nil {
			c.m.Empty("path", "class", "lane", "stroke-dasharray", "5 4", "d", "M"+num(to(b.At))+" "+num(top-4)+"V"+num(bottom-6), "fill", "none")
			anchor := "middle"
			if to(b.At) > c.width*.7 {
				anchor = "end"
			}
			c.m.Element("text", b.Name.In(c.in), "x", num(to(b.At)), "y", num(top-8), "class", "small soft", "text-anchor", anchor)
		}
		c.m.Element("text", chart.X.In(c.in), "x", num(c.width-12), "y", num(bottom+14), "class", "small soft", "text-anchor", "end")
	}
}

// flow draws what each limiter allowed and refused over time.
func (c *canvas) flow(f *Flow) (height float64, draw func()) {
	beside := c.width >= 600
	left, right := 12.0, c.width-14
	high, step, top := 44.0, 62.0, 26.0
	if beside {
		for _, r := range f.Rows {
			left = max(left, min(24+max(breadth(r.Name.In(c.in), 13*bold), breadth(r.Note.In(c.in), 12)), 250))
		}
	} else {
		step = 94
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
		c.m.Empty("rect", "x", num(x), "y", 2, "width", 11, "height", 11, "class", "waits")
		c.m.Element("text", refused, "x", num(x+16), "y", 12, "class", "small soft")
		c.m.Raw("\n")
		for _, ms := range ticks(float64(f.Length), int((right-left)/70)) {
			x := left + (right-left)*ms/float64(f.Length)
			c.m.Empty("path", "class", "rule", "d", "M"+num(x)+" "+num(top-6)+"V"+num(bottom))
			anchor := "middle"
			if x+breadth(num(ms/1000)+" s", 12)/2 > c.width {
				x, anchor = c.width, "end"
			}
			c.m.Element("text", num(ms/1000)+" s", "x", num(x), "y", num(bottom+15), "class", "small soft", "text-anchor", anchor)
		}
		c.m.Raw("\n")
		for i, r := range f.Rows {
			y := top + step*float64(i)
			note := "small soft"
			if r.Bad {
				note = "small bad"
			}
			c.m.Element("text", r.Name.In(c.in), "x", 12, "y", num(y+15), "class", "bold")
			c.m.Element("text", r.Note.In(c.in), "x", 12, "y", num(y+32), "class", note)
			if !beside {
				y += 41
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
					c.m.Empty("rect", "x", num(x), "y", num(y+high-a), "width", num(max(w-1, 1)), "height", num(a), "class", class)
				}
				if n > 0 {
					c.m.Empty("rect", "x", num(x), "y", num(y+high-a-n), "width", num(max(w-1, 1)), "height", num(n), "class", "waits")
				}
			}
			c.m.Empty("path", "class", "rule", "d", "M"+num(left)+" "+num(y+high)+"H"+num(right))
			c.m.Raw("\n")
		}
	}
}
