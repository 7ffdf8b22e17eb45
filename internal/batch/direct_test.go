package batch

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
)

// calledBy reports whether a function of that name is on the stack.
func calledBy(name string) bool {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, "."+name) {
			return true
		}
		if !more {
			return false
		}
	}
}

//go:noinline
func theCaller(b *Batcher[*request], ctx context.Context, r *request) error { return b.Do(ctx, r) }

// A request that finds nothing under way is sent on its caller's goroutine, and so is one
// that may fly beside others. What has to wait is sent on another one.
func TestDirect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, begins := range []bool{false, true} {
			here := make(map[string]bool)
			gate := make(chan struct{})
			send := func(_ context.Context, all []*request) {
				for _, r := range all {
					here[r.name] = calledBy("theCaller")
				}
				<-gate
			}
			c := Config[*request]{Direct: true, Max: 10, InFlight: 2, Keys: func(r *request) []Key { return r.shared }, Send: send}
			if begins {
				c.Send, c.Begin = nil, func(context.Context) (func(context.Context, []*request), error) { return send, nil }
			}
			b := New(c)
			done := make(chan error, 10)
			start := func(r *request) {
				go func() { done <- theCaller(b, context.Background(), r) }()
				synctest.Wait()
			}
			start(ask("first", Key{"k", Serial}))
			start(ask("same key", Key{"k", Serial}))
			start(ask("behind it"))
			start(ask("no room"))
			if n := b.Waiting(); n != 2 {
				t.Errorf("%d wait, want 2", n)
			}
			close(gate)
			for range 4 {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			synctest.Wait()
			if !here["first"] || here["same key"] || here["no room"] || len(here) != 4 {
				t.Errorf("Begin %v: sent by their callers: %v", begins, here)
			}
			start(ask("last", Key{"k", Serial}))
			if err := <-done; err != nil || !here["last"] {
				t.Errorf("Begin %v: when all is over: %v, sent by their callers: %v", begins, err, here)
			}
		}
	})
}

// A caller whose context ends while its goroutine sends has its grace. The send is told
// after that, and the caller then does not know what became of its request.
func TestDirectCallerGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var takes time.Duration
		b := New(Config[*request]{Direct: true, Max: 1, InFlight: 1, Grace: time.Second, Send: func(ctx context.Context, _ []*request) {
			select {
			case <-ctx.Done():
			case <-time.After(takes):
			}
		}})
		for takes = range map[time.Duration]bool{1500 * time.Millisecond: true, time.Hour: true} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			began := time.Now()
			err := b.Do(ctx, ask("r"))
			cancel()
			if known := takes < 2*time.Second; known != (err == nil) || !known && (!errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded)) {
				t.Errorf("answered after %v: %v", takes, err)
			}
			if took := time.Since(began); took != min(takes, 2*time.Second) {
				t.Errorf("answered after %v, it took %v", takes, took)
			}
		}
	})
}

// The contexts of all sends and the time limit hold for a send on its caller's goroutine.
func TestDirectEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, end := context.WithCancel(t.Context())
		b := New(Config[*request]{Direct: true, Max: 1, InFlight: 1, Context: all, Timeout: time.Minute, Send: func(ctx context.Context, _ []*request) { <-ctx.Done() }})
		began := time.Now()
		time.AfterFunc(90*time.Second, end)
		for _, want := range []time.Duration{time.Minute, 30 * time.Second} {
			if err := b.Do(context.Background(), ask("r")); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took != want {
				t.Errorf("it ended after %v, want %v", took, want)
			}
			began = time.Now()
		}
	})
}

// Wait waits for sends on all goroutines.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Config[*request]{Direct: true, Max: 1, InFlight: 1, Send: func(context.Context, []*request) { time.Sleep(time.Second) }})
		b.Wait()
		began := time.Now()
		for _, name := range []string{"direct", "next"} {
			go func() {
				if err := b.Do(context.Background(), ask(name)); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		b.Wait()
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("waited for %v, want 2s", took)
		}
	})
}

// Requests are taken when a send can begin: until then callers leave and others join.
func TestBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan error)
		begun := 0
		var sends []string
		b := New(Config[*request]{Max: 2, InFlight: 4, Begin: func(ctx context.Context) (func(context.Context, []*request), error) {
			begun++
			if err := <-free; err != nil {
				return nil, err
			}
			return func(_ context.Context, all []*request) {
				text := ""
				for _, r := range all {
					text += r.name
				}
				sends = append(sends, text)
			}, nil
		}})
		results := make(map[string]chan error)
		start := func(ctx context.Context, name string) {
			done := make(chan error, 1)
			results[name] = done
			go func() { done <- b.Do(ctx, ask(name)) }()
			synctest.Wait()
		}
		ctx, leave := context.WithCancel(t.Context())
		start(ctx, "a")
		start(t.Context(), "b")
		start(t.Context(), "c")
		start(t.Context(), "d")
		if begun != 2 {
			t.Errorf("%d sends have begun for four requests of which two go together", begun)
		}
		leave()
		if err := <-results["a"]; !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("a caller that left before its request was taken: %v", err)
		}
		free <- nil
		synctest.Wait()
		refused := errors.New("no connection")
		free <- refused
		if err := <-results["d"]; !errors.Is(err, refused) {
			t.Errorf("no send could begin: %v", err)
		}
		start(ctx, "e") // its caller has gone
		ctx, leave = context.WithCancel(t.Context())
		start(ctx, "f")
		leave()
		synctest.Wait()
		free <- nil
		synctest.Wait()
		if got := strings.Join(sends, ","); got != "bc," || begun != 3 {
			t.Errorf("sent %q in %d sends, want b and c together, and nothing", got, begun)
		}
	})
}

// A send that cannot begin on its caller's goroutine is the caller's own failure.
func TestDirectBeginFails(t *testing.T) {
	refused := errors.New("no connection")
	b := New(Config[*request]{Direct: true, Max: 1, InFlight: 1, Begin: func(context.Context) (func(context.Context, []*request), error) { return nil, refused }})
	for range 2 {
		if err := b.Do(t.Context(), ask("r")); err != refused {
			t.Errorf("%v", err)
		}
	}
}

// No send begins for requests that all have to wait, be it behind a request that waits.
func TestBeginWaitsForKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begun atomic.Int32
		b := New(Config[*request]{Direct: true, Max: 10, InFlight: 3, Keys: func(r *request) []Key { return r.shared }, Begin: func(context.Context) (func(context.Context, []*request), error) {
			if begun.Add(1) > 10 {
				panic("sends begin without end")
			}
			return func(context.Context, []*request) { time.Sleep(time.Second) }, nil
		}})
		const rule = Serial | Order
		for _, r := range []*request{ask("a", Key{"a", rule}), ask("ab", Key{"a", rule}, Key{"b", rule}), ask("b", Key{"b", rule})} {
			go func() {
				if err := b.Do(context.Background(), r); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		if begun.Load() != 1 {
			t.Errorf("%d sends have begun, want that of the first", begun.Load())
		}
		time.Sleep(2500 * time.Millisecond)
		if begun.Load() != 2 {
			t.Errorf("%d sends have begun, want one more for the rest", begun.Load())
		}
	})
}

// A request that waits for too long is not sent, and its caller is told. One that was
// taken is not left for that.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []string
		b := New(Config[*request]{Direct: true, Max: 1, InFlight: 1, Patience: time.Second, Send: func(_ context.Context, all []*request) {
			sent = append(sent, all[0].name)
			time.Sleep(3 * time.Second)
		}})
		go b.Do(context.Background(), ask("first"))
		synctest.Wait()
		began := time.Now()
		if err := b.Do(context.Background(), ask("impatient")); err != ErrImpatient || time.Since(began) != time.Second {
			t.Errorf("after %v: %v, want ErrImpatient", time.Since(began), err)
		}
		time.Sleep(1500 * time.Millisecond)
		if err := b.Do(context.Background(), ask("late enough")); err != nil || time.Since(began) != 6*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if len(sent) != 2 {
			t.Errorf("sent %v", sent)
		}
	})
}

// With Send and Begin, Send is for callers' goroutines, in their contexts.
func TestDirectSendsByItself(t *testing.T) {
	type key struct{}
	var sent string
	b := New(Config[*request]{Direct: true, Max: 1, InFlight: 1, Send: func(ctx context.Context, all []*request) {
		sent = all[0].name + ctx.Value(key{}).(string)
	}, Begin: func(context.Context) (func(context.Context, []*request), error) {
		panic("it begins")
	}})
	if err := b.Do(context.WithValue(t.Context(), key{}, " of the caller"), ask("r")); err != nil || sent != "r of the caller" {
		t.Errorf("%v, sent %q", err, sent)
	}
}
