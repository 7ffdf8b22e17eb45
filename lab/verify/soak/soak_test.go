package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab/verify/lines"
)

// plantEnv names a child's leak.
const plantEnv = "BATON_SOAK_PLANT"

func TestMain(m *testing.M) {
	if leak := plants[os.Getenv(plantEnv)]; leak != nil {
		plant = func(l *load) (err error) {
			for range 20 {
				err = errors.Join(err, leak(l))
			}
			return err
		}
	}
	childMain()
	os.Exit(m.Run())
}

var leaked []any

// plants leak one thing at each call.
var plants = map[string]func(*load) error{
	goroutines: func(*load) error {
		go func() { select {} }()
		return nil
	},
	heap: func(*load) error {
		leaked = append(leaked, make([]byte, 64<<10))
		return nil
	},
	connections: func(*load) error {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		leaked = append(leaked, c)
		return err
	},
	// A lock that is never unlocked.
	keys: func(l *load) error {
		lease, err := l.lockers[0].Lock(l.ctx, fmt.Sprint("leaked/", len(leaked)))
		leaked = append(leaked, lease)
		return err
	},
}

// The verdict distinguishes programs with and without a leak, on real servers.
func TestPlantedPrograms(t *testing.T) {
	testserver.Long(t)
	if _, err := os.Stat("/proc/self/smaps_rollup"); err != nil {
		t.Skip("it takes Linux")
	}
	testserver.NeedRedis(t)
	for _, c := range []struct {
		kind, plant string
		want        []string // how what is said begins
	}{
		{"memory", "", nil},
		{"redis", "", nil},
		{"memory", goroutines, []string{"goroutines grew", "goroutines: "}},
		{"memory", heap, []string{"heap grew"}},
		{"memory", connections, []string{"files grew", "connections grew", "files: ", "connections: "}},
		{"redis", keys, []string{"keys grew"}},
	} {
		t.Run(c.kind+" "+c.plant, func(t *testing.T) {
			t.Setenv(plantEnv, c.plant)
			s := soak{length: time.Second, every: 100 * time.Millisecond, rate: 50, drain: 30 * time.Second}
			if c.plant == keys {
				s.drain = 0 // they do not go
			}
			r, err := s.one(t.Context(), c.kind)
			if err != nil {
				t.Fatal(err)
			}
			r.For = time.Hour // the verdict must not depend on how long keys stay
			for name, x := range r.Series {
				if strings.HasPrefix(x.Unjudged, "what is not used") {
					x.Unjudged = ""
					r.Series[name] = x
				}
			}
			r.judge()
			if r.Ops == 0 {
				t.Error("nothing was done")
			}
			// On a busy machine there may be more findings; only the planted one is certain.
			for _, want := range c.want {
				if !slices.ContainsFunc(r.Why, func(why string) bool { return strings.HasPrefix(why, want) }) {
					t.Errorf("%q is not among %q: %+v", want, r.Why, r.Series)
				}
			}
			if c.want == nil {
				// A small pool may still be filling, but closed stores are closed.
				if r.Closed.Goroutines > r.Before.Goroutines || r.Closed.Files > r.Before.Files || r.Calm.Keys > r.Before.Keys+fewKeys {
					t.Errorf("%v: before %+v, calm %+v, closed %+v", r.Why, r.Before, r.Calm, r.Closed)
				}
			}
		})
	}
}

// The file keeps the last result of a kind, also after a truncated line.
func TestResults(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "results")
	if err := lines.Add(path, result{Kind: "sqlite", Ops: 1}, result{Kind: "redis", Ops: 2}, result{Kind: "sqlite", Ops: 3}, result{Kind: "gone"}); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(whole, whole[:20]...), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		all, err := known(path)
		if err != nil || len(all) != 2 || all[0].Kind != "redis" || all[1].Ops != 3 {
			t.Fatalf("%+v, %v", all, err)
		}
		if err := tidy(path); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPageSaysWhatGrew(t *testing.T) {
	t.Parallel()
	grown := judged("redis", map[string][]float64{goroutines: make([]float64, 100)}, func(r *result) {
		r.Series[goroutines] = span{First: 10, Last: 100, Most: 120}
		r.Failed, r.Texts = 1, []string{"store unavailable"}
	})
	text, err := page([]result{grown, judged("sqlite", nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| redis | **grew** | 30m0s |", "| **10 → 100** |", "- `redis`: `goroutines grew from 10 to 100`", "- `redis`: `store unavailable`",
		"| sqlite | flat |", "| redis | – | 12m0s | 0, 0 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
}
