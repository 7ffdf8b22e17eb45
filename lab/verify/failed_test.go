package verify

import (
	"context"
	"fmt"
	"testing"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/lab/verify/history"
)

// A canceled Lock may have been granted, although its error names a holder.
func TestWhatAnErrorLeavesOpen(t *testing.T) {
	held := &baton.HeldError{Key: "k", Owner: "x"}
	for _, c := range []struct {
		err   error
		waits bool
		want  history.Result
	}{
		{held, false, history.Refused},
		{fmt.Errorf("%w: %w", context.DeadlineExceeded, held), true, history.Unknown},
		{baton.ErrUnavailable, false, history.Failed},
		{baton.ErrUnavailable, true, history.Unknown},
		{&baton.QueueFullError{Key: "k", Waiting: 3}, true, history.Unknown},
		{&baton.QueueFullError{Key: "k", Waiting: 3, Local: true}, true, history.Failed},
		{baton.ErrUnknown, false, history.Unknown},
	} {
		if got := failed(c.err, c.waits); got != c.want {
			t.Errorf("%v, waits %v: %v, want %v", c.err, c.waits, got, c.want)
		}
	}
}
