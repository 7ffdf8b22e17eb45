//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/batonhq/baton/internal/pagecode"
)

// TestMain is the example itself, for TestSecondWaits.
func TestMain(m *testing.M) {
	if os.Getenv("FIRSTLOCK") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// The second process waits until the first has released the lock, and has a higher token.
// Nothing is left behind.
func TestSecondWaits(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), "FIRSTLOCK=1", "TMPDIR="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// The pages show what it prints, with other numbers.
	for _, page := range []string{"docs/index.md", "docs/zh/index.md"} {
		text, err := os.ReadFile("../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		number := regexp.MustCompile(`\d+`)
		if shown := pagecode.Blocks(string(text), "text")[0]; number.ReplaceAllString(shown, "0") != number.ReplaceAllString(string(out), "0") {
			t.Errorf("%s shows\n%s\nbut it said\n%s", page, shown, out)
		}
	}
	var waited [2]float64
	var tokens [2]int64
	for i, got := range regexp.MustCompile(`after .*`).FindAllString(string(out), -1) {
		if _, err := fmt.Sscanf(got, "after %f s, with the token %d", &waited[i], &tokens[i]); err != nil {
			t.Fatal(err)
		}
	}
	if waited[1] < 0.5 || tokens[0] >= tokens[1] {
		t.Errorf("the second process did not wait, or has no higher token:\n%s", out)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v behind: %v", left, err)
	}
}

// lockProgram writes the program of docs/locks.md into a folder.
func lockProgram(t *testing.T) (source string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/locks.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := slices.DeleteFunc(pagecode.Blocks(string(page), "go"), func(b string) bool { return !strings.HasPrefix(b, "package main") })
	if len(blocks) != 1 {
		t.Fatalf("the page has %d programs", len(blocks))
	}
	source = filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(source, []byte(blocks[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	return source
}

func build(t *testing.T, source string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "program")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, source).CombinedOutput(); err != nil {
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

// Two of the program of docs/locks.md work one after the other, and the next one has a higher token.
func TestLock(t *testing.T) {
	t.Parallel()
	program, dir := build(t, lockProgram(t)), t.TempDir()
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
