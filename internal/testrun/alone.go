package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// maxConfirmed is after how many tests that fail alone, too, no more are repeated.
const maxConfirmed = 5

// leafFailures returns the tests of a unit that failed. A test with subtests is left out
// if it may have failed for their sake alone; if it said something itself, they are.
func leafFailures(o outcome) (names []string) {
	failed := slices.DeleteFunc(slices.Clone(o.results), func(r result) bool { return r.Status != "fail" })
	broken := parents(failed)
	var whole []string
	for _, r := range failed {
		if r.spoke && broken[r.Package+" "+r.Test] {
			whole = append(whole, r.Test+"/")
		}
	}
	for _, r := range failed {
		within := slices.ContainsFunc(whole, func(above string) bool { return strings.HasPrefix(r.Test, above) })
		if !within && (r.spoke || !broken[r.Package+" "+r.Test]) {
			names = append(names, r.Test)
		}
	}
	return names
}

// repeatAlone runs again what failed, one test at a time while nothing else runs: a
// test that has deadlines can fail because the tests beside it took the machine. It
// changes the outcome of the tests that pass alone, and marks them. What no load
// explains stays failed: a data race, a panic, a program that was ended, a test that
// fails alone, and more failures than r.again.
func (r *runner) repeatAlone(ctx context.Context, w io.Writer, outcomes []outcome) {
	var total int
	for _, o := range outcomes {
		if o.err != nil && !o.final {
			total += len(leafFailures(o))
		}
	}
	if total == 0 || r.again == 0 {
		return
	}
	if total > r.again {
		fmt.Fprintf(w, "\n%d tests failed: too many to be repeated\n", total)
		return
	}
	fmt.Fprintf(w, "\nonce more, alone: %d tests that failed beside others\n", total)
	n, confirmed := 0, 0
	for i := range outcomes {
		o := &outcomes[i]
		if o.err == nil || o.final {
			continue
		}
		for _, test := range leafFailures(*o) {
			if confirmed == maxConfirmed || ctx.Err() != nil {
				return
			}
			n++
			one := r.repeatOne(ctx, o.unit, o.program, test, n)
			told(w, one, n, total)
			if one.err != nil {
				confirmed++
				continue
			}
			o.passedAlone(test)
		}
	}
}

// repeatOne runs one test of a unit, with the tests above it.
func (r *runner) repeatOne(ctx context.Context, u unit, program, test string, n int) outcome {
	u.part, u.only, u.skip = test, exactly(test), ""
	quiet := *r
	quiet.parallel, quiet.run = 1, ""
	o := quiet.test(ctx, u, program, fmt.Sprintf("again-%d-%s", n, fileName(u.name)))
	ran := slices.ContainsFunc(o.results, func(r result) bool { return r.Test == test && r.Status == "pass" })
	if o.err == nil && !ran {
		o.err = errors.New("it was not run again")
	}
	return o
}

// exactly is the regular expression for one test, as "go test -run" takes it.
func exactly(test string) string {
	parts := strings.Split(test, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// passedAlone marks a test as passed with all below it, and each test above it that has
// no other failure.
func (o *outcome) passedAlone(test string) {
	mark := func(name string) {
		for i := range o.results {
			if r := &o.results[i]; r.Status == "fail" && (r.Test == name || strings.HasPrefix(r.Test, name+"/")) {
				r.Status, r.Alone = "pass", true
			}
		}
	}
	mark(test)
	for up := strings.LastIndexByte(test, '/'); up >= 0; up = strings.LastIndexByte(test, '/') {
		test = test[:up]
		if !slices.ContainsFunc(o.results, func(r result) bool {
			return r.Status == "fail" && strings.HasPrefix(r.Test, test+"/")
		}) {
			mark(test)
		}
	}
	if !slices.ContainsFunc(o.results, func(r result) bool { return r.Status == "fail" }) {
		o.err = nil
	}
}
