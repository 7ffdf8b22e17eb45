package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/memstore"
)

// TestMain lets the test binary be the holder, as the program is.
func TestMain(m *testing.M) {
	if os.Getenv(holderEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func play(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(args, &out, &errs)
	return out.String(), errs.String(), status
}

// induced is how many pauses there are on each store.
const induced = 10_000

func testStory(t *testing.T, url string) {
	t.Parallel()
	text, errs, status := play(t, "--store", url, "-o", "json", "--pauses", "10000")
	if status != 0 {
		t.Fatalf("status %d: %s", status, errs)
	}
	var r report
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	if canStop {
		if r.Stop == nil {
			t.Fatal("nobody was stopped")
		}
		if want := (outcome{first, true}); r.Stop.Without != want {
			t.Errorf("without a guard: %+v, want %+v", r.Stop.Without, want)
		}
		if want := (outcome{second, false}); r.Stop.With != want {
			t.Errorf("with the guard: %+v, want %+v", r.Stop.With, want)
		}
	}
	p := r.Pauses
	t.Logf("%s: %d stale writes tried, %d accepted without a guard, %d with it", r.Store, p.Tried, p.Without, p.With)
	if p.Tried != induced || p.Without != induced || p.With != 0 {
		t.Errorf("%+v, want %d tried, all accepted without a guard, none with it", p, induced)
	}
}

func TestSQLite(t *testing.T) {
	testStory(t, "sqlite:"+filepath.Join(t.TempDir(), "locks.db"))
}
func TestRedis(t *testing.T) { testStory(t, "redis://"+testserver.SharedRedis(t).Addr) }

// The steps are the same in every run.
func TestText(t *testing.T) {
	t.Parallel()
	if !canStop {
		t.Skip("no process can be stopped here")
	}
	text, errs, status := play(t, "--pauses", "10")
	if status != 0 {
		t.Fatalf("status %d: %s", status, errs)
	}
	const want = `A holder of a lock on sqlite is stopped between its last look at the lease and its write.

  first   holds the lock, and its lease stands
  first   is stopped before it writes (SIGSTOP)
  second  is granted the lock, with a higher token
  second  writes
  first   wakes up and writes

                  the stale write   the account says
without a guard   accepted          first
with the guard    refused           second

10 pauses on sqlite: 10 stale writes tried, 10 accepted without a guard, 0 with it.
`
	if text != want {
		t.Errorf("printed:\n%s\nwant:\n%s", text, want)
	}
}

// The story would tell if the guard did not guard.
func TestBrokenGuardIsSeen(t *testing.T) {
	t.Parallel()
	lax := func(_ context.Context, _ string, _ guard.Pass, write func() error) error { return write() }
	c, err := induceAt(t.Context(), memstore.New(), 100, lax)
	if err != nil {
		t.Fatal(err)
	}
	if c != (counts{100, 100, 100}) || (report{Pauses: c}).wrong() == nil {
		t.Errorf("a guard that accepts everything gives %+v", c)
	}
	if err := (report{Stop: &stop{With: outcome{first, true}}}).wrong(); err == nil {
		t.Error("a stale write that was accepted is not seen")
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"-o", "xml"}, 2, "Usage"},
		{[]string{"--pauses", "0"}, 2, "Usage"},
		{[]string{"more"}, 2, "Usage"},
		{[]string{"--store", "redis://:hush@127.0.0.1:1"}, 1, "redis"},
		{[]string{"--store", "nope://x"}, 1, "nope"},
	} {
		_, errs, status := play(t, c.args...)
		if status != c.status || !strings.Contains(errs, c.says) || strings.Contains(errs, "hush") {
			t.Errorf("%q: status %d, says %q; want %d and %q, and no password", c.args, status, errs, c.status, c.says)
		}
	}
}
