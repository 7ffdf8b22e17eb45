package wire

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/internal/settling"
)

// A call runs on its caller's goroutine until one was not answered, and again when one
// was; while it does not, its caller leaves it when it wishes.
func TestLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Lane
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		lost := errors.New("the connection was lost")
		call := func(obeys bool, err error) (there bool) {
			r := l.Run(ctx, Call{Keys: []string{"a"}}, obeys, func(apart bool) Result {
				there = apart
				return Result{Err: err}
			})
			if r.Err != err {
				t.Errorf("answered %v, want %v", r.Err, err)
			}
			return there
		}
		for i, step := range []struct {
			obeys, apart bool
			err          error
		}{
			{true, false, nil},
			{false, true, nil},
			{true, false, &ServerError{"READONLY"}},
			{true, false, lost},
			{true, true, lost},
			{true, true, nil},
			{true, true, nil}, // not at once
			{true, false, nil},
		} {
			if i == 7 {
				time.Sleep(settling.Time)
			}
			if apart := call(step.obeys, step.err); apart != step.apart {
				t.Errorf("call %d ran apart from its caller: %v, want %v", i, apart, step.apart)
			}
		}

		l.trouble()
		end := make(chan struct{})
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		r := l.Run(ctx, Call{Keys: []string{"a"}}, true, func(bool) Result { <-end; return Result{} })
		if took := time.Since(began); !errors.Is(r.Err, context.Canceled) || took != time.Second {
			t.Errorf("cancelled after a second: %v after %v", r.Err, took)
		}
		if l.calm() {
			t.Error("the call that was abandoned is under way, and others would run on their callers' goroutines")
		}
		close(end)
		synctest.Wait()
		time.Sleep(settling.Time)
		if !l.calm() {
			t.Error("the call was answered")
		}
		if r := l.Run(ctx, Call{Keys: []string{"a"}}, true, func(bool) Result { t.Error("sent"); return Result{} }); !errors.Is(r.Err, ErrNotSent) {
			t.Errorf("with a context that has ended: %v", r.Err)
		}
	})
}

// A connection may notice a deadline before the context does: that is its end all the same.
func TestLaneSaysWhyItEnded(t *testing.T) {
	for _, c := range []struct {
		err  error
		want error
	}{
		{errors.New("i/o timeout"), context.DeadlineExceeded},
		{NotSent(errors.New("refused")), ErrNotSent},
	} {
		var l Lane
		ctx, cancel := context.WithDeadline(context.WithoutCancel(t.Context()), time.Now().Add(time.Millisecond))
		r := l.Run(ctx, Call{Keys: []string{"a"}}, true, func(bool) Result { <-ctx.Done(); return Result{Err: c.err} })
		cancel()
		if !errors.Is(r.Err, c.want) {
			t.Errorf("%v became %v, want %v", c.err, r.Err, c.want)
		}
	}
}
