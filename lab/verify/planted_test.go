package verify

import (
	"cmp"
	"flag"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab/verify/check"
	"github.com/batonhq/baton/lab/verify/planted"
	"github.com/batonhq/baton/lab/verify/served"
)

// Runs are long: every run of the tests tries some defects; the long tests, and those with
// -planted, try all.
var (
	plantedAll  = flag.Bool("planted", false, "try all planted defects, not only some")
	plantedOnly = flag.String("planted-only", "", "try the planted defect of this name")
)

// always are the defects in every run of the tests: one for each promise, a waiter that is
// served late, a lease that is trusted too long, and a leak.
var always = []string{
	"renews for show", "forgets the token on release", "expires late", "takes a failed renewal for a renewal", "each process limits for itself",
	"leaves a descriptor open",
}

// seeds bounds the runs in which a defect must show.
const seeds = 5

func spoil(name string, s driver.Store) driver.Store {
	if d, ok := planted.Find(name); ok && d.Spoil != nil {
		return d.Spoil(s)
	}
	return s
}

func spoilConns(name string, l net.Listener) net.Listener {
	if d, ok := planted.Find(name); ok && d.Listen != nil {
		return d.Listen(l)
	}
	return l
}

// lend serves a store to a run's clients.
func lend(t *testing.T, s driver.Locks) (url string) {
	t.Helper()
	server, err := served.Serve(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return servedScheme + server.Addr()
}

// The store without a defect holds under the same faults, so violations below are from the
// defects.
func TestWithoutDefectHolds(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"f01", "f02", "f04", "f06", "f07"} {
		t.Run(fault, func(t *testing.T) {
			if fault != "f06" && !*plantedAll {
				testserver.Long(t)
			}
			t.Parallel()
			holds(t, quick(lend(t, planted.Right()), fault))
		})
	}
	if !*plantedAll {
		return
	}
	t.Run("f27", func(t *testing.T) { // costs no client a lease that is long enough
		t.Parallel()
		cfg := quick(lend(t, planted.Right()), "f27")
		cfg.TTL, cfg.keeps = 10*time.Second, true
		holds(t, cfg)
	})
}

// Every planted defect breaks its known promise within few seeds. Some need luck: a holder
// that is cut off must have waiters, for example. So each seed works longer than the one
// before.
func TestPlantedDefectsAreFound(t *testing.T) {
	t.Parallel()
	if len(planted.All) < 30 {
		t.Fatalf("there are only %d planted defects", len(planted.All))
	}
	for _, d := range planted.All {
		if *plantedOnly != "" && d.Name != *plantedOnly {
			continue
		}
		t.Run(d.Name, func(t *testing.T) {
			if *plantedOnly == "" && !*plantedAll && !slices.Contains(always, d.Name) {
				testserver.Long(t)
			}
			t.Parallel()
			for seed := range uint64(seeds) {
				found := tryDefect(t, d, seed+1)
				if slices.ContainsFunc(found, func(f finding) bool {
					return f.Promise == d.Breaks && (d.Check == "" || f.Check == d.Check)
				}) {
					t.Logf("found with seed %d: %v", seed+1, found)
					return
				}
				t.Logf("seed %d shows %v, not %s %s", seed+1, found, d.Breaks, d.Check)
			}
			t.Errorf("not found with %d seeds", seeds)
		})
	}
}

// A finding is a broken promise, and the check that found it.
type finding struct {
	check.Promise
	Check string
}

// tryDefect returns the findings.
func tryDefect(t *testing.T, d planted.Defect, seed uint64) (found []finding) {
	cfg := quick("", d.Fault)
	if cfg.Local = d.Local; cfg.Local == "" {
		cfg.URL = lend(t, d.Store())
	}
	cfg.Seed, cfg.defect, cfg.keys, cfg.keeps = seed, d.Name, d.Keys, d.Keeps
	cfg.TTL = cmp.Or(d.TTL, cfg.TTL)
	if cfg.Ways = d.Ways; d.Ways != nil {
		cfg.Clients = 4 // two hosts, or servers, with several clients each
	}
	cfg.For = time.Duration(seed) * 4 * time.Second
	cfg.Bound = 3 * time.Second // only the defect is slow
	r, err := Run(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range r.Trials {
		for _, v := range x.Violations {
			if f := (finding{v.Promise, v.Check}); !slices.Contains(found, f) {
				found = append(found, f)
				t.Logf("%s: %s: %s", v.Promise, v.Check, v.Text)
			}
		}
		if x.Verdict == Invalid {
			t.Logf("no verdict: %v", x.Why)
		}
	}
	return found
}
