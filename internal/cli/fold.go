package cli

import (
	"strings"

	"github.com/batonhq/baton/internal/textwidth"
)

// Fold breaks a text into lines of at most width columns. The first begins with before,
// the others are indented by as much.
func Fold(s, before string, width int) string {
	room := width - textwidth.Of(before)
	lines := Broken(s, func(line string) bool {
		n := textwidth.Of(strings.TrimRight(line, " "))
		return n <= room && (n <= room-2 || textwidth.Of(s) == len([]rune(s))) // leaves room for a mark that ends a clause in Chinese
	})
	return before + strings.Join(lines, "\n"+strings.Repeat(" ", textwidth.Of(before)))
}

// Broken breaks a text into lines that fit, at a space or beside a Chinese character. A
// mark that ends a clause stays on its line even if it does not fit.
func Broken(s string, fits func(line string) bool) (lines []string) {
	line, last := "", 0 // last is where line may be broken
	for _, r := range s {
		if line == "" && r == ' ' {
			continue
		}
		if !fits(line+string(r)) && line != "" && r != '，' && r != '。' && r != '？' && r != '：' {
			if last == 0 {
				last = len(line)
			}
			rest := line[last:]
			lines = append(lines, strings.TrimRight(line[:last], " "))
			line, last = strings.TrimLeft(rest, " "), 0
		}
		line += string(r)
		if r == ' ' || textwidth.OfRune(r) == 2 {
			last = len(line)
		}
	}
	return append(lines, line)
}
