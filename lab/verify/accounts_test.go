package verify

import (
	"testing"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/lab/verify/history"
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

// Events that contradict each other break the run, and do not only make it invalid. The
// counts of the clients are added up.
func TestShoutsOfEvents(t *testing.T) {
	r := &runner{}
	tr := &trial{runner: r, dir: t.TempDir(), result: &Trial{}}
	tr.marks.now(history.Ends, "")
	for n := range 2 {
		l := &life{client: n + 1, words: []word{{sayTold, Told{Waited: 1, Acquired: 3, Released: 2, Lost: 1}.String()}}}
		tr.seats = append(tr.seats, &process{trial: tr, seat: n, life: l})
	}
	if found := tr.shouts(); len(found) != 0 || len(tr.result.Why) != 0 || tr.result.Told != (Told{2, 6, 4, 2}) {
		t.Errorf("found %v, invalid %q, told %+v", found, tr.result.Why, tr.result.Told)
	}
	l := tr.seats[1].life
	l.words = []word{{sayEvents, "the events of 3 leases acquired, of 0 lost, and of 2 released do not agree"}}
	tr.result.Violations = tr.shouts()
	if tr.result.decide("redis"); tr.result.Verdict != Broken {
		t.Errorf("%s: %v", tr.result.Verdict, tr.result.Violations)
	}
	l.words = []word{{sayTold, "nonsense"}}
	if tr.shouts(); len(tr.result.Why) != 1 {
		t.Errorf("%q", tr.result.Why)
	}
}
