package main

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/memstore"
)

func play(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(args, &out, &errs)
	return out.String(), errs.String(), status
}

func testStory(t *testing.T, url string) {
	t.Parallel()
	text, errs, status := play(t, "--store", url, "-o", "json")
	if status != 0 {
		t.Fatalf("status %d: %s", status, errs)
	}
	var r report
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	if r.Without.Points != 1100 || !r.Without.Gift || r.Without.Right {
		t.Errorf("without a lock: %+v, want the gift sent and 1100 points", r.Without)
	}
	if r.With.Points != 101 || !r.With.Gift || !r.With.Right {
		t.Errorf("with the lock: %+v, want the gift sent and 101 points", r.With)
	}
}

func TestSQLite(t *testing.T) { testStory(t, "sqlite:"+filepath.Join(t.TempDir(), "locks.db")) }
func TestRedis(t *testing.T)  { testStory(t, "redis://"+testserver.SharedRedis(t).Addr) }

// The steps are the same in every run.
func TestText(t *testing.T) {
	t.Parallel()
	text, _, status := play(t)
	if status != 0 {
		t.Fatalf("status %d", status)
	}
	const want = `An account has 1000 points. The shop takes 999 for a gift while a promotion grants 100.

Without a lock
  shop       reads 1000
  promotion  reads 1000
  shop       writes 1
  promotion  writes 1100

With a lock on memory
  shop       reads 1000
  promotion  waits for the lock
  shop       writes 1
  promotion  reads 1
  promotion  writes 101

                 gift   points
without a lock   sent   1100   wrong: 999 too many
with the lock    sent   101    right
`
	if text != want {
		t.Errorf("printed:\n%s\nwant:\n%s", text, want)
	}
}

// lax is a store that grants the lock to every claim.
type lax struct{ driver.Locks }

func (lax) Acquire(_ context.Context, r driver.Request) (driver.Grant, error) {
	return driver.Grant{Token: 1, Ticket: 1, TTL: r.TTL}, nil
}

func (lax) Release(context.Context, driver.Claim) error { return nil }

// The story would tell if the lock did not lock.
func TestBrokenLockIsSeen(t *testing.T) {
	t.Parallel()
	o, err := withLock(t.Context(), lax{memstore.New()})
	if err != nil {
		t.Fatal(err)
	}
	if o.Right || o.Points != 1100 {
		t.Errorf("a store that excludes nobody gives %+v", o)
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
