// Package queuetest checks the notes of queue workers about jobs under a limit, for the
// tests of the queues' adapters.
package queuetest

// T is the required part of testing.TB.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// A Ledger counts the jobs of a fleet, from the notes of its workers in their order. It
// fails its test if too many jobs of a key run, if a job runs twice at a time, or if a
// job ends that had not begun. Only the test's own goroutine may use it.
type Ledger struct {
	t     T
	limit int

	runs map[string]job
	now  map[string]int // running jobs of each key

	Done  map[string]bool // jobs that have run at least once
	Cut   map[string]bool // jobs that ran in a worker that was killed
	Lost  map[string]bool // jobs that lost an attempt and were not cut
	Again int             // runs of jobs that were done
	Most  int             // the most concurrent jobs of a key
}

type job struct{ key, worker string }

// NewLedger makes a Ledger. limit jobs of a key may run at a time.
func NewLedger(t T, limit int) *Ledger {
	return &Ledger{
		t: t, limit: limit, runs: map[string]job{}, now: map[string]int{},
		Done: map[string]bool{}, Cut: map[string]bool{}, Lost: map[string]bool{},
	}
}

// Begin notes that a worker begins a job. again says that it is not the first attempt.
func (l *Ledger) Begin(id, key, worker string, again bool) {
	l.t.Helper()
	if again && !l.Cut[id] {
		l.Lost[id] = true
	}
	if _, twice := l.runs[id]; twice {
		l.t.Fatalf("job %s runs twice", id)
	}
	l.runs[id] = job{key, worker}
	l.now[key]++
	l.Most = max(l.Most, l.now[key])
	if l.now[key] > l.limit {
		l.t.Fatalf("%d jobs of %s run", l.now[key], key)
	}
}

func (l *Ledger) End(id string) {
	l.t.Helper()
	r, runs := l.runs[id]
	if !runs {
		l.t.Fatalf("job %s ended and had not begun", id)
	}
	delete(l.runs, id)
	l.now[r.key]--
	if l.Done[id] {
		l.Again++
	}
	l.Done[id] = true
}

// Killed notes that a worker was killed, and its jobs cut.
func (l *Ledger) Killed(worker string) {
	for id, r := range l.runs {
		if r.worker == worker {
			l.Cut[id] = true
			delete(l.runs, id)
			l.now[r.key]--
		}
	}
}

func (l *Ledger) Running() int { return len(l.runs) }

// Bound fails the test if the limit was never reached: such a test shows nothing about
// it.
func (l *Ledger) Bound() {
	l.t.Helper()
	if l.Most < l.limit {
		l.t.Errorf("at most %d jobs of a key ran at a time: the test shows nothing about the limit of %d", l.Most, l.limit)
	}
}
