package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// printInventory lists what a run tested. With before, the results of an earlier
// run, it lists the difference, and fails if anything was lost.
func printInventory(w io.Writer, file, before string) error {
	now, err := readResults(file)
	if err != nil {
		return fmt.Errorf("%w: make test writes it", err)
	}
	if before == "" {
		writeInventory(w, now)
		return nil
	}
	then, err := readResults(before)
	if err != nil {
		return err
	}
	lost, added := missing(then, now), missing(now, then)
	for _, line := range added {
		fmt.Fprintln(w, "+", line)
	}
	for _, line := range lost {
		fmt.Fprintln(w, "-", line)
	}
	fmt.Fprintf(w, "%d tests before, %d now: %d new, %d lost\n", len(leaves(then)), len(leaves(now)), len(added), len(lost))
	if len(lost) > 0 {
		return errFailed
	}
	return nil
}

func readResults(file string) (all []result, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var r result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, r)
	}
	return all, lines.Err()
}

// leaves returns the tests without subtests that passed, each with its package.
func leaves(all []result) (names []string) {
	inner := parents(all)
	for _, r := range all {
		if name := r.Package + " " + r.Test; r.Status == "pass" && !inner[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// parents returns the tests that have subtests, each with its package.
func parents(all []result) map[string]bool {
	found := make(map[string]bool)
	for _, r := range all {
		for i, c := range r.Test {
			if c == '/' {
				found[r.Package+" "+r.Test[:i]] = true
			}
		}
	}
	return found
}

func missing(from, in []result) (lost []string) {
	have := leaves(in)
	for _, name := range leaves(from) {
		if _, found := slices.BinarySearch(have, name); !found {
			lost = append(lost, name)
		}
	}
	return lost
}

// writeInventory lists first the cases that several tests have, as those of the
// contract, and who has them; then, package by package, every other test with
// its subtests on one line.
func writeInventory(w io.Writer, all []result) {
	users := make(map[string][]string) // the tests that have a case, by its name below them
	for _, name := range leaves(all) {
		if user, test, below := cutFirst(name); below {
			users[test] = append(users[test], user)
		}
	}
	for _, test := range slices.Sorted(maps.Keys(users)) {
		if len(users[test]) < 2 {
			delete(users, test)
			continue
		}
		fmt.Fprintf(w, "%s: %s\n", test, strings.Join(users[test], ", "))
	}
	fmt.Fprintln(w)
	own := make(map[string][]string)
	for _, name := range leaves(all) {
		user, test, below := cutFirst(name)
		if _, common := users[test]; below && common {
			continue
		}
		own[user] = append(own[user], test)
	}
	for _, user := range slices.Sorted(maps.Keys(own)) {
		fmt.Fprintln(w, strings.TrimSuffix(user+": "+strings.Join(own[user], ", "), ": "))
	}
}

// cutFirst splits the name of a test, "store/x TestY/case/part", before its first
// subtest.
func cutFirst(name string) (user, test string, below bool) {
	at := strings.IndexByte(name, ' ')
	if i := strings.IndexByte(name[at:], '/'); i >= 0 {
		return name[:at+i], name[at+i+1:], true
	}
	return name, "", false
}
