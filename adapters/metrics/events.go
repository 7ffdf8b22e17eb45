package metrics

import (
	"context"

	"github.com/batonhq/baton/driver/observe"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit"
)

// place is the store and class of a counted event.
type place struct{ store, class string }

// classes makes places with admitted classes.
type classes struct {
	of    func(key string) string
	names names
}

func (c *classes) place(store, key string) place {
	return place{store, c.names.admit(c.of(key))}
}

func limitEvents(of func(Instrument) Vector) *ratelimit.Events {
	type decided struct {
		store, limit, outcome string
		by                    ratelimit.Source
	}
	type about struct{ store, limit string }
	type called struct{ store, operation string }
	type instead struct {
		store string
		by    ratelimit.Source
	}
	var (
		admitted    names
		decisions   bound[decided, Series]
		wouldRefuse bound[about, Series]
		near        bound[about, Series]
		durations   bound[called, Series]
		degraded    bound[instead, Series]
	)
	name := func(limit string) string {
		if limit == "" {
			return "unnamed"
		}
		return admitted.admit(limit)
	}
	fallback := func(ctx context.Context, e ratelimit.FallbackEvent, by float64) {
		degraded.get(instead{e.Store, e.By}, func(k instead) Series {
			return of(limitDegraded)(k.store, k.by.String())
		})(ctx, by)
	}
	return &ratelimit.Events{
		Decided: func(ctx context.Context, e ratelimit.DecisionEvent) {
			k := decided{e.Store, name(e.Result.Name), "allowed", e.Result.By}
			switch {
			case e.Err != nil:
				k.outcome = "error"
			case !e.Result.OK:
				k.outcome = "refused"
			}
			decisions.get(k, func(k decided) Series {
				return of(limitDecisions)(k.store, k.limit, k.outcome, k.by.String())
			})(ctx, 1)
			durations.get(called{e.Store, e.Operation}, func(k called) Series {
				return of(limitDuration)(k.store, k.operation)
			})(ctx, e.Took.Seconds())
			if e.Err != nil || !e.Result.Near && !e.Result.WouldRefuse {
				return
			}
			for _, l := range e.Result.Limits() {
				k := about{e.Store, name(l.Name)}
				if l.Near {
					near.get(k, func(k about) Series { return of(limitNear)(k.store, k.limit) })(ctx, 1)
				}
				if l.Shadow && !l.OK {
					wouldRefuse.get(k, func(k about) Series { return of(limitWouldRefuse)(k.store, k.limit) })(ctx, 1)
				}
			}
		},
		Degraded: func(ctx context.Context, e ratelimit.FallbackEvent) { fallback(ctx, e, 1) },
		Restored: func(ctx context.Context, e ratelimit.FallbackEvent) { fallback(ctx, e, -1) },
	}
}

func onceEvents(of func(Instrument) Vector, class func(string) string) *once.Events {
	type ended struct {
		place
		outcome string
	}
	type failed struct {
		place
		class string
	}
	type series struct{ calls, duration Series }
	var (
		places  = classes{of: class}
		running bound[place, Series]
		ends    bound[ended, series]
		gaveUp  bound[failed, Series]
	)
	runs := func(ctx context.Context, p place, by float64) {
		running.get(p, func(p place) Series { return of(onceRunning)(p.store, p.class) })(ctx, by)
	}
	end := func(p place, outcome string) series {
		return ends.get(ended{p, outcome}, func(k ended) series {
			return series{of(onceCalls)(k.store, k.class, k.outcome), of(onceDuration)(k.store, k.class, k.outcome)}
		})
	}
	over := func(ctx context.Context, e once.OperationEvent, outcome string) {
		p := places.place(e.Store, e.Key)
		s := end(p, outcome)
		s.calls(ctx, 1)
		s.duration(ctx, e.Took.Seconds())
		runs(ctx, p, -1)
	}
	return &once.Events{
		Began: func(ctx context.Context, e once.OperationEvent) { runs(ctx, places.place(e.Store, e.Key), 1) },
		Replayed: func(ctx context.Context, e once.OperationEvent) {
			end(places.place(e.Store, e.Key), "replayed").calls(ctx, 1)
		},
		Finished: func(ctx context.Context, e once.OperationEvent) {
			switch {
			case e.Failed:
				over(ctx, e, "failed")
			case !e.Recorded:
				over(ctx, e, "unrecorded")
			default:
				over(ctx, e, "succeeded")
			}
		},
		Superseded: func(ctx context.Context, e once.OperationEvent) { over(ctx, e, "superseded") },
		GaveUp: func(ctx context.Context, e once.OperationEvent) {
			gaveUp.get(failed{places.place(e.Store, e.Key), ErrorClass(e.Err)}, func(k failed) Series {
				return of(onceGaveUp)(k.store, k.place.class, k.class)
			})(ctx, 1)
		},
	}
}

func electionEvents(of func(Instrument) Vector, class func(string) string) *election.Events {
	type failed struct {
		place
		class string
	}
	type series struct{ elected, leading, term, late Series }
	var (
		places   = classes{of: class}
		all      bound[place, series]
		failures bound[failed, Series]
	)
	about := func(e election.LeadershipEvent) series {
		return all.get(places.place(e.Store, e.Name), func(p place) series {
			return series{
				of(electionElected)(p.store, p.class), of(electionLeading)(p.store, p.class),
				of(electionTerm)(p.store, p.class), of(electionLate)(p.store, p.class),
			}
		})
	}
	return &election.Events{
		Elected: func(ctx context.Context, e election.LeadershipEvent) {
			s := about(e)
			s.elected(ctx, 1)
			s.leading(ctx, 1)
		},
		Late: func(ctx context.Context, e election.LeadershipEvent) { about(e).late(ctx, 1) },
		Ended: func(ctx context.Context, e election.LeadershipEvent) {
			s := about(e)
			s.leading(ctx, -1)
			s.term(ctx, e.Led.Seconds())
		},
		Failed: func(ctx context.Context, e election.LeadershipEvent) {
			failures.get(failed{places.place(e.Store, e.Name), ErrorClass(e.Err)}, func(k failed) Series {
				return of(electionFailed)(k.store, k.place.class, k.class)
			})(ctx, 1)
		},
	}
}

func guardEvents(of func(Instrument) Vector, class func(string) string) guard.Events {
	places := classes{of: class}
	var refused bound[place, Series]
	return guard.Events{Refused: func(ctx context.Context, e guard.RefusedEvent) {
		refused.get(places.place(e.Store, e.Err.Resource), func(p place) Series {
			return of(guardRefused)(p.store, p.class)
		})(ctx, 1)
	}}
}

// systems are the stores with another name in OpenTelemetry.
var systems = map[string]string{"postgres": "postgresql", "redlock": "redis"}

func storeEvents(of func(Instrument) Vector) observe.Events {
	type asked struct{ store, operation, class string }
	var all bound[asked, Series]
	return observe.Events{Request: func(ctx context.Context, e observe.RequestEvent) {
		if e.Class == observe.Held || e.Class == observe.Missing {
			e.Class = "" // an answer, no failure
		}
		all.get(asked{e.Store, e.Operation, e.Class}, func(k asked) Series {
			if name, ok := systems[k.store]; ok {
				k.store = name
			}
			return of(storeRequest)(k.store, k.operation, k.class)
		})(ctx, e.Took.Seconds())
	}}
}
