package lab

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The colours of lines can be told apart, on light paper and on dark.
func TestPalette(t *testing.T) {
	t.Parallel()
	for _, problem := range palette(Style) {
		t.Error(problem)
	}
}

var (
	lineColour = regexp.MustCompile(`\.s(\d) \{ --c: #(\w+) \}`)
	paper      = regexp.MustCompile(`\.paper \{ fill: #(\w+) \}`)
)

// palette says what is wrong with the colours of lines in a style.
func palette(style string) (problems []string) {
	light, dark, _ := strings.Cut(style, "prefers-color-scheme: dark")
	for name, css := range map[string]string{"light": light, "dark": dark} {
		var all []string
		for _, c := range lineColour.FindAllStringSubmatch(css, -1) {
			if c[1] != strconv.Itoa(len(all)) {
				problems = append(problems, fmt.Sprintf("%s: colour %s stands at place %d", name, c[1], len(all)))
			}
			all = append(all, c[2])
		}
		if len(all) != colours {
			problems = append(problems, fmt.Sprintf("%s: %d colours, want %d", name, len(all), colours))
		}
		on := paper.FindStringSubmatch(css)
		if on == nil {
			problems = append(problems, name+": there is no paper")
			continue
		}
		if len(on[1]) == 3 {
			on[1] = strings.Repeat(on[1][:1], 2) + strings.Repeat(on[1][1:2], 2) + strings.Repeat(on[1][2:], 2)
		}
		for _, p := range problemsOf(all, on[1]) {
			problems = append(problems, name+": "+p)
		}
	}
	return problems
}

// TestPaletteCatches plants colours that are wrong, and sees them found.
func TestPaletteCatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, old, new, want string }{
		{"two that are alike", "#3f173d", "#ed39aa", "light: trichromacy: colours 1 and 3 differ"},
		{"two that are alike without the cones for long waves", "#ed39a9", "#7c8bfe", "light: protanopia: colours 1 and 5 differ"},
		{"one that does not stand out of the dark", "#a24b09", "#2a322c", "dark: colour 6 has contrast"},
		{"one too few", ".s9 { --c: #969481 }", "", "light: 9 colours, want 10"},
		{"a place that is taken twice", ".s9 { --c: #969481 }", ".s8 { --c: #969481 }", "light: colour 8 stands at place 9"},
		{"no paper", ".paper { fill: #15181c }", "", "dark: there is no paper"},
	} {
		if !strings.Contains(Style, c.old) {
			t.Fatalf("%s: the style has no %q", c.name, c.old)
		}
		if problems := strings.Join(palette(strings.Replace(Style, c.old, c.new, 1)), "\n"); !strings.Contains(problems, c.want) {
			t.Errorf("%s: found %q, want %q", c.name, problems, c.want)
		}
	}
}
