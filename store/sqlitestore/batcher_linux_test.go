package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"golang.org/x/sys/unix"
)

// A request that has not begun when its caller gives up has no effect, even while
// another process is stopped in the middle of a write.
func TestLeavingTheQueue(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	stopped := child(t, "stuck", s.path)
	out, err := stopped.StdoutPipe()
	if err = errors.Join(err, stopped.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	if err := stopped.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	p := writer(t, s, "k")
	_, err = s.Acquire(ctx, driver.Request{Claim: p.Claim, TTL: time.Minute})
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrUnknown) {
		t.Errorf("acquire: %v, want the deadline and no doubt", err)
	}
	if r := s.Renew(ctx, []driver.Claim{p.Claim}, time.Minute)[0]; r.State != driver.Unknown || !errors.Is(r.Err, context.DeadlineExceeded) {
		t.Errorf("renew: %v, %v", r.State, r.Err)
	}

	// Killed, it leaves the file usable, and nothing of its transaction.
	stopped.Process.Kill()
	stopped.Wait()
	writer(t, s, "k").hold(time.Minute)
	writer(t, s, "stuck").hold(time.Minute)
}

// A request that has begun when its caller gives up may have an effect.
func TestLeavingInTheMiddle(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	begun, goOn, ended := make(chan bool), make(chan bool), make(chan bool)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
	}()
	err := s.do(ctx, func(*tx) error {
		close(begun)
		<-goOn
		close(ended)
		return nil
	})
	if !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want ErrUnknown and the context's error", err)
	}
	close(goOn)
	<-ended
	writer(t, s, "k").hold(time.Minute)
}

// Requests that meet share a commit, and one that fails does not spoil the
// others, nor is it told or done twice.
func TestBatch(t *testing.T) {
	t.Parallel()
	s := openNew(t)
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
	boom := errors.New("boom")
	var failed error
	wg.Go(func() { failed = s.do(t.Context(), func(*tx) error { return boom }) })
	places := make([]*place, 50)
	for i := range places {
		places[i] = writer(t, s, fmt.Sprint("k", i))
		wg.Go(func() {
			if _, err := places[i].acquire(time.Minute, false); err != nil {
				t.Errorf("acquire in a batch: %v", err)
			}
		})
	}
	await(t, time.Now().Add(10*time.Second), "the requests wait", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.queue) == 51
	})
	close(block)
	wg.Wait()
	if !errors.Is(failed, boom) || !errors.Is(failed, driver.ErrUnavailable) {
		t.Errorf("the one that fails: %v", failed)
	}
	for _, p := range places {
		if n := len(p.inspect().Holders); n != 1 {
			t.Errorf("%q has %d holders", p.Key, n)
		}
	}
}

// Fifty requests that meet are one transaction.
func TestBatchIsOneTransaction(t *testing.T) {
	t.Parallel()
	s := openNew(t)
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
	commits := s.sweeper.commits // only the serving goroutine writes it, and it is blocked
	for i := range 50 {
		wg.Go(func() { writer(t, s, fmt.Sprint("k", i)).hold(time.Minute) })
	}
	await(t, time.Now().Add(10*time.Second), "the requests wait", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.queue) == 50
	})
	close(block)
	wg.Wait()
	s.do(t.Context(), func(*tx) error {
		if n := s.sweeper.commits - commits; n != 2 { // the blocking one and the batch
			t.Errorf("%d commits, want 2", n)
		}
		return nil
	})
}

// A statement whose plan depends on a parameter is prepared again each time.
func TestStatementsArePreparedOnce(t *testing.T) {
	t.Parallel()
	for _, text := range statements {
		if strings.Contains(text, "LIMIT ?") {
			t.Errorf("write LIMIT +? in %s", text)
		}
	}
}

// Ten thousand locks are renewed by one request and in one transaction.
func TestRenewMany(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	const n = 10_000
	claims := make([]driver.Claim, n)
	var wg sync.WaitGroup
	for w := range 64 {
		wg.Go(func() {
			for i := w; i < n; i += 64 {
				p := writer(t, s, fmt.Sprintf("invoice/\"%d\"\\é", i))
				if i%100 == 0 {
					p.Weight = 1
				}
				if _, err := p.acquire(time.Hour, false); err != nil { // longer than a slow disk takes for all
					t.Error(err)
				}
				claims[i] = p.Claim
			}
		})
	}
	wg.Wait()
	claims[77].ID = driver.NewID()
	claims[78].Key = ""
	for i, r := range s.Renew(t.Context(), claims, 2*time.Hour) {
		switch want := driver.Held; {
		case i == 77 && r.State != driver.Lost:
			t.Errorf("a stranger's claim: %v", r.State)
		case i == 78 && (r.State != driver.Unknown || r.Err == nil):
			t.Errorf("a bad key: %v, %v", r.State, r.Err)
		case i != 77 && i != 78 && (r.State != want || r.Grant.Token != claims[i].Ticket || r.Grant.TTL != 2*time.Hour):
			t.Fatalf("claim %d: %+v", i, r)
		}
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	block, blocked := make(chan bool), make(chan bool)
	first, second := make(chan error, 1), make(chan error, 1)
	go func() {
		first <- s.do(t.Context(), func(*tx) error {
			close(blocked)
			<-block
			return nil
		})
	}()
	<-blocked
	go func() { second <- s.do(t.Context(), func(*tx) error { return nil }) }()
	await(t, time.Now().Add(10*time.Second), "the second waits", s.waiting)
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	if err := <-second; !errors.Is(err, driver.ErrClosed) {
		t.Errorf("a request that had not begun: %v, want ErrClosed", err)
	}
	close(block)
	if err := <-first; err != nil {
		t.Errorf("a request that had begun: %v", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
	select {
	case <-s.served:
	default:
		t.Error("the goroutine that serves is left behind")
	}
	if err := s.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
	if _, err := writer(t, s, "k").acquire(time.Minute, false); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("acquire after close: %v", err)
	}
	if _, err := s.Inspect(t.Context(), "k"); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("inspect after close: %v", err)
	}
}
