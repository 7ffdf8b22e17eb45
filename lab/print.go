package lab

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/batonhq/baton/internal/cli"
	"github.com/batonhq/baton/internal/textwidth"
	"github.com/batonhq/baton/lab/language"
)

// Print writes the record for a terminal: the picture if it is a timeline, the tables, and
// the conclusions. No line is wider than width, in columns, which is at least 30.
func (r *Record) Print(w io.Writer, l language.Language, width int) error {
	var b strings.Builder
	if r.Timeline != nil {
		r.Timeline.print(&b, l, width)
	}
	for _, t := range r.Tables {
		b.WriteString("\n")
		t.print(&b, l, width)
	}
	if len(r.Says) > 0 {
		b.WriteString("\n")
	}
	for _, s := range r.Says {
		b.WriteString(cli.Fold(s.In(l), "", width) + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// pad fills a text to a width in columns.
func pad(s string, width int) string { return s + strings.Repeat(" ", max(width-textwidth.Of(s), 0)) }

// print writes columns, or a line for each cell if the columns are too wide.
func (t *Table) print(b *strings.Builder, l language.Language, width int) {
	widths := make([]int, len(t.Columns))
	all := append([][]Text{t.Columns}, t.Rows...)
	for _, row := range all {
		for i, c := range row {
			widths[i] = max(widths[i], textwidth.Of(c.In(l)))
		}
	}
	wide := 2 + 3*(len(widths)-1)
	for _, w := range widths {
		wide += w
	}
	if wide > width {
		for n, row := range t.Rows {
			if n > 0 {
				b.WriteString("\n")
			}
			for i, c := range row {
				b.WriteString(cli.Fold(t.Columns[i].In(l)+Text{": ", "："}.In(l)+c.In(l), "  ", width) + "\n")
			}
		}
		return
	}
	for n, row := range all {
		var line []string
		for i, c := range row {
			line = append(line, pad(c.In(l), widths[i]))
		}
		b.WriteString("  " + strings.TrimRight(strings.Join(line, "   "), " ") + "\n")
		if n == 0 {
			for i := range line {
				line[i] = strings.Repeat("─", widths[i])
			}
			b.WriteString("  " + strings.Join(line, "   ") + "\n")
		}
	}
}

// blocks show the kinds of spans.
var blocks = map[Kind]string{Holds: "█", Shares: "▒", Waits: "░", Wrong: "▓", Works: "▬", Paused: "=", Down: "x"}

// print draws a line for each lane, and lists the marks below in the order of time.
func (t *Timeline) print(b *strings.Builder, l language.Language, width int) {
	names := 0
	for _, lane := range t.Lanes {
		names = max(names, textwidth.Of(lane.Name.In(l)))
	}
	above := names > width/3 // then they are above the lines
	if above {
		names = 0
	}
	columns := width - names - 4
	column := func(at int) int { return min(at*columns/t.Length, columns-1) }
	used := map[Kind]bool{}
	type event struct {
		at         int
		lane, text string
	}
	var events []event
	for _, lane := range t.Lanes {
		line := slices.Repeat([]string{"·"}, columns)
		for _, s := range lane.Spans {
			used[s.Kind] = true
			for i := column(s.From); i <= column(max(s.To-1, s.From)); i++ {
				line[i] = blocks[s.Kind]
			}
		}
		for _, m := range lane.Marks {
			if m.Label != (Text{}) {
				events = append(events, event{m.At, lane.Name.In(l), m.Label.In(l)})
			}
		}
		name := lane.Name.In(l)
		if above {
			b.WriteString(cli.Fold(name, "  ", width) + "\n")
			name = ""
		}
		b.WriteString("  " + pad(name, names) + "  " + strings.Join(line, "") + "\n")
	}
	end := fmt.Sprintf("%.1f s", float64(t.Length)/1000)
	b.WriteString("  " + pad("", names) + "  0" + strings.Repeat(" ", max(columns-1-len(end), 0)) + end + "\n")
	var legend []string
	for _, k := range kinds {
		if used[k.kind] {
			legend = append(legend, blocks[k.kind]+" "+k.word.In(l))
		}
	}
	b.WriteString(cli.Fold(strings.Join(legend, "   "), "  ", width) + "\n\n")
	slices.SortStableFunc(events, func(a, b event) int { return a.at - b.at })
	for _, e := range events {
		before := fmt.Sprintf("  %7.2f s  %s  ", float64(e.at)/1000, pad(e.lane, names))
		if above {
			before = fmt.Sprintf("  %7.2f s  ", float64(e.at)/1000)
			e.text = e.lane + Text{": ", "："}.In(l) + e.text
		}
		b.WriteString(cli.Fold(e.text, before, width) + "\n")
	}
}
