package main

import (
	_ "embed"
	"fmt"
	"strings"
	"text/template"

	"github.com/batonhq/baton/lab/verify/check"
	"github.com/batonhq/baton/lab/verify/deploy"
	"github.com/batonhq/baton/lab/verify/fault"
	"github.com/batonhq/baton/lab/verify/results"
)

//go:embed page.md.tmpl
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

type row struct {
	ID, Name, Does string
	Kept           string // the kinds whose leases survive the fault
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

// page is lab/results/verification.md.
func page(all results.Sums) (string, error) {
	table := results.Cells(all)
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
		for _, f := range fault.All() {
			c := table[[2]string{k.Name, f.ID}]
			t.Runs += c.Runs()
			t.Invalid += len(c.Invalid)
			t.Breaches += c.Breaches(c.Claim)
			t.Attempts += c.Attempts
			t.Granted += c.Granted
			t.Writes += c.Writes
			t.Stale += c.Stale
			t.Decisions += c.Decisions
			t.Killed += c.Killed
		}
		data.Totals = append(data.Totals, t)
	}
	for _, f := range fault.All() {
		r := row{ID: f.ID, Name: f.Name, Does: f.Does, Kept: kept(f)}
		for _, k := range deploy.Kinds {
			c := table[[2]string{k.Name, f.ID}]
			r.Cells = append(r.Cells, c.String())
			note := remark{Kind: k.Name, Fault: f.ID, Why: explained[k.Name+" "+f.ID]}
			if wrong := c.Wrong(); len(wrong) > 0 {
				note.Promises, note.Texts = words(wrong), c.Texts
				data.Wrong = append(data.Wrong, note)
			}
			if spared := c.Spared(); len(spared) > 0 {
				note.Promises = words(spared)
				data.Spared = append(data.Spared, note)
			}
			if c.Runs() == 0 && c.Why != "" && c.Claimed && c.Claim.E != fault.NoSuch && fault.WhyLeft(c.Kind, c.Fault) == "" {
				data.Skipped = append(data.Skipped, remark{Kind: k.Name, Fault: f.ID, Why: c.Why})
			}
		}
		data.Rows = append(data.Rows, r)
	}
	data.Left = fault.Left
	var b strings.Builder
	err := pageTemplate.Execute(&b, data)
	return b.String(), err
}

// kept lists the kinds whose leases survive a fault.
func kept(f fault.Fault) string {
	says := "It costs no process a lease"
	if f.TTL > 0 {
		says = fmt.Sprintf("With a TTL of %v it costs no process a lease", f.TTL)
	}
	var kinds []string
	all := true
	for _, k := range deploy.Kinds {
		switch claim, ok := fault.Expect(k.Name, f.ID); {
		case !ok || claim.E == fault.NoSuch || fault.WhyLeft(k.Name, f.ID) != "":
		case fault.Keeps(k.Name, f.ID):
			kinds = append(kinds, k.Name)
		default:
			all = false
		}
	}
	switch {
	case kinds == nil:
		return ""
	case all:
		return says + "."
	}
	return says + " on " + strings.Join(kinds, ", ") + "."
}

func words(all []check.Promise) string {
	s := make([]string, len(all))
	for i, p := range all {
		s[i] = string(p)
	}
	return strings.Join(s, ", ")
}
