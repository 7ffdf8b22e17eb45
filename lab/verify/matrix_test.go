package verify

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab/verify/deploy"
	"github.com/batonhq/baton/lab/verify/fault"
)

// everyday has one fault for each kind of store, and each of the faults that have broken the
// most locks.
var everyday = map[string]string{
	"sqlite":     "f02", // a holder is killed
	"zookeeper3": "f04", // a holder is stopped
	"postgres":   "f06", // a holder is cut off
	"redis":      "f07", // answers are lost after their effect
	"etcd":       "f10", // the server is killed
	"mariadb":    "f11", // the server stops
	"redlock5":   "f14", // most servers stop
}

// matrix are the faults for every kind of store. Redis gets all faults, and "make verify"
// tries all on all.
var matrix = []string{
	"f02", "f04", "f05", "f06", "f07", "f08", "f10", "f11", "f12", "f14",
	"f31", // all servers are killed, and leases outlive that
}

// takeover is how long beyond the TTL a waiter may wait for a lock without a live holder, on a
// busy machine. If a kind's own bound plus two seconds is longer, that applies.
const takeover = 4 * time.Second

// The claims about a store under a fault hold: no two leases are trusted at the same time,
// none for longer than its TTL after the last answer, tokens rise, and a dead holder's lock is
// granted in time.
func TestMatrix(t *testing.T) {
	t.Parallel()
	for _, kind := range slices.Sorted(maps.Keys(everyday)) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			tryCells(t, kind, everyday[kind])
		})
	}
	t.Run("all", func(t *testing.T) {
		testserver.Long(t)
		t.Parallel()
		for _, k := range deploy.Kinds {
			t.Run(k.Name, func(t *testing.T) {
				t.Parallel()
				faults := matrix
				if k.Name == "redis" {
					faults = nil
					for _, f := range fault.All() {
						faults = append(faults, f.ID)
					}
				}
				tryCells(t, k.Name, faults...)
			})
		}
	})
}

// tryCells tries faults on a kind of store. Those that need other servers, or longer
// leases, are a run of their own.
func tryCells(t *testing.T, kind string, names ...string) {
	k, err := deploy.Find(kind)
	if err != nil {
		t.Fatal(err)
	}
	k.Need(t)
	type needs struct {
		ttl           time.Duration
		clocks, disks bool
	}
	runs := map[needs][]string{}
	for _, name := range names {
		f, err := fault.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		if claim, _ := fault.Expect(kind, name); claim.E != fault.NoSuch && fault.WhyLeft(kind, name) == "" {
			n := needs{f.TTL, f.Clocks, f.Disks}
			runs[n] = append(runs[n], name)
		}
	}
	for n, faults := range runs {
		cfg := quick("", faults...)
		cfg.Local, cfg.TTL = kind, max(n.ttl, defaultTTL) // the shortest that all stores accept
		cfg.Bound = max(takeover, k.Bound(cfg.TTL)+2*time.Second)
		if kind == "memory" {
			cfg.Clients = 1
		}
		for _, x := range proves(t, cfg) {
			t.Logf("%s: %s in %v, %+v", x.Fault, x.Verdict, x.Took, x.Looked)
			if x.Verdict != Held && x.Verdict != Excused && x.Verdict != Skipped {
				t.Errorf("%s: %s %v", x.Fault, x.Verdict, x.Why)
				for _, v := range x.Violations {
					t.Errorf("%s: %+v", x.Fault, v)
				}
			}
		}
	}
}
