package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// A Verdict is what came out for one kind of store.
type Verdict string

// The verdicts.
const (
	Flat Verdict = "flat"
	Grew Verdict = "grew"
)

// A result is one kind of store, as it is kept: one line of JSON.
type result struct {
	Kind    string          `json:"kind"`
	Verdict Verdict         `json:"verdict"`
	Why     []string        `json:"why,omitempty"` // what grew
	For     time.Duration   `json:"for"`
	Rate    float64         `json:"rate"` // operations per second
	Ops     int64           `json:"ops"`
	Failed  int64           `json:"failed"`           // operations
	Texts   []string        `json:"texts,omitempty"`  // of the first of them
	Missed  int             `json:"missed,omitempty"` // looks at the servers that failed
	Series  map[string]span `json:"series"`

	Before  reading       `json:"before"`  // the stores were opened, with the keys of an idle store
	Calm    reading       `json:"calm"`    // when no new names had been used for a while,
	Drained time.Duration `json:"drained"` // which was so long
	Closed  reading       `json:"closed"`  // after the stores were closed
}

// known reads the last result of each kind. A last line that was cut off is
// passed over.
func known(path string) ([]result, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	last := make(map[string]result)
	lines := bufio.NewScanner(strings.NewReader(string(b)))
	lines.Buffer(nil, 1<<20)
	torn := error(nil)
	for n := 1; lines.Scan(); n++ {
		if torn != nil {
			return nil, torn
		}
		var r result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			torn = fmt.Errorf("%s, line %d: %w", path, n, err)
			continue
		}
		last[r.Kind] = r
	}
	var all []result
	for _, kind := range names() {
		if r, ok := last[kind]; ok {
			all = append(all, r)
		}
	}
	return all, lines.Err()
}

// add adds lines of JSON to a file.
func add[T any](path string, all ...T) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, x := range all {
		b, err := json.Marshal(x)
		if err != nil {
			return err
		}
		if _, err := f.Write(append(b, '\n')); err != nil {
			return err
		}
	}
	return f.Close()
}

// tidy writes the file anew, each kind once, in order.
func tidy(path string) error {
	all, err := known(path)
	if err != nil {
		return err
	}
	next := path + ".new"
	if err := os.RemoveAll(next); err != nil {
		return err
	}
	if err := add(next, all...); err != nil {
		return err
	}
	return os.Rename(next, path)
}
