package contended

import (
	"fmt"
	"testing"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	var k Keys
	if k.Has("a") {
		t.Error("it remembers what it was not told")
	}
	k.Set("a", true)
	if !k.Has("a") {
		t.Error("it forgot")
	}
	k.Set("a", true)
	k.Set("a", false)
	if k.Has("a") {
		t.Error("it does not forget")
	}
	// A hundred of 1024 flags are mostly not those of another hundred keys.
	for i := range 100 {
		k.Set(fmt.Sprint("k", i), true)
	}
	others := 0
	for i := range 100 {
		if k.Has(fmt.Sprint("other", i)) {
			others++
		}
	}
	if others > 50 {
		t.Errorf("%d of 100 keys share a flag with a hundred others", others)
	}
}
