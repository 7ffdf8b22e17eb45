package page

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/batonhq/baton/lab/charts"
)

// The colours of the page's style.
func TestPalette(t *testing.T) {
	t.Parallel()
	for _, problem := range palette(style) {
		t.Error(problem)
	}
}

// palette says what is wrong with the colours of a style: on the light page, on the dark one
// and on paper.
func palette(style string) (problems []string) {
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	hex := regexp.MustCompile(`--c(\d): #([0-9a-f]{6})\b`)
	_, dark, _ := strings.Cut(style, "prefers-color-scheme: dark")
	light, _, _ := strings.Cut(style, "@media")
	dark, print, _ := strings.Cut(dark, "@media print")
	print, _, _ = strings.Cut(print, "body {")
	for name, of := range map[string]struct{ css, paper string }{"light": {light, "ffffff"}, "dark": {dark, "16181b"}, "print": {print, "ffffff"}} {
		var all []string
		for _, c := range hex.FindAllStringSubmatch(of.css, -1) {
			if c[1] != strconv.Itoa(len(all)) {
				problem("%s: colour %s stands at place %d", name, c[1], len(all))
			}
			all = append(all, c[2])
		}
		if len(all) != colours {
			problem("%s: %d colours, want %d", name, len(all), colours)
		}
		if paper := regexp.MustCompile(`--paper: #(\w+)`).FindStringSubmatch(of.css); paper == nil || !strings.HasPrefix(of.paper, paper[1]) {
			problem("%s: the paper is %v, want %s", name, paper, of.paper)
		}
		for _, p := range charts.Problems(all, of.paper) {
			problem("%s: %s", name, p)
		}
	}
	return problems
}

// TestPaletteCatches plants colours that are wrong, and sees them found.
func TestPaletteCatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, old, new, want string }{
		{"two that are alike", "--c1: #ed39a9", "--c1: #0000d0", "trichromacy: colours 0 and 1 differ"},
		{"two that are alike without the cones for long waves", "--c9: #969481", "--c9: #a9446b", "protanopia: colours 7 and 9 differ"},
		{"one that does not stand out", "--c9: #969481", "--c9: #dddddd", "light: colour 9 has contrast"},
		{"one that does not stand out of the dark", "--c8: #14715b", "--c8: #1c2a26", "dark: colour 8 has contrast"},
		{"one too few", "; --c9: #969481", "", "9 colours, want 10"},
		{"a place that is taken twice", "--c9: #969481", "--c8: #969481", "colour 8 stands at place 9"},
		{"another paper", "--paper: #16181b", "--paper: #333333", "the paper is"},
	} {
		if !strings.Contains(style, c.old) {
			t.Fatalf("%s: the style has no %q", c.name, c.old)
		}
		if problems := strings.Join(palette(strings.ReplaceAll(style, c.old, c.new)), "\n"); !strings.Contains(problems, c.want) {
			t.Errorf("%s: found %q, want %q", c.name, problems, c.want)
		}
	}
}
