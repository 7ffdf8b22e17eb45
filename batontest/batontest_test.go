package batontest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/batontest"
	"github.com/batonhq/baton/driver"
)

func TestForgottenUnlockFailsTheTest(t *testing.T) {
	t.Parallel()
	var place string
	var token int64
	j := judged(t, func(t testing.TB) {
		locks := locker(t, batontest.New(t), baton.Config{})
		place = here()
		lease, err := locks.Lock(context.Background(), "invoice/42")
		if err != nil {
			t.Fatal(err)
		}
		token = lease.Token()
		lock(t, locks, "invoice/43").Unlock()
	})
	j.wants(t, "batontest: lock \"invoice/42\" was never unlocked")
	for _, want := range []string{place, fmt.Sprintf("token %d", token)} {
		if !strings.Contains(j.said[0], want) {
			t.Errorf("%q does not name %q", j.said[0], want)
		}
	}
}

// The same, of a real test: this one, in a process of its own.
func TestForgottenUnlockFailsARealTest(t *testing.T) {
	t.Parallel()
	const child = "BATONTEST_FORGETS"
	if os.Getenv(child) != "" {
		lock(t, locker(t, batontest.New(t), baton.Config{}), "invoice/42")
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	if _, ok := errors.AsType[*exec.ExitError](err); !ok || !strings.Contains(string(out), `lock "invoice/42" was never unlocked`) || !strings.Contains(string(out), "--- FAIL: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
}

// Every way to a lock is seen.
func TestForgottenUnlockOfAnyKind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		take func(t testing.TB, s *batontest.Store, locks *baton.Locker)
	}{
		{"read lock", func(t testing.TB, _ *batontest.Store, locks *baton.Locker) { lock(t, locks, "k", baton.Shared()) }},
		{"permits", func(t testing.TB, _ *batontest.Store, locks *baton.Locker) { lock(t, locks, "k", baton.Permits(2, 5)) }},
		{"from the queue", func(t testing.TB, s *batontest.Store, locks *baton.Locker) {
			release := s.Hold("k", "another")
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = locks.Lock(context.Background(), "k")
			}()
			s.AwaitWaiters("k", 1)
			release()
			<-done
		}},
		{"attached", func(t testing.TB, s *batontest.Store, locks *baton.Locker) {
			handle, err := lock(t, locks, "k").Detach()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := locker(t, s, baton.Config{}).Attach(context.Background(), handle); err != nil {
				t.Fatal(err)
			}
		}},
		{"nested", func(t testing.TB, _ *batontest.Store, locks *baton.Locker) {
			outer := lock(t, locks, "k")
			if _, err := locks.Lock(outer.Context(context.Background()), "k", baton.Reentrant()); err != nil {
				t.Fatal(err)
			}
			outer.Unlock()
		}},
		{"downgraded", func(t testing.TB, _ *batontest.Store, locks *baton.Locker) {
			if err := lock(t, locks, "k").Downgrade(context.Background()); err != nil {
				t.Fatal(err)
			}
		}},
		{"handed over", func(t testing.TB, _ *batontest.Store, locks *baton.Locker) {
			first := lock(t, locks, "k")
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = locks.Lock(context.Background(), "k")
			}()
			first.Unlock()
			<-done
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			judged(t, func(t testing.TB) {
				s := batontest.New(t)
				c.take(t, s, locker(t, s, baton.Config{}))
			}).wants(t, `lock "k" was never unlocked`)
		})
	}
	t.Run("several", func(t *testing.T) {
		t.Parallel()
		judged(t, func(t testing.TB) {
			locks := locker(t, batontest.New(t), baton.Config{})
			if _, err := locks.LockAll(context.Background(), []string{"a", "b"}); err != nil {
				t.Fatal(err)
			}
		}).wants(t, `lock "a" was never unlocked`, `lock "b" was never unlocked`)
	})
}

// What was lost is not held, whether or not the program unlocks it.
func TestLostLeaseIsNoLeak(t *testing.T) {
	t.Parallel()
	judged(t, func(t testing.TB) {
		s := batontest.New(t)
		locks := locker(t, s, baton.Config{})
		unlocked, _ := lock(t, locks, "a"), lock(t, locks, "b")
		s.Lose("a")
		s.Lose("b")
		if err := unlocked.Unlock(); !errors.Is(err, baton.ErrLost) {
			t.Errorf("Unlock of a lost lease: %v", err)
		}
	}).wants(t)
}

// What a Locker keeps in the store after the end of a lease is not held either.
func TestEndedLeaseIsNoLeak(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		cfg  baton.Config
		end  func(t *testing.T, s *batontest.Store, lease *baton.Lease)
	}{
		{"detached", baton.Config{}, func(t *testing.T, _ *batontest.Store, lease *baton.Lease) {
			if _, err := lease.Detach(); err != nil {
				t.Error(err)
			}
		}},
		{"held for too long", baton.Config{MaxHold: time.Second}, func(_ *testing.T, _ *batontest.Store, lease *baton.Lease) { <-lease.Done() }},
		{"lost, with a delay", baton.Config{LockDelay: time.Minute}, func(t *testing.T, s *batontest.Store, lease *baton.Lease) {
			s.Fail(batontest.Renew, driver.ErrUnavailable)
			<-lease.Done()
			if err := lease.Unlock(); !errors.Is(err, baton.ErrLost) {
				t.Error(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := batontest.New(t)
				c.end(t, s, lock(t, locker(t, s, c.cfg), "k"))
				if len(s.Holders("k")) != 1 {
					t.Error("the store has let it go")
				}
			})
		})
	}
}

// A lock that stays taken for a MinHold was unlocked, and is no other grant.
func TestMinHoldIsNoLeak(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		lease, err := locker(t, s, baton.Config{}).Lock(t.Context(), "k", baton.MinHold(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Unlock(); err != nil {
			t.Error(err)
		}
		if held, granted := len(s.Holders("k")), len(s.Grants()); held != 1 || granted != 1 {
			t.Errorf("%d hold it after %d grants", held, granted)
		}
	})
}

// A release that the store did not answer was asked for.
func TestUnansweredUnlockIsNoLeak(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		lease := lock(t, locker(t, s, baton.Config{}), "k")
		s.Fail(batontest.Release, driver.ErrUnavailable)
		if err := lease.Unlock(); !errors.Is(err, baton.ErrUnavailable) {
			t.Errorf("Unlock: %v", err)
		}
		if n := len(s.Holders("k")); n != 1 {
			t.Errorf("%d hold it, though no release came through", n)
		}
	})
}

// Goroutines that end with the test's context have a second to unlock. The end of the
// Store ends what waits or works on, so that the bubble can end, too.
func TestGoroutinesAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var late *baton.Lease
		judged(t, func(t testing.TB) {
			s := batontest.New(t)
			locks := locker(t, s, baton.Config{})
			soon := lock(t, locks, "soon")
			go func() {
				time.Sleep(999 * time.Millisecond)
				soon.Unlock()
			}()
			late = lock(t, locks, "late")
			go func() { <-late.Context(context.Background()).Done() }()
			s.Hold("held", "another")
			go func() {
				if _, err := locks.Lock(context.Background(), "held"); !errors.Is(err, driver.ErrClosed) {
					panic(err)
				}
			}()
			s.AwaitWaiters("held", 1)
			s.Delay(batontest.Acquire, time.Hour)
			go func() {
				if _, err := locks.Lock(context.Background(), "slow"); !errors.Is(err, driver.ErrClosed) {
					panic(err)
				}
			}()
			synctest.Wait()
		}).wants(t, `lock "late" was never unlocked`)
		if err := late.Unlock(); !errors.Is(err, baton.ErrLost) {
			t.Errorf("Unlock after the test: %v", err)
		}
	})
}

// Unlock may come when the test has ended, as from a goroutine that the test does not await.
func TestUnlockAfterTheEnd(t *testing.T) {
	t.Parallel()
	var lease *baton.Lease
	judged(t, func(t testing.TB) {
		s := batontest.New(t)
		lease = lock(t, locker(t, s, baton.Config{}), "k")
		s.Lose("k")
	}).wants(t)
	if err := lease.Unlock(); !errors.Is(err, baton.ErrLost) {
		t.Errorf("Unlock of what was lost: %v", err)
	}
	var locks *baton.Locker
	judged(t, func(t testing.TB) { locks = locker(t, batontest.New(t), baton.Config{}) }).wants(t)
	if _, err := locks.Lock(t.Context(), "k"); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Lock: %v", err)
	}
}

// A test that has failed says what it held, and does not fail again for it.
func TestFatalInTheMiddle(t *testing.T) {
	t.Parallel()
	j := judged(t, func(t testing.TB) {
		s := batontest.New(t)
		lock(t, locker(t, s, baton.Config{}), "k")
		s.Fail(batontest.Release, driver.ErrUnavailable)
		t.Fatalf("the end")
	})
	j.wants(t, "the end")
	if len(j.logged) != 1 || !strings.Contains(j.logged[0], `lock "k" was never unlocked`) {
		t.Errorf("it logged %q", j.logged)
	}
}

func TestMistakesEndTheTest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		do   func(s *batontest.Store)
		want string
	}{
		{"lose what no process holds", func(s *batontest.Store) { s.Hold("a", "x"); s.Lose("b") }, `Lose("b"): no process holds it (0 wait for it; held are ["a"])`},
		{"hold what is held", func(s *batontest.Store) { s.Hold("k", "x"); s.Hold("k", "y") }, `Hold("k"): lock "k" is held by x`},
		{"hold a bad key", func(s *batontest.Store) { s.Hold("", "x") }, "it is empty"},
		{"a bad owner", func(s *batontest.Store) { s.Hold("k", "a\nb") }, "cannot be printed"},
		{"a fault without error", func(s *batontest.Store) { s.Fail(batontest.Renew, nil) }, "Fail(renew, <nil>) changes nothing"},
		{"a fault of nothing", func(s *batontest.Store) { s.FailNext("unlock", driver.ErrUnknown) }, `there is no request "unlock"`},
		{"no delay", func(s *batontest.Store) { s.Delay(batontest.Take, 0) }, "Delay(take, 0s) changes nothing"},
		{"a delay back", func(s *batontest.Store) { s.Delay(batontest.Take, -1) }, "not negative"},
		{"exhaust for no time", func(s *batontest.Store) { s.Exhaust("k", 0) }, `Exhaust("k", 0s) changes nothing`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			went := false
			judged(t, func(t testing.TB) {
				c.do(batontest.New(t))
				went = true
			}).wants(t, c.want)
			if went {
				t.Error("the test went on")
			}
		})
	}
	t.Run("await who does not come", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			judged(t, func(t testing.TB) {
				s := batontest.New(t)
				s.Hold("k", "x")
				s.AwaitWaiters("k", 1)
			}).wants(t, `AwaitWaiters("k", 1): 0 wait after 30s; 1 hold it`)
		})
	})
}

// The lease ends at once, in fake time and in real time, and all that waits for its end
// goes on when Lose returns.
func TestLose(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T) {
		s := batontest.New(t)
		locks := locker(t, s, baton.Config{TTL: time.Hour})
		lease := lock(t, locks, "k")
		work := lease.Context(t.Context())
		began := time.Now()
		s.Lose("k")
		select {
		case <-lease.Done():
		default:
			t.Error("Done is open")
		}
		if lost, ok := errors.AsType[*baton.LostError](lease.Err()); !ok || lost.Cause != baton.Gone || context.Cause(work) != lost {
			t.Errorf("Err is %v, the context's cause %v", lease.Err(), context.Cause(work))
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("it took %v", took)
		}
		again := lock(t, locks, "k") // the lock is free
		if again.Token() <= lease.Token() {
			t.Errorf("token %d after %d", again.Token(), lease.Token())
		}
		again.Unlock()

		readers := []*baton.Lease{lock(t, locks, "r", baton.Shared()), lock(t, locker(t, s, baton.Config{}), "r", baton.Shared())}
		s.Hold("r", "another", baton.Shared())
		s.Fail(batontest.Renew, driver.ErrUnavailable).Optional() // does not keep the news from them
		s.Lose("r")
		for _, r := range readers {
			if !errors.Is(r.Err(), baton.ErrLost) {
				t.Errorf("a reader: %v", r.Err())
			}
		}
	}
	t.Run("real time", func(t *testing.T) { t.Parallel(); test(t) })
	t.Run("fake time", func(t *testing.T) { t.Parallel(); synctest.Test(t, test) })
}

// The next waiter gets what was lost, and the holder finds out from within Do.
func TestLoseWithinDo(t *testing.T) {
	t.Parallel()
	s := batontest.New(t)
	locks, others := locker(t, s, baton.Config{}), locker(t, s, baton.Config{})
	got := make(chan error, 1)
	err := locks.Do(t.Context(), "k", func(ctx context.Context, _ *baton.Lease) error {
		go func() { got <- others.Do(t.Context(), "k", func(context.Context, *baton.Lease) error { return nil }) }()
		s.AwaitWaiters("k", 1)
		s.Lose("k")
		return ctx.Err()
	})
	if !errors.Is(err, baton.ErrLost) || !errors.Is(err, context.Canceled) {
		t.Errorf("Do: %v", err)
	}
	if err := <-got; err != nil {
		t.Errorf("the next one: %v", err)
	}
	if g := s.Grants(); len(g) != 2 || g[0].Key != "k" || g[1].Token <= g[0].Token || g[0].Weight != driver.Whole {
		t.Errorf("grants: %+v", g)
	}
}

func TestHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		locks := locker(t, s, baton.Config{})
		release := s.Hold("k", "someone else")
		_, err := locks.TryLock(t.Context(), "k")
		if held, ok := errors.AsType[*baton.HeldError](err); !ok || held.Owner != "someone else" || held.Remaining != baton.DefaultTTL {
			t.Errorf("TryLock: %v", err)
		}
		time.Sleep(time.Minute) // it lives
		if h := s.Holders("k"); len(h) != 1 || h[0].Owner != "someone else" {
			t.Errorf("held by %+v", h)
		}
		release()
		release()
		lease := lock(t, locks, "k")
		if h := s.Holders("k"); len(h) != 1 || h[0].Token != lease.Token() {
			t.Errorf("held by %+v, want the token %d", h, lease.Token())
		}
		lease.Unlock()
		s.Hold("gpu", "another", baton.Permits(4, 5))
		if _, err := locks.TryLock(t.Context(), "gpu", baton.Permits(2, 5)); !errors.Is(err, baton.ErrHeld) {
			t.Errorf("six of five permits: %v", err)
		}
		s.Lose("gpu")
		lock(t, locks, "gpu", baton.Permits(2, 5)).Unlock()
	})
}

// Lose comes while requests about the lease are under way.
func TestLoseInTheMiddle(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		op   batontest.Op
		ask  func(*baton.Lease) error
	}{
		{"of a renewal", batontest.Renew, func(l *baton.Lease) error { <-l.Done(); return l.Err() }},
		{"of an extension", batontest.Renew, func(l *baton.Lease) error { _, err := l.Extend(context.Background()); return err }},
		{"of a downgrade", batontest.Downgrade, func(l *baton.Lease) error { return l.Downgrade(context.Background()) }},
		{"of an unlock", batontest.Release, func(l *baton.Lease) error { return l.Unlock() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := batontest.New(t)
				lease := lock(t, locker(t, s, baton.Config{}), "k")
				slow := s.Delay(c.op, 10*time.Second)
				asked := make(chan error, 1)
				go func() { asked <- c.ask(lease) }()
				time.Sleep(6 * time.Second)
				slow.Stop()
				s.Lose("k")
				if c.op != batontest.Release && !errors.Is(lease.Err(), baton.ErrLost) {
					t.Errorf("Err is %v", lease.Err())
				}
				if err := <-asked; c.op != batontest.Release && !errors.Is(err, baton.ErrLost) {
					t.Errorf("it ended with %v", err)
				}
				lease.Unlock()
			})
		})
	}
}

// Two stores know nothing of each other, in parallel tests, too.
func TestTwoStores(t *testing.T) {
	t.Parallel()
	for i := range 8 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			a, b := batontest.New(t), batontest.New(t)
			a.Hold("k", "another")
			b.FailNext(batontest.Renew, driver.ErrUnavailable).Optional()
			lock(t, locker(t, b, baton.Config{}), "k").Unlock()
			if a.Grants() != nil || len(b.Grants()) != 1 {
				t.Errorf("grants: %+v, %+v", a.Grants(), b.Grants())
			}
		})
	}
}

// A Store of the test outside of the bubble is a mistake that would otherwise be odd.
func TestOutsideOfTheBubble(t *testing.T) {
	t.Parallel()
	judged(t, func(tb testing.TB) {
		s := batontest.New(tb)
		synctest.Test(t, func(t *testing.T) {
			lock(t, locker(t, s, baton.Config{}), "k").Unlock()
		})
	}).wants(t, "call it inside")
	judged(t, func(tb testing.TB) {
		s := batontest.New(tb)
		synctest.Test(t, func(t *testing.T) {
			done := make(chan struct{})
			go func() { // Hold ends it
				defer close(done)
				s.Hold("k", "another")
			}()
			<-done
		})
	}).wants(t, "call it inside")
}

// A program that misses the hint learns of its grant when it renews its position: it
// holds the lock then, and forgets it like any other.
func TestGrantThatARenewalFinds(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	j := judged(t, func(t testing.TB) {
		s := batontest.New(t)
		release := s.Hold("k", "others")
		waits := driver.Claim{Key: "k", ID: driver.NewID(), Owner: "program", Weight: driver.Whole, Capacity: driver.Whole}
		if g, err := s.Acquire(ctx, driver.Request{Claim: waits, TTL: time.Minute, Queue: true}); err != nil || !g.Waiting {
			t.Errorf("%+v, %v", g, err)
		}
		release()
		if n := len(s.Grants()); n != 0 {
			t.Errorf("%d grants were told", n)
		}
		r := s.Renew(ctx, []driver.Claim{waits}, time.Minute)[0]
		if all := s.Grants(); r.State != driver.Held || len(all) != 1 || all[0].Owner != "program" {
			t.Errorf("%+v, grants %+v", r, all)
		}
	})
	j.wants(t, `batontest: lock "k" was never unlocked`)
}
