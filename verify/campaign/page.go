package main

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"text/template"

	"github.com/batonhq/baton/verify"
	"github.com/batonhq/baton/verify/check"
	"github.com/batonhq/baton/verify/deploy"
	"github.com/batonhq/baton/verify/fault"
)

// A cell is what is known of a kind of store under a fault.
type cell struct {
	kind, fault string
	claim       fault.Verdict
	claimed     bool
	runs        int                   // with a verdict
	broke       map[check.Promise]int // in how many of them
	texts       []string
	skipped     string
}

func cells(all []result) map[[2]string]*cell {
	table := make(map[[2]string]*cell)
	for _, k := range deploy.Kinds {
		for _, f := range fault.All() {
			c := &cell{kind: k.Name, fault: f.ID, broke: make(map[check.Promise]int)}
			c.claim, c.claimed = fault.Expect(k.Name, f.ID)
			table[[2]string{k.Name, f.ID}] = c
		}
	}
	for _, r := range all {
		c := table[[2]string{r.Kind, r.Fault}]
		if c == nil {
			continue // of a kind or a fault that is no more
		}
		switch r.Verdict {
		case verify.Skipped:
			c.skipped = strings.Join(r.Why, "; ")
		case verify.Held, verify.Excused, verify.Broken:
			c.runs++
			for p, kept := range r.Kept {
				if !kept {
					c.broke[p]++
				}
			}
			c.texts = append(c.texts, r.Broke...)
		}
	}
	return table
}

// String is the cell in the table: what is claimed, in how many runs it was
// looked at, and what was seen to break in how many of them.
func (c *cell) String() string {
	switch {
	case !c.claimed || c.claim.E == fault.NoSuch:
		return "·"
	case c.runs == 0 && (c.skipped != "" || fault.WhyLeft(c.kind, c.fault) != ""):
		return c.claim.String() + " not run"
	case c.runs == 0:
		return c.claim.String() + " –"
	}
	s := fmt.Sprintf("%s %d", c.claim, c.runs)
	for _, p := range verify.Promises {
		if n := c.broke[p]; n > 0 {
			s += fmt.Sprintf(", %s broke in %d", p, n)
		}
	}
	if len(c.wrong()) > 0 {
		s = "**" + s + "**"
	}
	return s
}

// wrong returns the promises that must hold and did not. A limiter's has no sign
// of its own: its counts are kept as the locks are, so it has that of E.
func (c *cell) wrong() (found []check.Promise) {
	for p, sign := range map[check.Promise]fault.Sign{
		check.Exclusive: c.claim.E, check.Fenced: c.claim.F, check.Lively: c.claim.L, check.Bounded: c.claim.E,
	} {
		if sign == fault.Holds && c.broke[p] > 0 {
			found = append(found, p)
		}
	}
	slices.Sort(found)
	return found
}

// spared returns the promises that may break and were never seen to.
func (c *cell) spared() (found []check.Promise) {
	for p, sign := range map[check.Promise]fault.Sign{check.Exclusive: c.claim.E, check.Fenced: c.claim.F, check.Lively: c.claim.L} {
		if sign == fault.Breaks && c.runs > 0 && c.broke[p] == 0 {
			found = append(found, p)
		}
	}
	slices.Sort(found)
	return found
}

//go:embed page.md.tmpl
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

type row struct {
	ID, Name, Does string
	Cells          []string
}

type total struct {
	Kind, Is                                                                     string
	Runs, Invalid, Attempts, Granted, Writes, Stale, Decisions, Killed, Breaches int
}

type remark struct {
	Kind, Fault, Promises string
	Texts                 []string
	Why                   string
}

// page is docs/verification.md.
func page(all []result) (string, error) {
	table := cells(all)
	var data struct {
		Kinds         []string
		Rows          []row
		Totals        []total
		Wrong, Spared []remark
		Left          []fault.Gap
		Skipped       []remark
	}
	for _, k := range deploy.Kinds {
		data.Kinds = append(data.Kinds, k.Name)
		t := total{Kind: k.Name, Is: k.Does}
		for _, r := range all {
			switch {
			case r.Kind != k.Name || r.Verdict == verify.Skipped:
				continue
			case r.Verdict == verify.Invalid:
				t.Invalid++
				continue
			case len(table[[2]string{r.Kind, r.Fault}].wrongIn(r)) > 0:
				t.Breaches++
			}
			t.Runs++
			t.Attempts += r.Attempts
			t.Granted += r.Granted
			t.Writes += r.Writes
			t.Stale += r.Stale
			t.Decisions += r.Decisions
			t.Killed += r.Killed
		}
		data.Totals = append(data.Totals, t)
	}
	for _, f := range fault.All() {
		r := row{ID: f.ID, Name: f.Name, Does: f.Does}
		for _, k := range deploy.Kinds {
			c := table[[2]string{k.Name, f.ID}]
			r.Cells = append(r.Cells, c.String())
			note := remark{Kind: k.Name, Fault: f.ID, Why: explained[k.Name+" "+f.ID]}
			if wrong := c.wrong(); len(wrong) > 0 {
				note.Promises, note.Texts = words(wrong), slices.Compact(slices.Sorted(slices.Values(c.texts)))
				note.Texts = note.Texts[:min(3, len(note.Texts))]
				data.Wrong = append(data.Wrong, note)
			}
			if spared := c.spared(); len(spared) > 0 {
				note.Promises = words(spared)
				data.Spared = append(data.Spared, note)
			}
			if c.runs == 0 && c.skipped != "" && c.claimed && c.claim.E != fault.NoSuch && fault.WhyLeft(c.kind, c.fault) == "" {
				data.Skipped = append(data.Skipped, remark{Kind: k.Name, Fault: f.ID, Why: c.skipped})
			}
		}
		data.Rows = append(data.Rows, r)
	}
	data.Left = fault.Left
	var b strings.Builder
	err := pageTemplate.Execute(&b, data)
	return b.String(), err
}

// wrongIn is wrong, of one run.
func (c *cell) wrongIn(r result) []check.Promise {
	one := *c
	one.broke = make(map[check.Promise]int)
	for p, kept := range r.Kept {
		if !kept {
			one.broke[p]++
		}
	}
	return one.wrong()
}

func words(all []check.Promise) string {
	s := make([]string, len(all))
	for i, p := range all {
		s[i] = string(p)
	}
	return strings.Join(s, ", ")
}
