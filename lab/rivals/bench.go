package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"time"
)

// metrics are the figures of one rival in one repetition of a workload.
type metrics map[string]float64

// A workload is a task that all rivals of one table perform.
type workload struct {
	name   string
	title  string
	system string   // the system of its rivals
	also   []string // other systems that it needs
	names  []string // of its rivals, in the order of the table
	base   string   // the rival that the others are divided by
	once   bool     // it takes too long for repetitions, or its counts do not vary
	slow   bool     // it has so few acquisitions that it takes twice the time

	columns []column // of the table; the first is the one that progress shows

	// measure runs one repetition. The order of the rivals differs from one repetition
	// to the next.
	measure func(ctx context.Context, b *bench, w *workload, rivals []rival) (map[string]metrics, error)
}

// A column shows one metric.
type column struct {
	metric, head string
	format       func(float64) string
	ratio        bool // followed by the ratio to the base
}

// bench is one run.
type bench struct {
	env      *env
	time     time.Duration // of each measurement
	hold     time.Duration // of the renewed leases
	leases   int
	age      int // a key with that many acquisitions is an old one
	reps     int
	profiles string   // where CPU profiles go, "" for nowhere
	rivals   []string // only these, if not empty
	log      io.Writer
	rep      int
	notes    []string // for readers of the report
}

// warmUp is the time before a measurement of the rival.
func (b *bench) warmUp(rv rival) time.Duration {
	if rv.manyStores {
		return 10 * b.time / 4
	}
	return b.time / 4
}

// timeOf is the duration of a rival's measurement in one repetition of w.
func (b *bench) timeOf(w *workload) time.Duration {
	if w.slow {
		return 2 * b.time
	}
	return b.time
}

// run measures all workloads. Repetitions are the outermost loop, and the rivals of a
// workload follow each other, so a slow minute of the machine affects all of them.
func (b *bench) run(ctx context.Context, workloads []*workload) (*results, error) {
	res := newResults(workloads)
	for b.rep = range b.reps {
		for _, w := range workloads {
			if w.once && b.rep > 0 {
				continue
			}
			rivals, err := b.rivalsOf(w)
			if err != nil {
				return nil, err
			}
			if len(rivals) == 0 {
				continue
			}
			all, err := w.measure(ctx, b, w, rivals)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
			for name, m := range all {
				res.add(w.name, name, b.rep, m)
			}
		}
	}
	return res, ctx.Err()
}

// rivalsOf returns the rivals of a workload. Each repetition begins with another one.
func (b *bench) rivalsOf(w *workload) ([]rival, error) {
	var all []rival
	for _, name := range w.names {
		if len(b.rivals) > 0 && !slices.Contains(b.rivals, name) && name != w.base {
			continue
		}
		r, err := findRival(w.system, name)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	if n := len(all); n > 0 {
		first := b.rep % n
		all = slices.Concat(all[first:], all[:first])
	}
	return all, nil
}

func findRival(system, name string) (rival, error) {
	for _, r := range systems[system].rivals {
		if r.name == name {
			return r, nil
		}
	}
	return rival{}, fmt.Errorf("no rival on %s is called %q", system, name)
}

// oneByOne makes a measure of a function that measures a single rival.
func oneByOne(cell func(context.Context, *bench, *workload, rival) (metrics, error)) func(context.Context, *bench, *workload, []rival) (map[string]metrics, error) {
	return func(ctx context.Context, b *bench, w *workload, rivals []rival) (map[string]metrics, error) {
		all := make(map[string]metrics)
		for _, r := range rivals {
			m, err := cell(ctx, b, w, r)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.name, err)
			}
			all[r.name] = m
			b.progress(w, r.name, m)
		}
		return all, nil
	}
}

func (b *bench) note(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	b.notes = append(b.notes, s)
	fmt.Fprintln(b.log, s)
}

func (b *bench) progress(w *workload, rival string, m metrics) {
	var figures []string
	for _, c := range w.columns[:min(3, len(w.columns))] {
		if v, ok := m[c.metric]; ok && !math.IsNaN(v) {
			figures = append(figures, c.head+" "+c.format(v))
		}
	}
	reps := b.reps
	if w.once {
		reps = 1
	}
	fmt.Fprintf(b.log, "%d/%d  %-15s %-14s %s\n", b.rep+1, reps, w.name, rival, strings.Join(figures, ", "))
}

// profile starts a CPU profile if profiles are wanted and rival is Baton's.
func (b *bench) profile(w *workload, rival string) (stop func(), err error) {
	path := b.profilePath(w, rival)
	if path == "" {
		return func() {}, nil
	}
	return startProfile(path)
}

func (b *bench) profilePath(w *workload, rival string) string {
	if b.profiles == "" || !strings.HasPrefix(rival, "baton") {
		return ""
	}
	return fmt.Sprintf("%s-%s-%s-%d.prof", strings.TrimSuffix(b.profiles, ".prof"), w.name, rival, b.rep+1)
}

func startProfile(path string) (stop func(), err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		f.Close()
		return nil, err
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close() // a truncated profile is noticed when it is read
	}, nil
}
