package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/scratch"
)

// A Shape says which keys the goroutines of a measurement lock, and through how many stores.
type Shape string

const (
	// Line: all lock one key, through one Locker. They wait in the Locker's local queue, so
	// the store sees one waiter.
	Line Shape = "line"
	// Crowd: all lock one key, each with a store and a Locker of its own, like so many
	// processes. Each waits in the store's queue. It is measured with at most MostProcesses,
	// because servers accept few connections by default.
	Crowd Shape = "crowd"
	// Apart: each locks a key of its own, so no goroutine waits for another.
	Apart Shape = "apart"
)

// MostProcesses bounds the goroutines of the shape Crowd. PostgreSQL accepts 100 connections
// by default, and a store may need three.
const MostProcesses = 32

// Shapes are all shapes, in the order in which they are measured and shown.
var Shapes = []Shape{Line, Crowd, Apart}

func (s Shape) String() string {
	switch s {
	case Line:
		return "one key, one process"
	case Crowd:
		return "one key, each goroutine by itself in the store's queue"
	}
	return "each goroutine its own key"
}

// Note explains figures of the shape that a reader does not expect.
func (s Shape) Note() string {
	if s != Line {
		return ""
	}
	return "From 2 to 8 goroutines p50 is that of memory on all stores: the lock is handed over within the process, up to 32 times in a row, " +
		"and then once by the store, for which all goroutines wait. Up to 8 goroutines fewer than half of the locks wait for the store, " +
		"from 16 on half and more. Compare the stores at one goroutine, and by p99."
}

// A Target is a store that is measured. The caller closes it.
type Target struct {
	Name  string // unique
	Store driver.Locks

	// Open opens the store again, for the shape Crowd, which closes it. If Open is nil, or
	// the store serves one process, Crowd uses Store.
	Open func(context.Context) (driver.Store, error)
}

// A Plan says what to measure.
type Plan struct {
	Targets     []Target
	Goroutines  []int
	Repetitions int

	// For is about the duration of Run: no measurement begins later.
	For time.Duration

	// Progress, if not nil, is called before each measurement.
	Progress func(Step)

	shapes []Shape       // nil: all of them
	most   time.Duration // the longest duration of one measurement; 0 means longest
}

// A Step is the beginning of one measurement.
type Step struct {
	N, Of      int // N is counted from 1
	Target     string
	Shape      Shape
	Goroutines int
	Repetition int // from 1
}

// Figures are the result of one measurement, or of several. A figure is NaN if there were
// too few locks for it.
type Figures struct {
	// P50 and P99 are the seconds that a program spends on one lock: from the request until
	// the lock is released, with no work in between.
	P50, P99 float64
	// Jitter is the mean difference, in seconds, from one lock to the next of the same
	// goroutine.
	Jitter float64

	Rate     float64 // locks per second
	HandOffs float64 // of these, locks by another goroutine than the previous one; 0 for Apart

	// MostOverLeast and Jain say how evenly the goroutines were served: the locks of the
	// most served divided by those of the least, and Jain's index.
	MostOverLeast, Jain float64

	Lost int64 // leases that ended before they were unlocked
}

// A Cell has the figures of one store, shape and number of goroutines, one for each
// completed repetition.
type Cell struct {
	Target      string
	Shape       Shape
	Goroutines  int
	Repetitions []Figures
}

// Median has the median of each figure over the repetitions, and the sum of Lost.
func (c *Cell) Median() Figures {
	of := func(get func(Figures) float64) float64 {
		var all []float64
		for _, f := range c.Repetitions {
			all = append(all, get(f))
		}
		return Median(all)
	}
	m := Figures{
		P50:           of(func(f Figures) float64 { return f.P50 }),
		P99:           of(func(f Figures) float64 { return f.P99 }),
		Jitter:        of(func(f Figures) float64 { return f.Jitter }),
		Rate:          of(func(f Figures) float64 { return f.Rate }),
		HandOffs:      of(func(f Figures) float64 { return f.HandOffs }),
		MostOverLeast: of(func(f Figures) float64 { return f.MostOverLeast }),
		Jain:          of(func(f Figures) float64 { return f.Jain }),
	}
	for _, f := range c.Repetitions {
		m.Lost += f.Lost
	}
	return m
}

// A Result has the figures of a Run.
type Result struct {
	Targets    []string
	Goroutines []int
	Cells      []*Cell // by shape, goroutines and target; only those that have figures
	Complete   bool    // every planned measurement was made

	// Failed has the error of each target that was left out from some moment on.
	Failed map[string]error
}

// Cell returns the cell, or nil.
func (r *Result) Cell(target string, s Shape, goroutines int) *Cell {
	for _, c := range r.Cells {
		if c.Target == target && c.Shape == s && c.Goroutines == goroutines {
			return c
		}
	}
	return nil
}

// complete reports whether all cells of the shapes have that number of repetitions.
func (r *Result) complete(shapes []Shape, repetitions int) bool {
	for _, s := range shapes {
		for _, n := range r.Goroutines {
			for _, t := range r.Targets {
				if c := r.Cell(t, s, n); (s != Crowd || n <= MostProcesses) && (c == nil || len(c.Repetitions) < repetitions) {
					return false
				}
			}
		}
	}
	return true
}

// MostSpread bounds the slowest divided by the fastest repetition in at least half of all
// cells. Stores that are compared differ by factors of 1.3 to 3: if half of the figures vary
// by more than MostSpread, their order is only the order of the machine's busy moments.
const MostSpread = 1.5

// Steady returns an error if the machine was too busy for the figures to be meaningful.
func (r *Result) Steady() error {
	var all []float64
	for _, c := range r.Cells {
		low, high := math.Inf(1), 0.0
		for _, f := range c.Repetitions {
			low, high = min(low, f.P50), max(high, f.P50)
		}
		if len(c.Repetitions) > 1 {
			all = append(all, high/low)
		}
	}
	if spread := Median(all); !(spread <= MostSpread) {
		return fmt.Errorf("the machine was busy: in half of all measurements the slowest repetition took %.2f times as long as the fastest, or more, and at most %.1f times can be compared; measure again, at least twice each, when nothing else runs", spread, MostSpread)
	}
	return nil
}

// A ViolationError says that a store broke a promise during the measurement.
type ViolationError struct {
	Target, Key, What string
}

func (e *ViolationError) Error() string {
	return fmt.Sprintf("store %s broke a promise on key %q: %s", e.Target, e.Key, e.What)
}

// The duration of one measurement.
const (
	shortest = 10 * time.Millisecond
	longest  = time.Second
	// A measurement continues for up to stretch times its share of the time, until each
	// goroutine has been served wantedEach times, on average.
	stretch    = 10
	wantedEach = 8
	// patience is how long waiters may still get the lock after a measurement. Waiters that
	// gave up would leave the queue to be cleaned.
	patience = 5 * time.Second
)

// Run measures all targets, one measurement after the other. A repetition measures
// everything before the next one begins, and the targets take turns within it, so all of them
// meet the same busy moments of the machine.
//
// The result is never nil: with an error it has the figures until then. A target that fails
// is left out from then on, which is no error. A *ViolationError, or the end of ctx, ends Run.
func Run(ctx context.Context, p Plan) (*Result, error) {
	r := &Result{Goroutines: p.Goroutines, Failed: map[string]error{}}
	var fields []*field
	for _, t := range p.Targets {
		r.Targets = append(r.Targets, t.Name)
		fields = append(fields, newField(t))
	}
	defer func() {
		for _, f := range fields {
			f.cleanUp(ctx)
		}
	}()
	shapes := p.shapes
	if shapes == nil {
		shapes = Shapes
	}
	for _, s := range shapes {
		for _, n := range p.Goroutines {
			if s == Crowd && n > MostProcesses {
				continue
			}
			for _, t := range p.Targets {
				r.Cells = append(r.Cells, &Cell{Target: t.Name, Shape: s, Goroutines: n})
			}
		}
	}
	err := p.run(ctx, r, fields)
	kept := r.Cells[:0]
	for _, c := range r.Cells {
		if len(c.Repetitions) > 0 {
			kept = append(kept, c)
		}
	}
	r.Cells = kept
	r.Complete = err == nil && r.complete(shapes, p.Repetitions)
	return r, err
}

func (p *Plan) run(ctx context.Context, r *Result, fields []*field) error {
	start := time.Now()
	of := p.Repetitions * len(r.Cells)
	step := Step{Of: of}
	for rep := range p.Repetitions {
		for i := 0; i < len(r.Cells); i += len(fields) {
			for j := range fields {
				step.N++
				turn := (i/len(fields) + j + rep) % len(fields)
				f, c := fields[turn], r.Cells[i+turn]
				if r.Failed[c.Target] != nil {
					continue
				}
				left := p.For - time.Since(start)
				if left <= 0 || ctx.Err() != nil {
					return ctx.Err()
				}
				step.Target, step.Shape, step.Goroutines, step.Repetition = c.Target, c.Shape, c.Goroutines, rep+1
				if p.Progress != nil {
					p.Progress(step)
				}
				// A slice that is longer makes the later ones shorter.
				slice := min(max(left/time.Duration(of-step.N+1), shortest), cmp.Or(p.most, longest))
				figures, err := f.measure(ctx, c.Shape, c.Goroutines, slice)
				switch {
				case err == nil:
					c.Repetitions = append(c.Repetitions, figures)
				case ctx.Err() != nil:
					return ctx.Err()
				case errors.As(err, new(*ViolationError)):
					return err
				default:
					r.Failed[c.Target] = err
				}
			}
		}
	}
	return nil
}

// field is one target with the keys for its measurements.
type field struct {
	Target
	cfg    baton.Config
	prefix string
	line   *baton.Locker
	used   map[string]bool
	spoilt int // how often waiters had to give up

	patience time.Duration
}

func newField(t Target) *field {
	traits := t.Store.Traits()
	ttl := baton.DefaultTTLOf(traits)
	if traits.MaxTTL > 0 {
		ttl = min(ttl, traits.MaxTTL)
	}
	return &field{Target: t, cfg: baton.Config{TTL: ttl, Owner: "baton-lab bench"}, prefix: scratch.Key(), used: map[string]bool{}, patience: patience}
}

// lockers returns one Locker for each goroutine. done closes the stores that it has opened.
func (f *field) lockers(ctx context.Context, s Shape, n int) (all []*baton.Locker, done func(), err error) {
	var opened []driver.Store
	done = func() {
		for _, o := range opened {
			_ = o.Close() // nothing is held
		}
	}
	if s != Crowd && f.line == nil {
		if f.line, err = baton.New(f.Store, f.cfg); err != nil {
			return nil, done, err
		}
	}
	for range n {
		l := f.line
		if s == Crowd {
			store := f.Store
			if f.Open != nil && store.Traits().Processes {
				another, err := f.Open(ctx)
				if err != nil {
					return nil, done, err
				}
				opened = append(opened, another)
				store = another
			}
			if l, err = baton.New(store, f.cfg); err != nil {
				return nil, done, err
			}
		}
		all = append(all, l)
	}
	return all, done, nil
}

// key names the key of goroutine i.
func (f *field) key(s Shape, i int) string {
	name := f.prefix + "-" + strconv.Itoa(f.spoilt)
	if s == Apart {
		name += "-" + strconv.Itoa(i)
	}
	f.used[name] = true
	return name
}

// cleanUp frees the keys. No other program uses their names, so each claim that still holds
// or waits is of this program.
func (f *field) cleanUp(ctx context.Context) {
	in, ok := f.Store.(driver.Inspector)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	for key := range f.used {
		info, err := in.Inspect(ctx, key)
		if err == nil && len(info.Holders)+len(info.Waiters) > 0 {
			_, _ = in.Break(ctx, key) // otherwise the claim ends by itself
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// figures computes Figures from the goroutines' counts.
func figures(s Shape, all []*tally, took time.Duration) Figures {
	var times Histogram
	var f Figures
	each := make([]int64, len(all))
	var handOffs, steps int64
	var changes time.Duration
	for i, t := range all {
		times.Merge(&t.times)
		each[i] = t.served.Load()
		handOffs += t.handOffs
		changes += t.changes
		steps += t.steps
		f.Lost += t.lost
	}
	f.P50, f.P99, f.Jitter = math.NaN(), math.NaN(), math.NaN()
	if times.N > 0 {
		f.P50, f.P99 = times.Quantile(0.50).Seconds(), times.Quantile(0.99).Seconds()
	}
	if steps > 0 {
		f.Jitter = changes.Seconds() / float64(steps)
	}
	f.Rate = float64(served(all)) / took.Seconds()
	if s != Apart {
		f.HandOffs = float64(handOffs) / took.Seconds()
	}
	f.MostOverLeast, f.Jain = math.NaN(), math.NaN()
	if served(all) >= int64(wantedEach*len(all)/2) { // with fewer, each one counts too much
		f.MostOverLeast, f.Jain = MostOverLeast(each), Jain(each)
	}
	return f
}
