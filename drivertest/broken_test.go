package drivertest

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest/broken"
)

func brokenHarness(bug broken.Bug) Harness {
	return Harness{
		FakeTime: true,
		Open: func(_ T, n int) []driver.Locks {
			s := broken.New(bug)
			locks := make([]driver.Locks, n)
			for i := range locks {
				locks[i] = s
			}
			return locks
		},
		Delete: func(_ T, key string, l driver.Locks) { l.(*broken.Store).Delete(key) },
	}
}

// The plain store without a bug passes, so what fails below is the bug.
func TestWithoutBug(t *testing.T) { Locks(t, brokenHarness("")) }

// Every bug is caught by the case that is there for it.
func TestBrokenStoresAreCaught(t *testing.T) {
	byName := map[string]testCase{}
	for _, c := range cases() {
		byName[c.name] = c
	}
	if len(broken.CaughtBy) < 14 {
		t.Fatalf("there are only %d broken stores", len(broken.CaughtBy))
	}
	for bug, name := range broken.CaughtBy {
		t.Run(string(bug), func(t *testing.T) {
			c, ok := byName[name]
			if !ok {
				t.Fatalf("there is no case %q", name)
			}
			h := brokenHarness(bug)
			if missing := c.missing(h, broken.New(bug)); missing != "" {
				t.Fatalf("the case %q is not run for lack of %s", name, missing)
			}
			r := play(t, c, h)
			if !r.failed {
				t.Fatalf("the case %q does not notice a store that %q", name, bug)
			}
			t.Logf("%s: %s", name, strings.Join(r.lines, "\n"))
		})
	}
}

// play runs one case in fake time and keeps what it reports.
func play(t *testing.T, c testCase, h Harness) *recorder {
	var r *recorder
	synctest.Test(t, func(t *testing.T) {
		r = newRecorder(t)
		<-r.run(func() { c.play(r, h) })
	})
	return r
}

// A recorder says where a case failed, ends it there, and cleans up.
func TestRecorder(t *testing.T) {
	var cleaned []string
	c := testCase{name: "fails", run: func(t *test) {
		t.Cleanup(func() { cleaned = append(cleaned, "first") })
		t.Cleanup(func() {
			if t.Context().Err() == nil {
				cleaned = append(cleaned, "the context goes on")
			}
			cleaned = append(cleaned, "second")
		})
		t.Logf("a remark")
		t.await("the impossible", time.Hour, func() bool { return false })
		t.Errorf("not reached")
	}}
	start := time.Now()
	r := play(t, c, brokenHarness(""))
	if !r.failed || len(r.lines) != 2 {
		t.Fatalf("recorded %q", r.lines)
	}
	if got := r.lines[1]; !strings.HasPrefix(got, "broken_test.go:") || !strings.Contains(got, "the impossible: not within 1h0m0") {
		t.Errorf("the failure reads %q", got)
	}
	if got := strings.Join(cleaned, ", "); got != "second, first" {
		t.Errorf("cleaned up: %s", got)
	}
	if time.Since(start) > time.Minute {
		t.Error("the case waited for a real clock")
	}
}

func brokenLimits(bug broken.Bug) LimitHarness {
	return LimitHarness{
		FakeTime: true,
		Open: func(_ T, n int) []driver.Limits {
			s := broken.NewLimits(bug)
			all := make([]driver.Limits, n)
			for i := range all {
				if all[i] = s; bug == broken.CountsApart {
					all[i] = broken.NewLimits(bug)
				}
			}
			return all
		},
		Kept: func(_ T, l driver.Limits) int { return l.(*broken.Limits).Kept() },
	}
}

// The plain limiter without a bug passes, so what fails below is the bug.
func TestLimitsWithoutBug(t *testing.T) { Limits(t, brokenLimits("")) }

// Every bug is caught by the case that is there for it.
func TestBrokenLimitsAreCaught(t *testing.T) {
	byName := map[string]limitCase{}
	for _, c := range limitCases() {
		byName[c.name] = c
	}
	if len(broken.LimitsCaughtBy) < 20 {
		t.Fatalf("there are only %d broken limiters", len(broken.LimitsCaughtBy))
	}
	for bug, name := range broken.LimitsCaughtBy {
		t.Run(string(bug), func(t *testing.T) {
			c, ok := byName[name]
			if !ok {
				t.Fatalf("there is no case %q", name)
			}
			r := c.record(t, brokenLimits(bug))
			if !r.failed {
				t.Fatalf("the case %q does not notice a limiter that %q", name, bug)
			}
			t.Logf("%s: %s", name, strings.Join(r.lines, "\n"))
		})
	}
}

func brokenRecords(bug broken.Bug) RecordHarness {
	return RecordHarness{
		FakeTime: true,
		Open: func(_ T, n int) []driver.Records {
			s := broken.NewRecords(bug)
			all := make([]driver.Records, n)
			for i := range all {
				all[i] = s
			}
			return all
		},
		Kept: func(_ T, r driver.Records) int { return r.(*broken.Records).Kept() },
	}
}

// The plain records without a bug pass, so what fails below is the bug.
func TestRecordsWithoutBug(t *testing.T) { Records(t, brokenRecords("")) }

// Every bug is caught by the case that is there for it.
func TestBrokenRecordsAreCaught(t *testing.T) {
	byName := map[string]recordCase{}
	for _, c := range recordCases() {
		byName[c.name] = c
	}
	if len(broken.RecordsCaughtBy) < 20 {
		t.Fatalf("there are only %d broken records", len(broken.RecordsCaughtBy))
	}
	for bug, name := range broken.RecordsCaughtBy {
		t.Run(string(bug), func(t *testing.T) {
			c, ok := byName[name]
			if !ok {
				t.Fatalf("there is no case %q", name)
			}
			r := c.record(t, brokenRecords(bug))
			if !r.failed {
				t.Fatalf("the case %q does not notice records that %q", name, bug)
			}
			t.Logf("%s: %s", name, strings.Join(r.lines, "\n"))
		})
	}
}
