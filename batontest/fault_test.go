package batontest_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/batontest"
	"github.com/batonhq/baton/driver"
)

// A fault that nothing met shows nothing.
func TestUnmetFaults(t *testing.T) {
	t.Parallel()
	var place string
	j := judged(t, func(t testing.TB) {
		s := batontest.New(t)
		locks := locker(t, s, baton.Config{})
		place = here()
		s.Fail(batontest.Release, driver.ErrUnavailable).Stop()
		s.FailNext(batontest.Move, driver.ErrUnavailable).Optional()
		s.FailNext(batontest.Acquire, driver.ErrUnavailable)
		s.FailNext(batontest.Acquire, driver.ErrUnknown)
		s.Exhaust("user/42", time.Second)
		if _, err := locks.TryLock(context.Background(), "k"); !errors.Is(err, baton.ErrUnavailable) {
			t.Error(err)
		}
	})
	j.wants(t, "Fail(release, store unavailable), planted at "+place+", met nothing: no release came",
		"FailNext(acquire, outcome unknown)", `Exhaust("user/42", 1s)`)
}

// A lease that cannot be renewed expires.
func TestFailRenew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		lease := lock(t, locker(t, s, baton.Config{}), "k")
		s.Fail(batontest.Renew, driver.ErrUnavailable)
		<-lease.Done()
		if lost, ok := errors.AsType[*baton.LostError](lease.Err()); !ok || lost.Cause != baton.Expired || !errors.Is(lost, baton.ErrUnavailable) {
			t.Errorf("Err is %v", lease.Err())
		}
		lease.Unlock()
	})
}

func TestFaultsCountRequests(t *testing.T) {
	t.Parallel()
	s := batontest.New(t)
	locks := locker(t, s, baton.Config{})
	try := func() error {
		lease, err := locks.TryLock(t.Context(), "k")
		if err == nil {
			lease.Unlock()
		}
		return err
	}
	s.FailNext(batontest.Acquire, driver.ErrUnavailable)
	s.FailNext(batontest.Acquire, errors.ErrUnsupported)
	all := s.Fail(batontest.Acquire, driver.ErrUnknown)
	for i, want := range []error{driver.ErrUnavailable, errors.ErrUnsupported, driver.ErrUnknown, driver.ErrUnknown} {
		if err := try(); !errors.Is(err, want) {
			t.Errorf("request %d: %v, want %v", i, err, want)
		}
	}
	all.Stop()
	if err := try(); err != nil {
		t.Errorf("after Stop: %v", err)
	}
}

// What was lost is the answer, not the effect.
func TestLoseReply(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		locks := locker(t, s, baton.Config{})
		s.LoseReply(batontest.Acquire)
		lease, err := locks.Lock(t.Context(), "k") // asks again, and finds what the first request left
		if err != nil {
			t.Fatal(err)
		}
		lost := s.LoseReplies(batontest.Release)
		if err := lease.Unlock(); !errors.Is(err, baton.ErrUnknown) {
			t.Errorf("Unlock: %v", err)
		}
		lost.Stop()
		if holders := s.Holders("k"); holders != nil {
			t.Errorf("held by %+v", holders)
		}
		s.LoseReply(batontest.Release)
		if err := lock(t, locks, "k").Unlock(); err != nil {
			t.Errorf("Unlock, with one lost answer: %v", err)
		}
		if n := len(s.Grants()); n != 2 {
			t.Errorf("%d grants, want 2", n)
		}
	})
}

func TestDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		locks := locker(t, s, baton.Config{})
		slow := s.Delay(batontest.Acquire, 100*time.Millisecond)
		began := time.Now()
		lock(t, locks, "k").Unlock()
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		slow.Stop()
		s.Delay(batontest.Acquire, time.Hour)
		if _, err := locks.TryLock(t.Context(), "k"); !errors.Is(err, baton.ErrUnknown) {
			t.Errorf("without an answer in time: %v", err)
		}
	})
}

// A store that many goroutines use at once, with faults, ends with nothing held.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	s := batontest.New(t)
	locks := []*baton.Locker{locker(t, s, baton.Config{}), locker(t, s, baton.Config{})}
	for range 20 {
		s.LoseReply(batontest.Acquire)
		s.LoseReply(batontest.Release)
		s.FailNext(batontest.Acquire, driver.ErrUnavailable)
	}
	inside := 0 // guarded by the lock
	var work sync.WaitGroup
	for i := range 16 {
		work.Go(func() {
			for range 20 {
				err := locks[i%2].Do(t.Context(), "k", func(context.Context, *baton.Lease) error {
					inside++
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	if inside != 320 {
		t.Errorf("%d times inside, want 320", inside)
	}
}
