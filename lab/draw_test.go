package lab

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/batonhq/baton/lab/language"
)

// samples are records of all forms, with what is awkward: long labels at the edge, marks
// at one moment, values of zero, names with markup.
func samples() []*Record {
	long := Text{"a label that is so long that it does not fit", "一个很长很长很长、怎么也放不下的标签"}
	name := Text{"<b> & co", "<b> 与其他"}
	base := func() *Record {
		return &Record{Question: "sample", Made: "2026-01-02", With: []string{"x"}, Tables: []*Table{{Columns: []Text{name}, Rows: [][]Text{{long}}}}, Says: []Text{long}}
	}
	timeline, lines, bars, flow := base(), base(), base(), base()
	timeline.Timeline = &Timeline{Length: 1000}
	for _, k := range kinds {
		l := &Lane{Name: name, Spans: []*Span{{Kind: k.kind, From: 0, To: 10, Label: long}, {Kind: k.kind, From: 900, To: 1000}}}
		for _, m := range markKinds {
			l.Marks = append(l.Marks, Mark{m.kind, 1000, long}, Mark{m.kind, 0, Text{}}, Mark{m.kind, 0, name})
		}
		timeline.Timeline.Lanes = append(timeline.Timeline.Lanes, l)
	}
	lines.Chart = &Chart{X: name, Y: long, LogX: true, LogY: true, Bound: &Bound{10, name}}
	for i := range 10 {
		lines.Chart.Lines = append(lines.Chart.Lines, &Line{Name: name, Points: [][2]float64{{1, 1}, {10, float64(10 + i)}, {1000, 1e6}}})
	}
	bars.Chart = &Chart{X: name, Bars: []ChartBar{{name, 0, Plain(0), true}, {long, 137, Plain("137 sold"), false}}, Bound: &Bound{100, name}}
	flow.Flow = &Flow{Length: 60_000, Rows: []FlowRow{{name, long, true, []Part{{1, 0}, {0, 5}, {0, 0}}}, {name, name, false, []Part{{1, 0}, {0, 5}, {0, 0}}}}}
	return []*Record{timeline, lines, bars, flow}
}

// TestPicturesFit draws the samples and all records of docs/lab: the pictures are well-formed,
// all their text is within them, and no number is missing.
func TestPicturesFit(t *testing.T) {
	t.Parallel()
	all := samples()
	paths, err := filepath.Glob("../docs/lab/*.json")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no records: %v", err)
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		r, err := ReadRecord(f)
		f.Close()
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, r)
	}
	for _, r := range all {
		for _, l := range language.All {
			var b bytes.Buffer
			if err := r.Draw(&b, "Who holds it, and for how long, if the one before has crashed?", l); err != nil {
				t.Fatal(err)
			}
			if text := b.String(); strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
				t.Errorf("%s: a number is missing", r.Question)
			}
			for _, problem := range outside(t, &b, wide) {
				t.Errorf("%s, %s: %s", r.Question, l, problem)
			}
		}
	}
}

// outside are the texts of a picture that are not within it.
func outside(t *testing.T, svg io.Reader, width float64) (problems []string) {
	d := xml.NewDecoder(svg)
	var at, size float64
	var anchor string
	texts := 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch e := token.(type) {
		case xml.StartElement:
			anchor, size = "", 0
			if e.Name.Local != "text" {
				continue
			}
			size = 13
			for _, a := range e.Attr {
				switch a.Name.Local {
				case "x":
					at, _ = strconv.ParseFloat(a.Value, 64)
				case "text-anchor":
					anchor = a.Value
				case "class":
					if strings.Contains(a.Value, "small") {
						size = 12
					} else if strings.Contains(a.Value, "title") {
						size = 15
					}
				}
			}
		case xml.EndElement:
			size = 0
		case xml.CharData:
			if size == 0 {
				continue
			}
			texts++
			w := breadth(string(e), size)
			left, right := at, at+w
			switch anchor {
			case "middle":
				left, right = at-w/2, at+w/2
			case "end":
				left, right = at-w, at
			}
			if left < -1 || right > width+1 {
				problems = append(problems, strconv.Quote(string(e))+" reaches from "+length(left)+" to "+length(right))
			}
		}
	}
	if texts < 3 {
		problems = append(problems, "it has "+strconv.Itoa(texts)+" texts")
	}
	return problems
}

// What cannot be drawn is refused when it is read.
func TestBadRecords(t *testing.T) {
	t.Parallel()
	const timeline, lines, bars, flow = 0, 1, 2, 3
	for name, bad := range map[string]struct {
		sample int
		change func(*Record)
	}{
		"two pictures":           {timeline, func(r *Record) { r.Flow = samples()[flow].Flow }},
		"no picture":             {timeline, func(r *Record) { r.Timeline = nil }},
		"no table":               {timeline, func(r *Record) { r.Tables = nil }},
		"a table of null":        {timeline, func(r *Record) { r.Tables[0] = nil }},
		"a row too long":         {timeline, func(r *Record) { r.Tables[0].Rows[0] = make([]Text, 5) }},
		"a lane of null":         {timeline, func(r *Record) { r.Timeline.Lanes[0] = nil }},
		"a span of null":         {timeline, func(r *Record) { r.Timeline.Lanes[0].Spans[0] = nil }},
		"a span beyond":          {timeline, func(r *Record) { r.Timeline.Lanes[0].Spans[0].To = 2000 }},
		"a span backwards":       {timeline, func(r *Record) { r.Timeline.Lanes[0].Spans[0].From = 11 }},
		"a mark beyond":          {timeline, func(r *Record) { r.Timeline.Lanes[0].Marks[0].At = -1 }},
		"an unknown kind":        {timeline, func(r *Record) { r.Timeline.Lanes[0].Spans[0].Kind = "x\" onload=\"" }},
		"an unknown mark":        {timeline, func(r *Record) { r.Timeline.Lanes[0].Marks[0].Kind = "none" }},
		"a timeline of 0 ms":     {timeline, func(r *Record) { *r.Timeline = Timeline{Lanes: []*Lane{{}}} }},
		"an endless timeline":    {timeline, func(r *Record) { r.Timeline.Length = 1 << 40 }},
		"an endless label":       {timeline, func(r *Record) { r.Timeline.Lanes[0].Name = Plain(strings.Repeat("a", 1e6)) }},
		"ten thousand marks":     {timeline, func(r *Record) { r.Timeline.Lanes[0].Marks = slices.Repeat([]Mark{{Harm, 1, Plain(1)}}, 1e4) }},
		"a line of null":         {lines, func(r *Record) { r.Chart.Lines[0] = nil }},
		"lines without a point":  {lines, func(r *Record) { r.Chart.Lines = []*Line{{}} }},
		"a line backwards":       {lines, func(r *Record) { r.Chart.Lines[0].Points[1][0] = .5 }},
		"a logarithm of zero":    {lines, func(r *Record) { r.Chart.Lines[0].Points[0][1] = 0 }},
		"too great a value":      {lines, func(r *Record) { r.Chart.Lines[0].Points[2][1] = math.MaxFloat64 }},
		"a bound below the axis": {lines, func(r *Record) { r.Chart.Bound.At = -1 }},
		"a bar below the axis":   {bars, func(r *Record) { r.Chart.Bars[0].Value = -1 }},
		"lines and bars":         {bars, func(r *Record) { r.Chart.Lines = samples()[lines].Chart.Lines }},
		"a flow of 0 ms":         {flow, func(r *Record) { r.Flow.Length = 0 }},
		"rows of two lengths":    {flow, func(r *Record) { r.Flow.Rows[0].Parts = nil }},
		"a part below zero":      {flow, func(r *Record) { r.Flow.Rows[0].Parts[0].Refused = -1 }},
	} {
		r := samples()[bad.sample]
		if err := read(t, r); err != nil {
			t.Fatalf("before the change: %v", err)
		}
		bad.change(r)
		if err := read(t, r); err == nil {
			t.Errorf("%s: it is read", name)
		}
	}
}

func read(t *testing.T, r *Record, more ...string) error {
	t.Helper()
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	b.WriteString(strings.Join(more, ""))
	_, err := ReadRecord(&b)
	return err
}

func TestFilesThatAreNoRecords(t *testing.T) {
	t.Parallel()
	good := samples()[0]
	if err := read(t, good, "\n"); err != nil {
		t.Errorf("a line end more: %v", err)
	}
	if err := read(t, good, "{}"); err == nil || !strings.Contains(err.Error(), "nothing after it") {
		t.Errorf("something after it: %v", err)
	}
	for text, want := range map[string]string{
		"":                               "EOF",
		`{"question": "x"`:               "EOF",
		`{"question": NaN}`:              "invalid character",
		`{"question": 1}`:                "Record.question",
		`{"of-a-newer-one": "x"}`:        "or one of a newer version",
		"null":                           "names no question",
		strings.Repeat(" ", mostBytes+1): "more than 4 MiB",
	} {
		if _, err := ReadRecord(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.30q: %v, want %q", text, err, want)
		}
	}
}

// What is as great as it may be is drawn, and fits.
func TestExtremesAreDrawn(t *testing.T) {
	t.Parallel()
	for n, change := range []func(*Record){
		func(r *Record) {
			r.Timeline.Length = mostMillis
			r.Timeline.Lanes[0].Marks = slices.Repeat([]Mark{{Harm, 1, Plain(1)}}, mostThings-200)
		},
		func(r *Record) {
			r.Chart.Lines = r.Chart.Lines[:1]
			r.Chart.Lines[0].Points = [][2]float64{{leastLog, leastLog}, {mostValue, mostValue}}
		},
		func(r *Record) { r.Chart.Bars[0].Value = mostValue },
		func(r *Record) { r.Flow.Length, r.Flow.Rows[0].Parts[0] = mostMillis, Part{mostMillis, mostMillis} },
		func(r *Record) { r.Timeline = &Timeline{Length: 1, Lanes: []*Lane{{}}} },
		func(r *Record) { r.Chart = &Chart{Lines: []*Line{{Points: [][2]float64{{0, 0}}}, {}}} },
		func(r *Record) { r.Chart = &Chart{Bars: []ChartBar{{}}} },
		func(r *Record) { r.Flow = &Flow{Length: 1, Rows: []FlowRow{{Parts: []Part{{}}}}} },
	} {
		r := samples()[n%4]
		change(r)
		if err := read(t, r); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := r.Draw(&b, "title", language.English); err != nil {
			t.Fatal(err)
		}
		if text := b.String(); strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Errorf("%d: a number is missing: %.3000s", n, text)
		}
	}
}

// A text that does not fit is noticed.
func TestOutsideNotices(t *testing.T) {
	t.Parallel()
	r := samples()[2]
	r.Chart.Bars[0].Name = Plain(strings.Repeat("too long ", 20))
	var b bytes.Buffer
	if err := r.Draw(&b, "title", language.English); err != nil {
		t.Fatal(err)
	}
	if problems := outside(t, &b, wide); len(problems) != 1 {
		t.Errorf("found %q", problems)
	}
}
