package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/memstore"
)

// TestMain lets the test binary be a counter, as the program is.
func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func hold(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(args, &out, &errs)
	return out.String(), errs.String(), status
}

func testSale(t *testing.T, url string) {
	t.Parallel()
	text, errs, status := hold(t, "--store", url, "-o", "json", "--buyers", "2000")
	if status != 0 {
		t.Fatalf("status %d: %s", status, errs)
	}
	var r report
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	if got := r.Dryers.Without; got.Sold != 7 || !got.Oversold {
		t.Errorf("hair dryers without a lock: %+v, want all who came to get one", got)
	}
	if got := r.Dryers.With; !slices.Equal(got.Got, []int{1, 0, 1, 0, 0}) || got.Sold != 2 || got.Oversold {
		t.Errorf("hair dryers with the lock: %+v, want Ada and Chen to get one", got)
	}
	if !r.Crowd.Processes {
		t.Error("the counters are no processes")
	}
	if got := r.Crowd.Without; got.Sold <= 100 || !got.Oversold {
		t.Errorf("crowd without a lock: %+v, want it oversold", got)
	}
	if got := r.Crowd.With; got.Sold != 100 || got.Left != 0 || got.Oversold {
		t.Errorf("crowd with the lock: %+v, want all 100 sold, and no more", got)
	}
}

func TestSQLite(t *testing.T) { testSale(t, "sqlite:"+filepath.Join(t.TempDir(), "locks.db")) }
func TestRedis(t *testing.T)  { testSale(t, "redis://"+testserver.SharedRedis(t).Addr) }

func TestText(t *testing.T) {
	t.Parallel()
	text, errs, status := hold(t, "--buyers", "500")
	if status != 0 {
		t.Fatalf("status %d: %s", status, errs)
	}
	const want = `2 hair dryers and 5 customers, one lock on sqlite

  customer   wants   without a lock     with the lock
  Ada        1       gets 1             gets 1
  Bao        2       gets 2             nothing
  Chen       1       gets 1             gets 1
  Dana       1       gets 1             nothing
  Emre       2       gets 2             nothing
  sold               7 of 2, oversold   2 of 2

100 items and 500 buyers at 4 processes

`
	if !strings.HasPrefix(text, want) || !strings.Contains(text, ", oversold   100 of 100\n") {
		t.Errorf("printed:\n%s", text)
	}
}

// lax is a store that grants the lock to every claim.
type lax struct{ driver.Locks }

func (lax) Acquire(_ context.Context, r driver.Request) (driver.Grant, error) {
	return driver.Grant{Token: 1, Ticket: 1, TTL: r.TTL}, nil
}

func (lax) Release(context.Context, driver.Claim) error { return nil }

// The sales would tell if the lock did not lock.
func TestBrokenLockIsSeen(t *testing.T) {
	t.Parallel()
	store := lax{memstore.New()}
	if s, err := dryersWithLock(t.Context(), store); err != nil || !s.Oversold || s.rightFull {
		t.Errorf("hair dryers with a lock that excludes nobody: %+v, %v", s, err)
	}
	c := crowd{Items: 20, Buyers: 200, Counters: 4}
	if s, err := c.run(t.Context(), t.TempDir(), order{}, inProcess(store)); err != nil || c.right(s) || !s.Oversold {
		t.Errorf("crowd with a lock that excludes nobody: %+v, %v", s, err)
	}
}

// A counter that cannot work says why, and the sale ends.
func TestCounterThatFails(t *testing.T) {
	t.Parallel()
	c := crowd{Items: 1, Buyers: 4, Counters: 2}
	_, err := c.run(t.Context(), t.TempDir(), order{Store: "nope:"}, process)
	if err == nil || !strings.Contains(err.Error(), "scheme") {
		t.Errorf("%v, want what the counter said about its store", err)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"-o", "xml"}, 2, "text or json"},
		{[]string{"more"}, 2, "Usage"},
		{[]string{"--counters", "1"}, 2, "two counters"},
		{[]string{"--items", "100", "--buyers", "100"}, 2, "more buyers than items"},
		{[]string{"--store", "nope://:hush@x"}, 1, "nope"},
	} {
		_, errs, status := hold(t, c.args...)
		if status != c.status || !strings.Contains(errs, c.says) || strings.Contains(errs, "hush") {
			t.Errorf("%q: status %d, says %q; want %d and %q, and no password", c.args, status, errs, c.status, c.says)
		}
	}
}
