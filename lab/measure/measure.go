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

// A Shape is what the goroutines of a measurement ask for.
type Shape string

const (
	// Line: all want one key, through one Locker. They wait in the Locker's local
	// queue, so that the store sees one waiter.
	Line Shape = "line"
	// Crowd: all want one key, each with a store and a Locker of its own, as that many
	// processes have. Each waits in the store's queue. It is not measured with more
	// than MostProcesses, because servers take few connections by default.
	Crowd Shape = "crowd"
	// Apart: each wants a key of its own, so that none waits for another.
	Apart Shape = "apart"
)

// MostProcesses bounds the goroutines of the shape Crowd. PostgreSQL takes 100
// connections by default, and a store may need three.
const MostProcesses = 32

// Shapes are all of them, in the order in which they are measured and shown.
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

// Note says what its figures show that is not what a reader expects.
func (s Shape) Note() string {
	if s != Line {
		return ""
	}
	return "From 2 to 8 goroutines p50 is that of memory on all stores: the lock is handed over within the process, up to 32 times in a row, " +
		"and then once by the store, for which all goroutines wait. Up to 8 goroutines fewer than half of the locks wait for the store, " +
		"from 16 on half and more. Compare the stores at one goroutine, and by p99."
}

// A Target is a store that is measured. It stays the caller's.
type Target struct {
	Name  string // unique
	Store driver.Locks

	// Open opens the store once more, for the shape Crowd. What it opens is closed
	// again. If it is nil, or the store serves one process, Crowd uses Store.
	Open func(context.Context) (driver.Store, error)
}

// A Plan says what to measure.
type Plan struct {
	Targets     []Target
	Goroutines  []int
	Repetitions int

	// For is how long all of it takes, about: no measurement begins later.
	For time.Duration

	// Progress, if not nil, is called before each measurement.
	Progress func(Step)

	shapes []Shape       // nil: all of them
	most   time.Duration // how long one measurement may last; 0 means longest
}

// A Step is one measurement that begins.
type Step struct {
	N, Of      int // this one, counted from 1
	Target     string
	Shape      Shape
	Goroutines int
	Repetition int // from 1
}

// Figures are the outcome of one measurement, or of several. What there were
// too few locks to know is NaN.
type Figures struct {
	// In seconds, of the time that a program spends on one lock: from asking
	// for it until it is unlocked again, with nothing done in between.
	P50, P99 float64
	// Jitter is how much that differs from one lock to the next of the same
	// goroutine, in the mean.
	Jitter float64

	Rate     float64 // locks per second
	HandOffs float64 // of these, locks by another goroutine than the one before; 0 for Apart

	// How evenly the goroutines were served: how often more the most served
	// got the lock than the least, and Jain's index.
	MostOverLeast, Jain float64

	Lost int64 // leases that ended before they were unlocked
}

// A Cell has the figures of one store, shape and number of goroutines, one for
// each repetition that was made.
type Cell struct {
	Target      string
	Shape       Shape
	Goroutines  int
	Repetitions []Figures
}

// Median has the median of each figure over the repetitions, and all Lost.
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

// A Result is what was measured.
type Result struct {
	Targets    []string
	Goroutines []int
	Cells      []*Cell // by shape, goroutines and target; only those that have figures
	Complete   bool    // everything planned was measured

	// Failed says of targets why they were left out from some moment on.
	Failed map[string]error
}

// Cell finds one, or nil.
func (r *Result) Cell(target string, s Shape, goroutines int) *Cell {
	for _, c := range r.Cells {
		if c.Target == target && c.Shape == s && c.Goroutines == goroutines {
			return c
		}
	}
	return nil
}

// complete reports whether all cells of the shapes have so many repetitions.
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

// MostSpread is how many times the fastest of its repetitions the slowest may take in half of
// all cells. Stores that are compared are 1.3 to 3 times as fast as each other: if half of
// the figures move by more than that from one repetition to the next, their order is that of
// the moments at which the machine was busy.
const MostSpread = 1.5

// Steady returns an error if the machine was too busy for the figures to mean something.
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

// A ViolationError says that a store broke a promise while it was measured.
type ViolationError struct {
	Target, Key, What string
}

func (e *ViolationError) Error() string {
	return fmt.Sprintf("store %s broke a promise on key %q: %s", e.Target, e.Key, e.What)
}

// How long one measurement lasts.
const (
	shortest = 10 * time.Millisecond
	longest  = time.Second
	// A measurement goes on for up to stretch times its share of the time
	// until each goroutine has been served so often, in the mean.
	stretch    = 10
	wantedEach = 8
	// patience is how long waiters may still take their turns when a
	// measurement is over. Giving up would leave the queue to be cleaned.
	patience = 5 * time.Second
)

// Run measures all targets, one measurement after the other. A repetition goes
// through everything before the next one begins, and the targets take turns
// within it, so that all of them meet the same good and bad moments of the
// machine.
//
// The result is never nil: after an error it has what was measured before. A
// target that fails is left out from then on, and is no error; a
// *ViolationError ends it all, as does the context.
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
				// What one takes longer the others have less.
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

// field is where one target is measured: its keys.
type field struct {
	Target
	cfg    baton.Config
	prefix string
	line   *baton.Locker
	used   map[string]bool
	spoilt int // how often waiters had to be told to leave

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

// lockers returns one for each goroutine. done closes the stores that it has opened.
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

// key names what goroutine i wants.
func (f *field) key(s Shape, i int) string {
	name := f.prefix + "-" + strconv.Itoa(f.spoilt)
	if s == Apart {
		name += "-" + strconv.Itoa(i)
	}
	f.used[name] = true
	return name
}

// cleanUp sees to it that the keys are free. No other program uses their
// names, so each claim that still holds or waits is ours.
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
			_, _ = in.Break(ctx, key) // else it ends by itself
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// figures sums up what the goroutines have counted.
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
	if served(all) >= int64(wantedEach*len(all)/2) { // of fewer each one counts too much
		f.MostOverLeast, f.Jain = MostOverLeast(each), Jain(each)
	}
	return f
}
