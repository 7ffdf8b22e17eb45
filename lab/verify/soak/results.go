package main

import (
	"time"

	"github.com/batonhq/baton/lab/verify/lines"
)

// A Verdict is the result for one kind of store.
type Verdict string

// The verdicts.
const (
	Flat Verdict = "flat"
	Grew Verdict = "grew"
	Lost Verdict = "lost" // a lease was lost without a failed operation; or two clients held one lock
)

// A result is the stored result of one kind of store: one line of JSON.
type result struct {
	Kind    string          `json:"kind"`
	Commit  string          `json:"commit,omitempty"` // of the code of the run
	Verdict Verdict         `json:"verdict"`
	Why     []string        `json:"why,omitempty"` // the growth, or the losses
	For     time.Duration   `json:"for"`
	Rate    float64         `json:"rate"` // operations per second
	Ops     int64           `json:"ops"`
	Failed  int64           `json:"failed"`           // operations
	Texts   []string        `json:"texts,omitempty"`  // of the first failures, and of losses
	Missed  int             `json:"missed,omitempty"` // readings of the servers that failed
	Series  map[string]span `json:"series"`

	Before  reading       `json:"before"`  // before the stores were opened; keys: with an idle store
	Calm    reading       `json:"calm"`    // after a time without new names,
	Drained time.Duration `json:"drained"` // of this length
	Closed  reading       `json:"closed"`  // after the stores were closed
}

// known reads the last result of each kind.
func known(path string) (all []result, err error) {
	list, err := lines.Load[result](path)
	if err != nil {
		return nil, err
	}
	last := make(map[string]result)
	for _, r := range list {
		last[r.Kind] = r
	}
	for _, kind := range names() {
		if r, ok := last[kind]; ok {
			all = append(all, r)
		}
	}
	return all, nil
}

// tidy rewrites the file, with each kind once, in order.
func tidy(path string) error {
	all, err := known(path)
	if err != nil {
		return err
	}
	return lines.Replace(path, all...)
}
