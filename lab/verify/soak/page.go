package main

import (
	_ "embed"
	"fmt"
	"strings"
	"text/template"
	"time"
)

//go:embed page.md.tmpl
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

type row struct {
	Kind, Verdict, For string
	Ops, Failed        int64
	Cells              []string
	Calm, Drained      string
	Closed             string
}

// page is lab/results/soak.md.
func page(all []result) (string, error) {
	var data struct {
		Series []string
		Rows   []row
		Wrong  []result
		Failed []result
		Notes  []string
	}
	data.Series = series
	noted := map[string][]string{} // the kinds
	for _, r := range all {
		x := row{
			Kind: r.Kind, Verdict: string(r.Verdict), For: r.For.Round(time.Second).String(), Ops: r.Ops, Failed: r.Failed,
			Calm: "–", Drained: r.Drained.Round(time.Second).String(),
			Closed: fmt.Sprintf("%.0f, %.0f", r.Closed.Goroutines-r.Before.Goroutines, r.Closed.Files-r.Before.Files),
		}
		for _, name := range series {
			s, seen := r.Series[name]
			switch {
			case !seen:
				x.Cells = append(x.Cells, "·")
			case s.Unjudged != "":
				x.Cells = append(x.Cells, fmt.Sprintf("(%s → %s)", show(name, s.First), show(name, s.Last)))
				if note := name + ": " + s.Unjudged; noted[note] == nil {
					noted[note] = []string{r.Kind}
					data.Notes = append(data.Notes, note)
				} else {
					noted[note] = append(noted[note], r.Kind)
				}
			case s.grew(name):
				x.Cells = append(x.Cells, fmt.Sprintf("**%s → %s**", show(name, s.First), show(name, s.Last)))
			default:
				x.Cells = append(x.Cells, fmt.Sprintf("%s → %s", show(name, s.First), show(name, s.Last)))
			}
		}
		if _, counted := r.Series[keys]; counted {
			x.Calm = fmt.Sprintf("%.0f → %.0f", r.Before.Keys, r.Calm.Keys)
		}
		if r.Verdict != Flat {
			x.Verdict = "**" + x.Verdict + "**"
			data.Wrong = append(data.Wrong, r)
		}
		if r.Failed > 0 {
			data.Failed = append(data.Failed, r)
		}
		data.Rows = append(data.Rows, x)
	}
	for i, note := range data.Notes {
		data.Notes[i] += " (" + strings.Join(noted[note], ", ") + ")."
	}
	var b strings.Builder
	err := pageTemplate.Execute(&b, data)
	return b.String(), err
}
