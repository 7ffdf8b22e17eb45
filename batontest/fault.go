package batontest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/batonhq/baton/driver"
)

// An Op is a kind of request to the store.
type Op string

// The requests of Baton to a store, and the calls that make them. Baton repeats most
// requests without an answer.
const (
	Acquire   Op = "acquire"   // Lock, TryLock, LockAll, Do; once.Do, election
	Renew     Op = "renew"     // in the background, of leases and of positions in the queue; Extend
	Release   Op = "release"   // Unlock, and a Lock that gives up
	Downgrade Op = "downgrade" // Downgrade
	Move      Op = "move"      // Attach
	Rename    Op = "rename"    // Rename
	Inspect   Op = "inspect"   // Inspect, List; Lock, to name the holder when its deadline has passed
	Break     Op = "break"     // Break
	Begin     Op = "begin"     // once.Do, before the function runs
	Finish    Op = "finish"    // once.Do, after the function has run
	Find      Op = "find"      // once.Do, first; Find, List
	Forget    Op = "forget"    // once.Forget
	Take      Op = "take"      // all requests of a ratelimit.Limiter
	Override  Op = "override"  // Limiter.SetOverride
	Overrides Op = "overrides" // a Limiter that is Overridable, before its first decision and in the background
)

var ops = []Op{Acquire, Renew, Release, Downgrade, Move, Rename, Inspect, Break, Begin, Finish, Find, Forget, Take, Override, Overrides}

// A Fault is a planted fault. The Store fails the test if no request met it: such a test
// would show nothing.
type Fault struct {
	store *Store
	call  string // in the words of the test
	place string

	op    Op
	err   error         // Fail, FailNext
	lose  bool          // LoseReply, LoseReplies
	delay time.Duration // Delay
	once  bool
	key   string // Exhaust
	until time.Time

	// Guarded by store.mu.
	met, stopped, optional bool
}

// Fail makes every op fail with err, without an effect, until the Fault is stopped.
//
// With driver.ErrUnavailable the store is out of reach, and Baton asks again for as long
// as the documentation of the call says. With driver.ErrUnknown the program cannot know
// that there was no effect. After most other errors Baton does not ask again.
func (s *Store) Fail(op Op, err error) *Fault {
	s.t.Helper()
	return s.plant(&Fault{call: fmt.Sprintf("Fail(%s, %v)", op, err), op: op, err: err})
}

// FailNext makes the next op fail with err, without an effect. Several calls are for as
// many requests.
func (s *Store) FailNext(op Op, err error) *Fault {
	s.t.Helper()
	return s.plant(&Fault{call: fmt.Sprintf("FailNext(%s, %v)", op, err), op: op, err: err, once: true})
}

// LoseReply lets the next op take effect and loses the answer: Baton gets
// driver.ErrUnknown and asks again, as after any lost answer.
func (s *Store) LoseReply(op Op) *Fault {
	s.t.Helper()
	return s.plant(&Fault{call: fmt.Sprintf("LoseReply(%s)", op), op: op, lose: true, once: true})
}

// LoseReplies is LoseReply for every op until the Fault is stopped.
func (s *Store) LoseReplies(op Op) *Fault {
	s.t.Helper()
	return s.plant(&Fault{call: fmt.Sprintf("LoseReplies(%s)", op), op: op, lose: true})
}

// Delay makes every op take d longer, before its effect, until the Fault is stopped.
// There is no effect if the context of the op ends before.
func (s *Store) Delay(op Op, d time.Duration) *Fault {
	s.t.Helper()
	return s.plant(&Fault{call: fmt.Sprintf("Delay(%s, %v)", op, d), op: op, delay: d})
}

// Stop ends the fault for later requests.
func (f *Fault) Stop() {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	f.stopped = true
}

// Optional accepts that no request meets the fault, for tests with random faults. It
// returns f.
func (f *Fault) Optional() *Fault {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	f.optional = true
	return f
}

// plant adds a fault. Methods that the test calls call it.
func (s *Store) plant(f *Fault) *Fault {
	s.t.Helper()
	switch {
	case !slices.Contains(ops, f.op):
		s.t.Fatalf("batontest: %s: there is no request %q, only %q", f.call, f.op, ops)
	case f.err == nil && !f.lose && f.delay == 0 && f.key == "":
		s.t.Fatalf("batontest: %s changes nothing: it needs an error or a time", f.call)
	case f.delay < 0:
		s.t.Fatalf("batontest: %s: a delay is not negative", f.call)
	}
	f.store = s
	if _, file, line, ok := runtime.Caller(2); ok {
		f.place = fmt.Sprintf("%s:%d", file, line)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
	return f
}

// do makes a request to the store in memory, under the planted faults.
func (s *Store) do(ctx context.Context, op Op, ask func() error) error {
	delay, err, lose := s.meet(op)
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.over:
			return driver.ErrClosed
		}
	}
	if err != nil {
		return err
	}
	err = ask()
	s.changed()
	if lose {
		return fmt.Errorf("%w: batontest lost the answer to %s", driver.ErrUnknown, op)
	}
	return err
}

const strayed = "batontest: New was called outside of the synctest bubble that uses the Store: call it inside, with the bubble's t"

// isStray reports whether the caller is in a bubble that the Store does not belong to.
// Time in bubbles begins in the year 2000.
func (s *Store) isStray() bool { return time.Now().Round(0).Before(s.born.AddDate(-1, 0, 0)) }

// meet finds the faults for a request. Of the faults for one request, each request meets
// one.
func (s *Store) meet(op Op) (delay time.Duration, err error, lose bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return 0, driver.ErrClosed, false
	}
	if s.isStray() && !s.stray {
		s.stray = true
		s.t.Error(strayed)
	}
	for _, f := range s.faults {
		if f.op != op || f.stopped || f.key != "" || (f.err != nil || f.lose) && (err != nil || lose) {
			continue
		}
		f.met = true
		f.stopped = f.once
		delay += f.delay
		lose = f.lose || lose
		if f.err != nil {
			err = f.err
		}
	}
	return delay, err, lose
}

// unmet describes the faults that no request met. s.mu is locked.
func (s *Store) unmet() (all []string) {
	for _, f := range s.faults {
		if f.met || f.optional {
			continue
		}
		what := "no " + string(f.op) + " came"
		if f.key != "" {
			what = "no limiter asked for that key in time"
		}
		all = append(all, fmt.Sprintf("%s, planted at %s, met nothing: %s, so that this test shows nothing about it", f.call, f.place, what))
	}
	return all
}
