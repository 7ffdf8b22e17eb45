package once_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/store/memstore"
)

// A process is a store as one process sees it. A test can stop the process at a
// request, before or after its effect, and lose answers.
type process struct {
	*memstore.Store

	mu      sync.Mutex
	calls   []string
	at      func(call string, after bool) // called around every request
	lose    func(call string, after bool) error
	stopped chan struct{} // if not nil, no request passes until it is closed
}

func newProcess(store *memstore.Store) *process { return &process{Store: store} }

// made returns the requests since its last call, without renewals.
func (p *process) made() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := strings.Join(p.calls, " ")
	p.calls = nil
	return s
}

// stop stops the process until the returned function is called.
func (p *process) stop() (cont func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = make(chan struct{})
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		close(p.stopped)
		p.stopped = nil
	}
}

// pass is called for each request, and for each answer.
func (p *process) pass(call string, after bool) error {
	p.mu.Lock()
	at, lose := p.at, p.lose
	p.mu.Unlock()
	if at != nil {
		at(call, after)
	}
	p.mu.Lock()
	stopped := p.stopped
	p.mu.Unlock()
	if stopped != nil {
		<-stopped
	}
	if lose != nil {
		return lose(call, after)
	}
	return nil
}

func do[T any](p *process, call string, request func() (T, error)) (T, error) {
	var none T
	if call != "renew" {
		p.mu.Lock()
		p.calls = append(p.calls, call)
		p.mu.Unlock()
	}
	if err := p.pass(call, false); err != nil {
		return none, err
	}
	answer, err := request()
	if err := p.pass(call, true); err != nil {
		return none, err
	}
	return answer, err
}

func (p *process) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return do(p, "acquire", func() (driver.Grant, error) { return p.Store.Acquire(ctx, r) })
}

func (p *process) Renew(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
	answers, _ := do(p, "renew", func() ([]driver.Renewal, error) { return p.Store.Renew(ctx, c, ttl), nil })
	return answers
}

func (p *process) Release(ctx context.Context, c driver.Claim) error {
	_, err := do(p, "release", func() (struct{}, error) { return struct{}{}, p.Store.Release(ctx, c) })
	return err
}

func (p *process) BeginAttempt(ctx context.Context, a driver.Attempt, keep time.Duration) (driver.Record, error) {
	return do(p, "begin", func() (driver.Record, error) { return p.Store.BeginAttempt(ctx, a, keep) })
}

func (p *process) FinishAttempt(ctx context.Context, a driver.Attempt, o driver.Outcome, keep time.Duration) (driver.Record, error) {
	return do(p, "finish", func() (driver.Record, error) { return p.Store.FinishAttempt(ctx, a, o, keep) })
}

func (p *process) FindRecord(ctx context.Context, key string) (driver.Record, error) {
	return do(p, "find", func() (driver.Record, error) { return p.Store.FindRecord(ctx, key) })
}

type result struct {
	text string
	err  error
}

// A process stops, for ten TTLs, at each point. To other processes that is the same
// as a crash: one of them runs the function, within the TTL, and knows whether an
// attempt began. Then the first one continues: it changes nothing, and learns the
// outcome.
func TestStoppedAnywhere(t *testing.T) {
	const ttl = 10 * time.Second
	for _, point := range []struct {
		at       string
		attempts int64 // Attempts of the next one; 0: it does not run
		recorded string
		first    string // the result of the stopped one; "": its outcome was not recorded
	}{
		{"find before", 1, "next", "next"},
		{"find after", 1, "next", "next"},
		{"acquire before", 1, "next", "next"},
		{"acquire after", 1, "next", "next"},
		{"begin before", 1, "next", "lost"}, // its function does not run: the lease has ended
		{"begin after", 2, "next", "lost"},
		{"run", 2, "next", ""},
		{"finish before", 2, "next", ""},
		{"finish after", 0, "first", "first"},
		{"release before", 0, "first", "first"},
		{"release after", 0, "first", "first"},
	} {
		t.Run(point.at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				cfg := once.Config{Lock: baton.Config{TTL: ttl}}
				p := newProcess(store)
				r, next := newRunner(t, p, cfg), newRunner(t, store, cfg)
				conts := make(chan func(), 1)
				var stop sync.Once
				stopAt := func(here string) {
					if here == point.at {
						stop.Do(func() { conts <- p.stop() })
					}
				}
				p.at = func(call string, after bool) {
					stopAt(call + map[bool]string{false: " before", true: " after"}[after])
				}
				var token int64
				first := make(chan result, 1)
				go func() {
					text, err := r.Do(t.Context(), "k", func(ctx context.Context, a once.Attempt) ([]byte, error) {
						token = a.Token
						if point.at == "run" {
							stopAt("run")
							time.Sleep(10 * ttl)
							if ctx.Err() == nil || !errors.Is(context.Cause(ctx), baton.ErrLost) {
								t.Errorf("the context of a lost attempt: %v", context.Cause(ctx))
							}
						}
						return []byte("first"), nil
					})
					first <- result{string(text), err}
				}()
				cont := <-conts
				s := &says{text: "next"}
				start := time.Now()
				expect(t, next, "k", point.recorded, s.run)
				if d := time.Since(start); d > ttl+time.Second {
					t.Errorf("the next one had to wait %v", d)
				}
				if ran := s.runs.Load() == 1; ran != (point.attempts > 0) || s.last.Attempts != point.attempts {
					t.Errorf("the next one ran %d times and was told %+v; want attempt %d", s.runs.Load(), s.last, point.attempts)
				}
				time.Sleep(10 * ttl)
				cont()
				got := <-first
				lost, unrecorded := errors.AsType[*once.UnrecordedError](got.err)
				switch point.first {
				case "":
					if !unrecorded || string(lost.Result) != "first" || lost.Token != token || !errors.Is(got.err, driver.ErrSuperseded) ||
						lost.Instead == nil || string(lost.Instead.Result) != "next" || s.last.Token <= token {
						t.Errorf("the one that was stopped got %q, %v", got.text, got.err)
					}
				case "lost":
					if token != 0 || !errors.Is(got.err, baton.ErrLost) {
						t.Errorf("the one that was stopped got %q, %v", got.text, got.err)
					}
				default:
					if got.err != nil || got.text != point.first {
						t.Errorf("the one that was stopped got %q, %v", got.text, got.err)
					}
				}
				expect(t, next, "k", point.recorded, never(t))
				expect(t, r, "k", point.recorded, never(t))
			})
		})
	}
}

// Two attempts have begun: the one with the higher token decides, even if the other
// is faster.
func TestTwoAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		p := newProcess(store)
		r, next := newRunner(t, p, once.Config{}), newRunner(t, store, once.Config{})
		running := make(chan func())
		first := make(chan result, 1)
		resume := make(chan struct{})
		go func() {
			text, err := r.Do(t.Context(), "k", func(context.Context, once.Attempt) ([]byte, error) {
				running <- p.stop()
				<-resume
				return []byte("first"), nil
			})
			first <- result{string(text), err}
		}()
		cont := <-running
		expect(t, next, "k", "next", func(context.Context, once.Attempt) ([]byte, error) {
			cont()
			close(resume)
			got := <-first
			lost, ok := errors.AsType[*once.UnrecordedError](got.err)
			if !ok || lost.Instead == nil || lost.Instead.Done || lost.Instead.Attempts != 2 {
				t.Errorf("the first got %q, %v", got.text, got.err)
			}
			return []byte("next"), nil
		})
	})
}

// A lease that is lost while no other attempt begins costs nothing: the result is
// recorded.
func TestLostButNotFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		r := newRunner(t, store, once.Config{})
		locks, err := baton.New(store, baton.Config{})
		if err != nil {
			t.Fatal(err)
		}
		breakIt := func(ctx context.Context) {
			if n, err := locks.Break(t.Context(), once.LockPrefix+"k"); n != 1 || err != nil {
				t.Errorf("Break: %d, %v", n, err)
			}
			<-ctx.Done()
		}
		expect(t, r, "k", "x", func(ctx context.Context, _ once.Attempt) ([]byte, error) {
			breakIt(ctx)
			return []byte("x"), nil
		})
		expect(t, r, "k", "x", never(t))

		// An error is the function's own, joined with the loss.
		if err := r.Forget(t.Context(), "k"); err != nil {
			t.Error(err)
		}
		_, err = r.Do(t.Context(), "k", func(ctx context.Context, _ once.Attempt) ([]byte, error) {
			breakIt(ctx)
			return nil, ctx.Err()
		})
		if !errors.Is(err, context.Canceled) || !errors.Is(err, baton.ErrLost) {
			t.Errorf("error %v", err)
		}
	})
}

// Each request is lost on the way there or on the way back, several times over,
// or gets no answer at all: the function runs once, as the first.
func TestLostAnswers(t *testing.T) {
	for _, call := range []string{"find", "acquire", "begin", "finish", "release"} {
		for _, how := range []string{"before", "after", "unavailable", "silence"} {
			t.Run(call+" "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := memstore.New()
					p := newProcess(store)
					r, next := newRunner(t, p, once.Config{}), newRunner(t, store, once.Config{})
					left := 3
					p.lose = func(c string, after bool) error {
						p.mu.Lock()
						defer p.mu.Unlock()
						if c != call || after != (how == "after") || left == 0 {
							return nil
						}
						left--
						switch how {
						case "unavailable":
							return fmt.Errorf("down: %w", driver.ErrUnavailable)
						case "silence":
							return context.DeadlineExceeded
						}
						return fmt.Errorf("cut: %w", driver.ErrUnknown)
					}
					s := &says{text: "x"}
					expect(t, r, "k", "x", s.run)
					if s.runs.Load() != 1 || s.last.Attempts != 1 {
						t.Errorf("it ran %d times, at last as attempt %d", s.runs.Load(), s.last.Attempts)
					}
					expect(t, next, "k", "x", never(t))
				})
			})
		}
	}
}

// A store stays out of reach. Before the function, that does not run; after it, its
// caller learns that the outcome is unknown, and another call tells.
func TestStoreOutOfReach(t *testing.T) {
	for _, c := range []struct {
		call  string
		after bool // the effect
		runs  int64
	}{
		{"acquire", false, 1},
		{"begin", false, 1},
		{"begin", true, 1},
		{"finish", false, 2},
		{"finish", true, 1},
	} {
		t.Run(fmt.Sprint(c.call, " ", c.after), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newProcess(memstore.New())
				r := newRunner(t, p, once.Config{})
				p.lose = func(call string, after bool) error {
					if call == c.call && after == c.after {
						return driver.ErrUnknown
					}
					return nil
				}
				s := &says{text: "x"}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				_, err := r.Do(ctx, "k", s.run)
				if !errors.Is(err, baton.ErrUnknown) {
					t.Errorf("error %v", err)
				}
				lost, ok := errors.AsType[*once.UnrecordedError](err)
				if ran := s.runs.Load() == 1; ok != ran || ran != (c.call == "finish") {
					t.Errorf("ran: %v, error %v", ran, err)
				}
				if ok && string(lost.Result) != "x" {
					t.Errorf("result %q", lost.Result)
				}
				p.mu.Lock()
				p.lose = nil
				p.mu.Unlock()
				expect(t, r, "k", "x", s.run)
				if n := s.runs.Load(); n != c.runs {
					t.Errorf("it ran %d times in all, want %d", n, c.runs)
				}
			})
		})
	}
}

// A store that never answers does not delay a caller whose context has ended.
func TestSilentStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := &silence{memstore.New()}
		r := newRunner(t, silent, once.Config{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if _, err := r.Do(ctx, "k", never(t)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		// And a patient caller learns that it does not answer.
		start := time.Now()
		_, err := r.Do(t.Context(), "k", never(t))
		if !errors.Is(err, baton.ErrUnknown) || time.Since(start) > 3*baton.DefaultTTL {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

type silence struct{ *memstore.Store }

func (s *silence) FindRecord(ctx context.Context, _ string) (driver.Record, error) {
	<-ctx.Done()
	return driver.Record{}, ctx.Err()
}

func (s *silence) Acquire(ctx context.Context, _ driver.Request) (driver.Grant, error) {
	<-ctx.Done()
	return driver.Grant{}, ctx.Err()
}
