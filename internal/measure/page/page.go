// Package page shows what was measured as one HTML page that needs nothing
// else: no script, no font, no picture from elsewhere.
package page

import (
	_ "embed"
	"io"

	"github.com/batonhq/baton/internal/markup"
	"github.com/batonhq/baton/internal/measure"
)

// A Page is what stands on it.
type Page struct {
	Title  string
	Result *measure.Result
	Stores []Store  // in the order of the result's targets
	Method []string // sentences: when, where, how
	Notes  []string // sentences: what went wrong
}

// A Store is explained in the legend.
type Store struct {
	Name, URL string // the URL shows no secrets
}

//go:embed page.css
var style string

// section is one shape.
type section struct {
	Title  string
	Plots  []plot
	Tables []measure.Table
}

// Write writes the page. It is well-formed XML, too.
func Write(w io.Writer, p Page) error {
	var sections []section
	for _, s := range measure.Shapes {
		var sec section
		for _, t := range p.Result.Tables() {
			if t.Shape == s {
				sec.Tables = append(sec.Tables, t)
				sec.Plots = append(sec.Plots, draw(p.Result, s, t.Metric))
			}
		}
		if len(sec.Plots) > 0 {
			sec.Title = s.String()
			sections = append(sections, sec)
		}
	}
	m := markup.New(w)
	m.Raw("<!doctype html>\n")
	m.Start("html", "lang", "en")
	m.Inside("head", func() {
		m.Empty("meta", "charset", "utf-8")
		m.Empty("meta", "name", "viewport", "content", "width=device-width")
		m.Element("title", p.Title)
		m.Raw("<style>\n" + style + "</style>")
	})
	m.Raw("\n")
	m.Start("body")
	m.Element("h1", p.Title)
	list(m, p.Notes)
	m.Inside("ul", func() {
		for i, s := range p.Stores {
			n := i % colours
			m.Start("li")
			m.Inside("svg", func() {
				m.Empty("path", "class", class("line s", n), "d", "M2 8H36")
				m.Empty("path", "class", class("mark f", n), "transform", "translate(19 8)", "d", marks[i%len(marks)])
			}, "viewBox", "0 0 38 16", "aria-hidden", "true")
			m.Text(" " + s.Name + " ")
			m.Element("small", s.URL)
			m.End()
		}
	}, "class", "legend")
	for _, s := range sections {
		m.Raw("\n")
		m.Element("h2", s.Title)
		m.Inside("div", func() {
			for _, p := range s.Plots {
				p.write(m)
			}
		}, "class", "plots")
		m.Start("details")
		m.Element("summary", "The same in figures")
		for _, t := range s.Tables {
			writeTable(m, t)
		}
		m.End()
	}
	m.Raw("\n")
	m.Element("h2", "How this was measured")
	list(m, p.Method)
	m.End()
	m.End()
	m.Raw("\n")
	return m.Flush()
}

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
