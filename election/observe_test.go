package election_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/store/memstore"
)

type seen struct {
	term election.Term
	err  error
}

// observe collects what an observer sees, until ctx ends.
func observe(ctx context.Context, locks *baton.Locker, name string) (all <-chan seen, ended <-chan bool) {
	ch, over := make(chan seen, 1000), make(chan bool)
	go func() {
		defer close(over)
		for term, err := range election.Observe(ctx, locks, name) {
			ch <- seen{term, err}
		}
	}()
	return ch, over
}

func mustLock(t *testing.T, locks *baton.Locker, key string, opts ...baton.Option) *baton.Lease {
	t.Helper()
	lease, err := locks.Lock(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func mustUnlock(t *testing.T, lease *baton.Lease) {
	t.Helper()
	if err := lease.Unlock(); err != nil {
		t.Fatal(err)
	}
}

// An observer sees every change within a second: leaders, none, and the same leader
// elected again.
func TestObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		locks, a, b := newLocker(t, store, baton.Config{}), newLocker(t, store, baton.Config{Owner: "a"}), newLocker(t, store, baton.Config{Owner: "b"})
		ctx, cancel := context.WithCancel(t.Context())
		all, ended := observe(ctx, locks, "e")
		next := func(want string, token int64) {
			t.Helper()
			time.Sleep(time.Second)
			select {
			case s := <-all:
				if s.err != nil || s.term.Value != want || s.term.Led != (want != "") || s.term.Token != token {
					t.Errorf("saw %+v, want %q with token %d", s, want, token)
				}
			default:
				t.Errorf("nothing was seen, want %q", want)
			}
		}
		next("", 0)
		first := mustLock(t, a, "e")
		next("a", first.Token())
		second := make(chan *baton.Lease, 1)
		go func() { second <- mustLock(t, b, "e") }()
		synctest.Wait()
		mustUnlock(t, first)
		lease := <-second
		next("b", lease.Token())
		mustUnlock(t, lease)
		next("", 0)

		// A, B and A again between two looks.
		lease = mustLock(t, a, "e")
		next("a", lease.Token())
		mustUnlock(t, lease)
		mustUnlock(t, mustLock(t, b, "e"))
		lease = mustLock(t, a, "e")
		next("a", lease.Token())

		// Neither renewals nor waiters are a change.
		go func() { second <- mustLock(t, b, "e") }()
		time.Sleep(10 * ttl)
		if len(all) > 0 {
			t.Errorf("saw %+v, and nothing changed", <-all)
		}
		mustUnlock(t, lease)
		lease = <-second
		next("b", lease.Token())
		mustUnlock(t, lease)
		next("", 0)

		// Holders of a read lock are no leaders.
		reader := mustLock(t, a, "e", baton.Shared())
		time.Sleep(time.Minute)
		if len(all) > 0 {
			t.Errorf("saw %+v, a reader", <-all)
		}
		mustUnlock(t, reader)
		cancel()
		<-ended
	})
}

// An observer that is busy for long gets the latest state when it looks again.
func TestSlowObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memstore.New(), baton.Config{})
		var last election.Term
		var lease *baton.Lease
		looks := 0
		for term, err := range election.Observe(t.Context(), locks, "e") {
			if err != nil {
				t.Fatal(err)
			}
			if last = term; looks == 1 {
				break
			}
			looks++
			for range 50 {
				if lease != nil {
					mustUnlock(t, lease)
				}
				lease = mustLock(t, locks, "e")
				time.Sleep(time.Second)
			}
		}
		if last.Token != lease.Token() || looks != 1 {
			t.Errorf("saw token %d, the latest is %d", last.Token, lease.Token())
		}
		mustUnlock(t, lease)
	})
}

// A store that is out of reach is reported once, with what was last seen. What is
// found after that is reported even if it is the same.
func TestObserveStoreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &down{Store: memstore.New()}
		locks := newLocker(t, store, baton.Config{Owner: "a"})
		lease := mustLock(t, locks, "e")
		ctx, cancel := context.WithCancel(t.Context())
		all, ended := observe(ctx, locks, "e")
		if s := <-all; s.err != nil || s.term.Token != lease.Token() {
			t.Errorf("first: %+v", s)
		}
		store.set(driver.ErrUnavailable)
		if s := <-all; !errors.Is(s.err, baton.ErrUnavailable) || s.term.Token != lease.Token() {
			t.Errorf("down: %+v", s)
		}
		time.Sleep(time.Hour)
		if len(all) > 0 {
			t.Errorf("told again: %+v", <-all)
		}
		store.set(nil)
		if s := <-all; s.err != nil || s.term.Token != lease.Token() {
			t.Errorf("up again: %+v", s)
		}
		cancel()
		<-ended
		if len(all) > 0 {
			t.Errorf("the end is told as %+v", <-all)
		}
		mustUnlock(t, lease)
	})
}

func TestObserveHopeless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memstore.New(), baton.Config{})
		blind := newLocker(t, struct{ driver.Locks }{memstore.New()}, baton.Config{})
		n := 0
		for _, err := range election.Observe(t.Context(), locks, "") {
			if n++; !errors.As(err, new(*baton.KeyError)) {
				t.Errorf("no name: %v", err)
			}
		}
		for _, err := range election.Observe(t.Context(), blind, "e") {
			if n++; !errors.Is(err, baton.ErrUnsupported) {
				t.Errorf("a store that shows nothing: %v", err)
			}
		}
		if n != 2 {
			t.Errorf("%d errors, want one each", n)
		}
	})
}

func TestLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		locks := newLocker(t, store, baton.Config{Owner: "host:1"})
		if _, err := election.Leader(t.Context(), locks, "e"); !errors.Is(err, election.ErrNoLeader) {
			t.Errorf("nobody: %v", err)
		}
		for value, want := range map[string]string{"": "host:1", "http://[::1]:80/?a=b ": "http://[::1]:80/?a=b "} {
			err := (&election.Candidate{Locks: locks, Name: "e", Value: value}).Run(t.Context(), func(ctx context.Context, l *election.Leadership) error {
				time.Sleep(time.Minute)
				term, err := election.Leader(ctx, newLocker(t, store, baton.Config{}), "e")
				if err != nil || term.Value != want || term.Token != l.Token() || term.Age != time.Minute || term.Remaining <= 0 || term.Remaining > ttl {
					t.Errorf("%+v, %v; want %q with token %d", term, err, want, l.Token())
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
}
