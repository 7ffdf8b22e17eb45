package lab

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// A Record is what was seen in one run.
type Record struct {
	Question string    `json:"question"`
	Made     string    `json:"made"` // the day
	With     []string  `json:"with"` // the servers and their versions
	Seconds  float64   `json:"seconds"`
	Timeline *Timeline `json:"timeline,omitempty"`
	Chart    *Chart    `json:"chart,omitempty"`
	Flow     *Flow     `json:"flow,omitempty"`
	Tables   []*Table  `json:"tables"`
	Says     []Text    `json:"says"` // what the figures mean, a sentence each
}

// A Table has as many cells in each row as it has columns.
type Table struct {
	Columns []Text   `json:"columns"`
	Rows    [][]Text `json:"rows"`
}

// A Timeline shows who did what when, in milliseconds from the beginning.
type Timeline struct {
	Length int     `json:"length"`
	Lanes  []*Lane `json:"lanes"`
}

// A Lane is a caller, a server, or what a lock protects.
type Lane struct {
	Name  Text    `json:"name"`
	Spans []*Span `json:"spans,omitempty"`
	Marks []Mark  `json:"marks,omitempty"`

	run *Run
}

// A Span is what the lane's owner did for a while.
type Span struct {
	Kind  Kind `json:"kind"`
	From  int  `json:"from"`
	To    int  `json:"to"`
	Label Text `json:"label,omitzero"`

	run  *Run
	open bool
}

// A Mark is what happened in a moment.
type Mark struct {
	Kind  MarkKind `json:"kind"`
	At    int      `json:"at"`
	Label Text     `json:"label,omitzero"`
}

// A Kind is what a span means.
type Kind string

// The kinds of spans.
const (
	Holds  Kind = "holds"
	Shares Kind = "shares" // holds together with others, and may
	Waits  Kind = "waits"
	Wrong  Kind = "wrong" // believes that it holds, while another holds
	Works  Kind = "works"
	Paused Kind = "paused"
	Down   Kind = "down"
)

type kindWord struct {
	kind Kind
	word Text
}

var kinds = []kindWord{
	{Holds, Text{"holds the lock", "持有锁"}},
	{Shares, Text{"holds it together with others", "与别人共同持有"}},
	{Waits, Text{"waits", "等待"}},
	{Wrong, Text{"believes it holds, and another holds", "以为自己持有，其实锁已归别人"}},
	{Works, Text{"works", "工作"}},
	{Paused, Text{"stands still", "停顿"}},
	{Down, Text{"down", "宕机"}},
}

// A MarkKind is what a mark means.
type MarkKind string

// The kinds of marks.
const (
	Granted  MarkKind = "granted"
	Released MarkKind = "released"
	Renewed  MarkKind = "renewed"
	Told     MarkKind = "told" // the holder learns that it lost the lock
	Crashed  MarkKind = "crashed"
	Accepted MarkKind = "accepted" // a write that is right
	Rejected MarkKind = "rejected" // a write or request that the other side refused
	Harm     MarkKind = "harm"     // a write, a grant or an answer that is wrong
	Noted    MarkKind = "noted"
)

var markKinds = []struct {
	kind MarkKind
	word Text
}{
	{Granted, Text{"granted", "获得"}},
	{Released, Text{"released", "释放"}},
	{Renewed, Text{"renewed", "续期"}},
	{Told, Text{"told of the loss", "得知丢锁"}},
	{Crashed, Text{"crashed", "崩溃"}},
	{Accepted, Text{"accepted", "接受"}},
	{Rejected, Text{"refused", "拒绝"}},
	{Harm, Text{"harm", "出错"}},
	{Noted, Text{"event", "事件"}},
}

// A Chart has lines, or bars.
type Chart struct {
	X, Y       Text       `json:",omitzero"`
	LogX, LogY bool       `json:",omitempty"`
	Lines      []*Line    `json:"lines,omitempty"`
	Bars       []ChartBar `json:"bars,omitempty"`
	Bound      *Bound     `json:"bound,omitempty"`
}

// A Line is one series of a chart.
type Line struct {
	Name   Text         `json:"name"`
	Points [][2]float64 `json:"points"` // X rises
}

// A ChartBar is one value of a chart without lines.
type ChartBar struct {
	Name  Text    `json:"name"`
	Value float64 `json:"value"`
	Shown Text    `json:"shown"` // the value as people read it
	Bad   bool    `json:"bad,omitempty"`
}

// A Bound is a value of Y that means something: a limit.
type Bound struct {
	At   float64 `json:"at"`
	Name Text    `json:"name"`
}

// A Flow shows for several limiters what each decided about the same requests over time.
type Flow struct {
	Length int       `json:"length"` // milliseconds
	Rows   []FlowRow `json:"rows"`
}

// A FlowRow is one limiter.
type FlowRow struct {
	Name  Text   `json:"name"`
	Note  Text   `json:"note"`          // its figures
	Bad   bool   `json:"bad,omitempty"` // it allowed more than it should
	Parts []Part `json:"parts"`         // of the time, all as long
}

// A Part is what was decided within one part of the time.
type Part struct {
	Allowed int `json:"a,omitempty"`
	Refused int `json:"r,omitempty"`
}

// Write writes the record as JSON.
func (r *Record) Write(w io.Writer) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// ReadRecord reads what Write wrote. It refuses a record that cannot be drawn.
func ReadRecord(in io.Reader) (*Record, error) {
	d := json.NewDecoder(in)
	d.DisallowUnknownFields()
	r := new(Record)
	if err := d.Decode(r); err != nil {
		return nil, fmt.Errorf("this is no record of baton lab: %w", err)
	}
	return r, r.check()
}

// check says what keeps a record from being drawn.
func (r *Record) check() error {
	pictures := 0
	for _, there := range []bool{r.Timeline != nil, r.Chart != nil, r.Flow != nil} {
		if there {
			pictures++
		}
	}
	switch {
	case r.Question == "":
		return fmt.Errorf("the record names no question")
	case pictures != 1:
		return fmt.Errorf("the record of %q has %d pictures: it has one", r.Question, pictures)
	case len(r.Tables) == 0, len(r.Says) == 0:
		return fmt.Errorf("the record of %q has no table, or says nothing", r.Question)
	}
	for _, t := range r.Tables {
		for _, row := range t.Rows {
			if len(row) != len(t.Columns) {
				return fmt.Errorf("the record of %q has a row of %d cells in a table of %d columns", r.Question, len(row), len(t.Columns))
			}
		}
	}
	if t := r.Timeline; t != nil {
		if len(t.Lanes) == 0 || t.Length <= 0 {
			return fmt.Errorf("the timeline of %q is empty", r.Question)
		}
		for _, l := range t.Lanes {
			for _, s := range l.Spans {
				if !slices.ContainsFunc(kinds, func(k kindWord) bool { return k.kind == s.Kind }) {
					return fmt.Errorf("the timeline of %q has a span of the kind %q", r.Question, s.Kind)
				}
				if s.From < 0 || s.To < s.From || s.To > t.Length {
					return fmt.Errorf("the timeline of %q has a span from %d to %d ms of %d", r.Question, s.From, s.To, t.Length)
				}
			}
			for _, m := range l.Marks {
				if shapes[m.Kind][0] == "" {
					return fmt.Errorf("the timeline of %q has a mark of the kind %q", r.Question, m.Kind)
				}
				if m.At < 0 || m.At > t.Length {
					return fmt.Errorf("the timeline of %q has a mark at %d ms of %d", r.Question, m.At, t.Length)
				}
			}
		}
	}
	if c := r.Chart; c != nil && (len(c.Lines) == 0) == (len(c.Bars) == 0) {
		return fmt.Errorf("the chart of %q has lines or bars", r.Question)
	}
	if f := r.Flow; f != nil {
		if len(f.Rows) == 0 || f.Length <= 0 {
			return fmt.Errorf("the flow of %q is empty", r.Question)
		}
		for _, row := range f.Rows {
			if len(row.Parts) == 0 || len(row.Parts) != len(f.Rows[0].Parts) {
				return fmt.Errorf("the flow of %q has rows of different lengths", r.Question)
			}
		}
	}
	return nil
}
