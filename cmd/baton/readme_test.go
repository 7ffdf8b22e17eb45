//go:build unix

package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestReadmeCommandsExist: every command and every flag that README.md shows
// is there, and so is every recipe.
func TestReadmeCommandsExist(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i, block := range strings.Split(string(raw), "```") {
		body, shell := strings.CutPrefix(block, "sh\n")
		if i%2 == 0 || !shell {
			continue
		}
		for line := range strings.Lines(body) {
			line, _, _ = strings.Cut(line, "#")
			line, _, _ = strings.Cut(strings.Replace(line, "go run ./cmd/baton", "baton", 1), " -- ")
			words := strings.Fields(line)
			switch {
			case len(words) > 1 && words[0] == "baton":
				root := (&app{}).root()
				cmd, rest, err := root.Find(words[1:])
				if err != nil || cmd == root {
					t.Errorf("%q: no such command: %v", line, err)
					continue
				}
				if err := cmd.ParseFlags(rest); err != nil {
					t.Errorf("%q: %v", line, err)
				}
				seen[cmd.Name()] = true
			case len(words) > 1 && words[0] == "make":
				if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(words[1]) + `:`).Match(makefile) {
					t.Errorf("%q: no such recipe", line)
				}
				seen["make "+words[1]] = true
			}
		}
	}
	for _, want := range []string{"run", "ls", "doctor", "bench", "make test", "make comparison"} {
		if !seen[want] {
			t.Errorf("README.md does not show %s", want)
		}
	}
}
