package guard_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/guard"
)

// A target is a resource with a guard in front, and the history of its writes, in
// the order in which they took effect.
type target interface {
	// write shows p and writes p's token. Between the check and the write it
	// calls between, if there is a between.
	write(ctx context.Context, p guard.Pass, between func()) error
	history(ctx context.Context) ([]int64, error)
}

// again reports that a write failed without a decision and must be repeated.
type again interface{ again(error) bool }

// held makes a writer stop between its check and its write until the next holder
// has written, or until within has passed, which shows that the next holder has to
// wait. It returns the history after that. This is the interleaving that every
// guard exists for.
func held(t *testing.T, to target, within time.Duration) []int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := to.write(ctx, pass(1, "first"), func() {}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	began := false
	err := to.write(ctx, pass(5, "a"), func() {
		if began {
			return // a second attempt
		}
		began = true
		go func() { done <- patient(ctx, to, pass(6, "b"), func() {}) }()
		limit := time.NewTimer(within)
		defer limit.Stop()
		select {
		case err := <-done:
			done <- err
		case <-limit.C:
		}
	})
	if !began {
		t.Fatalf("the check was not passed: %v", err)
	}
	if err != nil && !errors.Is(err, guard.ErrStale) && !repeatable(to, err) {
		t.Errorf("the one that stopped: %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("the next holder: %v", err)
	}
	// Whether or not the first writer has written: from now on it is too late.
	if err := patient(ctx, to, pass(5, "a"), func() {}); !errors.Is(err, guard.ErrStale) {
		t.Errorf("after the next holder: %v, want ErrStale", err)
	}
	h, err := to.history(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func repeatable(to target, err error) bool {
	a, ok := to.(again)
	return ok && err != nil && a.again(err)
}

// patient repeats a write that got no decision.
func patient(ctx context.Context, to target, p guard.Pass, between func()) error {
	for {
		if err := to.write(ctx, p, between); !repeatable(to, err) || ctx.Err() != nil {
			return err
		}
	}
}

// falls reports whether a lower token was written after a higher one.
func falls(history []int64) bool {
	for i := 1; i < len(history); i++ {
		if history[i] < history[i-1] {
			return true
		}
	}
	return false
}

// soundWait is how long the next holder may try to break a guard that is expected
// to hold. A longer wait would find nothing else.
const soundWait = 100 * time.Millisecond

// defectWait is how long a planted defect may take to show. The wait ends early.
const defectWait = 30 * time.Second

func holds(t *testing.T, to target) {
	t.Helper()
	if h := held(t, to, soundWait); falls(h) {
		t.Errorf("a stale write landed: %v", h)
	} else if h[len(h)-1] != 6 {
		t.Errorf("the next holder's write is not the last: %v", h)
	}
}

func mustBreak(t *testing.T, to target) {
	t.Helper()
	if h := held(t, to, defectWait); !falls(h) {
		t.Errorf("a guard with a defect passes for sound: %v", h)
	}
}

// interleave lets writers show random tokens at random moments. Each behaves like a
// holder: its token rises, and it writes with it several times.
func interleave(t *testing.T, to target, writers, writes int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	before, err := to.history(ctx)
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	var mu sync.Mutex
	var next int64 = 10
	highest := int64(0) // admitted so far
	admitted, refused := 0, 0
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			var mine guard.Pass
			for range writes {
				if mine.Token == 0 || r.IntN(3) == 0 {
					mu.Lock()
					next++
					mine = pass(next, fmt.Sprint("writer ", w))
					mu.Unlock()
				}
				err := patient(ctx, to, mine, func() {
					for range r.IntN(4) {
						runtime.Gosched()
					}
				})
				mu.Lock()
				switch {
				case err == nil:
					admitted++
					highest = max(highest, mine.Token)
				case errors.Is(err, guard.ErrStale):
					refused++
					mine = guard.Pass{}
				default:
					t.Errorf("token %d: %v", mine.Token, err)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	h, err := to.history(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if falls(h) {
		t.Errorf("seed %d: a stale write landed: %v", seed, h)
	}
	if n := len(h) - len(before); n != admitted {
		t.Errorf("seed %d: %d writes were admitted and %d are there", seed, admitted, n)
	}
	if len(h) == 0 || h[len(h)-1] != highest {
		t.Errorf("seed %d: the last is not %d, the highest admitted: %v", seed, highest, h)
	}
	t.Logf("%d admitted, %d refused", admitted, refused)
}

// gated is a resource in memory behind a Gate.
type gated struct {
	gate guard.Gate
	log
}

// log is a resource that accepts every write.
type log struct {
	mu     sync.Mutex
	tokens []int64
}

func (l *log) append(token int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tokens = append(l.tokens, token)
}

func (l *log) history(context.Context) ([]int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]int64(nil), l.tokens...), nil
}

func (g *gated) write(ctx context.Context, p guard.Pass, between func()) error {
	return g.gate.Do(ctx, "r", p, func() error {
		between()
		g.append(p.Token)
		return nil
	})
}

// raised is a log that only raises marks before it writes.
type raised struct {
	guard.Marks
	log
}

func (r *raised) write(ctx context.Context, p guard.Pass, between func()) error {
	if err := r.Raise(ctx, "r", p); err != nil {
		return err
	}
	between()
	r.append(p.Token)
	return nil
}

func TestGate(t *testing.T) {
	t.Parallel()
	holds(t, new(gated))
	interleave(t, new(gated), 8, 500)
}

func TestMarksAloneAreNoGate(t *testing.T) {
	t.Parallel()
	mustBreak(t, &raised{Marks: new(guard.Memory)})
}

// A Gate with slow marks: other writes are admitted between a write's entry and its
// answer.
func TestGateWithSlowMarks(t *testing.T) {
	t.Parallel()
	g := new(gated)
	g.gate.Marks = slow{new(guard.Memory)}
	interleave(t, g, 8, 200)
}

type slow struct{ guard.Marks }

func (s slow) Raise(ctx context.Context, resource string, p guard.Pass) error {
	for range rand.IntN(8) {
		runtime.Gosched()
	}
	err := s.Marks.Raise(ctx, resource, p)
	for range rand.IntN(8) {
		runtime.Gosched()
	}
	return err
}

// Writes of one pass run together; a later pass waits for them, as long as its
// context lasts; a write that panicked has ended.
func TestGateWaits(t *testing.T) {
	t.Parallel()
	var g guard.Gate
	inside, release := make(chan struct{}, 2), make(chan struct{})
	ended := make(chan error, 2)
	for range 2 {
		go func() {
			ended <- g.Do(t.Context(), "r", pass(5, "a"), func() error {
				inside <- struct{}{}
				<-release
				return nil
			})
		}()
	}
	<-inside
	<-inside
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	waits := make(chan error, 1)
	go func() {
		waits <- g.Do(ctx, "r", pass(6, "b"), func() error { return errors.New("ran") })
	}()
	// As soon as 6 is known, 5 is refused, although 6 does not write yet.
	for g.Do(t.Context(), "r", pass(5, "a"), func() error { return nil }) == nil {
		runtime.Gosched()
	}
	if err := g.Do(t.Context(), "other", pass(1, "c"), func() error { return nil }); err != nil {
		t.Errorf("another resource: %v", err)
	}
	cancel(gone)
	if err := <-waits; !errors.Is(err, gone) {
		t.Errorf("waiting: %v, want the context's cause", err)
	}
	go func() {
		waits <- g.Do(t.Context(), "r", pass(6, "b"), func() error { return gone })
	}()
	close(release)
	if err := <-waits; !errors.Is(err, gone) {
		t.Errorf("after the earlier ones: %v, want that of the write", err)
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	func() {
		defer func() { _ = recover() }()
		_ = g.Do(t.Context(), "r", pass(7, "a"), func() error { panic("planned") })
	}()
	if err := g.Do(t.Context(), "r", pass(8, "b"), func() error { return nil }); err != nil {
		t.Errorf("after one that panicked: %v", err)
	}
}
