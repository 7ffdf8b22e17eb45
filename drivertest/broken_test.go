package drivertest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/badstores"
)

func brokenHarness(bug badstores.Bug) Harness {
	return Harness{
		FakeTime: true,
		Open: func(_ T, n int) []driver.Locks {
			s := badstores.New(bug)
			locks := make([]driver.Locks, n)
			for i := range locks {
				locks[i] = s.In(i)
			}
			return locks
		},
		Delete: func(_ T, key string, l driver.Locks) { l.(*badstores.Process).Delete(key) },
		Depend: func(_ T, l driver.Locks, lease driver.Leased) (end func() error, err error) {
			c, err := lease.Pin()
			if err != nil {
				return nil, err
			}
			return l.(*badstores.Process).Depend(c)
		},
	}
}

// The plain store without a bug passes, so what fails below is the bug.
func TestWithoutBug(t *testing.T) { Locks(t, brokenHarness("")) }

// Cases chosen by name run, and a name that no case has is an error.
func TestChosen(t *testing.T) {
	name := func(c testCase) string { return c.name }
	for _, test := range []struct {
		names []string
		want  int // -1: an error
	}{
		{nil, len(cases())},
		{[]string{"exclusion", "a hand-over is hinted"}, 2},
		{[]string{"exclusion", "renamed"}, -1},
		{[]string{"exclusion", "exclusion"}, -1},
	} {
		some, err := chosen(cases(), name, test.names)
		if got := len(some); err == nil && got != test.want || (err != nil) != (test.want < 0) {
			t.Errorf("%q: %d cases, %v, want %d", test.names, got, err, test.want)
		}
		if test.names != nil && err == nil && !slices.ContainsFunc(some, func(c testCase) bool { return c.name == test.names[0] }) {
			t.Errorf("%q: other cases", test.names)
		}
	}
}

// caught checks that each bug is caught by the case that exists for it.
func caught[Case any](t *testing.T, cases []Case, nameOf func(Case) string, bugs map[badstores.Bug]string, atLeast int, play func(*testing.T, Case, badstores.Bug) *recorder) {
	if len(bugs) < atLeast {
		t.Fatalf("there are only %d bugs", len(bugs))
	}
	for bug, name := range bugs {
		t.Run(string(bug), func(t *testing.T) {
			i := slices.IndexFunc(cases, func(c Case) bool { return nameOf(c) == name })
			if i < 0 {
				t.Fatalf("there is no case %q", name)
			}
			r := play(t, cases[i], bug)
			if !r.failed {
				t.Fatalf("the case %q does not notice a store that %q", name, bug)
			}
			t.Logf("%s: %s", name, strings.Join(r.lines, "\n"))
		})
	}
}

func TestBrokenStoresAreCaught(t *testing.T) {
	caught(t, cases(), func(c testCase) string { return c.name }, badstores.CaughtBy, 14, func(t *testing.T, c testCase, bug badstores.Bug) *recorder {
		h := brokenHarness(bug)
		if missing := c.missing(h, badstores.New(bug).In(0)); missing != "" {
			t.Fatalf("the case %q is not run for lack of %s", c.name, missing)
		}
		return play(t, c, h)
	})
}

// play runs one case in fake time and keeps its messages.
func play(t *testing.T, c testCase, h Harness) *recorder {
	return recorded(t, true, func(r *recorder) { c.play(r, h) })
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

func brokenLimits(bug badstores.Bug) LimitHarness {
	return LimitHarness{
		FakeTime: true,
		Open: func(_ T, n int) []limits.Store {
			s := badstores.NewLimits(bug)
			all := make([]limits.Store, n)
			for i := range all {
				if all[i] = s; bug == badstores.CountsApart {
					all[i] = badstores.NewLimits(bug)
				}
			}
			return all
		},
		Kept: func(_ T, l limits.Store) int { return l.(*badstores.Limits).Kept() },
	}
}

// The plain limiter without a bug passes, so what fails below is the bug.
func TestLimitsWithoutBug(t *testing.T) { Limits(t, brokenLimits("")) }

func TestBrokenLimitsAreCaught(t *testing.T) {
	caught(t, limitCases(), func(c limitCase) string { return c.name }, badstores.LimitsCaughtBy, 20, func(t *testing.T, c limitCase, bug badstores.Bug) *recorder {
		return c.record(t, brokenLimits(bug))
	})
}

func brokenRecords(bug badstores.Bug) RecordHarness {
	return RecordHarness{
		FakeTime: true,
		Open: func(_ T, n int) []driver.Records {
			s := badstores.NewRecords(bug)
			all := make([]driver.Records, n)
			for i := range all {
				all[i] = s
			}
			return all
		},
		Kept: func(_ T, r driver.Records) int { return r.(*badstores.Records).Kept() },
	}
}

// The plain records without a bug pass, so what fails below is the bug.
func TestRecordsWithoutBug(t *testing.T) { Records(t, brokenRecords("")) }

func TestBrokenRecordsAreCaught(t *testing.T) {
	caught(t, recordCases(), func(c recordCase) string { return c.name }, badstores.RecordsCaughtBy, 20, func(t *testing.T, c recordCase, bug badstores.Bug) *recorder {
		return c.record(t, brokenRecords(bug))
	})
}

// The random histories catch what no case looks for by name.
func TestRandomHistoriesNotice(t *testing.T) {
	for _, bug := range []badstores.Bug{
		badstores.FinishesAnyToken, badstores.BeginsAnyToken, badstores.LastOutcomeWins, badstores.FinishesFromNothing, badstores.BeginsWhatIsDone,
		badstores.CountsRepeatedBegins, badstores.ForgetsFailures, badstores.TokensAreDoubles, badstores.TokensAreTexts, badstores.KeepsFromBegin,
		badstores.ForgetsOnlyOutcomes,
	} {
		t.Run(string(bug), func(t *testing.T) {
			if r := recordRandomCases()[0].record(t, brokenRecords(bug)); !r.failed {
				t.Fatal("not noticed")
			}
		})
	}
}
