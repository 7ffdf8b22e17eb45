package measure

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

func planOf(targets ...Target) Plan {
	return Plan{Targets: targets, Goroutines: []int{1, 3}, Repetitions: 2, For: time.Hour, most: 100 * time.Millisecond}
}

func TestRunMeasuresAll(t *testing.T) {
	t.Parallel()
	one, two := memstore.New(), memstore.New()
	mine, err := baton.New(one, baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := mine.Lock(t.Context(), "of another program")
	if err != nil {
		t.Fatal(err)
	}
	var steps []Step
	p := planOf(Target{Name: "one", Store: one}, Target{Name: "two", Store: two})
	p.Progress = func(s Step) { steps = append(steps, s) }
	p.Repetitions = 1
	p.most = 300 * time.Millisecond // so that all goroutines have a turn, on a busy machine, too
	r, err := Run(t.Context(), p)
	if err != nil || !r.Complete || len(r.Cells) != 12 || len(r.Failed) != 0 {
		t.Fatalf("%d cells, complete %v, failed %v, error %v", len(r.Cells), r.Complete, r.Failed, err)
	}
	for _, c := range r.Cells {
		f := c.Median()
		if f.Rate <= 0 || !(f.P50 > 0) || f.P99 < f.P50 || !(f.Jain > 0 && f.Jain <= 1+1e-9) || !(f.MostOverLeast >= 1) || !(f.Jitter >= 0) {
			t.Errorf("%s, %s, %d goroutines: %+v", c.Target, c.Shape, c.Goroutines, f)
		}
		if handsOver := c.Shape != Apart && c.Goroutines > 1; (f.HandOffs > 0) != handsOver {
			t.Errorf("%s, %s, %d goroutines: %v hand-offs", c.Target, c.Shape, c.Goroutines, f.HandOffs)
		}
	}
	if len(steps) != 12 || steps[11].N != 12 || steps[11].Of != 12 {
		t.Errorf("%d steps: %+v", len(steps), steps)
	}

	// Only the lock of another program is left.
	if left := keysOf(t, one); !slices.Equal(left, []string{"of another program"}) || lease.Err() != nil {
		t.Errorf("left %q; the other's lease: %v", left, lease.Err())
	}
	if left := keysOf(t, two); len(left) != 0 {
		t.Errorf("left %q", left)
	}
}

// A plan may be for some shapes only.
func TestRunOfOneShape(t *testing.T) {
	t.Parallel()
	p := planOf(Target{Name: "one", Store: memstore.New()})
	p.shapes, p.most = []Shape{Apart}, shortest
	r, err := Run(t.Context(), p)
	if err != nil || !r.Complete || len(r.Cells) != 2 || r.Cells[0].Shape != Apart || r.Cells[1].Shape != Apart {
		t.Errorf("%+v, error %v", r, err)
	}
}

// The targets take turns, and not always the same one begins.
func TestTargetsTakeTurns(t *testing.T) {
	t.Parallel()
	var order []string
	p := planOf(Target{Name: "a", Store: memstore.New()}, Target{Name: "b", Store: memstore.New()})
	p.Goroutines = []int{1}
	p.most = shortest
	p.Progress = func(s Step) { order = append(order, s.Target) }
	if r, err := Run(t.Context(), p); err != nil || !r.Complete {
		t.Fatal(err)
	}
	if got := strings.Join(order, ""); got != "abbaab"+"baabba" {
		t.Errorf("order %s", got)
	}
}

func TestInterruptedRunKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	ctx, cancel := context.WithCancel(t.Context())
	p := planOf(Target{Name: "one", Store: s})
	p.Progress = func(s Step) {
		if s.N == 4 {
			cancel()
		}
	}
	r, err := Run(ctx, p)
	if !errors.Is(err, context.Canceled) || len(r.Cells) != 3 || r.Complete {
		t.Errorf("%d cells, complete %v, error %v", len(r.Cells), r.Complete, err)
	}
	if left := keysOf(t, s); len(left) != 0 {
		t.Errorf("left %q", left)
	}
}

func TestRunEndsInTime(t *testing.T) {
	t.Parallel()
	p := planOf(Target{Name: "one", Store: memstore.New()})
	p.For, p.Repetitions = 50*time.Millisecond, 1000
	if r, err := Run(t.Context(), p); err != nil || r.Complete {
		t.Errorf("complete %v, error %v", r.Complete, err)
	}
}

// faulty answers with an error from the nth Acquire on.
type faulty struct {
	*memstore.Store
	left atomic.Int32
	err  error
}

func (f *faulty) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if f.left.Add(-1) < 0 {
		return driver.Grant{}, f.err
	}
	return f.Store.Acquire(ctx, r)
}

func TestFailedTargetIsLeftOut(t *testing.T) {
	t.Parallel()
	bad := &faulty{Store: memstore.New(), err: &driver.NotLockError{Key: "k", Store: "memory", Found: "a stone"}}
	p := planOf(Target{Name: "bad", Store: bad}, Target{Name: "good", Store: memstore.New()})
	p.Repetitions = 1
	r, err := Run(t.Context(), p)
	if err != nil || r.Complete || r.Failed["bad"] == nil || r.Failed["good"] != nil {
		t.Errorf("complete %v, failed %v, error %v", r.Complete, r.Failed, err)
	}
	for _, c := range r.Cells {
		if c.Target == "bad" {
			t.Errorf("figures of the one that failed: %+v", c)
		}
	}
	if len(r.Cells) != 6 {
		t.Errorf("%d cells of the other one", len(r.Cells))
	}
}

// opened counts the stores that are open.
type opened struct {
	*memstore.Store
	open *atomic.Int32
}

func (o opened) Traits() driver.Traits {
	t := o.Store.Traits()
	t.Processes = true
	return t
}

func (o opened) Close() error {
	o.open.Add(-1)
	return nil
}

// In the shape Crowd each goroutine has a store of its own, as a process has, and no
// store is left open.
func TestCrowdOpensAStoreEach(t *testing.T) {
	t.Parallel()
	var open, all atomic.Int32
	store := opened{memstore.New(), &open}
	p := planOf(Target{"store", store, func(context.Context) (driver.Store, error) {
		all.Add(1)
		open.Add(1)
		return store, nil
	}})
	p.Goroutines, p.Repetitions = []int{3, MostProcesses, MostProcesses + 1}, 1
	r, err := Run(t.Context(), p)
	if err != nil || !r.Complete {
		t.Fatalf("complete %v, failed %v, error %v", r.Complete, r.Failed, err)
	}
	if n := all.Load(); n != 3+MostProcesses {
		t.Errorf("%d stores were opened, want one for each of 3 and of %d", n, MostProcesses)
	}
	if n := open.Load(); n != 0 {
		t.Errorf("%d stores are left open", n)
	}
	if r.Cell("store", Crowd, MostProcesses+1) != nil || r.Cell("store", Apart, MostProcesses+1) == nil {
		t.Errorf("more than %d processes: %+v", MostProcesses, r.Cells)
	}
}

// A store that does not answer any more ends the measurement, with a reason.
func TestSilentTarget(t *testing.T) {
	t.Parallel()
	f := newField(Target{Name: "silent", Store: &faulty{Store: memstore.New(), err: driver.ErrUnavailable}})
	f.patience = 50 * time.Millisecond
	if _, err := f.measure(t.Context(), Crowd, 3, shortest); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "not a single lock") {
		t.Errorf("error %v", err)
	}
}

// splits gives each claim a lock of its own.
type splits struct{ *memstore.Store }

func (s splits) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	r.Key += r.ID
	return s.Store.Acquire(ctx, r)
}

func (s splits) Release(ctx context.Context, c driver.Claim) error {
	c.Key += c.ID
	return s.Store.Release(ctx, c)
}

// forgets draws no tokens of its own.
type forgets struct{ *memstore.Store }

func (s forgets) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := s.Store.Acquire(ctx, r)
	if err == nil && !g.Waiting {
		g.Token = 7
	}
	return g, err
}

func TestViolationsAreNoticed(t *testing.T) {
	t.Parallel()
	for want, store := range map[string]driver.Locks{
		"two held it":         splits{memstore.New()},
		"token 448 was given": forgets{memstore.New()},
	} {
		p := planOf(Target{Name: "broken", Store: store})
		p.Goroutines = []int{16}
		_, err := Run(t.Context(), p)
		violation, ok := errors.AsType[*ViolationError](err)
		if want == "two held it" && ok {
			continue // it may be their tokens that are noticed first
		}
		if !ok || !strings.Contains(violation.Error(), want) || violation.Target != "broken" {
			t.Errorf("%s: error %v", want, err)
		}
	}
}

// Two leases that are both sure are seen, whichever runs when.
func TestTwoInside(t *testing.T) {
	t.Parallel()
	locks, err := baton.New(splits{memstore.New()}, baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	first, err := locks.TryLock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	second, err := locks.TryLock(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	at := &site{last: -1}
	at.inside.Store(first)
	if _, wrong := at.enter(1, second); wrong == "" {
		t.Error("two inside went unnoticed")
	}
}

func TestFiguresOfKnownTallies(t *testing.T) {
	t.Parallel()
	a, b := new(tally), new(tally)
	for i := range 10 {
		a.add(time.Duration(1+i%2) * time.Millisecond) // 1, 2, 1, 2, …: jitter 1 ms
		b.add(4 * time.Millisecond)                    // no jitter
	}
	a.served.Store(30)
	b.served.Store(10)
	a.handOffs, b.handOffs, b.lost = 5, 5, 2
	f := figures(Line, []*tally{a, b}, 2*time.Second)
	near := func(got, want float64) bool { return math.Abs(got-want) <= 0.01*want }
	if !near(f.P50, 0.002) || !near(f.P99, 0.004) || !near(f.Jitter, 0.0005) || f.Rate != 20 || f.HandOffs != 5 ||
		f.MostOverLeast != 3 || !near(f.Jain, 0.8) || f.Lost != 2 {
		t.Errorf("%+v", f)
	}
	if f := figures(Apart, []*tally{new(tally)}, time.Second); !math.IsNaN(f.P50) || !math.IsNaN(f.Jitter) || f.Rate != 0 || !math.IsNaN(f.Jain) {
		t.Errorf("of nothing: %+v", f)
	}
}

func TestTables(t *testing.T) {
	t.Parallel()
	r := &Result{Targets: []string{"a", "b"}, Goroutines: []int{1, 8}, Cells: []*Cell{
		{"a", Line, 1, []Figures{{P50: 0.001, Rate: 10}, {P50: 0.003, Rate: 30}}},
		{"a", Line, 8, []Figures{{P50: math.NaN(), Rate: 123456, MostOverLeast: math.Inf(1)}}},
	}}
	got := map[string]string{}
	for _, table := range r.Tables() {
		for _, row := range table.Rows {
			got[table.Metric.Name] = strings.Join(row, "|")
		}
	}
	for name, want := range map[string]string{"p50": "a|2.00 ms|–", "rate": "a|20.0|123k", "most_over_least": "a|–|∞"} {
		if got[name] != want {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
}

func TestFormats(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{0: "0", 1.234: "1.23", 12.34: "12.3", 99.96: "100", 1234: "1234", 12345: "12.3k", 1.5e6: "1.50M", 999_600: "1.00M"} {
		if got := Count(v); got != want {
			t.Errorf("Count(%v) = %q, want %q", v, got, want)
		}
	}
	for v, want := range map[float64]string{1e-9: "1.00 ns", 999.6e-9: "1.00 µs", 1.5e-5: "15.0 µs", 0.25: "250 ms", 3: "3.00 s", math.Inf(1): "∞"} {
		if got := Span(v); got != want {
			t.Errorf("Span(%v) = %q, want %q", v, got, want)
		}
	}
}

// keysOf lists what is held or waited for.
func keysOf(t *testing.T, s driver.Inspector) (keys []string) {
	t.Helper()
	for info, err := range s.List(context.Background(), "") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}
