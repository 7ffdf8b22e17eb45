package election_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/store/memstore"
)

// Observers see what a leader publishes, with the same token, and it lasts as long as
// the leadership. The next one begins with the candidate's value.
func TestPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		locks := newLocker(t, store, baton.Config{Owner: "host:1"})
		ctx, cancel := context.WithCancel(t.Context())
		all, over := observe(ctx, newLocker(t, store, baton.Config{}), "e")
		next := func(want string, token int64) {
			t.Helper()
			time.Sleep(time.Second)
			select {
			case s := <-all:
				if s.err != nil || s.term.Value != want || s.term.Token != token || s.term.Led != (token != 0) {
					t.Errorf("saw %+v, want %q with token %d", s, want, token)
				}
			default:
				t.Errorf("nothing was seen, want %q", want)
			}
		}
		next("", 0)
		terms := 0
		c := &election.Candidate{Locks: locks, Name: "e", Value: "starting", Logger: quiet}
		ended := run(ctx, c, func(work context.Context, l *election.Leadership) error {
			terms++
			next("starting", l.Token())
			deadline := l.Deadline()
			publish := func(value, want string) {
				t.Helper()
				if err := l.Publish(work, value); err != nil {
					t.Errorf("publish %q: %v", value, err)
				}
				if term, err := election.Leader(work, locks, "e"); err != nil || term.Value != want || term.Token != l.Token() {
					t.Errorf("after %q: %+v, %v", value, term, err)
				}
				next(want, l.Token())
			}
			for _, value := range []string{"10.0.0.7:8080", "http://[::1]:80/?a=b ", strings.Repeat("é", 64)} {
				publish(value, value)
			}
			publish("", "host:1")
			publish("ready", "ready")
			if !l.Deadline().Before(deadline.Add(ttl)) || !l.IsLeader() {
				t.Errorf("until %v, %v", l.Deadline(), l.Err())
			}
			if err := l.Publish(work, "ready"); err != nil { // the same again
				t.Error(err)
			}
			time.Sleep(10 * ttl)
			if len(all) > 0 {
				t.Errorf("saw %+v, and nothing changed", <-all)
			}
			if terms == 1 {
				l.Resign()
			} else {
				if _, err := locks.Break(t.Context(), "e"); err != nil {
					t.Error(err)
				}
				<-work.Done()
				next("", 0)
			}
			if terms == 3 {
				cancel()
			}
			return nil
		})
		if err := get(t, "the end", ended); !errors.Is(err, context.Canceled) || terms != 3 {
			t.Errorf("%v after %d terms", err, terms)
		}
		<-over
	})
}

// Everything that Publish refuses changes nothing.
func TestPublishRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		locks := newLocker(t, store, baton.Config{})
		plain := newLocker(t, struct {
			driver.Locks
			driver.Inspector
		}{store, store}, baton.Config{})
		lead := func(locks *baton.Locker, lead func(context.Context, *election.Leadership)) {
			t.Helper()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c := &election.Candidate{Locks: locks, Name: "e", Value: "first", Logger: quiet}
			err := c.Run(ctx, func(ctx context.Context, l *election.Leadership) error {
				lead(ctx, l)
				cancel() // also if the leadership was lost
				return nil
			})
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		still := func(want string) {
			t.Helper()
			if term, err := election.Leader(t.Context(), locks, "e"); err != nil || term.Value != want {
				t.Errorf("shown as %q, %v", term.Value, err)
			}
		}
		lead(locks, func(ctx context.Context, l *election.Leadership) {
			for _, value := range []string{strings.Repeat("x", 129), "two\nlines", "\x1b[2J", "\x00", "\xff"} {
				err := l.Publish(ctx, value)
				if bad, ok := errors.AsType[*driver.RequestError](err); !ok || bad.Field != "owner" || !strings.Contains(err.Error(), `election "e"`) {
					t.Errorf("value %q: %v", value, err)
				}
			}
			ended, cancel := context.WithCancel(ctx)
			cancel()
			if err := l.Publish(ended, "x"); !errors.Is(err, context.Canceled) {
				t.Errorf("with a context that has ended: %v", err)
			}
			still("first")
			if !l.IsLeader() {
				t.Error(l.Err())
			}
		})
		lead(plain, func(ctx context.Context, l *election.Leadership) {
			if err := l.Publish(ctx, "x"); !errors.Is(err, baton.ErrUnsupported) || !strings.Contains(err.Error(), "memory") {
				t.Errorf("a store that cannot: %v", err)
			}
			still("first")
			if !l.IsLeader() {
				t.Error(l.Err())
			}
		})
		lead(locks, func(_ context.Context, l *election.Leadership) {
			l.Resign()
			if err := l.Publish(t.Context(), "x"); !errors.Is(err, election.ErrResigned) {
				t.Errorf("resigned: %v", err)
			}
			still("first") // lead has not returned
		})
		var old *election.Leadership
		lead(locks, func(ctx context.Context, l *election.Leadership) { old = l })
		if err := old.Publish(t.Context(), "x"); !errors.Is(err, context.Canceled) {
			t.Errorf("after the end: %v", err)
		}

		// The lock is broken, and another leads. The leader learns it by Publish.
		lead(locks, func(ctx context.Context, l *election.Leadership) {
			if _, err := locks.Break(t.Context(), "e"); err != nil {
				t.Error(err)
			}
			other := mustLock(t, newLocker(t, store, baton.Config{Owner: "other"}), "e")
			if !l.IsLeader() {
				t.Error("the loss is known already")
			}
			if err := l.Publish(t.Context(), "x"); !errors.Is(err, baton.ErrLost) || l.IsLeader() || ctx.Err() == nil {
				t.Errorf("lost: %v, leader: %v", err, l.Err())
			}
			if err := l.Publish(t.Context(), "x"); !errors.Is(err, baton.ErrLost) {
				t.Errorf("and again: %v", err)
			}
			still("other")
			mustUnlock(t, other)
		})
	})
}

// slowly is a store whose Rename does what it is told to.
type slowly struct {
	*memstore.Store
	rename func(ctx context.Context, c driver.Claim, owner string) error
}

func (s *slowly) Rename(ctx context.Context, c driver.Claim, owner string) error {
	return s.rename(ctx, c, owner)
}

// The leadership ends while the store has not answered. Publish ends then, with the
// reason, and its request, which the store executes later, does not name the next
// leader.
func TestPublishMeetsTheEnd(t *testing.T) {
	type end = func(t *testing.T, l *election.Leadership, stop, cancel func())
	for name, c := range map[string]struct {
		end  end
		want error
	}{
		"lost":        {func(t *testing.T, l *election.Leadership, stop, _ func()) { stop() }, baton.ErrLost},
		"resigned":    {func(t *testing.T, l *election.Leadership, _, _ func()) { l.Resign() }, election.ErrResigned},
		"told to end": {func(t *testing.T, l *election.Leadership, _, cancel func()) { cancel() }, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &slowly{Store: memstore.New()}
				sent := make(chan bool, 100)
				late := make(chan error, 100)
				execute := make(chan bool)
				store.rename = func(ctx context.Context, c driver.Claim, owner string) error {
					sent <- true
					go func() {
						<-execute
						late <- store.Store.Rename(context.Background(), c, owner)
					}()
					<-ctx.Done()
					return errors.Join(driver.ErrUnknown, ctx.Err())
				}
				locks := newLocker(t, store, baton.Config{})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				published := make(chan error, 1)
				ended := run(ctx, &election.Candidate{Locks: locks, Name: "e", Value: "first", Logger: quiet}, func(work context.Context, l *election.Leadership) error {
					defer cancel() // one leadership
					go func() { published <- l.Publish(work, "late") }()
					<-sent
					c.end(t, l, func() {
						if _, err := locks.Break(t.Context(), "e"); err != nil {
							t.Error(err)
						}
					}, cancel)
					<-work.Done()
					return nil
				})
				began := time.Now()
				if err := get(t, "the end of Publish", published); !errors.Is(err, c.want) || time.Since(began) > ttl {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				if err := get(t, "the end", ended); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				next := mustLock(t, newLocker(t, store, baton.Config{Owner: "next"}), "e")
				close(execute)
				if err := get(t, "the late request", late); !errors.Is(err, driver.ErrLost) {
					t.Errorf("the late request: %v", err)
				}
				if term, err := election.Leader(t.Context(), locks, "e"); err != nil || term.Value != "next" {
					t.Errorf("%+v, %v", term, err)
				}
				mustUnlock(t, next)
			})
		})
	}
}

// A store that is out of reach for a while keeps Publish waiting, and no longer than the
// caller's context. The leadership goes on.
func TestPublishStoreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowly{Store: memstore.New()}
		up := time.Now().Add(4 * time.Second)
		store.rename = func(ctx context.Context, c driver.Claim, owner string) error {
			if time.Now().Before(up) {
				return driver.ErrUnavailable
			}
			return store.Store.Rename(ctx, c, owner)
		}
		locks := newLocker(t, store, baton.Config{})
		err := election.Run(t.Context(), locks, "e", func(ctx context.Context, l *election.Leadership) error {
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if err := l.Publish(short, "early"); !errors.Is(err, context.DeadlineExceeded) || !l.IsLeader() {
				t.Errorf("%v, %v", err, l.Err())
			}
			if err := l.Publish(ctx, "up"); err != nil || time.Now().Before(up) {
				t.Error(err)
			}
			if term, err := election.Leader(ctx, locks, "e"); err != nil || term.Value != "up" {
				t.Errorf("%+v, %v", term, err)
			}
			up = time.Now().Add(time.Hour)
			if err := l.Publish(ctx, "never"); !errors.Is(err, baton.ErrUnavailable) || !l.IsLeader() {
				t.Errorf("%v, %v", err, l.Err())
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// Many goroutines publish while leaderships of two candidates follow each other. What
// observers see is always of the leader that it is shown for.
func TestPublishAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var all []<-chan error
		for i := range 2 {
			locks := newLocker(t, store, baton.Config{})
			c := &election.Candidate{Locks: locks, Name: "e", Value: "of nobody", Logger: quiet, Events: &election.Events{
				Elected: func(ctx context.Context, e election.LeadershipEvent) { // before lead
					if err := e.Leadership.Publish(ctx, fmt.Sprintf("%d elected", e.Token)); err != nil && ctx.Err() == nil {
						t.Errorf("candidate %d, elected: %v", i, err)
					}
				},
				Ended: func(_ context.Context, e election.LeadershipEvent) {
					if err := e.Leadership.Publish(context.Background(), "ended"); err == nil {
						t.Errorf("candidate %d published after its end", i)
					}
				},
			}}
			all = append(all, run(ctx, c, func(ctx context.Context, l *election.Leadership) error {
				for n := range 5 { // which lead does not wait for
					go func() {
						for m := 0; l.Publish(context.Background(), fmt.Sprintf("%d by %d, %d", l.Token(), n, m)) == nil; m++ {
							time.Sleep(10 * time.Millisecond)
						}
					}()
				}
				time.Sleep(3 * time.Second)
				l.Resign()
				return nil
			}))
		}
		seen := 0
		for term, err := range election.Observe(ctx, newLocker(t, store, baton.Config{}), "e") {
			if err != nil {
				t.Error(err)
			}
			if token := fmt.Sprint(term.Token); term.Led && !strings.HasPrefix(term.Value, token) && term.Value != "of nobody" {
				t.Errorf("token %d is shown with %q", term.Token, term.Value)
			}
			if seen++; seen == 50 {
				cancel()
			}
		}
		for _, ended := range all {
			if err := get(t, "the end", ended); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	})
}
