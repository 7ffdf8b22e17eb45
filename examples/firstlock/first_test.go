//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/batonhq/baton/internal/pagecode"
)

// The programs of docs/index.md are those of the examples.
func TestPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/index.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := pagecode.Blocks(string(page), "go")
	files := []string{"main.go", "../firstlimit/main.go"}
	if len(blocks) != len(files) {
		t.Fatalf("the page has %d programs", len(blocks))
	}
	for i, block := range blocks {
		if program, err := os.ReadFile(files[i]); err != nil || string(program) != block {
			t.Errorf("docs/index.md does not show %s: %v", files[i], err)
		}
	}
}

func build(t *testing.T, folder string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "program")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, folder).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

func run(t *testing.T, program, dir string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return string(out)
}

// Two programs work one after the other, and the next one has a higher token.
func TestLock(t *testing.T) {
	t.Parallel()
	program, dir := build(t, "."), t.TempDir()
	var tokens [3]int64
	both := new(sync.WaitGroup)
	for i := range 3 {
		if i == 2 {
			both.Wait()
		}
		both.Go(func() {
			var err error
			said := run(t, program, dir)
			if tokens[i], err = strconv.ParseInt(strings.TrimSpace(strings.TrimPrefix(said, "working, with token ")), 10, 64); err != nil {
				t.Errorf("it said %q", said)
			}
		})
	}
	both.Wait()
	if tokens[0] == tokens[1] || tokens[2] <= max(tokens[0], tokens[1]) {
		t.Errorf("the tokens were %v", tokens)
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	program, dir := build(t, "../firstlimit"), t.TempDir()
	if said := run(t, program, dir); !strings.HasPrefix(said, "sent, 2 left\nsent, 1 left\nsent, 0 left\nnot sent: again in ") {
		t.Errorf("it said %q", said)
	}
	var left int
	if said := run(t, program, dir); strings.Contains(said, "sent, ") {
		t.Errorf("the second time it said %q", said)
	} else if _, err := fmt.Sscanf(said, "not sent: again in %ds", &left); err != nil || left > 12 { // a window of parts is up to a part longer
		t.Errorf("the second time it said %q", said)
	}
}
