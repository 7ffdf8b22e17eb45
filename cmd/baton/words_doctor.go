package main

import (
	"cmp"
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/batonhq/baton/internal/catalogue"
)

// The stores speak English. Their findings are texts of which parts are not fixed: in the
// catalogue these are %s, or %v where a part has words, too.
//
//go:embed words/doctor_zh.txt
var findingsZH string

const (
	// A longer text than longestFinding, and what is deepest in many parts of parts, stays
	// as it is: an enemy may have written it.
	longestFinding = 4 << 10
	deepest        = 20

	// A shape that says no more than marks has punctuation alone: it is the right one only
	// if the catalogue has all its parts.
	marks = len("%v (on %s)")
)

// A rewording turns a text of a shape into words of another language.
type rewording struct {
	shape  *regexp.Regexp
	fixed  int    // how much of the text the shape says
	spoken []bool // which parts have words
	words  string // a format for the parts that are not fixed
	adds   bool   // it is a text that has words by itself, with something behind it
}

// rewordings are those of the catalogue: first those that add something behind a text, then
// those that say most of one.
var rewordings = sync.OnceValue(func() []rewording {
	var all []rewording
	for english, words := range catalogue.All(findingsZH) {
		r := rewording{fixed: len(english), words: words, adds: strings.HasPrefix(english, "%v")}
		r.shape, r.spoken = shapeOf(english)
		all = append(all, r)
	}
	slices.SortStableFunc(all, func(x, y rewording) int {
		switch {
		case x.adds && !y.adds:
			return -1
		case y.adds && !x.adds:
			return 1
		}
		return cmp.Compare(y.fixed, x.fixed)
	})
	return all
})

var partOfShape = regexp.MustCompile("%[sv]")

// shapeOf matches the texts that a format makes.
func shapeOf(format string) (shape *regexp.Regexp, spoken []bool) {
	var b strings.Builder
	for i, fixed := range partOfShape.Split(format, -1) {
		if i > 0 {
			b.WriteString("(.+?)")
		}
		b.WriteString(regexp.QuoteMeta(strings.ReplaceAll(fixed, "%%", "%")))
	}
	for _, part := range partOfShape.FindAllString(format, -1) {
		spoken = append(spoken, part == "%v")
	}
	return regexp.MustCompile("(?s)^" + b.String() + "$"), spoken
}

// findingWords is a text of a finding in the language that is spoken. What the catalogue
// does not have stays as it is.
func findingWords(text string) string {
	words, _ := reworded(text, deepest)
	return words
}

// reworded also reports whether the catalogue has the text, which may be a part of one.
func reworded(text string, deep int) (words string, found bool) {
	if spoken == nil || len(text) > longestFinding || deep == 0 {
		return text, false
	}
	for _, r := range rewordings() {
		m := r.shape.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		missing := false
		parts := make([]any, len(m)-1)
		for i, part := range m[1:] {
			if r.spoken[i] && !missing {
				var has bool
				part, has = reworded(part, deep-1)
				missing = missing || !has
			}
			parts[i] = part
		}
		if !missing || r.fixed > marks {
			return fmt.Sprintf(r.words, parts...), true
		}
	}
	return text, false
}
