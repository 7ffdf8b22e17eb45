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

// The stores speak English. Their findings are texts of which parts are not fixed: the
// catalogue has them with %s for such a part.
//
//go:embed words/doctor_zh.txt
var findingsZH string

// longestFinding is the longest text for whose words the catalogue is searched.
const longestFinding = 8 << 10

// A rewording turns a text of a shape into words of another language.
type rewording struct {
	shape *regexp.Regexp
	fixed int    // how much of the text the shape says
	words string // a format for the parts that are not fixed
}

// rewordings are those of the catalogue, those that say most of a text first.
var rewordings = sync.OnceValue(func() []rewording {
	var all []rewording
	for english, words := range catalogue.All(findingsZH) {
		all = append(all, rewording{shapeOf(english), len(english), words})
	}
	slices.SortStableFunc(all, func(x, y rewording) int { return cmp.Compare(y.fixed, x.fixed) })
	return all
})

// shapeOf matches the texts that a format makes whose verbs are %s.
func shapeOf(format string) *regexp.Regexp {
	var b strings.Builder
	for i, part := range strings.Split(format, "%s") {
		if i > 0 {
			b.WriteString("(.+?)")
		}
		b.WriteString(regexp.QuoteMeta(strings.ReplaceAll(part, "%%", "%")))
	}
	return regexp.MustCompile("(?s)^" + b.String() + "$")
}

// findingWords is a text of a finding, or a part of one, in the language that is spoken.
// What the catalogue does not have stays as it is.
func findingWords(text string) string {
	if spoken == nil || len(text) > longestFinding {
		return text
	}
	for _, r := range rewordings() {
		if m := r.shape.FindStringSubmatch(text); m != nil {
			parts := make([]any, len(m)-1)
			for i, part := range m[1:] {
				parts[i] = findingWords(part)
			}
			return fmt.Sprintf(r.words, parts...)
		}
	}
	return text
}
