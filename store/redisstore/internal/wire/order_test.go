package wire

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// What comes after abandoned calls is not sent before all of them have ended.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Order
		job := Call{Keys: []string{"job"}}
		abandon := func(ctx context.Context, end <-chan struct{}) chan error {
			answered := make(chan error, 1)
			go func() {
				answered <- o.Run(ctx, job, func() Result { <-end; return Result{Value: "late"} }).Err
			}()
			synctest.Wait()
			return answered
		}
		ctx, cancel := context.WithCancel(t.Context())
		first, second := make(chan struct{}), make(chan struct{})
		a, b := abandon(ctx, first), abandon(ctx, second)
		cancel()
		for _, answered := range []chan error{a, b} {
			if err := <-answered; !errors.Is(err, context.Canceled) || errors.Is(err, ErrNotSent) {
				t.Errorf("abandoned: %v, want context.Canceled, and it was sent", err)
			}
		}

		if r := o.Run(t.Context(), Call{Keys: []string{"other"}}, func() Result { return Result{Value: "at once"} }); r.Value != "at once" {
			t.Errorf("another key: %+v", r)
		}
		hurried, stop := context.WithCancel(t.Context())
		stop()
		if r := o.Run(hurried, job, func() Result { t.Error("sent"); return Result{} }); !errors.Is(r.Err, ErrNotSent) || !errors.Is(r.Err, context.Canceled) {
			t.Errorf("whose context ends while it waits: %+v", r)
		}

		after := make(chan Result, 1)
		sent := false
		go func() { after <- o.Run(t.Context(), job, func() Result { sent = true; return Result{Value: "after"} }) }()
		for _, end := range []chan struct{}{second, first} {
			synctest.Wait()
			if sent {
				t.Fatal("overtook a call that was abandoned")
			}
			close(end)
		}
		if r := <-after; r.Value != "after" {
			t.Errorf("afterwards: %+v", r)
		}
		synctest.Wait()
		if len(o.late) != 0 {
			t.Errorf("%d calls are remembered that have ended", len(o.late))
		}
	})
}

// A call about several locks keeps its order among the calls about each of them, and
// not only by its first key.
func TestOrderOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		about := func(locks ...string) Call { return Call{Keys: []string{"counter"}, Locks: locks} }
		for _, c := range []struct {
			abandoned, after Call
			waits            bool
		}{
			{about("a", "b"), Call{Keys: []string{"a"}}, true},
			{about("a", "b"), Call{Keys: []string{"b"}}, true},
			{about("a", "b"), about("c", "b"), true},
			{Call{Keys: []string{"b"}}, about("a", "b"), true},
			{about("a", "b"), about("c", "d"), false},
			{about("a", "b", "a"), about("a", "a"), true},
			{about("a", "b"), Call{Keys: []string{"counter"}}, false},
		} {
			var o Order
			end := make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			go o.Run(ctx, c.abandoned, func() Result { <-end; return Result{} })
			synctest.Wait()
			cancel()
			synctest.Wait()
			sent := false
			go o.Run(t.Context(), c.after, func() Result { sent = true; return Result{} })
			synctest.Wait()
			if sent == c.waits {
				t.Errorf("%v after %v: sent at once is %v", c.after, c.abandoned, sent)
			}
			close(end)
			synctest.Wait()
			if !sent || len(o.late) != 0 {
				t.Errorf("%v after %v has ended: sent is %v, %d locks are remembered", c.after, c.abandoned, sent, len(o.late))
			}
		}
	})
}

// A context that cannot end costs nothing, and one that has ended sends nothing.
func TestOrderAlone(t *testing.T) {
	var o Order
	c := Call{Keys: []string{"job"}}
	if r := o.Run(context.Background(), c, func() Result { return Result{Value: 1} }); r.Value != 1 {
		t.Errorf("%+v", r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := o.Run(ctx, c, func() Result { t.Error("sent"); return Result{} }); !errors.Is(r.Err, ErrNotSent) {
		t.Errorf("%+v", r)
	}
}

// A call that is loose does not wait for one that was abandoned, nor is it waited for.
func TestOrderLoose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Order
		end := make(chan struct{})
		defer close(end)
		for _, loose := range []bool{true, false} {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan Result, 1)
			go func() {
				done <- o.Run(ctx, Call{Keys: []string{"a"}, Loose: loose}, func() Result { <-end; return Result{} })
			}()
			synctest.Wait()
			cancel()
			<-done
			if o.Late() == loose {
				t.Errorf("abandoned and loose %v: late %v", loose, o.Late())
			}
			if r := o.Run(t.Context(), Call{Keys: []string{"a"}, Loose: true}, func() Result { return Result{Value: "at once"} }); r.Value != "at once" {
				t.Errorf("after loose %v: %+v", loose, r)
			}
		}
	})
}
