//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/batonhq/baton/open"
)

// baton help stores has all schemes that an error offers.
func TestStoresHaveAllSchemes(t *testing.T) {
	t.Parallel()
	_, err := open.Store(t.Context(), "baseball://host")
	_, names, offered := strings.Cut(fmt.Sprint(err), "there are ")
	if !offered {
		t.Fatalf("the error offers no schemes: %v", err)
	}
	topic, _, err := (&app{}).root().Find([]string{"stores"})
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(names, ", ") {
		if !strings.Contains(topic.Long, " "+name+":") {
			t.Errorf("baton help stores does not have %s", name)
		}
	}
}

// A command's help fits a screen, and has an example before its flags.
func TestHelpIsOneScreen(t *testing.T) {
	t.Parallel()
	n := 0
	for path, c := range commands() {
		if c.Hidden || path == "help" || regexp.MustCompile("^(lab|verify|bench)").MatchString(path) { // of the laboratory
			continue
		}
		n++
		lines := 45
		if path == "" { // the index
			lines = 55
		}
		var b bytes.Buffer
		c.SetOut(&b)
		if err := c.Help(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(b.String(), "\n"); got > lines {
			t.Errorf("baton %s --help has %d lines, at most %d fit", path, got, lines)
		}
		examples, flags := strings.Index(b.String(), "\nExamples:\n"), strings.Index(b.String(), "\nFlags:\n")
		if !c.HasSubCommands() && path != "version" && (examples < 0 || flags >= 0 && flags < examples) {
			t.Errorf("baton %s --help has no example before its flags:\n%s", path, b.String())
		}
	}
	if n < 20 {
		t.Errorf("%d commands were seen", n)
	}
}

// What is said of --metrics names all commands that have it.
func TestMetricsNameAllCommands(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	root := (&app{}).root()
	topic, _, err := root.Find([]string{"metrics"})
	if err != nil {
		t.Fatal(err)
	}
	_, told, _ := strings.Cut(string(page), "`baton run`")
	told, _, _ = strings.Cut(told, "--metrics FILE")
	help, _, _ := strings.Cut(topic.Long, "--metrics FILE")
	n := 0
	for _, c := range root.Commands() {
		if c.Flags().Lookup("metrics") == nil {
			continue
		}
		n++
		if name := c.Name(); name != "run" && !strings.Contains(told, "`"+name+"`") || !strings.Contains(help, name) {
			t.Errorf("baton %s has --metrics; docs/metrics.md says %q, and the help %q", name, told, help)
		}
	}
	if n < 2 {
		t.Errorf("%d commands have --metrics", n)
	}
}
