package batontest_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/batontest"
)

// judge is a test whose failures are what is tested.
type judge struct {
	testing.TB // the real test

	mu       sync.Mutex
	failed   bool
	said     []string // by Error and Fatal
	logged   []string
	cleanups []func()
}

func (j *judge) Helper()                      {}
func (j *judge) Skipped() bool                { return false }
func (j *judge) Cleanup(f func())             { j.cleanups = append(j.cleanups, f) }
func (j *judge) Log(args ...any)              { j.say(&j.logged, fmt.Sprint(args...)) }
func (j *judge) Error(args ...any)            { j.say(&j.said, fmt.Sprint(args...)) }
func (j *judge) Errorf(f string, args ...any) { j.say(&j.said, fmt.Sprintf(f, args...)) }
func (j *judge) Fatal(args ...any) {
	j.say(&j.said, fmt.Sprint(args...))
	runtime.Goexit()
}

func (j *judge) Fatalf(f string, args ...any) {
	j.say(&j.said, fmt.Sprintf(f, args...))
	runtime.Goexit()
}

func (j *judge) Failed() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failed
}

func (j *judge) say(to *[]string, text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	*to = append(*to, text)
	j.failed = j.failed || to == &j.said
}

// judged runs a test as package testing does, and returns what it failed with.
func judged(t *testing.T, test func(t testing.TB)) *judge {
	j := &judge{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(j)
	}()
	<-done
	for i := len(j.cleanups) - 1; i >= 0; i-- {
		j.cleanups[i]()
	}
	return j
}

// wants checks what a judged test failed with: one text for each failure.
func (j *judge) wants(t *testing.T, texts ...string) {
	t.Helper()
	if len(j.said) != len(texts) {
		t.Fatalf("it failed with %q, want %d failures: %q", j.said, len(texts), texts)
	}
	for i, text := range texts {
		if !strings.Contains(j.said[i], text) {
			t.Errorf("it failed with %q, want %q", j.said[i], text)
		}
	}
}

func locker(t testing.TB, s *batontest.Store, cfg baton.Config) *baton.Locker {
	t.Helper()
	locks, err := baton.New(s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return locks
}

func lock(t testing.TB, locks *baton.Locker, key string, opts ...baton.Option) *baton.Lease {
	t.Helper()
	lease, err := locks.TryLock(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// here is the next line of the caller.
func here() string {
	_, file, line, _ := runtime.Caller(1)
	return fmt.Sprintf("%s:%d", file, line+1)
}
