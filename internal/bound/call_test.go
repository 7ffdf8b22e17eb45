package bound

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := func(int) { t.Error("what was returned came late") }
		if v, err := Call(t.Context(), func() (int, error) { return 1, nil }, late); v != 1 || err != nil {
			t.Errorf("%d, %v", v, err)
		}
		failed := errors.New("failed")
		if _, err := Call(t.Context(), func() (int, error) { return 0, failed }, late); err != failed {
			t.Error(err)
		}

		// The context ends first.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got := 0
		for _, err := range []error{nil, failed} {
			until := make(chan struct{})
			v, called := Call(ctx, func() (int, error) { <-until; return 2, err }, func(v int) { got += v })
			if v != 0 || called != context.DeadlineExceeded {
				t.Errorf("%d, %v", v, called)
			}
			close(until)
			synctest.Wait()
		}
		if got != 2 {
			t.Errorf("late got %d, want what came without an error, once", got)
		}
	})
}
