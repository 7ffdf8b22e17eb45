package election_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/store/memstore"
)

const ttl = 15 * time.Second

var (
	errWork = errors.New("the work failed")
	quiet   = slog.New(slog.DiscardHandler)
)

func newLocker(t testing.TB, store driver.Locks, cfg baton.Config) *baton.Locker {
	t.Helper()
	if cfg.TTL == 0 {
		cfg.TTL = ttl
	}
	locks, err := baton.New(store, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return locks
}

// run makes a candidate stand, and returns how that ended.
func run(ctx context.Context, c *election.Candidate, lead func(context.Context, *election.Leadership) error) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx, lead) }()
	return ended
}

// elected is a lead that sends its leadership and waits for the context.
func elected(to chan<- *election.Leadership) func(context.Context, *election.Leadership) error {
	return func(ctx context.Context, l *election.Leadership) error {
		to <- l
		<-ctx.Done()
		return ctx.Err()
	}
}

func get[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(10 * time.Minute): // of fake time
		t.Fatalf("%s: not within ten minutes", what)
		panic("not reached")
	}
}

// Run returns what lead returns while it leads, and by then the election is open.
func TestLeadReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		locks, other := newLocker(t, store, baton.Config{}), newLocker(t, store, baton.Config{})
		for _, want := range []error{nil, errWork} {
			calls := 0
			err := election.Run(t.Context(), locks, "e", func(ctx context.Context, l *election.Leadership) error {
				calls++
				if !l.IsLeader() || l.Err() != nil || ctx.Err() != nil || l.Token() <= 0 || !l.Deadline().After(time.Now()) {
					t.Errorf("elected, but %v, token %d, until %v", l.Err(), l.Token(), l.Deadline())
				}
				if _, err := other.TryLock(t.Context(), "e"); !errors.Is(err, baton.ErrHeld) {
					t.Errorf("the lock of the election: %v", err)
				}
				return want
			})
			if err != want || calls != 1 {
				t.Errorf("%v after %d calls, want %v after one", err, calls, want)
			}
			if _, err := election.Leader(t.Context(), locks, "e"); !errors.Is(err, election.ErrNoLeader) {
				t.Errorf("after the end: %v", err)
			}
		}
	})
}

// A leadership that is lost ends lead's context, with the cause, and the candidate
// stands again whatever lead returns then.
func TestLossStandsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memstore.New(), baton.Config{})
		var tokens []int64
		answers := []error{nil, errWork, context.Canceled}
		err := (&election.Candidate{Locks: locks, Name: "e", Logger: quiet}).Run(t.Context(), func(ctx context.Context, l *election.Leadership) error {
			tokens = append(tokens, l.Token())
			if len(tokens) > len(answers) {
				return nil
			}
			if _, err := locks.Break(t.Context(), "e"); err != nil {
				t.Fatal(err)
			}
			<-ctx.Done()
			if err := context.Cause(ctx); !errors.Is(err, baton.ErrLost) || l.IsLeader() || l.Err() != err || l.Deadline().After(time.Now()) {
				t.Errorf("cause %v, Err %v", err, l.Err())
			}
			return answers[len(tokens)-1]
		})
		if err != nil || len(tokens) != 4 || !slices.IsSorted(tokens) || len(slices.Compact(tokens)) != 4 {
			t.Errorf("%v, tokens %v", err, tokens)
		}
	})
}

// The context ends while lead works. No other candidate is elected before lead has
// returned, however long that takes; if it takes long that is reported.
func TestEndOfContextWaitsForLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		var log bytes.Buffer
		var late []time.Duration
		c := &election.Candidate{
			Locks: newLocker(t, store, baton.Config{}), Name: "e",
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Events: &election.Events{Late: func(_ context.Context, e election.LeadershipEvent) {
				if e.Leadership.IsLeader() {
					t.Error("late, and leader")
				}
				late = append(late, e.Since)
			}},
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		var returned time.Time
		started := make(chan bool)
		ended := run(ctx, c, func(ctx context.Context, l *election.Leadership) error {
			started <- true
			<-ctx.Done()
			time.Sleep(10 * ttl)
			returned = time.Now()
			return errWork
		})
		get(t, "the first leader", started)
		next := make(chan *election.Leadership, 1)
		second := run(t.Context(), &election.Candidate{Locks: newLocker(t, store, baton.Config{}), Name: "e"},
			func(_ context.Context, l *election.Leadership) error {
				if returned.IsZero() {
					t.Error("elected before the other's lead has returned")
				}
				next <- l
				return nil
			})
		synctest.Wait()
		enough := errors.New("enough")
		cancel(enough)
		err := get(t, "the end of the first", ended)
		if !errors.Is(err, context.Canceled) || !errors.Is(err, enough) || !errors.Is(err, errWork) {
			t.Errorf("Run: %v", err)
		}
		get(t, "the second leader", next)
		if err := get(t, "the end of the second", second); err != nil {
			t.Error(err)
		}
		if len(late) < 7 || late[0] != time.Second || late[1] != 3*time.Second || late[len(late)-1]-late[len(late)-2] > time.Minute {
			t.Errorf("told to be late after %v", late)
		}
		if n := strings.Count(log.String(), "level=ERROR"); n != len(late) {
			t.Errorf("%d errors logged, want %d", n, len(late))
		}
	})
}

// A lead that does not return after a loss is reported until it does, and its
// candidate does not stand meanwhile. It does not believe in its leadership while
// another leads.
func TestLateAfterLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		locks := newLocker(t, store, baton.Config{})
		late := make(chan time.Duration, 100)
		ended := make(chan error, 100)
		c := &election.Candidate{
			Locks: locks, Name: "e", Logger: quiet,
			Events: &election.Events{
				Late:  func(_ context.Context, e election.LeadershipEvent) { late <- e.Since },
				Ended: func(_ context.Context, e election.LeadershipEvent) { ended <- e.Err },
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		stubborn := make(chan *election.Leadership, 10)
		release := make(chan bool)
		first := run(ctx, c, func(ctx context.Context, l *election.Leadership) error {
			stubborn <- l
			<-release
			return errWork
		})
		old := get(t, "the stubborn leader", stubborn)
		next := make(chan *election.Leadership, 1)
		second := run(ctx, &election.Candidate{Locks: newLocker(t, store, baton.Config{}), Name: "e"}, elected(next))
		synctest.Wait()
		if _, err := locks.Break(t.Context(), "e"); err != nil {
			t.Fatal(err)
		}
		now := get(t, "the next leader", next)
		if now.Token() <= old.Token() {
			t.Errorf("token %d after %d", now.Token(), old.Token())
		}
		if d := get(t, "a report", late); d != time.Second {
			t.Errorf("reported after %v", d)
		}
		if d := get(t, "another report", late); d != 3*time.Second {
			t.Errorf("reported again after %v", d)
		}
		if old.IsLeader() || !now.IsLeader() {
			t.Errorf("the old one: %v, the new one: %v", old.Err(), now.Err())
		}
		info, err := locks.Inspect(t.Context(), "e")
		if err != nil || len(info.Waiters) != 0 {
			t.Errorf("%d stand, %v", len(info.Waiters), err)
		}
		close(release)
		if err := get(t, "the end of the leadership", ended); err != errWork {
			t.Errorf("Ended: %v", err)
		}
		synctest.Wait()
		if info, err := locks.Inspect(t.Context(), "e"); err != nil || len(info.Waiters) != 1 {
			t.Errorf("%d stand after lead has returned, %v", len(info.Waiters), err)
		}
		n := len(late)
		time.Sleep(10 * time.Minute)
		if len(late) != n {
			t.Error("reported though lead has returned")
		}
		cancel()
		for _, ended := range []<-chan error{first, second} {
			if err := get(t, "the end", ended); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	})
}

// A candidate that resigns and stands again at once goes to the end of the queue:
// in one process or in several, all candidates lead in turn.
func TestResignIsFair(t *testing.T) {
	for name, separate := range map[string]bool{"processes": true, "one process": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				locks := newLocker(t, store, baton.Config{})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var mu sync.Mutex
				var leaders []int
				var last int64
				const candidates, rounds = 4, 12
				var all []<-chan error
				for i := range candidates {
					if separate {
						locks = newLocker(t, store, baton.Config{})
					}
					mine := locks
					all = append(all, run(ctx, &election.Candidate{Locks: mine, Name: "e", Value: fmt.Sprint(i), Logger: quiet},
						func(work context.Context, l *election.Leadership) error {
							mu.Lock()
							leaders = append(leaders, i)
							enough := len(leaders) == candidates*rounds
							if l.Token() <= last {
								t.Errorf("token %d after %d", l.Token(), last)
							}
							last = l.Token()
							mu.Unlock()
							time.Sleep(time.Millisecond) // until all others wait
							if term, err := election.Leader(ctx, mine, "e"); err != nil || term.Token != l.Token() || term.Value != fmt.Sprint(i) {
								t.Errorf("others see %+v, %v; leader %d has token %d", term, err, i, l.Token())
							}
							if enough {
								cancel()
							}
							l.Resign()
							l.Resign()
							if err := context.Cause(work); !errors.Is(err, election.ErrResigned) && !enough || l.IsLeader() {
								t.Errorf("after resigning: %v", err)
							}
							return errWork // does not count after that
						}))
					synctest.Wait()
				}
				for _, ended := range all {
					if err := get(t, "the end", ended); !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
				}
				for i, leader := range leaders {
					if i >= candidates && leader != leaders[i-candidates] {
						t.Fatalf("not in turn: %v", leaders)
					}
				}
			})
		})
	}
}

// A panic, or Goexit, opens the election at once and continues.
func TestPanicGivesUp(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("on purpose") }, "goexit": func() { t.Skip("on purpose") }} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				done := make(chan any)
				go func() {
					defer func() { done <- recover() }()
					_ = election.Run(t.Context(), newLocker(t, store, baton.Config{}), "e", func(context.Context, *election.Leadership) error {
						end()
						return nil
					})
					t.Error("Run returned")
				}()
				if v := get(t, "the end", done); name == "panic" && v != "on purpose" {
					t.Errorf("recovered %v", v)
				}
				lease, err := newLocker(t, store, baton.Config{}).TryLock(t.Context(), "e")
				if err != nil {
					t.Fatalf("after the end: %v", err)
				}
				_ = lease.Unlock() // the test ends
			})
		})
	}
}

// MaxHold makes leadership go round.
func TestMaxHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		ctx, cancel := context.WithCancel(t.Context())
		led := make(chan string, 100)
		var all []<-chan error
		for _, name := range []string{"a", "b"} {
			locks := newLocker(t, store, baton.Config{MaxHold: time.Minute})
			all = append(all, run(ctx, &election.Candidate{Locks: locks, Name: "e"}, func(ctx context.Context, _ *election.Leadership) error {
				led <- name
				<-ctx.Done()
				return ctx.Err()
			}))
			synctest.Wait()
		}
		for _, want := range []string{"a", "b", "a", "b"} {
			if got := get(t, "a leader", led); got != want {
				t.Errorf("%s leads, want %s", got, want)
			}
		}
		cancel()
		for _, ended := range all {
			<-ended
		}
	})
}

// The process does not run for ten TTLs while it leads. Its first look at its
// leadership is right, before anything else had time to notice.
func TestStoppedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memstore.New(), baton.Config{})
		calls := 0
		err := election.Run(t.Context(), locks, "e", func(ctx context.Context, l *election.Leadership) error {
			if calls++; calls == 2 {
				return nil
			}
			bootclock.Suspend(10 * ttl)
			if l.IsLeader() || ctx.Err() == nil || !errors.Is(l.Err(), baton.ErrLost) {
				t.Errorf("after a stop: %v", l.Err())
			}
			return nil // does not end Run: the leadership was lost
		})
		if err != nil || calls != 2 {
			t.Errorf("%v after %d calls", err, calls)
		}
	})
}

// The process is stopped between its election and the call of lead. Lead is not
// called for a leadership that is over.
func TestStoppedBeforeLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, cancelled := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			elections := 0
			locks := newLocker(t, memstore.New(), baton.Config{Events: &baton.Events{Acquired: func(context.Context, baton.LockEvent) {
				if elections++; elections > 1 {
					return
				}
				if cancelled {
					cancel()
				} else {
					bootclock.Suspend(10 * ttl)
				}
			}}})
			calls := 0
			err := election.Run(ctx, locks, "e", func(ctx context.Context, l *election.Leadership) error {
				if calls++; !l.IsLeader() {
					t.Errorf("called though %v", l.Err())
				}
				return nil
			})
			switch {
			case cancelled && (!errors.Is(err, context.Canceled) || calls != 0):
				t.Errorf("cancelled: %v after %d calls", err, calls)
			case !cancelled && (err != nil || calls != 1 || elections != 2):
				t.Errorf("%v after %d calls and %d elections", err, calls, elections)
			}
			if _, err := election.Leader(t.Context(), locks, "e"); !errors.Is(err, election.ErrNoLeader) {
				t.Errorf("after the end: %v", err)
			}
			cancel()
		}
	})
}

// down is a store that can be out of reach.
type down struct {
	*memstore.Store
	mu  sync.Mutex
	err error
}

func (d *down) set(err error) { d.mu.Lock(); defer d.mu.Unlock(); d.err = err }
func (d *down) get() error    { d.mu.Lock(); defer d.mu.Unlock(); return d.err }

func (d *down) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := d.get(); err != nil {
		return driver.Grant{}, err
	}
	return d.Store.Acquire(ctx, r)
}

func (d *down) Inspect(ctx context.Context, key string) (driver.KeyInfo, error) {
	if err := d.get(); err != nil {
		return driver.KeyInfo{}, err
	}
	return d.Store.Inspect(ctx, key)
}

// A candidate survives a store that is down for an hour, and reports it.
func TestStoreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &down{Store: memstore.New()}
		store.set(driver.ErrUnavailable)
		failed := 0
		c := &election.Candidate{
			Locks: newLocker(t, store, baton.Config{}), Name: "e", Logger: quiet,
			Events: &election.Events{Failed: func(_ context.Context, e election.LeadershipEvent) {
				if failed++; !errors.Is(e.Err, baton.ErrUnavailable) {
					t.Errorf("Failed: %v", e.Err)
				}
			}},
		}
		next := make(chan *election.Leadership, 1)
		ctx, cancel := context.WithCancel(t.Context())
		ended := run(ctx, c, elected(next))
		time.Sleep(time.Hour)
		synctest.Wait()
		if failed < 100 || failed > 400 {
			t.Errorf("told %d times in an hour", failed)
		}
		store.set(nil)
		up := time.Now()
		get(t, "a leader", next)
		if d := time.Since(up); d > ttl {
			t.Errorf("elected %v after the store was back", d)
		}
		cancel()
		if err := get(t, "the end", ended); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// An error that another try cannot cure ends Run, and lead is not called.
func TestHopeless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memstore.New(), baton.Config{})
		never := func(context.Context, *election.Leadership) error { t.Error("lead was called"); return nil }
		if err := election.Run(t.Context(), locks, "", never); !errors.As(err, new(*baton.KeyError)) {
			t.Errorf("no name: %v", err)
		}
		for _, value := range []string{strings.Repeat("x", 129), "two\nlines"} {
			err := (&election.Candidate{Locks: locks, Name: "e", Value: value}).Run(t.Context(), never)
			if bad, ok := errors.AsType[*driver.RequestError](err); !ok || bad.Field != "owner" {
				t.Errorf("value %q: %v", value, err)
			}
		}
		err := election.Run(t.Context(), locks, "e", func(ctx context.Context, _ *election.Leadership) error {
			return election.Run(ctx, locks, "e", never)
		})
		if !errors.Is(err, baton.ErrNested) {
			t.Errorf("within itself: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := election.Run(ctx, locks, "e", never); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	})
}

// A store can check the claim of a leadership in a transaction.
func TestClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memstore.New(), baton.Config{})
		err := election.Run(t.Context(), locks, "e", func(_ context.Context, l *election.Leadership) error {
			var leased driver.Leased = l
			if c, err := leased.Pin(); err != nil || c.Key != "e" {
				t.Errorf("claim of %q, %v", c.Key, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}
