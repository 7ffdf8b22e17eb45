package baton_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonhq/baton/internal/pagecode"
)

// blocks returns the fenced blocks of a page in a language.
func blocks(t *testing.T, page, language string) []string {
	t.Helper()
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return pagecode.Blocks(string(raw), language)
}

func TestReadmeGoCompiles(t *testing.T) {
	t.Parallel()
	found := blocks(t, "README.md", "go")
	if len(found) != 6 {
		t.Fatalf("README.md has %d Go blocks, want 6", len(found))
	}
	imports, found := found[0], found[1:]
	first := `package readme

` + imports + `
type document struct{}

func post(context.Context, document, int64) error { return nil }

func first(ctx context.Context, invoice document) error {
` + found[0] + `
}
`
	src := `package readme

import (
	"context"
	"fmt"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/ratelimit"
)

func serve(context.Context, int64) error { return nil }

func second(ctx context.Context, locks *baton.Locker) error {
` + found[1] + `
	return err
}

type Receipt struct{}

func redeem(context.Context, int, int64) (Receipt, error) { return Receipt{}, nil }

func third(ctx context.Context, store open.LimitStore) error {
` + found[2] + `
	fmt.Println(receipt)
	return err
}

func fourth(ctx context.Context) error {
` + found[3] + `
	fmt.Println(r)
	return err
}

func fifth(ctx context.Context, locks *baton.Locker) error {
` + found[4] + `
	return err
}
`
	// It is compiled inside the module, in a folder that no pattern matches.
	dir, err := os.MkdirTemp(".", "_readme")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for name, text := range map[string]string{"first.go": first, "readme.go": src} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("go", "vet", "./"+dir).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The Go code of docs/certificates.md is in the example of the adapter, which runs.
func TestCertificatesPageRuns(t *testing.T) {
	t.Parallel()
	example, err := os.ReadFile("adapters/certmagic/example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	found := blocks(t, "docs/certificates.md", "go")
	if len(found) != 2 {
		t.Errorf("found %d blocks", len(found))
	}
	for _, block := range found {
		if !strings.Contains(pagecode.Plain(string(example)), pagecode.Plain(block)) {
			t.Errorf("docs/certificates.md shows what no example has:\n%s", block)
		}
	}
}

func TestReadmeFirstCommandRuns(t *testing.T) {
	t.Parallel()
	found := blocks(t, "README.md", "sh")
	if len(found) < 2 || !strings.HasPrefix(found[0], "go run ./cmd/baton run ") || found[1] != "make test\n" {
		t.Fatalf("README.md does not begin with its two commands: %q", found)
	}
	cmd := exec.Command("sh", "-ec", found[0])
	cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+t.TempDir(), "BATON_STORE=")
	out, err := cmd.Output()
	if err != nil || !strings.HasPrefix(string(out), "holding nightly-report, token 1") {
		t.Errorf("%q, error %v", out, err)
	}
}

// Every link from a page to a file of the repository leads somewhere.
func TestReadmeLinksLead(t *testing.T) {
	t.Parallel()
	pages := []string{"README.md"}
	for _, pattern := range []string{"C*.md", "GUARANTEES.md", "docs/*.md", "docs/coming-from/*.md", "docs/tutorials/*.md", "docs/reference/*.md", "docs/adr/*.md", "*.zh.md", "docs/zh/*.md", "docs/zh/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || found == nil {
			t.Fatal(pattern, err)
		}
		pages = append(pages, found...)
	}
	for _, page := range pages {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		links := 0
		for _, part := range strings.Split(string(raw), "](")[1:] {
			target, _, _ := strings.Cut(part, ")")
			target, _, _ = strings.Cut(target, "#")
			if target == "" || strings.Contains(target, "://") {
				continue
			}
			links++
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), target)); err != nil {
				t.Errorf("%s points to %s: %v", page, target, err)
			}
		}
		if links == 0 && page == "README.md" {
			t.Error("README.md has no links")
		}
	}
}
