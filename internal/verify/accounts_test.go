package verify

import (
	"testing"

	"github.com/batonhq/baton"
)

func TestAccounts(t *testing.T) {
	ctx := t.Context()
	queued := baton.LockEvent{Queued: true}
	for what, c := range map[string]struct {
		tell  func(*baton.Events)
		right bool
	}{
		"nothing":                {func(*baton.Events) {}, true},
		"a lock":                 {func(e *baton.Events) { e.Acquired(ctx, baton.LockEvent{}); e.Released(ctx, baton.LockEvent{}) }, true},
		"a wait, and a loss":     {func(e *baton.Events) { e.Waiting(ctx, queued); e.Acquired(ctx, queued); e.Lost(ctx, queued) }, true},
		"a wait in vain":         {func(e *baton.Events) { e.Waiting(ctx, queued); e.Failed(ctx, queued) }, true},
		"a wait without an end":  {func(e *baton.Events) { e.Waiting(ctx, queued) }, false},
		"two ends":               {func(e *baton.Events) { e.Waiting(ctx, queued); e.Failed(ctx, queued); e.Failed(ctx, queued) }, false},
		"a lease without an end": {func(e *baton.Events) { e.Acquired(ctx, baton.LockEvent{}) }, false},
		"lost and released":      {func(e *baton.Events) { e.Acquired(ctx, queued); e.Lost(ctx, queued); e.Released(ctx, queued) }, false},
	} {
		var a accounts
		c.tell(a.events())
		if wrong := a.wrong(); (wrong == "") != c.right {
			t.Errorf("%s: %q", what, wrong)
		}
	}
}
