// Package textwidth counts how many columns of a terminal a text takes, where Chinese, Japanese
// and Korean characters and pictures take two.
package textwidth

import (
	"unicode"

	"golang.org/x/text/width"
)

// Of is how many columns a text takes.
func Of(text string) (n int) {
	for _, r := range text {
		n += OfRune(r)
	}
	return n
}

// OfRune is how many columns a character takes: 0, 1 or 2.
func OfRune(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}
