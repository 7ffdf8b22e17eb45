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
