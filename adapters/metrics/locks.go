package metrics

import (
	"context"

	"github.com/batonhq/baton"
)

func lockEvents(of func(Instrument) Vector, class func(string) string, waits *oldest) *baton.Events {
	type asked struct { // what a call asked for
		place
		mode string
	}
	type failure struct {
		asked
		class string
	}
	type ended struct {
		place
		how string
	}
	type grants struct{ wait, acquired Series }
	type failures struct{ wait, failed Series }
	type now struct{ held, waiting, hold Series }
	type renewals struct{ claims, failed, slack Series }
	type renewed struct{ store, class string }
	var (
		places    = classes{of: class}
		granted   bound[asked, grants]
		failed    bound[failure, failures]
		lost      bound[ended, Series]
		released  bound[ended, Series]
		present   bound[place, now]
		renewal   bound[string, renewals]
		durations bound[renewed, Series]
	)
	at := func(p place) now {
		return present.get(p, func(p place) now {
			return now{of(lockHeld)(p.store, p.class), of(lockWaiting)(p.store, p.class), of(lockHold)(p.store, p.class)}
		})
	}
	// end counts an ended lease.
	end := func(ctx context.Context, e baton.LockEvent, p place, s Series) {
		s(ctx, 1)
		n := at(p)
		n.held(ctx, -1)
		n.hold(ctx, e.Held.Seconds())
	}
	return &baton.Events{
		Waiting: func(ctx context.Context, e baton.LockEvent) {
			p := places.place(e.Store, e.Key)
			at(p).waiting(ctx, 1)
			waits.begin(p, e.Since)
		},
		Acquired: func(ctx context.Context, e baton.LockEvent) {
			p := places.place(e.Store, e.Key)
			g := granted.get(asked{p, Mode(e)}, func(k asked) grants {
				return grants{of(lockWait)(k.store, k.class, k.mode, ""), of(lockAcquired)(k.store, k.class, k.mode)}
			})
			g.wait(ctx, e.Waited.Seconds())
			g.acquired(ctx, 1)
			n := at(p)
			n.held(ctx, 1)
			if e.Queued {
				n.waiting(ctx, -1)
				waits.end(p, e.Since)
			}
		},
		Failed: func(ctx context.Context, e baton.LockEvent) {
			p := places.place(e.Store, e.Key)
			f := failed.get(failure{asked{p, Mode(e)}, ErrorClass(e.Err)}, func(k failure) failures {
				return failures{
					of(lockWait)(k.store, k.place.class, k.mode, k.class), of(lockFailed)(k.store, k.place.class, k.mode, k.class),
				}
			})
			f.wait(ctx, e.Waited.Seconds())
			f.failed(ctx, 1)
			if e.Queued {
				at(p).waiting(ctx, -1)
				waits.end(p, e.Since)
			}
		},
		Lost: func(ctx context.Context, e baton.LockEvent) {
			p := places.place(e.Store, e.Key)
			end(ctx, e, p, lost.get(ended{p, ErrorClass(e.Err)}, func(k ended) Series {
				return of(lockLost)(k.store, k.class, k.how)
			}))
		},
		Released: func(ctx context.Context, e baton.LockEvent) {
			p := places.place(e.Store, e.Key)
			end(ctx, e, p, released.get(ended{p, ErrorClass(e.Err)}, func(k ended) Series {
				return of(lockReleased)(k.store, k.class, k.how)
			}))
		},
		Renewed: func(ctx context.Context, e baton.RenewalEvent) {
			r := renewal.get(e.Store, func(store string) renewals {
				return renewals{of(renewalClaims)(store), of(renewalFailed)(store), of(renewalSlack)(store)}
			})
			r.claims(ctx, float64(e.Claims))
			r.failed(ctx, float64(e.Failed))
			if e.Slack != 0 { // otherwise it was only about positions
				r.slack(ctx, max(e.Slack, 0).Seconds())
			}
			durations.get(renewed{e.Store, ErrorClass(e.Err)}, func(k renewed) Series {
				return of(renewalDuration)(k.store, k.class)
			})(ctx, e.Took.Seconds())
		},
	}
}

// Mode is the label baton.mode of an event: "exclusive", "shared" or "permits".
func Mode(e baton.LockEvent) string {
	switch {
	case e.Shared:
		return "shared"
	case e.Of > 0:
		return "permits"
	}
	return "exclusive"
}
