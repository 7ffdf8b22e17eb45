// Package results keeps the results of the verification. A run adds one line of JSON to a record that
// stays on its machine. The repository has the sums of all runs: one line for each kind of store and
// fault, so the file does not grow with the number of runs.
package results

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/batonhq/baton/lab/verify"
	"github.com/batonhq/baton/lab/verify/check"
	"github.com/batonhq/baton/lab/verify/fault"
	"github.com/batonhq/baton/lab/verify/lines"
)

// A Result is one run in the record.
type Result struct {
	Kind    string                 `json:"kind"`
	Fault   string                 `json:"fault"`
	Seed    uint64                 `json:"seed"`
	Commit  string                 `json:"commit,omitempty"` // of the code of the run
	Verdict verify.Verdict         `json:"verdict"`
	Kept    map[check.Promise]bool `json:"kept,omitempty"`
	Broke   []string               `json:"broke,omitempty"` // the first two violations of each promise
	Why     []string               `json:"why,omitempty"`
	Counts
}

// Counts are those of a run.
type Counts struct {
	Attempts  int `json:"attempts"`
	Granted   int `json:"granted"`
	Writes    int `json:"writes"`
	Stale     int `json:"stale"`
	Decisions int `json:"decisions"`
	Killed    int `json:"killed"`
}

func (c *Counts) add(d Counts) {
	c.Attempts += d.Attempts
	c.Granted += d.Granted
	c.Writes += d.Writes
	c.Stale += d.Stale
	c.Decisions += d.Decisions
	c.Killed += d.Killed
}

// Of returns the Result of a trial.
func Of(kind string, seed uint64, commit string, t *verify.Trial) Result {
	r := Result{
		Kind: kind, Fault: t.Fault, Seed: seed, Commit: commit, Verdict: t.Verdict, Kept: t.Promises, Why: t.Why,
		Counts: Counts{
			Attempts: t.Looked.Attempts, Granted: t.Looked.Granted, Writes: t.Looked.Writes, Stale: t.Looked.Stale,
			Decisions: t.Decisions, Killed: t.Killed,
		},
	}
	told := make(map[check.Promise]int)
	for _, v := range t.Violations {
		if told[v.Promise]++; told[v.Promise] <= 2 {
			r.Broke = append(r.Broke, fmt.Sprintf("%s %s: %s", v.Promise, v.Check, v.Text))
		}
	}
	return r
}

// A Sum is the result of all runs of one kind of store under one fault.
type Sum struct {
	Kind     string                 `json:"kind"`
	Fault    string                 `json:"fault"`
	Commit   string                 `json:"commit,omitempty"`   // of the code of the run that was added last
	Seeds    []uint64               `json:"seeds,omitempty"`    // of the runs with a verdict
	Invalid  []uint64               `json:"invalid,omitempty"`  // of the runs that must be repeated
	Skipped  []uint64               `json:"skipped,omitempty"`  // of the runs that cannot be made,
	Why      string                 `json:"why,omitempty"`      // and the reason
	Verdicts map[verify.Verdict]int `json:"verdicts,omitempty"` // of the runs in Seeds
	Looked   map[check.Promise]int  `json:"looked,omitempty"`   // in how many of these the promise was checked
	Broke    map[string]int         `json:"broke,omitempty"`    // in how many runs these promises broke together: "E", "EL"
	Texts    []string               `json:"texts,omitempty"`    // the first three violations of a claim
	Counts
}

// Sums are the sums by kind and fault.
type Sums map[[2]string]*Sum

// Load reads the sums.
func Load(path string) (Sums, error) {
	list, err := lines.Load[Sum](path)
	if err != nil {
		return nil, err
	}
	all := make(Sums)
	for i, s := range list {
		if len(s.Seeds)+len(s.Invalid)+len(s.Skipped) == 0 {
			return nil, fmt.Errorf("%s, line %d: the sum of no run; a single run belongs into the record", path, i+1)
		}
		all[[2]string{s.Kind, s.Fault}] = &s
	}
	return all, nil
}

// Save writes the sums, in order, with only those texts that the page shows.
func (all Sums) Save(path string) error {
	table := Cells(all)
	list := make([]Sum, 0, len(all))
	for key, s := range all {
		kept := *s
		if c := table[key]; c == nil || len(c.Wrong()) == 0 {
			kept.Texts = nil
		}
		list = append(list, kept)
	}
	slices.SortFunc(list, func(a, b Sum) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Fault, b.Fault))
	})
	return lines.Replace(path, list...)
}

// Done reports whether a run has a result. An invalid run must be repeated.
func (all Sums) Done(kind, fault string, seed uint64) bool {
	s := all[[2]string{kind, fault}]
	return s != nil && (slices.Contains(s.Seeds, seed) || slices.Contains(s.Skipped, seed))
}

// Add adds runs. It skips runs that are done, so a record can be added repeatedly.
func (all Sums) Add(runs ...Result) {
	for _, r := range runs {
		if all.Done(r.Kind, r.Fault, r.Seed) {
			continue
		}
		key := [2]string{r.Kind, r.Fault}
		if all[key] == nil {
			all[key] = &Sum{Kind: r.Kind, Fault: r.Fault}
		}
		all[key].add(r)
	}
}

func (s *Sum) add(r Result) {
	s.Commit = cmp.Or(r.Commit, s.Commit)
	s.Invalid = slices.DeleteFunc(s.Invalid, func(seed uint64) bool { return seed == r.Seed })
	switch r.Verdict {
	case verify.Invalid:
		s.Invalid = with(s.Invalid, r.Seed)
		return
	case verify.Skipped:
		s.Skipped, s.Why = with(s.Skipped, r.Seed), strings.Join(r.Why, "; ")
		return
	}
	if s.Verdicts == nil {
		s.Verdicts = make(map[verify.Verdict]int)
		s.Looked = make(map[check.Promise]int)
		s.Broke = make(map[string]int)
	}
	s.Seeds = with(s.Seeds, r.Seed)
	s.Verdicts[r.Verdict]++
	s.Counts.add(r.Counts)
	broke := ""
	for _, p := range slices.Sorted(maps.Keys(r.Kept)) {
		s.Looked[p]++
		if !r.Kept[p] {
			broke += string(p)
		}
	}
	if broke != "" {
		s.Broke[broke]++
	}
	s.Texts = slices.Compact(slices.Sorted(slices.Values(append(s.Texts, r.Broke...))))
	s.Texts = s.Texts[:min(3, len(s.Texts))]
}

func with(seeds []uint64, seed uint64) []uint64 {
	return slices.Sorted(slices.Values(append(seeds, seed)))
}

// BrokeIn is the number of runs in which a promise broke.
func (s *Sum) BrokeIn(p check.Promise) (runs int) {
	for promises, n := range s.Broke {
		if strings.Contains(promises, string(p)) {
			runs += n
		}
	}
	return runs
}

// Breaches is the number of runs in which a promise broke that must hold.
func (s *Sum) Breaches(claim fault.Verdict) (runs int) {
	for promises, n := range s.Broke {
		if slices.ContainsFunc(verify.Promises, func(p check.Promise) bool {
			return claim.Of(p) == fault.Holds && strings.Contains(promises, string(p))
		}) {
			runs += n
		}
	}
	return runs
}
