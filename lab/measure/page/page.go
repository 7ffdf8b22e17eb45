// Package page shows what was measured as one HTML page that needs nothing
// else: no script, no font, no picture from elsewhere.
package page

import (
	_ "embed"
	"fmt"
	"io"
	"math"

	"github.com/batonhq/baton/lab/language"
	"github.com/batonhq/baton/lab/markup"
	"github.com/batonhq/baton/lab/measure"
)

// A Page is what stands on it.
type Page struct {
	Report   *measure.Report
	Language language.Language // "" is English
}

//go:embed page.css
var style string

// section is one shape.
type section struct {
	Title  string
	Plots  []plot
	Alike  []string // what is not drawn
	Tables []measure.Table
}

// words are those of a page that no figure has.
type words struct{ title, inFigures, alike string }

var spoken = map[language.Language]words{
	language.English: {"Locks, measured", "The same in figures", "Not drawn, because all are about alike: %s, from %s to %s."},
	language.Chinese: {"锁的测量", "同样的数字", "没有画，因为几乎没有差别：%s，从 %s 到 %s。"},
}

// Write writes the page. It is well-formed XML, too.
func Write(w io.Writer, p Page) error {
	l := p.Language
	if l == "" {
		l = language.English
	}
	words, r := spoken[l], p.Report
	var sections []section
	tables := r.Result.Tables()
	for _, s := range measure.Shapes {
		sec := section{Title: measure.Capital(s.In(l))}
		for _, t := range tables {
			if t.Shape != s {
				continue
			}
			sec.Tables = append(sec.Tables, t)
			if low, high := extent(r.Result, s, t.Metric); t.Metric.Shared && (high < alike*low || math.IsInf(low, 0)) {
				sec.Alike = append(sec.Alike, fmt.Sprintf(words.alike, t.Metric.In(l), t.Metric.Format(low), t.Metric.Format(high)))
				continue
			}
			sec.Plots = append(sec.Plots, draw(r.Result, s, t.Metric, l))
		}
		if len(sec.Tables) > 0 {
			sections = append(sections, sec)
		}
	}
	m := markup.New(w)
	m.Raw("<!doctype html>\n")
	m.Start("html", "lang", l.Tag())
	m.Inside("head", func() {
		m.Empty("meta", "charset", "utf-8")
		m.Empty("meta", "name", "viewport", "content", "width=device-width")
		m.Element("title", words.title)
		m.Raw("<style>\n" + style + "</style>")
	})
	m.Raw("\n")
	m.Start("body")
	m.Element("h1", words.title)
	list(m, r.Notes(l))
	m.Inside("ul", func() {
		for i, s := range r.Stores {
			m.Start("li")
			m.Inside("svg", func() {
				m.Empty("path", "class", class("line s", i%colours), "d", "M2 8H36")
				m.Empty("path", "class", class("mark f", i%colours), "transform", "translate(19 8)", "d", markOf(i))
			}, "viewBox", "0 0 38 16", "aria-hidden", "true")
			m.Text(" " + s.Name + " ")
			m.Element("small", s.About)
			m.End()
		}
	}, "class", "stores")
	for _, s := range sections {
		m.Raw("\n")
		m.Element("h2", s.Title)
		m.Inside("div", func() {
			for _, p := range s.Plots {
				p.write(m)
			}
		}, "class", "plots")
		for _, a := range s.Alike {
			m.Element("p", a)
		}
		m.Start("details")
		m.Element("summary", words.inFigures)
		for _, t := range s.Tables {
			writeTable(m, t, l)
		}
		m.End()
	}
	m.Raw("\n")
	m.Element("h2", measure.HowMeasured(l))
	list(m, r.Method(l))
	m.End()
	m.End()
	m.Raw("\n")
	return m.Flush()
}

// alike is how often more the highest of all medians may be than the lowest if a picture of
// how evenly goroutines were served would show nothing.
const alike = 1.5

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

func writeTable(m *markup.Writer, t measure.Table, l language.Language) {
	m.Start("div", "class", "wide")
	m.Start("table")
	m.Element("caption", t.Metric.In(l))
	m.Start("thead")
	m.Start("tr")
	for i, cell := range t.Head {
		if i == 0 {
			cell = measure.Goroutines(l)
		}
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
