package check

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The checks must not give up on a slow machine.
func init() { patience = time.Hour }

// rules are the rules of a seed's store.
func rules(seed uint64) Rules {
	r := simRules
	r.Order = simOrder(seed)
	return r
}

// seeds calls do for many seeds, on all processors.
func seeds(n uint64, do func(seed uint64)) {
	var next atomic.Uint64
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for seed := next.Add(1); seed <= n; seed = next.Add(1) {
				do(seed)
			}
		})
	}
	all.Wait()
}

// cleanSeeds is the number of histories without a defect.
var cleanSeeds uint64 = 1000

func init() {
	if os.Getenv("BATON_LONG") != "1" {
		cleanSeeds, bigHolds = 150, 10_000
	}
}

// No check reports the history of a correct store.
func TestNoFalseAlarms(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var sum Looked
	seeds(cleanSeeds, func(seed uint64) {
		h := simulate(seed, defects{}, 14, 4*int64(time.Second))
		f := Run(h, rules(seed))
		if seed%4 == 0 {
			f.linear(byKey(h, &Findings{}), 20, patience) // in many parts
		}
		mu.Lock()
		defer mu.Unlock()
		if len(f.Violations) > 0 || len(f.Undecided) > 0 {
			t.Errorf("seed %d: %+v, %+v", seed, f.Violations, f.Undecided)
		}
		if n := len(h.Holds) + len(h.Decisions); n < 200 {
			t.Errorf("seed %d: only %d operations", seed, n)
		}
		add(&sum, f.Looked)
	})
	t.Logf("looked at %+v", sum)
	for what, n := range map[string]int{
		"pairs": sum.Pairs, "tokens": sum.Tokens, "stale writes": sum.Stale, "parts": sum.Parts, "waiters": sum.Waiters,
		"refused": sum.Refused, "counted": sum.Counted, "windows": sum.Windows,
	} {
		if n < 100 {
			t.Errorf("only %d %s", n, what)
		}
	}
	if sum.Lag >= 0 || sum.LapsedLag >= 0 {
		t.Errorf("lags %v and %v", sum.Lag, sum.LapsedLag)
	}
}

func add(sum *Looked, l Looked) {
	sum.Attempts += l.Attempts
	sum.Granted += l.Granted
	sum.Sure += l.Sure
	sum.Pairs += l.Pairs
	sum.Tokens += l.Tokens
	sum.Writes += l.Writes
	sum.Stale += l.Stale
	sum.Parts += l.Parts
	sum.PartOps += l.PartOps
	sum.Waiters += l.Waiters
	sum.Idle = max(sum.Idle, l.Idle)
	sum.Refused += l.Refused
	sum.Counted += l.Counted
	sum.Admits += l.Admits
	sum.Windows += l.Windows
	if sum.Lag == 0 || l.Lag > sum.Lag {
		sum.Lag = l.Lag
	}
	if l.LapsedLag != 0 && (sum.LapsedLag == 0 || l.LapsedLag > sum.LapsedLag) {
		sum.LapsedLag = l.LapsedLag
	}
}
