package drivertest

import (
	"context"
	"fmt"
	"path"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// recorder is the T of a case that runs on its own goroutine. It keeps the messages of
// the case until a test prints them, or checks whether the case caught a bad store.
type recorder struct {
	outer  *testing.T
	ctx    context.Context
	cancel context.CancelFunc

	paused string // what may have made the case fail
	slow   string // what may have made it fail if it is about short times

	mu       sync.Mutex
	lines    []string
	left     int // omitted lines
	failed   bool
	cleanups []func()
}

func newRecorder(outer *testing.T) *recorder {
	ctx, cancel := context.WithCancel(context.Background())
	return &recorder{outer: outer, ctx: ctx, cancel: cancel}
}

// run starts f, and closes the channel when f and its cleanups are done.
func (r *recorder) run(f func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.cleanUp() // even after Fatalf
		f()
	}()
	return done
}

// recorded runs f as a case, in a testing/synctest bubble if time is fake, and returns
// after its cleanups.
func recorded(t *testing.T, fakeTime bool, f func(*recorder)) (r *recorder) {
	run := func(t *testing.T) {
		r = newRecorder(t)
		<-r.run(func() { f(r) })
	}
	if fakeTime {
		synctest.Test(t, run)
	} else {
		run(t)
	}
	return r
}

func (r *recorder) cleanUp() {
	r.cancel()
	for {
		r.mu.Lock()
		n := len(r.cleanups)
		if n == 0 {
			r.mu.Unlock()
			return
		}
		f := r.cleanups[n-1]
		r.cleanups = r.cleanups[:n-1]
		r.mu.Unlock()
		f()
	}
}

// report passes everything to the real test.
func (r *recorder) report(t *testing.T, why string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, line := range r.lines {
		t.Log(line)
	}
	if r.left > 0 {
		t.Logf("and %d more lines", r.left)
	}
	if r.failed {
		t.Errorf("why this case exists: %s", why)
	}
}

func (r *recorder) add(failed bool, format string, args []any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || failed
	if len(r.lines) == maxLines {
		r.left++
		return
	}
	r.lines = append(r.lines, where()+fmt.Sprintf(format, args...))
}

// maxLines bounds the messages of a case that fails in a loop.
const maxLines = 40

// where names the lines of this package that led to a report: the case, then the helpers
// that it called.
func where() string {
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(4, pcs)])
	var lines []string
	for {
		f, more := frames.Next()
		file := path.Base(f.File)
		if strings.Contains(f.Function, "/drivertest.") && file != "recorder.go" && file != "drivertest.go" && file != "pause.go" {
			lines = append([]string{fmt.Sprintf("%s:%d", file, f.Line)}, lines...)
		}
		if !more {
			break
		}
	}
	if lines == nil {
		return ""
	}
	return strings.Join(lines, " > ") + ": "
}

func (r *recorder) Helper()                           {}
func (r *recorder) Name() string                      { return r.outer.Name() }
func (r *recorder) TempDir() string                   { return r.outer.TempDir() }
func (r *recorder) Context() context.Context          { return r.ctx }
func (r *recorder) Logf(format string, args ...any)   { r.add(false, format, args) }
func (r *recorder) Errorf(format string, args ...any) { r.add(true, format, args) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.add(true, format, args)
	runtime.Goexit()
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}
