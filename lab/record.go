package lab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// A Record is the result of one run of an experiment.
type Record struct {
	Question string    `json:"question"`
	Made     string    `json:"made"` // the day
	With     []string  `json:"with"` // the servers and their versions
	Seconds  float64   `json:"seconds"`
	Timeline *Timeline `json:"timeline,omitempty"`
	Chart    *Chart    `json:"chart,omitempty"`
	Flow     *Flow     `json:"flow,omitempty"`
	Tables   []*Table  `json:"tables"`
	Says     []Text    `json:"says"` // conclusions from the figures, a sentence each
}

// A Table has as many cells in each row as it has columns.
type Table struct {
	Columns []Text   `json:"columns"`
	Rows    [][]Text `json:"rows"`
}

// A Timeline shows what each lane did when, in milliseconds from the beginning.
type Timeline struct {
	Length int     `json:"length"`
	Lanes  []*Lane `json:"lanes"`
}

// A Lane is a caller, a server, or a resource that a lock protects.
type Lane struct {
	Name  Text    `json:"name"`
	Spans []*Span `json:"spans,omitempty"`
	Marks []Mark  `json:"marks,omitempty"`

	run *Run
}

// A Span is an activity of a lane.
type Span struct {
	Kind  Kind `json:"kind"`
	From  int  `json:"from"`
	To    int  `json:"to"`
	Label Text `json:"label,omitzero"`

	run  *Run
	open bool
}

// A Mark is an event of a lane.
type Mark struct {
	Kind  MarkKind `json:"kind"`
	At    int      `json:"at"`
	Label Text     `json:"label,omitzero"`
}

// A Kind is the meaning of a span.
type Kind string

// The kinds of spans.
const (
	Holds  Kind = "holds"
	Shares Kind = "shares" // holds together with others, as allowed
	Waits  Kind = "waits"
	Wrong  Kind = "wrong" // considers itself the holder while another holds
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

// A MarkKind is the meaning of a mark.
type MarkKind string

// The kinds of marks.
const (
	Granted  MarkKind = "granted"
	Released MarkKind = "released"
	Renewed  MarkKind = "renewed"
	Told     MarkKind = "told" // the holder learns that it lost the lock
	Crashed  MarkKind = "crashed"
	Accepted MarkKind = "accepted" // a correct write
	Rejected MarkKind = "rejected" // a write or request that the other side refused
	Harm     MarkKind = "harm"     // a wrong write, grant or answer
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

	Format func(y float64) string `json:"-"` // nil: as a number
}

// A Line is one series of a chart.
type Line struct {
	Name   Text         `json:"name"`
	Points [][2]float64 `json:"points"` // X rises
	Ranges [][2]float64 `json:"-"`      // of each point, the lowest and the highest Y
}

// A ChartBar is one value of a chart without lines.
type ChartBar struct {
	Name  Text    `json:"name"`
	Value float64 `json:"value"`
	Shown Text    `json:"shown"` // the value as people read it
	Bad   bool    `json:"bad,omitempty"`
}

// A Bound is a value of Y with a meaning: a limit.
type Bound struct {
	At   float64 `json:"at"`
	Name Text    `json:"name"`
}

// A Flow shows the decisions of several limiters about the same requests over time.
type Flow struct {
	Length int       `json:"length"` // milliseconds
	Rows   []FlowRow `json:"rows"`
}

// A FlowRow is one limiter.
type FlowRow struct {
	Name  Text   `json:"name"`
	Note  Text   `json:"note"`          // its figures
	Bad   bool   `json:"bad,omitempty"` // it allowed more than it should
	Parts []Part `json:"parts"`         // of the time, all of equal length
}

// A Part has the decisions within one part of the time.
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

// The largest sizes of a record, so that each is drawn quickly. Experiments have about a
// tenth of that.
const (
	mostBytes  = 4 << 20
	mostThings = 5_000 // lanes, spans, marks, points, bars, parts, cells
	mostText   = 2_000 // bytes
	mostMillis = 1_000_000_000
	mostValue  = 1e15
	leastLog   = 1e-9
)

// ReadRecord reads what Write wrote. It refuses a record that cannot be drawn.
func ReadRecord(in io.Reader) (*Record, error) {
	b, err := io.ReadAll(io.LimitReader(in, mostBytes+1))
	if err != nil {
		return nil, err
	}
	if len(b) > mostBytes {
		return nil, fmt.Errorf("this is no record of baton-lab: it has more than %d MiB", mostBytes>>20)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	r := new(Record)
	if err := d.Decode(r); err != nil {
		return nil, fmt.Errorf("this is no record of baton-lab, or one of a newer version: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("this is no record of baton-lab: a file has one record, and nothing after it")
	}
	return r, r.check()
}

// check returns the reason why a record cannot be drawn, or nil.
func (r *Record) check() error {
	c := checker{}
	switch {
	case r.Question == "":
		return errors.New("the record names no question")
	case len(r.Tables) == 0, len(r.Says) == 0:
		return fmt.Errorf("the record of %q has no table, or says nothing", r.Question)
	}
	c.texts(r.Says...)
	for _, t := range r.Tables {
		c.table(t)
	}
	pictures := 0
	if r.Timeline != nil {
		pictures++
		c.timeline(r.Timeline)
	}
	if r.Chart != nil {
		pictures++
		c.chart(r.Chart)
	}
	if r.Flow != nil {
		pictures++
		c.flow(r.Flow)
	}
	if pictures != 1 {
		c.refuse("%d pictures: it has one", pictures)
	}
	if c.things > mostThings {
		c.refuse("%d lanes, spans, points, cells and so on: at most %d are drawn", c.things, mostThings)
	}
	if c.why != "" {
		return fmt.Errorf("the record of %q has %s", r.Question, c.why)
	}
	return nil
}

// A checker keeps the first reason why a record cannot be drawn.
type checker struct {
	things int
	why    string
}

func (c *checker) refuse(format string, args ...any) {
	if c.why == "" {
		c.why = fmt.Sprintf(format, args...)
	}
}

func (c *checker) texts(all ...Text) {
	for _, t := range all {
		if n := max(len(t.EN), len(t.ZH)); n > mostText {
			c.refuse("a text of %d bytes: at most %d are drawn", n, mostText)
		}
	}
	c.things += len(all)
}

func (c *checker) table(t *Table) {
	if t == nil {
		c.refuse("a table that is null")
		return
	}
	c.texts(t.Columns...)
	for _, row := range t.Rows {
		if len(row) != len(t.Columns) {
			c.refuse("a row of %d cells in a table of %d columns", len(row), len(t.Columns))
		}
		c.texts(row...)
	}
}

func (c *checker) length(ms int) {
	if ms <= 0 || ms > mostMillis {
		c.refuse("a length of %d ms", ms)
	}
}

func (c *checker) timeline(t *Timeline) {
	if len(t.Lanes) == 0 {
		c.refuse("an empty timeline")
	}
	c.length(t.Length)
	for _, l := range t.Lanes {
		if l == nil {
			c.refuse("a lane that is null")
			continue
		}
		c.texts(l.Name)
		for _, s := range l.Spans {
			if s == nil {
				c.refuse("a span that is null")
				continue
			}
			if !slices.ContainsFunc(kinds, func(k kindWord) bool { return k.kind == s.Kind }) {
				c.refuse("a span of the kind %q, which this version does not know", s.Kind)
			}
			if s.From < 0 || s.To < s.From || s.To > t.Length {
				c.refuse("a span from %d to %d ms of %d", s.From, s.To, t.Length)
			}
			c.texts(s.Label)
		}
		for _, m := range l.Marks {
			if shapes[m.Kind][0] == "" {
				c.refuse("a mark of the kind %q, which this version does not know", m.Kind)
			}
			if m.At < 0 || m.At > t.Length {
				c.refuse("a mark at %d ms of %d", m.At, t.Length)
			}
			c.texts(m.Label)
		}
	}
}

// value checks a value of an axis, which begins at 0, or at leastLog if it is logarithmic.
func (c *checker) value(v float64, log bool) {
	if !(v >= 0 && v <= mostValue) || log && v < leastLog {
		c.refuse("the value %g, which its chart cannot show", v)
	}
}

func (c *checker) chart(chart *Chart) {
	if (len(chart.Lines) == 0) == (len(chart.Bars) == 0) {
		c.refuse("a chart that has not either lines or bars")
	}
	c.texts(chart.X, chart.Y)
	points := 0
	for _, l := range chart.Lines {
		if l == nil {
			c.refuse("a line that is null")
			continue
		}
		c.texts(l.Name)
		points += len(l.Points)
		for i, p := range l.Points {
			c.value(p[0], chart.LogX)
			c.value(p[1], chart.LogY)
			if i > 0 && p[0] < l.Points[i-1][0] {
				c.refuse("a line that goes back, from %g to %g", l.Points[i-1][0], p[0])
			}
		}
	}
	if len(chart.Lines) > 0 && points == 0 {
		c.refuse("lines without points")
	}
	c.things += points
	for _, b := range chart.Bars {
		c.value(b.Value, false)
		c.texts(b.Name, b.Shown)
	}
	if b := chart.Bound; b != nil {
		c.value(b.At, chart.LogY)
		c.texts(b.Name)
	}
}

func (c *checker) flow(f *Flow) {
	if len(f.Rows) == 0 {
		c.refuse("an empty flow")
	}
	c.length(f.Length)
	for _, row := range f.Rows {
		c.texts(row.Name, row.Note)
		if len(row.Parts) == 0 || len(row.Parts) != len(f.Rows[0].Parts) {
			c.refuse("rows of different lengths in its flow")
		}
		c.things += len(row.Parts)
		for _, p := range row.Parts {
			if p.Allowed < 0 || p.Refused < 0 || p.Allowed > mostMillis || p.Refused > mostMillis {
				c.refuse("a part with %d allowed and %d refused", p.Allowed, p.Refused)
			}
		}
	}
}
