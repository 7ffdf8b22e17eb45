// Package page shows a Report as one self-contained HTML page: no script, and no font or
// picture from elsewhere.
package page

import (
	_ "embed"
	"fmt"
	"io"
	"math"
	"regexp"

	"github.com/batonhq/baton/lab"
	"github.com/batonhq/baton/lab/markup"
	"github.com/batonhq/baton/lab/measure"
)

//go:embed page.css
var style string

// Write writes the page. It is well-formed XML, too.
func Write(w io.Writer, r *measure.Report) error {
	const title = "Locks, measured"
	m := markup.New(w)
	m.Raw("<!doctype html>\n")
	m.Start("html", "lang", "en")
	m.Inside("head", func() {
		m.Empty("meta", "charset", "utf-8")
		m.Empty("meta", "name", "viewport", "content", "width=device-width")
		m.Element("title", title)
		m.Raw("<style>\n" + lab.Style + style + "</style>")
	})
	m.Raw("\n")
	m.Start("body")
	m.Element("h1", title)
	list(m, r.Notes())
	m.Inside("ul", func() {
		for i, s := range r.Stores {
			m.Start("li")
			lab.DrawSign(m, i)
			m.Text(" " + s.Name + " ")
			m.Element("small", s.About)
			m.End()
		}
	}, "class", "stores")
	tables := r.Result.Tables()
	for _, s := range measure.Shapes {
		section(m, r.Result, s, tables)
	}
	m.Raw("\n")
	m.Element("h2", measure.HowMeasured)
	list(m, r.Method())
	m.End()
	m.End()
	m.Raw("\n")
	return m.Flush()
}

// section writes the pictures and the tables of a shape.
func section(m *markup.Writer, r *measure.Result, s measure.Shape, all []measure.Table) {
	var tables []measure.Table
	for _, t := range all {
		if t.Shape == s {
			tables = append(tables, t)
		}
	}
	if len(tables) == 0 {
		return
	}
	m.Raw("\n")
	m.Element("h2", measure.Capital(s.String()))
	if note := s.Note(); note != "" {
		m.Element("p", note)
	}
	var alike []string
	m.Start("div", "class", "plots")
	for _, t := range tables {
		if low, high := extent(r, s, t.Metric); t.Metric.Shared && (high < mostAlike*low || math.IsInf(low, 0)) {
			alike = append(alike, fmt.Sprintf("Not drawn, because all are about alike: %s, from %s to %s.", t.Metric.Title, t.Metric.Format(low), t.Metric.Format(high)))
			continue
		}
		caption, c := measure.Capital(t.Metric.Title), chart(r, s, t.Metric)
		if len(c.Lines) == 0 {
			continue
		}
		m.Raw("\n")
		m.Start("figure")
		m.Element("figcaption", caption)
		lab.DrawChart(m, c, caption, wide)
		m.End()
	}
	m.End()
	for _, a := range alike {
		m.Element("p", a)
	}
	m.Start("details")
	m.Element("summary", "The same in figures")
	for _, t := range tables {
		writeTable(m, t)
	}
	m.End()
}

const (
	// wide is the width of a picture in pixels.
	wide = 460
	// mostAlike bounds the highest of all medians divided by the lowest for which a picture
	// of fairness would show no difference.
	mostAlike   = 1.5
	mostLetters = 20 // of the name of a line
)

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

// chart is a picture of one metric: a line for each target through the medians, with a bar
// from the lowest to the highest repetition. A figure that is zero or unknown has no point.
func chart(r *measure.Result, s measure.Shape, m measure.Metric) *lab.Chart {
	c := &lab.Chart{X: lab.Plain("goroutines"), LogX: true, LogY: m.Name != "jain", Format: func(v float64) string { return short(m.Format(v)) }}
	value := func(f measure.Figures) (v float64, ok bool) {
		v = m.Get(f)
		return v, !math.IsNaN(v) && !math.IsInf(v, 0) && v > 0
	}
	for _, target := range r.Targets {
		line := &lab.Line{Name: lab.Plain(cut(target))} // even without a point, so the other lines keep their colours
		for _, n := range r.Goroutines {
			cell := r.Cell(target, s, n)
			if cell == nil || m.Shared && n == 1 {
				continue
			}
			v, ok := value(cell.Median())
			if !ok {
				continue
			}
			from, to := v, v
			for _, f := range cell.Repetitions {
				if v, ok := value(f); ok {
					from, to = min(from, v), max(to, v)
				}
			}
			line.Points = append(line.Points, [2]float64{float64(n), v})
			line.Ranges = append(line.Ranges, [2]float64{from, to})
		}
		c.Lines = append(c.Lines, line)
	}
	for _, line := range c.Lines {
		if len(line.Points) > 0 {
			return c
		}
	}
	return &lab.Chart{}
}

// cut shortens a name for a picture.
func cut(name string) string {
	if letters := []rune(name); len(letters) > mostLetters {
		return string(letters[:mostLetters-1]) + "…"
	}
	return name
}

var zeros = regexp.MustCompile(`\.0+( |[kM]|$)`)

// short formats a round value without zeros after its point.
func short(label string) string { return zeros.ReplaceAllString(label, "$1") }

func list(m *markup.Writer, sentences []string) {
	if len(sentences) == 0 {
		return
	}
	m.Start("ul")
	for _, s := range sentences {
		m.Element("li", s)
	}
	m.End()
}

func writeTable(m *markup.Writer, t measure.Table) {
	m.Start("div", "class", "wide")
	m.Start("table")
	m.Element("caption", t.Metric.Title)
	m.Start("thead")
	m.Start("tr")
	for _, cell := range t.Head {
		m.Element("th", cell, "scope", "col")
	}
	m.End()
	m.End()
	m.Start("tbody")
	for _, row := range t.Rows {
		m.Start("tr")
		for i, cell := range row {
			if i == 0 {
				m.Element("th", cell, "scope", "row")
			} else {
				m.Element("td", cell)
			}
		}
		m.End()
		m.Raw("\n")
	}
	m.End()
	m.End()
	m.End()
	m.Raw("\n")
}
