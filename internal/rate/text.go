package rate

import (
	"strconv"
	"strings"
)

// Text is a state as text: its numbers, separated by spaces.
func (s State) Text() string {
	b := make([]byte, 0, 17*len(s))
	for i, n := range s {
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return string(b)
}

// Parse is the inverse of Text. Other texts are the state of a new key.
func Parse(text string) State {
	if text == "" {
		return nil
	}
	s := make(State, 0, 2+strings.Count(text, " ")) // one more than there are, for the next moment
	for word := range strings.SplitSeq(text, " ") {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil || n < 0 || n >= exact {
			return nil
		}
		s = append(s, n)
	}
	return s
}
