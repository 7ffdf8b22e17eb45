package batontest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/batontest"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/ratelimit"
)

// exampleT stands for the *testing.T of a test: it prints what the test fails with.
type exampleT struct {
	testing.TB
	cleanups []func()
}

func (*exampleT) Helper()                  {}
func (*exampleT) Failed() bool             { return false }
func (*exampleT) Skipped() bool            { return false }
func (*exampleT) Context() context.Context { return context.Background() }
func (*exampleT) Error(args ...any)        { fmt.Println(args...) }
func (*exampleT) Fatal(args ...any)        { panic(fmt.Sprint(args...)) }
func (t *exampleT) Cleanup(f func())       { t.cleanups = append(t.cleanups, f) }
func (t *exampleT) end() {
	for _, f := range t.cleanups {
		f()
	}
}

func Example() {
	t := new(exampleT) // in a test: t *testing.T
	defer t.end()

	s := batontest.New(t)
	locks, err := baton.New(s, baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s.Hold("invoice/42", "another server")
	_, err = locks.TryLock(t.Context(), "invoice/42")
	fmt.Println(errors.Is(err, baton.ErrHeld))
	// Output: true
}

// The lease is lost while the work runs.
func ExampleStore_Lose() {
	t := new(exampleT)
	defer t.end()

	s := batontest.New(t)
	locks, err := baton.New(s, baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	err = locks.Do(t.Context(), "invoice/42", func(ctx context.Context, _ *baton.Lease) error {
		s.Lose("invoice/42") // in the middle of the work
		<-ctx.Done()
		return context.Cause(ctx)
	})
	fmt.Println(errors.Is(err, baton.ErrLost))
	// Output: true
}

// The store is out of reach when the lock is asked for.
func ExampleStore_Fail() {
	t := new(exampleT)
	defer t.end()

	s := batontest.New(t)
	locks, err := baton.New(s, baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s.Fail(batontest.Acquire, driver.ErrUnavailable)
	_, err = locks.TryLock(t.Context(), "invoice/42")
	fmt.Println(errors.Is(err, baton.ErrUnavailable))
	// Output: true
}

// The store released the lock, and its answer was lost: Unlock asks again.
func ExampleStore_LoseReply() {
	t := new(exampleT)
	defer t.end()

	s := batontest.New(t)
	locks, err := baton.New(s, baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := locks.Lock(t.Context(), "invoice/42")
	if err != nil {
		t.Fatal(err)
	}
	s.LoseReply(batontest.Release)
	fmt.Println(lease.Unlock(), len(s.Holders("invoice/42")))
	// Output: <nil> 0
}

// A limit has nothing left for three seconds.
func ExampleStore_Exhaust() {
	t := new(exampleT)
	defer t.end()

	s := batontest.New(t)
	limiter, err := ratelimit.New(s, ratelimit.SlidingWindow(100, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	s.Exhaust("user/42", 3*time.Second)
	r, err := limiter.Allow(t.Context(), "user/42")
	fmt.Println(r.OK, r.Remaining, r.RetryAfter.Round(time.Second), err)
	// Output: false 0 3s <nil>
}

// A waiter comes; the holder releases; the waiter goes on.
func ExampleStore_AwaitWaiters() {
	t := new(exampleT)
	defer t.end()

	s := batontest.New(t)
	locks, err := baton.New(s, baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	release := s.Hold("invoice/42", "another server")
	done := make(chan error)
	go func() {
		done <- locks.Do(t.Context(), "invoice/42", func(context.Context, *baton.Lease) error { return nil })
	}()
	s.AwaitWaiters("invoice/42", 1)
	release()
	fmt.Println(<-done, len(s.Grants()))
	// Output: <nil> 1
}
