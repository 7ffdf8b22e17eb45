package batontest_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/batontest"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/grpclimit"
	"github.com/batonhq/baton/ratelimit/httplimit"
)

// This file has the failure paths of the examples of README.md, docs/limits.md and
// docs/fencing.md: it shows that the Store leads a program into each of them.

// pay is the first example of README.md.
func pay(ctx context.Context, locks *baton.Locker, post func(context.Context, int64) error) error {
	return locks.Do(ctx, "invoice/42", func(ctx context.Context, lease *baton.Lease) error {
		return post(ctx, lease.Token())
	})
}

func TestReadmeDo(t *testing.T) {
	t.Parallel()
	never := func(context.Context, int64) error { return errors.New("it has paid") }
	paid := func(context.Context, int64) error { return nil }
	for _, c := range []struct {
		name string
		test func(t *testing.T, s *batontest.Store, locks *baton.Locker) error
		want []error
		not  error
	}{
		{"held by another", func(t *testing.T, s *batontest.Store, locks *baton.Locker) error {
			s.Hold("invoice/42", "another server")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			return pay(ctx, locks, never)
		}, []error{context.DeadlineExceeded, baton.ErrHeld}, nil},
		{"lost while working", func(t *testing.T, s *batontest.Store, locks *baton.Locker) error {
			return pay(t.Context(), locks, func(ctx context.Context, _ int64) error {
				s.Lose("invoice/42")
				return ctx.Err()
			})
		}, []error{baton.ErrLost, context.Canceled}, nil},
		{"out of reach at the lock", func(t *testing.T, s *batontest.Store, locks *baton.Locker) error {
			s.Fail(batontest.Acquire, driver.ErrUnavailable)
			return pay(t.Context(), locks, never)
		}, []error{baton.ErrUnavailable}, nil},
		{"the answer to the lock is lost", func(t *testing.T, s *batontest.Store, locks *baton.Locker) error {
			s.LoseReply(batontest.Acquire)
			return pay(t.Context(), locks, paid)
		}, nil, nil},
		{"out of reach for the renewals", func(t *testing.T, s *batontest.Store, locks *baton.Locker) error {
			s.Fail(batontest.Renew, driver.ErrUnavailable)
			return pay(t.Context(), locks, func(ctx context.Context, _ int64) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
		}, []error{baton.ErrLost}, nil},
		{"the answer to the unlock is lost", func(t *testing.T, s *batontest.Store, locks *baton.Locker) error {
			s.LoseReply(batontest.Release)
			return pay(t.Context(), locks, paid)
		}, nil, nil},
		{"out of reach at the unlock", func(t *testing.T, s *batontest.Store, locks *baton.Locker) error {
			s.Fail(batontest.Release, driver.ErrUnavailable)
			return pay(t.Context(), locks, paid)
		}, []error{baton.ErrUnavailable}, baton.ErrLost},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := batontest.New(t)
				err := c.test(t, s, locker(t, s, baton.Config{}))
				if (err == nil) != (c.want == nil) || c.not != nil && errors.Is(err, c.not) {
					t.Errorf("it ended with %v", err)
				}
				for _, want := range c.want {
					if !errors.Is(err, want) {
						t.Errorf("it ended with %v, want %v", err, want)
					}
				}
			})
		})
	}
}

func TestReadmeSteps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		locks := locker(t, s, baton.Config{})

		s.Hold("invoice/43", "another server")
		s.Hold("catalogue", "a writer")
		s.Hold("gpu", "another server", baton.Permits(4, 5))
		_, busy := locks.TryLock(t.Context(), "invoice/43")
		_, written := locks.TryLock(t.Context(), "catalogue", baton.Shared())
		_, few := locks.TryLock(t.Context(), "gpu", baton.Permits(2, 5))
		_, other := locks.TryLock(t.Context(), "gpu", baton.Permits(1, 4))
		if _, ok := errors.AsType[*baton.CapacityError](other); !ok || !errors.Is(busy, baton.ErrHeld) || !errors.Is(written, baton.ErrHeld) || !errors.Is(few, baton.ErrHeld) {
			t.Errorf("%v; %v; %v; %v", busy, written, few, other)
		}

		// All or none: the second of two is held, then out of reach.
		release := s.Hold("account/7", "another server")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := locks.LockAll(ctx, []string{"account/7", "account/3"}); !errors.Is(err, context.DeadlineExceeded) || s.Holders("account/3") != nil {
			t.Errorf("LockAll: %v; account/3 is held by %+v", err, s.Holders("account/3"))
		}
		release()
		s.LoseReply(batontest.Acquire)
		both, err := locks.LockAll(t.Context(), []string{"account/7", "account/3"})
		if err != nil {
			t.Fatal(err)
		}
		work := both.Context(t.Context())
		s.Lose("account/3")
		if lost, ok := errors.AsType[*baton.LostError](context.Cause(work)); !ok || lost.Key != "account/3" {
			t.Errorf("one of two was lost: %v", context.Cause(work))
		}
		if err := both.Unlock(); !errors.Is(err, baton.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}

		// A lease goes to another process, and the answer to that is lost.
		lease := lock(t, locks, "invoice/42")
		handle, err := lease.Detach()
		if err != nil {
			t.Fatal(err)
		}
		s.LoseReply(batontest.Move)
		attached, err := locker(t, s, baton.Config{}).Attach(t.Context(), handle)
		if err != nil || attached.Token() != lease.Token() {
			t.Fatalf("Attach: %v", err)
		}
		if _, err := locks.Attach(t.Context(), handle); !errors.Is(err, baton.ErrLost) {
			t.Errorf("Attach by a second one: %v", err)
		}
		attached.Unlock()
	})
}

func TestReadmeOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		ops, err := once.New(s, once.Config{})
		if err != nil {
			t.Fatal(err)
		}
		runs := 0
		redeem := func(context.Context, once.Attempt) (string, error) { runs++; return "receipt", nil }
		wants := func(what, key string, wantRuns int, want error) {
			t.Helper()
			runs = 0
			r, err := once.Do(t.Context(), ops, key, redeem)
			if runs != wantRuns || want == nil && (err != nil || r != "receipt") || !errors.Is(err, want) {
				t.Errorf("%s: %q, %v after %d runs; want %v after %d", what, r, err, runs, want, wantRuns)
			}
		}
		out := s.Fail(batontest.Begin, driver.ErrUnavailable)
		wants("out of reach before it runs", "redeem/1", 0, baton.ErrUnavailable)
		out.Stop()
		wants("then", "redeem/1", 1, nil)

		lost := s.LoseReplies(batontest.Finish)
		wants("all answers about the result are lost", "redeem/2", 1, baton.ErrUnknown)
		lost.Stop()
		wants("the result was recorded", "redeem/2", 0, nil)

		out = s.Fail(batontest.Finish, driver.ErrUnavailable)
		wants("out of reach when it has run", "redeem/3", 1, baton.ErrUnavailable)
		out.Stop()
		wants("so it runs again", "redeem/3", 1, nil)

		// The lock is lost while it runs: its result is recorded all the same.
		r, err := once.Do(t.Context(), ops, "redeem/4", func(ctx context.Context, a once.Attempt) (string, error) {
			s.Lose(once.LockPrefix + "redeem/4")
			return "receipt", nil
		})
		if err != nil || r != "receipt" {
			t.Errorf("lost while it ran: %q, %v", r, err)
		}
		wants("and replayed", "redeem/4", 0, nil)

		s.Hold(once.LockPrefix+"redeem/5", "another server")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := once.Do(ctx, ops, "redeem/5", redeem); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it runs elsewhere: %v", err)
		}
	})
}

func TestReadmeElection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		ctx, resign := context.WithCancel(t.Context())
		var terms atomic.Int32
		c := election.Candidate{Locks: locker(t, s, baton.Config{}), Name: "api", Value: "10.0.0.7:80", Logger: slog.New(slog.DiscardHandler)}
		unavailable := s.Fail(batontest.Acquire, driver.ErrUnavailable) // at first: it goes on standing
		stood := make(chan error)
		go func() {
			stood <- c.Run(ctx, func(ctx context.Context, l *election.Leadership) error {
				terms.Add(1)
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		time.Sleep(time.Minute)
		unavailable.Stop()
		time.Sleep(time.Minute)
		s.Lose("api") // it stands again
		time.Sleep(time.Minute)
		if h := s.Holders("api"); len(h) != 1 || h[0].Owner != "10.0.0.7:80" || terms.Load() != 2 {
			t.Errorf("after two terms: %d, held by %+v", terms.Load(), h)
		}
		resign()
		if err := <-stood; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
}

func TestPageLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		newLimiter := func(limit ratelimit.Limit, opts ...ratelimit.Option) *ratelimit.Limiter {
			t.Helper()
			l, err := ratelimit.New(s, limit, opts...)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		api := ratelimit.SlidingWindow(100, time.Minute).Named("api")
		strict, open, closed := newLimiter(api), newLimiter(api, ratelimit.FailOpen(50*time.Millisecond)), newLimiter(api, ratelimit.FailClosed(50*time.Millisecond))

		out := s.Fail(batontest.Take, driver.ErrUnavailable)
		if _, err := strict.Allow(t.Context(), "user/42"); !errors.Is(err, ratelimit.ErrUnavailable) {
			t.Errorf("out of reach: %v", err)
		}
		if r, err := open.Allow(t.Context(), "user/42"); err != nil || !r.OK || r.By != ratelimit.ByOpen {
			t.Errorf("out of reach, open: %+v, %v", r, err)
		}
		out.Stop()
		slow := s.Delay(batontest.Take, time.Second)
		if r, err := closed.Allow(t.Context(), "user/42"); err != nil || r.OK || r.By != ratelimit.ByClosed {
			t.Errorf("slow, closed: %+v, %v", r, err)
		}
		slow.Stop()
		s.LoseReply(batontest.Take)
		if _, err := strict.Allow(t.Context(), "user/42"); !errors.Is(err, ratelimit.ErrUnknown) {
			t.Errorf("a lost answer: %v", err)
		}

		// Reserve repeats a lost answer, and counts once.
		tokens := newLimiter(ratelimit.SlidingWindow(100, time.Minute).Named("tokens"))
		s.LoseReply(batontest.Take)
		reserved, err := tokens.Reserve(t.Context(), "tenant/7", 80)
		if err != nil || reserved.Result.Remaining != 20 {
			t.Fatalf("Reserve: %+v, %v", reserved, err)
		}
		s.FailNext(batontest.Take, driver.ErrUnavailable)
		if err := reserved.Commit(t.Context(), 30); !errors.Is(err, ratelimit.ErrUnavailable) {
			t.Errorf("Commit out of reach: %v", err)
		}
		if err := reserved.Commit(t.Context(), 30); err != nil {
			t.Errorf("Commit again: %v", err)
		}
		if r, err := tokens.Peek(t.Context(), "tenant/7"); err != nil || r.Remaining != 70 {
			t.Errorf("after Commit: %+v, %v", r, err)
		}

		// Waiting, and in batches.
		s.Exhaust("user/43", time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := strict.Wait(ctx, "user/43"); !errors.Is(err, ratelimit.ErrRefused) {
			t.Errorf("Wait for too long: %v", err)
		}
		batches := newLimiter(ratelimit.SlidingWindow(10_000, time.Second), ratelimit.InBatches(100, 50*time.Millisecond, 8, 800))
		s.Exhaust("busy", time.Minute)
		if r, err := batches.Allow(t.Context(), "busy"); err != nil || r.OK {
			t.Errorf("in batches: %+v, %v", r, err)
		}
	})
}

func TestPageLimitsMiddleware(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		limiter, err := ratelimit.New(s, ratelimit.SlidingWindow(100, time.Minute).Named("api"))
		if err != nil {
			t.Fatal(err)
		}
		user := func(*http.Request) string { return "alice" }
		limit, err := httplimit.New(limiter, httplimit.By(httplimit.Func("user", user)))
		if err != nil {
			t.Fatal(err)
		}
		calls, err := grpclimit.New(limiter, grpclimit.By(grpclimit.Func("user", func(context.Context, string) string { return "alice" })))
		if err != nil {
			t.Fatal(err)
		}
		get := func() *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			limit(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/items/7", nil))
			return w
		}
		call := func() codes.Code {
			_, err := calls.Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/items/Get"}, func(context.Context, any) (any, error) { return nil, nil })
			return status.Code(err)
		}
		full := s.Exhaust("user=alice", 3*time.Second)
		if w := get(); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "3" {
			t.Errorf("exhausted: %d, %v", w.Code, w.Header())
		}
		if c := call(); c != codes.ResourceExhausted {
			t.Errorf("exhausted: %v", c)
		}
		full.Stop()
		s.Fail(batontest.Take, driver.ErrUnavailable)
		if w := get(); w.Code != http.StatusServiceUnavailable {
			t.Errorf("out of reach: %d", w.Code)
		}
		if c := call(); c != codes.Unavailable {
			t.Errorf("out of reach: %v", c)
		}
	})
}

// A holder that was lost writes after the next one did, and the guard refuses it.
func TestPageFencing(t *testing.T) {
	t.Parallel()
	s := batontest.New(t)
	first, second := locker(t, s, baton.Config{}), locker(t, s, baton.Config{})
	var gate guard.Gate
	write := func(lease *baton.Lease) error {
		return gate.Do(t.Context(), "account/7", guard.Of(lease), func() error { return nil })
	}
	slow := lock(t, first, "account/7")
	s.Lose("account/7")
	next := lock(t, second, "account/7")
	defer next.Unlock()
	if err := write(next); err != nil {
		t.Errorf("the next holder: %v", err)
	}
	if err := write(slow); !errors.Is(err, guard.ErrStale) {
		t.Errorf("the one before: %v", err)
	}

	accounts := guard.HTTP(&gate, func(r *http.Request) string { return r.URL.Path })(http.NotFoundHandler())
	put := func(lease *baton.Lease) int {
		server := httptest.NewServer(accounts)
		defer server.Close()
		r, err := http.NewRequestWithContext(guard.With(t.Context(), guard.Of(lease)), http.MethodPut, server.URL+"/account/7", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: new(guard.Transport)}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if a, b := put(next), put(slow); a != http.StatusNotFound || b != http.StatusPreconditionFailed {
		t.Errorf("over HTTP: %d, then %d", a, b)
	}
}
