package scale

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab/measure"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

const root = "../.."

func figures(t *testing.T) *results {
	t.Helper()
	r, err := load(filepath.Join(root, "lab", "results", "scale.json"))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPage(t *testing.T) {
	if _, err := makePage(figures(t)); err != nil {
		t.Error(err)
	}
}

// Every store and every part was measured, as far as there is such a part.
func TestFiguresAreWhole(t *testing.T) {
	r := figures(t)
	for _, k := range kinds {
		s := r.of(k.name)
		if s == nil || s.Pairs == nil || s.Pairs.Most == 0 || len(s.Pairs.Open) == 0 {
			t.Errorf("%s was not measured", k.name)
			continue
		}
		sizes := full.leases
		if k.name == "memory" {
			sizes = full.memory
		}
		for _, n := range sizes {
			if l := s.leases(n); l == nil {
				t.Errorf("%s: nothing is known of %d leases", k.name, n)
			}
		}
		if got, want := len(s.Waiters), len(full.waiters)+2; got != want {
			t.Errorf("%s: %d numbers of waiters, want %d", k.name, got, want)
		}
		if server := k.name != "memory" && k.name != "SQLite"; server && len(s.Processes) != len(full.processes) {
			t.Errorf("%s: %d numbers of processes, want %d", k.name, len(s.Processes), len(full.processes))
		}
	}
}

// TestFormulas compares what the page computes with what was measured: the requests that
// the servers counted, and the times that the simulation predicts of them.
func TestFormulas(t *testing.T) {
	r := figures(t)
	period := full.ttl.Seconds() / 3
	all := make([][]float64, 7)
	for i := range r.Stores {
		s := &r.Stores[i]
		m := s.misses(period)
		for n, f := range m.factors() {
			all[n] = append(all[n], f)
		}
		// Among few requests, one repeated request on a busy machine counts much.
		if l := s.counted(); l == nil {
			t.Errorf("%s: no renewals can be compared with the formula", s.Name)
		} else if !(m.requests < 1.5) && math.Abs(s.requests(1, l.N, period)-l.Requests) > 5 {
			t.Errorf("%s: the formula of renewal requests is off by a factor of %.2f", s.Name, m.requests)
		}
		if len(s.Processes) > 0 && !(m.processes < 1.75) {
			t.Errorf("%s: the formula of processes is off by a factor of %.2f", s.Name, m.processes)
		}
	}
	// As the page says: counts are reliable; the times of renewals and p50 are good for the
	// order of magnitude.
	bounds := []float64{1.1, 1.1, 5, 5}
	for n, bound := range bounds {
		if median := measure.Median(all[n]); !(median < bound) {
			t.Errorf("column %d: the median of the errors is a factor of %.2f, more than %v", n+1, median, bound)
		}
	}
}

// TestQuick measures the stores that start fast, as -quick does.
func TestQuick(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	r := new(results)
	for _, k := range quickKinds() {
		s, err := measureStore(t.Context(), k, small, os.Stderr)
		if err != nil {
			t.Fatalf("%s: %v", k.name, err)
		}
		r.put(s)
	}
	text, err := r.text()
	if err != nil {
		t.Fatal(err)
	}
	again := new(results)
	if err := json.Unmarshal(text, again); err != nil {
		t.Fatal(err)
	}
	for _, s := range again.Stores {
		if s.Pairs.Most == 0 || len(s.Limits) != 2 {
			t.Errorf("%s: nothing is known of its rates: %+v", s.Name, s)
		}
		for _, o := range s.Pairs.Open {
			if o.N == 0 || o.Failed > 0 || o.at(0.5) > o.at(0.999) {
				t.Errorf("%s: an open loop that cannot be: %+v", s.Name, o)
			}
		}
		for _, l := range s.Leases {
			// So short a TTL may be missed on a busy machine.
			if want := bills[s.Name].requests(l.N); l.Lost == 0 && (l.Requests < 1 || l.Requests > want+5) {
				t.Errorf("%s: %v requests renewed %d leases, want %v", s.Name, l.Requests, l.N, want)
			}
		}
		for _, w := range s.Waiters {
			if w.Failed != "" || w.Served != w.N {
				t.Errorf("%s: waiters: %+v", s.Name, w)
			}
		}
	}
}
