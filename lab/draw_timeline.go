package lab

import (
	"math"
	"slices"
)

const (
	barHigh  = 22.0
	textHigh = 16.0
)

// placed is a label below a lane, in one of several rows so that labels do not overlap.
type placed struct {
	x    float64 // of the mark
	left float64
	row  int
	mark Mark
	text string
}

// timeline returns the height of the picture, and a function that draws it.
func (c *canvas) timeline(t *Timeline) (height float64, draw func()) {
	const right = 14.0
	left := 12.0
	for _, l := range t.Lanes { // the names are left of the lanes
		left = max(left, min(24+breadth(l.Name.In(c.in), 13*bold), 210))
	}
	at := func(ms int) float64 { return left + (c.wide-left-right)*float64(ms)/float64(t.Length) }

	type lane struct {
		*Lane
		name   []string
		y      float64 // of the bars
		labels []placed
	}
	var lanes []lane
	y := 6.0
	for _, l := range t.Lanes {
		d := lane{Lane: l, name: c.wrap(l.Name.In(c.in), 13*bold, left-20), y: y}
		rows := 0
		d.labels, rows = c.labels(l, at)
		high := max(barHigh+textHigh*float64(rows), textHigh*float64(len(d.name)))
		y += high + 12
		lanes = append(lanes, d)
	}
	bottom := y
	var legend []func(x, y float64)
	var widths []float64
	for _, k := range kinds {
		if slices.ContainsFunc(t.Lanes, func(l *Lane) bool {
			return slices.ContainsFunc(l.Spans, func(s *Span) bool { return s.Kind == k.kind })
		}) {
			word := k.word.In(c.in)
			widths = append(widths, breadth(word, 12)+40)
			legend = append(legend, func(x, y float64) {
				c.m.Empty("rect", "x", length(x), "y", length(y-9), "width", 18, "height", 11, "rx", 2, "class", string(k.kind))
				c.m.Element("text", word, "x", length(x+23), "y", length(y), "class", "small soft")
			})
		}
	}
	for _, k := range markKinds {
		if slices.ContainsFunc(t.Lanes, func(l *Lane) bool {
			return slices.ContainsFunc(l.Marks, func(m Mark) bool { return m.Kind == k.kind })
		}) {
			word := k.word.In(c.in)
			widths = append(widths, breadth(word, 12)+32)
			legend = append(legend, func(x, y float64) {
				c.shape(k.kind, x+7, y-4)
				c.m.Element("text", word, "x", length(x+17), "y", length(y), "class", "small soft")
			})
		}
	}
	type spot struct{ x, y float64 }
	spots := make([]spot, len(legend))
	x, ly := 12.0, bottom+38
	for i, w := range widths {
		if x+w > c.wide && x > 12 {
			x, ly = 12, ly+18
		}
		spots[i] = spot{x, ly}
		x += w
	}
	return ly + 12, func() {
		for _, ms := range ticks(float64(t.Length), int((c.wide-left)/85)) {
			x := length(at(int(ms)))
			c.m.Empty("path", "class", "rule", "d", "M"+x+" 0V"+length(bottom))
			label := moment(ms, t.Length)
			anchor := "middle"
			if ms == 0 {
				anchor = "start"
			} else if at(int(ms)) > c.wide-30 {
				anchor = "end"
			}
			c.m.Element("text", label, "x", x, "y", length(bottom+14), "class", "small soft", "text-anchor", anchor)
		}
		c.m.Raw("\n")
		for _, l := range lanes {
			for i, line := range l.name {
				c.m.Element("text", line, "x", 12, "y", length(l.y+15+textHigh*float64(i)), "class", "bold")
			}
			c.m.Empty("path", "class", "lane", "d", "M"+length(left)+" "+length(l.y+barHigh/2)+"H"+length(c.wide-right))
			for _, s := range l.Spans {
				c.span(s, at(s.From), at(s.To), l.y)
			}
			c.m.Raw("\n")
			for _, p := range l.labels {
				c.m.Start("g")
				c.shape(p.mark.Kind, p.x, l.y+barHigh/2)
				if p.text != "" {
					class := "small"
					if shapes[p.mark.Kind][0] == "bad" {
						class = "small bad"
					}
					c.m.Element("text", p.text, "x", length(p.left), "y", length(l.y+barHigh+13+textHigh*float64(p.row)), "class", class)
				}
				c.m.End()
				c.m.Raw("\n")
			}
		}
		for i, draw := range legend {
			draw(spots[i].x, spots[i].y)
		}
	}
}

func (c *canvas) span(s *Span, from, to, y float64) {
	c.m.Start("g")
	label := s.Label.In(c.in)
	if label != "" {
		c.m.Element("title", label)
	}
	c.m.Empty("rect", "x", length(from), "y", length(y), "width", length(max(to-from, 1.5)), "height", length(barHigh), "rx", 3, "class", string(s.Kind))
	if label != "" && breadth(label, 12)+8 < to-from {
		c.m.Element("text", label, "x", length(from+5), "y", length(y+15), "class", "small in in-"+string(s.Kind))
	}
	c.m.End()
}

// labels places the labels of marks, and of spans that are too short for theirs, in as few
// rows as possible.
func (c *canvas) labels(l *Lane, at func(int) float64) (all []placed, rows int) {
	marks := slices.Clone(l.Marks)
	slices.SortStableFunc(marks, func(a, b Mark) int { return a.At - b.At })
	var ends []float64
	for _, m := range marks {
		text := m.Label.In(c.in)
		p := placed{x: at(m.At), mark: m, text: text}
		if text != "" {
			w := breadth(text, 12)
			p.left = max(min(p.x-4, c.wide-4-w), 4)
			for p.row < len(ends) && ends[p.row] > p.left {
				p.row++
			}
			if p.row == len(ends) {
				ends = append(ends, 0)
			}
			ends[p.row] = p.left + w + 8
		}
		all = append(all, p)
	}
	return all, len(ends)
}

// moment formats a time for an axis of length of, both in milliseconds.
func moment(ms float64, of int) string {
	switch {
	case of < 2000:
		return length(ms) + " ms"
	case of <= 600_000:
		return length(ms/1000) + " s"
	case of <= 36_000_000:
		return length(math.Round(ms/600)/100) + " min"
	}
	return length(math.Round(ms/36_000)/100) + " h"
}
