package verify

import (
	"path/filepath"
	"testing"
	"time"
)

// quick is a run of a few seconds that no busy machine spoils: E, F and B need
// no fast one, and for L there is time.
func quick(url string, faults ...string) Config {
	return Config{
		URL: url, Faults: faults, For: 4 * time.Second, TTL: time.Second, Seed: 1, Clients: 3,
		Bound: 30 * time.Second, Stall: time.Minute,
	}
}

// holds demands that nothing was found and that much was looked at.
func holds(t *testing.T, cfg Config) {
	t.Helper()
	r, err := Run(t.Context(), cfg, func(s Step) { t.Log(s.Fault, s.Doing) })
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range r.Trials {
		t.Logf("%+v", x)
		if x.Verdict != Held {
			t.Errorf("%s: %s %v", x.Fault, x.Verdict, x.Why)
			for _, v := range x.Violations {
				t.Errorf("%s: %+v", x.Fault, v)
			}
		}
	}
}

func TestSQLiteHolds(t *testing.T) {
	t.Parallel()
	holds(t, quick("sqlite:"+filepath.Join(t.TempDir(), "locks.db"), "f01", "f02", "f04"))
}
