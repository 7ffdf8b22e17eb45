package batontest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonhq/baton/internal/pagecode"
)

const page = "../docs/testing.md"

// The program and the tests of docs/testing.md are compiled, and run.
func TestPageRuns(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	found := pagecode.Blocks(string(raw), "go")
	if len(found) != 5 {
		t.Fatalf("%s has %d Go blocks, want 5", page, len(found))
	}
	tests := `package pay

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/batontest"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/ratelimit"
)

` + strings.Join(found[1:], "\n")

	// It is compiled inside the module, in a folder that no pattern matches.
	dir, err := os.MkdirTemp(".", "_page")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for name, text := range map[string]string{"pay.go": found[0], "pay_test.go": tests} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "test", "-v", "-timeout", "1m", "./"+dir)
	cmd.Env = append(os.Environ(), "TEST_STORE=")
	out, err := cmd.CombinedOutput()
	if want := strings.Count(tests, "\nfunc Test"); err != nil || strings.Count(string(out), "\n--- PASS") != want || want < 8 {
		t.Errorf("%v, want %d tests that pass:\n%s", err, want, out)
	}
}
