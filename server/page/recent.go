package page

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/metrics"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/top"
)

// How many events are kept: usual ones, and events of trouble, which usual ones must not
// push out.
const (
	maxUsual   = 200
	maxTrouble = 100
)

// Recent remembers the events of this process, and counts which limits are asked most. All
// methods are safe for concurrent use.
type Recent struct {
	hot    *top.Keys
	events metrics.Events
	poll   atomic.Pointer[poller]

	mu             sync.Mutex
	last           int64
	usual, trouble ring
}

type ring struct {
	most int
	all  []event
}

func (r *ring) add(e event) {
	if len(r.all) == 2*r.most {
		r.all = append(r.all[:0], r.all[r.most:]...)
	}
	r.all = append(r.all, e)
}

func (r *ring) kept() []event { return r.all[max(0, len(r.all)-r.most):] }

// An event is one event, in JSON. Seq is one more than that of the event before.
type event struct {
	Seq     int64  `json:"seq"`
	Time    int64  `json:"time"` // ms since 1970
	What    string `json:"what"`
	Trouble bool   `json:"trouble,omitempty"`
	named
	Token string `json:"token,omitempty"`
	Took  int64  `json:"took,omitempty"` // ms
	Error string `json:"error,omitempty"`
	store bool   // Error has text of the store
}

// NewRecent returns a Recent without events.
func NewRecent() *Recent {
	r := &Recent{hot: top.New(top.Config{}), usual: ring{most: maxUsual}, trouble: ring{most: maxTrouble}}
	lock := func(what string, trouble bool) func(context.Context, baton.LockEvent) {
		return func(_ context.Context, e baton.LockEvent) {
			r.add(event{What: what, Trouble: trouble, named: named{Key: e.Key}, Token: token(e.Token), Took: max(e.Waited, e.Held).Milliseconds(), Error: text(e.Err), store: ofStore(e.Err)})
			r.touch(e.Key)
		}
	}
	released := lock("released", false)
	operation := func(what string) func(context.Context, once.OperationEvent) {
		return func(_ context.Context, e once.OperationEvent) {
			r.add(event{What: what, Trouble: e.Failed || what == "superseded", named: named{Key: e.Key}, Token: token(e.Token), Took: max(e.Waited, e.Took).Milliseconds(), Error: text(e.Err), store: ofStore(e.Err)})
		}
	}
	fallback := func(what string) func(context.Context, ratelimit.FallbackEvent) {
		return func(_ context.Context, e ratelimit.FallbackEvent) {
			r.add(event{What: what, Trouble: true, named: named{Key: e.Key}, Took: e.Lasted.Milliseconds(), Error: text(e.Err), store: true})
		}
	}
	r.events = metrics.Events{
		Locks: &baton.Events{
			Waiting:  lock("waiting", false),
			Acquired: lock("acquired", false),
			Failed: func(ctx context.Context, e baton.LockEvent) {
				lock("failed", !usual(e.Err))(ctx, e)
			},
			Lost: lock("lost", true),
			Released: func(ctx context.Context, e baton.LockEvent) {
				if lost, ok := errors.AsType[*baton.LostError](e.Err); ok && lost.Cause == baton.Detached {
					e.Err = nil
				}
				released(ctx, e)
			},
			Renewed: func(_ context.Context, e baton.RenewalEvent) {
				if e.Failed > 0 {
					r.add(event{What: "unrenewed", Trouble: true, Took: e.Took.Milliseconds(), Error: text(e.Err)})
				}
			},
		},
		Limits: &ratelimit.Events{Decided: r.hot.Events().Decided, Degraded: fallback("degraded"), Restored: fallback("restored")},
		Once:   &once.Events{Began: operation("began"), Finished: operation("finished"), Superseded: operation("superseded")},
	}
	return r
}

// usual reports whether a call for a lock failed for a usual reason.
func usual(err error) bool {
	return errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrQueueFull) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// ofStore reports whether an error has text of the store.
func ofStore(err error) bool {
	return errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown)
}

// Events returns the functions for a Locker, a Limiter and a Runner, or several of each.
// See metrics.Join for further functions of the same kind.
func (r *Recent) Events() metrics.Events { return r.events }

func (r *Recent) add(e event) {
	e.Time = time.Now().UnixMilli()
	r.mu.Lock()
	r.last++
	e.Seq = r.last
	if e.Trouble {
		r.trouble.add(e)
	} else {
		r.usual.add(e)
	}
	r.mu.Unlock()
	if p := r.poll.Load(); p != nil {
		p.wakeAll()
	}
}

func (r *Recent) touch(key string) {
	if p := r.poll.Load(); p != nil {
		p.touch(key)
	}
}

// follow makes p inspect the locks of further events.
func (r *Recent) follow(p *poller) { r.poll.Store(p) }

// since returns the kept events after seq, in order: the last most of those that are
// visible. Text of the store is only for callers who may see the empty key.
func (r *Recent) since(seq int64, most int, visible func(key string) bool) (found []event, last int64) {
	r.mu.Lock()
	last = r.last
	usual, trouble := after(r.usual.kept(), seq), after(r.trouble.kept(), seq)
	both := make([]event, 0, len(usual)+len(trouble))
	for len(usual) > 0 || len(trouble) > 0 {
		if len(trouble) == 0 || len(usual) > 0 && usual[0].Seq < trouble[0].Seq {
			both, usual = append(both, usual[0]), usual[1:]
		} else {
			both, trouble = append(both, trouble[0]), trouble[1:]
		}
	}
	r.mu.Unlock()
	found = []event{}
	for _, e := range both {
		if visible(e.Key) { // an event without a key is for callers who see all
			e.named = name(e.Key)
			if e.store && e.Error != "" && !visible("") {
				e.Error = errSilent.Error()
			}
			found = append(found, e)
		}
	}
	return found[max(0, len(found)-most):], last
}

func after(events []event, seq int64) []event {
	for i := len(events); i > 0; i-- {
		if events[i-1].Seq <= seq {
			return events[i:]
		}
	}
	return events
}

// count is the number of decisions of a limit, or of waiters for a lock.
type count struct {
	named
	N       int64 `json:"n"`
	Refused int64 `json:"refused,omitempty"`
}

// hottest returns the limits that this process asks most, in the present minute and the
// one before.
func (r *Recent) hottest(n int, visible func(key string) bool) []count {
	report := r.hot.Report(10 * n)
	counts := map[string]*count{}
	for _, period := range []top.Period{report.Last, report.Present} {
		for _, c := range period.Decisions.Keys {
			one := counts[c.Key]
			if one == nil {
				one = &count{named: name(c.Key)}
				counts[c.Key] = one
			}
			one.N += c.Count
		}
		for _, c := range period.Refusals.Keys {
			if one := counts[c.Key]; one != nil {
				one.Refused += c.Count
			}
		}
	}
	all := []count{}
	for _, c := range counts {
		if visible(c.Key) {
			all = append(all, *c)
		}
	}
	return highest(all, n)
}

// highest returns the n highest counts, the highest first.
func highest(all []count, n int) []count {
	slices.SortFunc(all, func(a, b count) int {
		return cmp.Or(cmp.Compare(b.N, a.N), strings.Compare(a.Key, b.Key))
	})
	return all[:min(n, len(all))]
}

func token(t int64) string {
	if t == 0 {
		return ""
	}
	return strconv.FormatInt(t, 10)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return driver.Printable(err.Error())
}
