package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonhq/baton/lab/verify"
	"github.com/batonhq/baton/lab/verify/check"
	"github.com/batonhq/baton/lab/verify/lines"
	"github.com/batonhq/baton/lab/verify/results"
)

// A claim that must hold and was seen broken is not published without an explanation.
func TestDifferencesAreExplained(t *testing.T) {
	t.Parallel()
	all, err := results.Load("../../../lab/results/verification.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	table := results.Cells(all)
	for _, c := range table {
		if wrong := c.Wrong(); len(wrong) > 0 && explained[c.Kind+" "+c.Fault] == "" {
			t.Errorf("%s, %s: %v broke, which nobody has explained", c.Kind, c.Fault, wrong)
		}
	}
	for key := range explained {
		kind, fault, _ := strings.Cut(key, " ")
		if c := table[[2]string{kind, fault}]; c == nil || len(c.Wrong())+len(c.Spared()) == 0 {
			t.Errorf("%q is explained, and there is nothing to explain", key)
		}
	}
}

func TestPageSaysWhatBroke(t *testing.T) {
	t.Parallel()
	kept := func(e, f, l bool) map[check.Promise]bool {
		return map[check.Promise]bool{check.Exclusive: e, check.Fenced: f, check.Lively: l}
	}
	all := make(results.Sums)
	all.Add([]results.Result{
		{Kind: "redis", Fault: "f01", Seed: 1, Verdict: verify.Held, Kept: kept(true, true, true), Counts: results.Counts{Granted: 7}},
		{Kind: "redis", Fault: "f01", Seed: 2, Verdict: verify.Broken, Kept: kept(false, true, true), Counts: results.Counts{Granted: 8}, Broke: []string{"E overlap: two at once"}},
		{Kind: "redis", Fault: "f01", Seed: 3, Verdict: verify.Invalid, Counts: results.Counts{Granted: 100}},
		{Kind: "redis", Fault: "f15", Seed: 1, Verdict: verify.Broken, Kept: kept(false, true, true)},
		{Kind: "redis", Fault: "f15", Seed: 2, Verdict: verify.Held, Kept: kept(true, true, true)},
		{Kind: "postgres", Fault: "f15", Seed: 1, Verdict: verify.Held, Kept: kept(true, true, true)},
		{Kind: "postgres", Fault: "f18", Seed: 1, Verdict: verify.Skipped, Why: []string{"it needs a disk"}},
		{Kind: "gone", Fault: "f01", Seed: 1, Verdict: verify.Held},
	}...)
	table := results.Cells(all)
	for place, want := range map[[2]string]string{
		{"redis", "f01"}:    "**+++ 2, E broke in 1**",
		{"redis", "f15"}:    "-++ 2, E broke in 1",
		{"postgres", "f15"}: "-++ 1",
		{"postgres", "f18"}: "++b not run",
		{"postgres", "f01"}: "+++ –",
		{"sqlite", "f19"}:   "·",
	} {
		if got := table[place].String(); got != want {
			t.Errorf("%v: %q, want %q", place, got, want)
		}
	}
	text, err := page(all)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"- redis, f01: E. Not explained yet.\n  - E overlap: two at once", "- postgres, f15: E.", "f18 on postgres: it needs a disk",
		" | 4 | 1 | 0 | 15 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
}

// The record survives an end in the middle of a line, can be added to the sums repeatedly, and
// finished runs are not repeated.
func TestGoesOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := campaign{
		seeds: 2, kinds: []string{"sqlite"}, faults: []string{"f01", "f02", "f19"},
		results: filepath.Join(dir, "sums"), record: filepath.Join(dir, "new", "record"), page: filepath.Join(dir, "page"),
	}
	jobs := func() string {
		t.Helper()
		known, err := c.known()
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(c.missing(known))
	}
	done := []results.Result{
		{Kind: "sqlite", Fault: "f01", Seed: 1, Verdict: verify.Held, Counts: results.Counts{Granted: 7}},
		{Kind: "sqlite", Fault: "f02", Seed: 1, Verdict: verify.Invalid},
		{Kind: "sqlite", Fault: "f01", Seed: 2, Verdict: verify.Held, Counts: results.Counts{Granted: 8}, Commit: "abc"},
		{Kind: "sqlite", Fault: "f02", Seed: 2, Verdict: verify.Broken},
	}
	if err := lines.Add(c.record, done...); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(c.record)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.record, append(whole, whole[:20]...), 0o644); err != nil {
		t.Fatal(err)
	}
	const left = "[{sqlite 1 [f02]}]"
	if got := jobs(); got != left {
		t.Errorf("left to do: %v, want %v", got, left)
	}
	var first []byte
	for i := range 2 {
		if err := c.write(); err != nil {
			t.Fatal(err)
		}
		sums, err := os.ReadFile(c.results)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = sums
		} else if string(sums) != string(first) {
			t.Errorf("added again, the record changes the sums:\n%s%s", first, sums)
		}
	}

	// Another machine has the sums and no record.
	c.record += "-of-another"
	if got := jobs(); got != left {
		t.Errorf("left to do elsewhere: %v, want %v", got, left)
	}
	if err := lines.Add(c.record, results.Result{Kind: "sqlite", Fault: "f02", Seed: 1, Verdict: verify.Held}); err != nil {
		t.Fatal(err)
	}
	if got := jobs(); got != "[]" {
		t.Errorf("left to do after all: %v", got)
	}
	known, err := c.known()
	if err != nil {
		t.Fatal(err)
	}
	f01, f02 := known[[2]string{"sqlite", "f01"}], known[[2]string{"sqlite", "f02"}]
	if len(f01.Seeds) != 2 || f01.Granted != 15 || f01.Commit != "abc" || len(f02.Seeds) != 2 || len(f02.Invalid) != 0 {
		t.Errorf("%+v, %+v", f01, f02)
	}

	c.faults = []string{"f01"}
	if err := c.forget(); err != nil {
		t.Fatal(err)
	}
	c.faults = nil
	known, err = c.known()
	if err != nil || len(known) != 1 || known.Done("sqlite", "f01", 1) || !known.Done("sqlite", "f02", 1) {
		t.Errorf("after f01 was forgotten: %v, %v", known, err)
	}
}

// A file of single runs is not accepted as sums.
func TestRunsAreNoSums(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sums")
	if err := lines.Add(path, results.Result{Kind: "sqlite", Fault: "f01", Seed: 1, Verdict: verify.Held}); err != nil {
		t.Fatal(err)
	}
	if all, err := results.Load(path); err == nil {
		t.Errorf("loaded %v", all)
	}
}

// Servers that were broken are not used for another fault.
func TestRunsOfAJob(t *testing.T) {
	t.Parallel()
	j := job{faults: []string{"f01", "f07", "f10", "f15", "f24"}}
	if got := fmt.Sprint(j.runs()); got != "[[f10] [f15] [f01 f07 f24]]" {
		t.Error(got)
	}
}
