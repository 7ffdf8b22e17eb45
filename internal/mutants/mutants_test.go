package mutants_test

import (
	"bytes"
	"testing"

	"github.com/batonhq/baton/internal/mutants"
)

func TestOf(t *testing.T) {
	for text, least := range map[string]int{"": 10, "x": 30, `{"id":1,"do":"lock","key":"k"}`: 80} {
		var first []string
		different := make(map[string]bool)
		mutants.Of([]byte(text), func(b []byte) {
			first = append(first, string(b))
			different[string(b)] = true
		})
		if len(first) != mutants.Each || first[0] != text {
			t.Fatalf("%d texts, %q the first", len(first), first[0])
		}
		if len(different) < least {
			t.Errorf("only %d different texts of %q", len(different), text)
		}
		n := 0
		mutants.Of([]byte(text), func(b []byte) {
			if !bytes.Equal(b, []byte(first[n])) {
				t.Fatalf("text %d is %q, and was %q", n, b, first[n])
			}
			n++
		})
	}
}

// TestFindsWhatIsNear: the texts near a harmless one find a parser that fails on a doubled bracket, a
// number without end, or a broken escape.
func TestFindsWhatIsNear(t *testing.T) {
	for _, planted := range []string{"[[", "9223372036854775808", `\ud800`, "\x00", `""`} {
		found := false
		for i := range 50 {
			mutants.Of([]byte(`{"a":["b"],"c":`+string(rune('0'+i))+`}`), func(b []byte) {
				found = found || bytes.Contains(b, []byte(planted))
			})
		}
		if !found {
			t.Errorf("%q never came", planted)
		}
	}
}
