// Package queuetest checks what the workers of a queue note about jobs that a limit bounds:
// the tests of the queues' adapters share it.
package queuetest

// T is the part of testing.TB that is needed.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// A Ledger counts the jobs of a fleet, from the notes of its workers in the order in which
// they were made. It fails its test if more jobs of a key run than may, if a job runs twice
// at a time, or if one ends that had not begun. It is for the test's own goroutine.
type Ledger struct {
	t     T
	limit int

	runs map[string]job
	now  map[string]int // jobs of each key that run

	Done  map[string]bool // jobs that have run, once at least
	Cut   map[string]bool // jobs that ran in a worker that was killed
	Lost  map[string]bool // jobs that have lost an attempt and were not cut
	Again int             // how often a job ran that was done
	Most  int             // jobs of a key that ran at a time
}

type job struct{ key, worker string }

// NewLedger makes a Ledger for keys of which so many jobs may run at a time.
func NewLedger(t T, limit int) *Ledger {
	return &Ledger{
		t: t, limit: limit, runs: map[string]job{}, now: map[string]int{},
		Done: map[string]bool{}, Cut: map[string]bool{}, Lost: map[string]bool{},
	}
}

// Begin notes that a worker begins a job, and whether it is not the job's first attempt.
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

// End notes that a job has ended.
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

// Killed notes that a worker was killed: what it ran is cut.
func (l *Ledger) Killed(worker string) {
	for id, r := range l.runs {
		if r.worker == worker {
			l.Cut[id] = true
			delete(l.runs, id)
			l.now[r.key]--
		}
	}
}

// Running is how many jobs run.
func (l *Ledger) Running() int { return len(l.runs) }

// Bound fails the test if the limit was never reached: then the test shows nothing about it.
func (l *Ledger) Bound() {
	l.t.Helper()
	if l.Most < l.limit {
		l.t.Errorf("at most %d jobs of a key ran at a time: the test shows nothing about the limit of %d", l.Most, l.limit)
	}
}
