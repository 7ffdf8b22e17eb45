// Package catalogue reads translations as people write them: entries between empty lines,
// each an English text, a line with "=", and the other text. An entry that begins with a
// line "as it is" lists texts, a line each, that are the same in both languages. Any other
// entry is a remark.
package catalogue

import (
	"iter"
	"strings"
)

// All are the translations of a catalogue, English first, in its order. A text that stands
// there twice comes twice.
func All(catalogue string) iter.Seq2[string, string] {
	return func(yield func(english, other string) bool) {
		for entry := range strings.SplitSeq(catalogue, "\n\n") {
			entry = strings.Trim(entry, "\n")
			if list, ok := strings.CutPrefix(entry, "as it is\n"); ok {
				for text := range strings.SplitSeq(list, "\n") {
					if !yield(text, text) {
						return
					}
				}
			} else if english, other, ok := strings.Cut(entry, "\n=\n"); ok && !yield(english, other) {
				return
			}
		}
	}
}
