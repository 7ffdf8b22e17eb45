package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
)

// A request that is alone, and for which one statement is enough, is committed by
// SQLite itself. Here that goes wrong at every point.

// foreign begins a write of a program that does not know the turnstile.
func foreign(t *testing.T, s *Store) *sql.Tx {
	t.Helper()
	tx := beginTx(t, program(t, s.path))
	if _, err := tx.Exec("INSERT INTO account VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	return tx
}

func TestAloneNeedsNoBegin(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	h := writer(t, s, "k")
	h.hold(time.Minute) // the row is there now
	h.release()
	s.do(t.Context(), func(*tx) error {
		s.sweeper.commits = 0
		return nil
	})
	begin := s.stmt[stBegin]
	s.stmt[stBegin] = new(sql.Stmt) // to execute it is a panic
	for range 10 {
		h = writer(t, s, "k")
		h.hold(time.Minute)
		h.release()
	}
	s.stmt[stBegin] = begin
	s.do(t.Context(), func(*tx) error {
		if n := s.sweeper.commits; n != 21 {
			t.Errorf("%d commits, want 21", n)
		}
		return nil
	})
}

// A caller that gives up while another program writes has certainly done nothing, and
// one that stays is granted a whole TTL, counted from the end of that write.
func TestAloneMeetsAForeignWriter(t *testing.T) {
	t.Parallel()
	for name, leaves := range map[string]bool{"leaves": true, "stays": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			var looks atomic.Int64
			s := openNew(t, w.option, func(o *options) {
				o.clock = func() int64 {
					looks.Add(1)
					return w.boottime.Load()
				}
			})
			h := writer(t, s, "k")
			h.hold(time.Minute)
			h.release()
			blocker := foreign(t, s)

			tried := looks.Load() + 2 // the first is in check
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			done := make(chan error, 1)
			go func() {
				_, err := s.Acquire(ctx, driver.Request{Claim: h.Claim, TTL: time.Minute})
				done <- err
			}()
			await(t, time.Now().Add(10*time.Second), "it has tried and waits", func() bool { return looks.Load() >= tried && s.waiting() })
			w.pass(10 * time.Minute)
			if leaves {
				leave()
				if err := <-done; !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
					t.Errorf("%v, want the context's error and no doubt", err)
				}
			}
			if err := blocker.Commit(); err != nil {
				t.Fatal(err)
			}
			if leaves {
				writer(t, s, "k").hold(time.Minute)
				return
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if left := h.inspect().Holders[0].Remaining; left != time.Minute {
				t.Errorf("%v are left of a minute", left)
			}
		})
	}
}

// The process is stopped between its look at the clock and the statement, or SQLite is.
// The claim that was granted a lock then finds it ended, and no other claim loses one.
func TestAloneIsStopped(t *testing.T) {
	t.Parallel()
	w := newWorld()
	var looks atomic.Int64 // until it is stopped
	s := openNew(t, w.option, func(o *options) {
		o.clock = func() int64 {
			now := w.boottime.Load()
			if looks.Add(-1) == 0 {
				w.pass(10 * time.Minute)
			}
			return now
		}
	})
	stop := func() { looks.Store(2) } // the first is in check
	h := writer(t, s, "k")
	h.hold(time.Minute)
	h.release()

	h = writer(t, s, "k")
	stop()
	token := h.hold(time.Minute)
	if r := h.renew(time.Minute); r.State != driver.Lost {
		t.Errorf("granted before the stop: %v, want lost", r.State)
	}
	h = writer(t, s, "k")
	if next := h.hold(time.Minute); next <= token {
		t.Errorf("token %d after %d", next, token)
	}

	// It ends meanwhile, and the look after the stop sees it.
	next := writer(t, s, "k")
	stop()
	next.hold(time.Minute)
	if left := next.inspect().Holders[0].Remaining; left != time.Minute {
		t.Errorf("%v are left of a minute", left)
	}

	// It ends before it is released, which may be told or not.
	stop()
	if err := s.Release(t.Context(), next.Claim); err != nil && !errors.Is(err, driver.ErrLost) {
		t.Errorf("release: %v", err)
	}
	writer(t, s, "k").hold(time.Minute)
}

// A request that its caller gave up has no effect later, unless it has had it already.
func TestAloneIsLeft(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	begun, goOn := make(chan bool), make(chan bool)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
	}()
	err := s.ask(ctx, &op{
		fast: func(*tx) (bool, error) {
			close(begun)
			<-goOn
			return false, nil
		},
		run: func(*tx) error {
			t.Error("it is run although no caller waits for it")
			return nil
		},
	})
	if !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want ErrUnknown and the context's error", err)
	}
	close(goOn)
	writer(t, s, "k").hold(time.Minute)
}

// A request for which one statement is not enough keeps its position in the queue of
// requests.
func TestAloneKeepsItsPlace(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	begun, goOn := make(chan bool), make(chan bool)
	var order []string // written by the goroutine that serves
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.ask(t.Context(), &op{
			fast: func(*tx) (bool, error) {
				close(begun)
				<-goOn
				return false, nil
			},
			run: func(*tx) error {
				order = append(order, "first")
				return nil
			},
		}); err != nil {
			t.Error(err)
		}
	})
	<-begun
	wg.Go(func() {
		if err := s.do(t.Context(), func(*tx) error {
			order = append(order, "second")
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
	await(t, time.Now().Add(10*time.Second), "the second waits", s.waiting)
	close(goOn)
	wg.Wait()
	if !slices.Equal(order, []string{"first", "second"}) {
		t.Errorf("served: %v", order)
	}
}

// An error that may have come before the commit or after.
func TestAloneFails(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	boom := errors.New("boom")
	err := s.ask(t.Context(), &op{
		fast: func(*tx) (bool, error) { return false, boom },
		run: func(*tx) error {
			t.Error("it is run although it may have had its effect")
			return nil
		},
	})
	if !errors.Is(err, boom) || !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("%v, want it unknown", err)
	}
	writer(t, s, "k").hold(time.Minute)
}

// Nothing is granted or released in a file that other processes do not see.
func TestAloneChecksTheFile(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(p *place) error{
		"acquire": func(p *place) error {
			_, err := writer(t, p.s, "free").acquire(time.Minute, false)
			return err
		},
		"release": func(p *place) error { return p.s.Release(t.Context(), p.Claim) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openNew(t)
			free, h := writer(t, s, "free"), writer(t, s, "k")
			free.hold(time.Minute)
			free.release()
			h.hold(time.Minute)
			if err := os.Rename(s.path, s.path+".old"); err != nil {
				t.Fatal(err)
			}
			if err := act(h); !errors.Is(err, ErrReplaced) || !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("%v, want ErrReplaced and no effect", err)
			}
		})
	}
}

// A request is refused in a transaction that is undone because of another
// request, and granted when it is run again.
func TestRefusedThenGranted(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := openNew(t, w.option)
	writer(t, s, "k").hold(time.Minute)
	block, blocked := make(chan bool), make(chan bool)
	var wg sync.WaitGroup
	wg.Go(func() {
		s.do(t.Context(), func(*tx) error {
			close(blocked)
			<-block
			return nil
		})
	})
	<-blocked
	queued := func(n int) {
		t.Helper()
		await(t, time.Now().Add(10*time.Second), "the request waits", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.queue) == n
		})
	}
	wg.Go(func() {
		if _, err := writer(t, s, "k").acquire(time.Minute, false); err != nil {
			t.Errorf("acquire: %v, want what the second run found", err)
		}
	})
	queued(1)
	wg.Go(func() {
		s.do(t.Context(), func(*tx) error {
			w.pass(2 * time.Minute)
			return errors.New("boom")
		})
	})
	queued(2)
	close(block)
	wg.Wait()
}
