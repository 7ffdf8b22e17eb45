// Package textwidth counts the columns of a text on a terminal: Chinese, Japanese and
// Korean characters and pictures take two.
package textwidth

import (
	"unicode"

	"golang.org/x/text/width"
)

// Of is the number of columns of a text.
func Of(text string) (n int) {
	for _, r := range text {
		n += OfRune(r)
	}
	return n
}

// OfRune is the number of columns of a character: 0, 1 or 2.
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
