package metrics

import (
	"context"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver/observe"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit"
)

// Join returns Events that call each of all, in their order: metrics for Prometheus and
// spans for OpenTelemetry, for example, or functions of the program's own. A nil pointer
// is left out.
func Join(all ...Events) Events {
	var j Events
	for _, e := range all {
		j = Events{
			Locks:     pair(j.Locks, e.Locks, joinLocks),
			Limits:    pair(j.Limits, e.Limits, joinLimits),
			Once:      pair(j.Once, e.Once, joinOnce),
			Elections: pair(j.Elections, e.Elections, joinElections),
			Guard:     guard.Events{Refused: both(j.Guard.Refused, e.Guard.Refused)},
			Store:     observe.Events{Request: both(j.Store.Request, e.Store.Request)},
		}
	}
	return j
}

func pair[E any](a, b *E, join func(a, b *E) *E) *E {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return join(a, b)
}

func both[T any](a, b func(context.Context, T)) func(context.Context, T) {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(ctx context.Context, e T) { a(ctx, e); b(ctx, e) }
}

func joinLocks(a, b *baton.Events) *baton.Events {
	return &baton.Events{
		Waiting:  both(a.Waiting, b.Waiting),
		Acquired: both(a.Acquired, b.Acquired),
		Failed:   both(a.Failed, b.Failed),
		Renewed:  both(a.Renewed, b.Renewed),
		Lost:     both(a.Lost, b.Lost),
		Released: both(a.Released, b.Released),
	}
}

func joinLimits(a, b *ratelimit.Events) *ratelimit.Events {
	return &ratelimit.Events{
		Decided:  both(a.Decided, b.Decided),
		Degraded: both(a.Degraded, b.Degraded),
		Restored: both(a.Restored, b.Restored),
	}
}

func joinOnce(a, b *once.Events) *once.Events {
	return &once.Events{
		Began:      both(a.Began, b.Began),
		Replayed:   both(a.Replayed, b.Replayed),
		Finished:   both(a.Finished, b.Finished),
		Superseded: both(a.Superseded, b.Superseded),
		GaveUp:     both(a.GaveUp, b.GaveUp),
	}
}

func joinElections(a, b *election.Events) *election.Events {
	return &election.Events{
		Elected: both(a.Elected, b.Elected),
		Late:    both(a.Late, b.Late),
		Ended:   both(a.Ended, b.Ended),
		Failed:  both(a.Failed, b.Failed),
	}
}
