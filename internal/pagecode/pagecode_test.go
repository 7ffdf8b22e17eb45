package pagecode

import (
	"slices"
	"testing"
)

func TestBlocks(t *testing.T) {
	t.Parallel()
	got := Blocks("a\n```go\nx()\n```\n```sh\nls\n```\n```go\ny()\n```\n", "go")
	if want := []string{"x()\n", "y()\n"}; !slices.Equal(got, want) {
		t.Errorf("the blocks are %q, want %q", got, want)
	}
}

func TestPlain(t *testing.T) {
	t.Parallel()
	if got, want := Plain("\tx :=  f() // why\n\n// whole\n"), "x := f()\n\n// whole"; got != want {
		t.Errorf("it is %q, want %q", got, want)
	}
}
