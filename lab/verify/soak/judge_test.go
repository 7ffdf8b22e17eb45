package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton"
)

// sound has the series of half an hour without leaks: every series is noisy, has outliers, and goes up
// and down.
func sound(kind string, seed uint64) map[string][]float64 {
	const n = 360
	rng := rand.New(rand.NewPCG(seed, 1))
	level := map[string]float64{
		goroutines: 40, heap: 2 << 20, files: 30, connections: 12, keys: 3000, serverMemory: 80 << 20, serverFiles: 60,
	}
	all := make(map[string][]float64)
	for _, name := range series {
		noise := slacks[name].by / 2
		for i := range n {
			v := level[name] + noise*(2*rng.Float64()-1) + noise*float64(i%20)/20
			if rng.IntN(30) == 0 {
				v *= 3 // a backend more, a collection that comes late
			}
			if i < n/3 {
				v *= float64(i) / (n / 3) // the warm-up
			}
			all[name] = append(all[name], v)
		}
	}
	return all
}

// judged is the result for such series, of a store without remaining keys.
func judged(kind string, values map[string][]float64, change func(*result)) result {
	r := result{
		Kind: kind, For: 30 * time.Minute, Drained: 12 * time.Minute, Series: map[string]span{},
		Before: reading{Goroutines: 1, Files: 9, Keys: 5},
		Calm:   reading{Goroutines: 40, Files: 30, Connections: 12, Keys: 40},
		Closed: reading{Goroutines: 1, Files: 9},
	}
	for name, v := range values {
		ops := make([]float64, len(v))
		for i := range ops {
			ops[i] = 150 * float64(i)
		}
		r.Series[name] = spanOf(v, ops)
	}
	if change != nil {
		change(&r)
	}
	r.judge()
	return r
}

func TestSoundSeriesAreFlat(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		for _, kind := range names() {
			if r := judged(kind, sound(kind, seed), nil); r.Verdict != Flat {
				t.Fatalf("%s, seed %d: %v", kind, seed, r.Why)
			}
		}
	}
}

// Each series grows, in noise, by one for a number of operations that a program does within half an
// hour, on every kind of store.
func TestPlantedLeaksAreFlagged(t *testing.T) {
	t.Parallel()
	for name, perSample := range map[string]float64{
		goroutines:   1.0 / 10, // a sample is 150 operations
		heap:         150 * 50, // bytes for each of them
		files:        1.0 / 15,
		connections:  1.0 / 20,
		keys:         6,
		serverMemory: 150 * 2500,
		serverFiles:  1.0 / 10,
	} {
		for seed := range uint64(10) {
			for _, kind := range []string{"redis", "postgres", "etcd3"} {
				values := sound(kind, seed)
				for i := range values[name] {
					values[name][i] += perSample * float64(i)
				}
				r := judged(kind, values, nil)
				if r.Verdict != Grew || len(r.Why) != 1 || !strings.HasPrefix(r.Why[0], name+" grew from") {
					t.Fatalf("%s, %s, seed %d: %s %v", name, kind, seed, r.Verdict, r.Why)
				}
			}
		}
	}
}

func TestWhatIsLeftIsFlagged(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*result){
		"keys were left":                func(r *result) { r.Calm.Keys = r.Before.Keys + 2*fewKeys },
		"goroutines: 2 after":           func(r *result) { r.Closed.Goroutines++ },
		"files: 10 after":               func(r *result) { r.Closed.Files++ },
		"connections: 1 after all stor": func(r *result) { r.Closed.Connections++ },
	} {
		if r := judged("redis", sound("redis", 1), change); r.Verdict != Grew || len(r.Why) != 1 || !strings.Contains(r.Why[0], what) {
			t.Errorf("%s: %s %v", what, r.Verdict, r.Why)
		}
	}
}

// A lost lease counts even if no series grew, and growth does not hide it.
func TestLostLeasesAreFlagged(t *testing.T) {
	t.Parallel()
	lost := func(r *result) { r.Closed.Lost = 1 }
	if r := judged("redis", sound("redis", 1), lost); r.Verdict != Lost || len(r.Why) != 1 || !strings.HasPrefix(r.Why[0], "1 times a lease was lost") {
		t.Errorf("%s %v", r.Verdict, r.Why)
	}
	both := func(r *result) { lost(r); r.Closed.Files++ }
	if r := judged("redis", sound("redis", 1), both); r.Verdict != Lost || len(r.Why) != 2 {
		t.Errorf("%s %v", r.Verdict, r.Why)
	}
}

// Losses are reported even after many other failures.
func TestNotes(t *testing.T) {
	t.Parallel()
	l := &load{begun: time.Now().Add(-time.Minute)}
	for range 2 * maxTexts {
		l.note(baton.ErrUnavailable)
	}
	l.note(fmt.Errorf("unlock: %w", &baton.LostError{Key: "k", Cause: baton.Gone}))
	l.note(errors.Join(fmt.Errorf("g: %w", errTwice), nil))
	if l.failed != 2*maxTexts+2 || l.lost != 2 || len(l.texts) != maxTexts+2 {
		t.Errorf("%d failed, %d lost: %q", l.failed, l.lost, l.texts)
	}
	for i, want := range map[int]string{0: "after 1m0s: ", maxTexts: "after 1m0s: unlock: ", maxTexts + 1: "after 1m0s: g: held twice"} {
		if i >= len(l.texts) || !strings.HasPrefix(l.texts[i], want) {
			t.Errorf("%q, want %q", l.texts, want)
		}
	}
}

// A machine that becomes less busy lets more keys be made, which expire as before.
func TestPace(t *testing.T) {
	t.Parallel()
	var values, ops, same []float64
	done := 0.0
	for i := range 300 {
		rate := 100.0
		if i > 220 {
			rate = 200
		}
		done += rate
		values, ops, same = append(values, 10*rate), append(ops, done), append(same, float64(100*i))
	}
	if s := spanOf(values, ops); s.grew(keys) || s.Pace < 1.9 || s.Last < 1900 {
		t.Errorf("%+v", s)
	}
	if s := spanOf(values, same); !s.grew(keys) {
		t.Errorf("%+v", s)
	}
}

// A run that is too short for a verdict says so.
func TestUnjudged(t *testing.T) {
	t.Parallel()
	values := map[string][]float64{keys: {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000}, heap: {1, 1 << 30}}
	r := judged("postgres", values, func(r *result) { r.For = time.Minute })
	if r.Verdict != Flat || r.Series[keys].Unjudged == "" || r.Series[heap].Unjudged == "" {
		t.Errorf("%+v", r)
	}
	if r := judged("redis", values, nil); r.Verdict != Grew {
		t.Errorf("%+v", r)
	}
	java := map[string][]float64{serverMemory: values[keys]}
	for i := range java[serverMemory] {
		java[serverMemory][i] *= 1 << 20
	}
	if r := judged("zookeeper3", java, nil); r.Verdict != Flat || r.Series[serverMemory].Unjudged == "" {
		t.Errorf("%+v", r)
	}
	if r := judged("etcd", java, nil); r.Verdict != Grew {
		t.Errorf("%+v", r)
	}
}
