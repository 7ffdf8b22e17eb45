package pagecode

import (
	"slices"
	"testing"
)

const page = "a\n```go\nx() // ``` is none\n\n```\n`b`\n<!-- c -->\n```sh run\nls\n```\n\n```\n# d\n```\n```go\ny()"

func TestBlocks(t *testing.T) {
	t.Parallel()
	want := []Block{{"go", "", "x() // ``` is none\n\n", 3}, {"sh", "run", "ls\n", 9}, {"", "", "# d\n", 13}, {"go", "", "y()", 16}}
	if got := All(page); !slices.Equal(got, want) {
		t.Errorf("all blocks are %v, want %v", got, want)
	}
	if got, want := Blocks(page, "go"), []string{want[0].Text, want[3].Text}; !slices.Equal(got, want) {
		t.Errorf("the blocks of Go are %q, want %q", got, want)
	}
	if got, found := Marked(page, "c"); got != "ls\n" || !found {
		t.Errorf("the block that is marked is %q, %v", got, found)
	}
	if got, found := Marked(page, "d"); found {
		t.Errorf("a block that is not there is %q", got)
	}
}

func TestProse(t *testing.T) {
	t.Parallel()
	if got, want := Prose(page), "a\n\n\n\n\n`b`\n<!-- c -->\n\n\n\n\n\n\n\n\n"; got != want {
		t.Errorf("it is %q, want %q", got, want)
	}
}
