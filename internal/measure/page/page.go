// Package page shows what was measured as one HTML page that needs nothing
// else: no script, no font, no picture from elsewhere.
package page

import (
	_ "embed"
	"html/template"
	"io"

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

//go:embed page.html
var text string

var layout = template.Must(template.New("page").Parse(text))

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
	type entry struct {
		Store
		N     int
		Shape string
	}
	var legend []entry
	for i, s := range p.Stores {
		legend = append(legend, entry{s, i % colours, marks[i%len(marks)]})
	}
	return layout.Execute(w, struct {
		Page
		Sections []section
		Legend   []entry
	}{p, sections, legend})
}
