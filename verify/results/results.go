// Package results keeps what many runs of the verification found, one line of
// JSON for each, and says of each store and fault what is known.
package results

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/batonhq/baton/verify"
	"github.com/batonhq/baton/verify/check"
	"github.com/batonhq/baton/verify/lines"
)

// A Result is one trial, as it is kept: one line of JSON.
type Result struct {
	Kind    string                 `json:"kind"`
	Fault   string                 `json:"fault"`
	Seed    uint64                 `json:"seed"`
	Verdict verify.Verdict         `json:"verdict"`
	Kept    map[check.Promise]bool `json:"kept,omitempty"`
	Broke   []string               `json:"broke,omitempty"` // what was seen, of each promise the first two
	Why     []string               `json:"why,omitempty"`

	Attempts  int `json:"attempts"`
	Granted   int `json:"granted"`
	Writes    int `json:"writes"`
	Stale     int `json:"stale"`
	Decisions int `json:"decisions"`
	Killed    int `json:"killed"`
}

// A Place is what a result is of. There is one of each.
type Place struct {
	Kind, Fault string
	Seed        uint64
}

// Place returns what r is of.
func (r Result) Place() Place { return Place{r.Kind, r.Fault, r.Seed} }

// Of returns what is kept of a trial.
func Of(kind string, seed uint64, t *verify.Trial) Result {
	r := Result{
		Kind: kind, Fault: t.Fault, Seed: seed, Verdict: t.Verdict, Kept: t.Promises, Why: t.Why,
		Attempts: t.Looked.Attempts, Granted: t.Looked.Granted, Writes: t.Looked.Writes, Stale: t.Looked.Stale,
		Decisions: t.Decisions, Killed: t.Killed,
	}
	told := make(map[check.Promise]int)
	for _, v := range t.Violations {
		if told[v.Promise]++; told[v.Promise] <= 2 {
			r.Broke = append(r.Broke, fmt.Sprintf("%s %s: %s", v.Promise, v.Check, v.Text))
		}
	}
	return r
}

// Load reads what earlier runs have kept, the last result of each place.
func Load(path string) (map[Place]Result, error) {
	list, err := lines.Load[Result](path)
	if err != nil {
		return nil, err
	}
	all := make(map[Place]Result)
	for _, r := range list {
		all[r.Place()] = r
	}
	return all, nil
}

// Tidy writes the file anew, each trial once, in order.
func Tidy(path string) error {
	all, err := Load(path)
	if err != nil {
		return err
	}
	return lines.Replace(path, Sorted(all)...)
}

// Sorted returns them by kind, fault and seed.
func Sorted(all map[Place]Result) []Result {
	list := make([]Result, 0, len(all))
	for _, r := range all {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b Result) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Fault, b.Fault), cmp.Compare(a.Seed, b.Seed))
	})
	return list
}
