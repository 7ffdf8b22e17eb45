package observe_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/driver/observe"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

// kept keeps what is told as text. Requests may end at the same time.
type kept struct {
	mu    sync.Mutex
	lines []string
}

func (k *kept) events() observe.Events {
	return observe.Events{Request: func(_ context.Context, e observe.RequestEvent) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if e.Class != observe.Class(e.Err) {
			k.lines = append(k.lines, fmt.Sprintf("class %q of %v", e.Class, e.Err))
		}
		k.lines = append(k.lines, fmt.Sprint(e.Store, " ", e.Operation, " ", e.Claims, " ", e.Took, " ", e.Class))
	}}
}

// take returns what was told since the last call.
func (k *kept) take() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	lines := k.lines
	k.lines = nil
	return lines
}

// want compares what was told since the last call.
func (k *kept) want(t *testing.T, want ...string) {
	t.Helper()
	if told := k.take(); !slices.Equal(told, want) {
		t.Errorf("told\n%q, want\n%q", told, want)
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// slow takes a second for each request to acquire.
type slow struct{ *memstore.Store }

func (s slow) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	time.Sleep(time.Second) // of a bubble
	return s.Store.Acquire(ctx, r)
}

// Each request is told once, with what it was, how long it took and how it ended.
func TestEveryRequestIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		var told kept
		store := observe.Locks(slow{memstore.New()}, told.events())
		request := func(key string) driver.Request {
			return driver.Request{
				Claim: driver.Claim{Key: key, ID: driver.NewID(), Weight: driver.Whole, Capacity: driver.Whole},
				TTL:   10 * time.Second,
			}
		}
		find := func(ok bool) {
			t.Helper()
			if !ok {
				t.Error("an ability is hidden")
			}
		}

		a, b := request("a"), request("b")
		g := must[driver.Grant](t)(store.Acquire(ctx, a))
		a.Ticket = g.Ticket
		told.want(t, "memory acquire 1 1s ")
		if _, err := store.Acquire(ctx, request("a")); !errors.Is(err, driver.ErrHeld) {
			t.Error(err)
		}
		told.want(t, "memory acquire 1 1s held")
		if got := store.Renew(ctx, []driver.Claim{a.Claim, b.Claim}, time.Second); got[0].State != driver.Held || got[1].State != driver.Lost {
			t.Errorf("%+v", got)
		}
		told.want(t, "memory renew 2 0s ")

		together, ok := driver.As[driver.Together](store)
		find(ok)
		if _, err := together.AcquireAll(ctx, []driver.Request{request("a"), b}); !errors.Is(err, driver.ErrHeld) {
			t.Error(err)
		}
		mover, ok := driver.As[driver.Mover](store)
		find(ok)
		moved := a.Claim
		moved.ID = driver.NewID()
		must[driver.Grant](t)(mover.Move(ctx, a.Claim, moved.ID, "other", time.Second))
		downgrader, ok := driver.As[driver.Downgrader](store)
		find(ok)
		must[driver.Grant](t)(downgrader.Downgrade(ctx, moved, time.Second))
		renamer, ok := driver.As[driver.Renamer](store)
		find(ok)
		if err := renamer.Rename(ctx, moved, "new"); err != nil {
			t.Error(err)
		}
		told.want(t, "memory acquire-all 2 0s held", "memory move 1 0s ", "memory downgrade 1 0s ", "memory rename 1 0s ")

		if err := store.Release(ctx, b.Claim); !errors.Is(err, driver.ErrLost) {
			t.Error(err)
		}
		told.want(t, "memory release 1 0s lost")

		inspector, ok := driver.As[driver.Inspector](store)
		find(ok)
		must[driver.KeyInfo](t)(inspector.Inspect(ctx, "a"))
		for range inspector.List(ctx, "") {
			time.Sleep(time.Hour) // the caller's time is not the store's
		}
		must[int](t)(inspector.Break(ctx, "a"))
		told.want(t, "memory inspect 1 0s ", "memory list 1 0s ", "memory break 1 0s ")

		records, ok := driver.As[driver.Records](store)
		find(ok)
		must[driver.Record](t)(records.BeginAttempt(ctx, driver.Attempt{Key: "o", Token: 2}, time.Minute))
		if _, err := records.BeginAttempt(ctx, driver.Attempt{Key: "o", Token: 1}, time.Minute); !errors.Is(err, driver.ErrSuperseded) {
			t.Error(err)
		}
		must[driver.Record](t)(records.FinishAttempt(ctx, driver.Attempt{Key: "o", Token: 2}, driver.Outcome{}, time.Minute))
		must[driver.Record](t)(records.FindRecord(ctx, "o"))
		lister, ok := driver.As[driver.RecordLister](store)
		find(ok)
		for range lister.ListRecords(ctx, "") {
			break
		}
		if err := records.ForgetRecord(ctx, "o"); err != nil {
			t.Error(err)
		}
		told.want(t, "memory begin 1 0s ", "memory begin 1 0s lost", "memory finish 1 0s ", "memory find 1 0s ", "memory records 1 0s ", "memory forget 1 0s ")

		examiner, ok := driver.As[driver.Examiner](store)
		find(ok)
		must[[]driver.Finding](t)(examiner.Examine(ctx))
		take := limits.Request{Takes: []limits.Take{{Key: "l", Limit: limits.Limit{Algorithm: limits.SlidingLog, N: 1, Period: time.Minute}, Cost: 1}}}
		limiter, ok := driver.As[limits.Store](store)
		find(ok)
		must[limits.Taken](t)(limiter.Take(ctx, take))
		if refused := must[limits.Taken](t)(limiter.Take(ctx, take)); refused.OK {
			t.Error("two of one")
		}
		states, ok := limits.ListerOf(limiter)
		find(ok)
		for range states.ListStates(ctx, "", "") {
			time.Sleep(time.Hour)
			break
		}
		take.Takes[0].Cost = -1
		if _, err := limiter.Take(ctx, take); err == nil {
			t.Error("a negative cost")
		}
		told.want(t, "memory examine 0 0s ", "memory take 1 0s ", "memory take 1 0s ", "memory states 1 0s ", "memory take 1 0s refused")
		overrider, ok := limits.OverriderOf(limiter)
		find(ok)
		if err := overrider.SetOverride(ctx, limits.Override{Key: "l", N: 2}, time.Minute); err != nil {
			t.Error(err)
		}
		if err := overrider.SetOverride(ctx, limits.Override{Key: "l", N: -1}, time.Minute); err == nil {
			t.Error("an override of less than nothing")
		}
		must[[]limits.Override](t)(overrider.Overrides(ctx))
		alone := observe.Limits(struct {
			limits.Store
			limits.Overrider
		}{limiter, overrider}, told.events())
		overrider, ok = limits.OverriderOf(alone)
		find(ok)
		must[[]limits.Override](t)(overrider.Overrides(ctx))
		told.want(t, "memory override 1 0s ", "memory override 1 0s refused", "memory overrides 1 0s ", "memory overrides 1 0s ", " overrides 1 0s ")
	})
}

// bare has no ability at all, and fails.
type bare struct{ err error }

func (b bare) Acquire(context.Context, driver.Request) (driver.Grant, error) {
	return driver.Grant{}, b.err
}

func (b bare) Renew(_ context.Context, claims []driver.Claim, _ time.Duration) []driver.Renewal {
	return []driver.Renewal{{State: driver.Held}, {Err: b.err}, {Err: errors.New("another")}}
}
func (b bare) Release(context.Context, driver.Claim) error { return b.err }
func (b bare) Traits() driver.Traits                       { return driver.Traits{Store: "bare"} }

type bareLimits struct{ err error }

func (b bareLimits) Take(context.Context, limits.Request) (limits.Taken, error) {
	return limits.Taken{}, b.err
}

// A wrapper has no ability that the wrapped store lacks.
func TestNothingIsInvented(t *testing.T) {
	t.Parallel()
	var told kept
	gone := fmt.Errorf("bare: %w", driver.ErrUnavailable)
	store := observe.Locks(bare{gone}, told.events())
	for what, found := range map[string]bool{
		"Store": has[driver.Store](store), "Together": has[driver.Together](store), "Downgrader": has[driver.Downgrader](store),
		"Mover": has[driver.Mover](store), "Inspector": has[driver.Inspector](store), "Records": has[driver.Records](store),
		"Examiner": has[driver.Examiner](store), "Clock": has[driver.Clock](store), "Watcher": has[driver.Watcher](store),
		"limits": has[limits.Store](store), "Renamer": has[driver.Renamer](store), "RecordLister": has[driver.RecordLister](store),
		"Overrider": has[limits.Overrider](store),
		"Lister":    has[limits.Lister](store),
	} {
		if found {
			t.Errorf("%s was found", what)
		}
	}
	if _, err := store.Acquire(t.Context(), driver.Request{}); err != gone {
		t.Error(err)
	}
	store.Renew(t.Context(), make([]driver.Claim, 3), time.Second)
	if err := store.Release(t.Context(), driver.Claim{}); err != gone {
		t.Error(err)
	}
	both, _ := driver.As[limits.Store](observe.Locks(struct {
		bare
		bareLimits
	}{}, told.events()))
	if _, ok := limits.OverriderOf(both); ok {
		t.Error("a store for locks and limits keeps overrides")
	}
	limiter := observe.Limits(bareLimits{gone}, told.events())
	if _, ok := limiter.(driver.Locks); ok {
		t.Error("a store for limits alone became one for locks")
	}
	if _, ok := limits.OverriderOf(limiter); ok {
		t.Error("a store for limits alone keeps overrides")
	}
	if _, err := limiter.Take(t.Context(), limits.Request{}); err != gone {
		t.Error(err)
	}
	if _, ok := limits.ListerOf(limiter); ok {
		t.Error("a store for limits alone became a Lister")
	}
	for i, line := range told.lines {
		words := strings.Split(line, " ") // store, operation, claims, time, class
		told.lines[i] = strings.Join(append(words[:3:3], words[4]), " ")
	}
	told.want(t, "bare acquire 1 unavailable", "bare renew 3 unavailable", "bare release 1 unavailable", " take 0 unavailable")
}

type listedLimits struct{ bareLimits }

func (listedLimits) ListStates(context.Context, string, string) iter.Seq2[limits.State, error] {
	return func(yield func(limits.State, error) bool) { yield(limits.State{}, driver.ErrUnavailable) }
}

// A wrapped store for limits alone is still a Lister, and its lists are told.
func TestLimitsAloneList(t *testing.T) {
	t.Parallel()
	var told []observe.RequestEvent
	l, ok := limits.ListerOf(observe.Limits(listedLimits{}, observe.Events{Request: func(_ context.Context, e observe.RequestEvent) { told = append(told, e) }}))
	if !ok {
		t.Fatal("it is no Lister")
	}
	for _, err := range l.ListStates(t.Context(), "", "") {
		if !errors.Is(err, driver.ErrUnavailable) {
			t.Error(err)
		}
	}
	if len(told) != 1 || told[0].Operation != observe.States || told[0].Class != observe.Unavailable || told[0].Claims != 0 {
		t.Errorf("told %+v", told)
	}
}

func has[T any](l driver.Locks) bool { _, ok := driver.As[T](l); return ok }

func TestNoEventsNoWrapper(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	if observe.Locks(s, observe.Events{}) != driver.Locks(s) || observe.Store(s, observe.Events{}) != driver.Store(s) || observe.Limits(s, observe.Events{}) != limits.Store(s) {
		t.Error("a store was wrapped for nothing")
	}
}

// What uses a store sees no difference, and its requests are told, also through two
// wrappers.
func TestThroughTheFrontDoors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		var first, second kept
		store := observe.Store(observe.Store(memstore.New(), first.events()), second.events())
		locks := must[*baton.Locker](t)(baton.New(store, baton.Config{}))
		lease := must[*baton.Lease](t)(locks.Lock(ctx, "k"))
		if err := errors.Join(lease.Downgrade(ctx), lease.Unlock()); err != nil {
			t.Error(err)
		}
		both := must[*baton.Leases](t)(locks.LockAll(ctx, []string{"a", "b"}))
		if err := both.Unlock(); err != nil {
			t.Error(err)
		}
		if inner, outer := first.take(), second.take(); len(inner) != 6 || !slices.Equal(inner, outer) {
			t.Errorf("the inner wrapper was told %q, the outer %q", inner, outer)
		}
		runner := must[*once.Runner](t)(once.New(store, once.Config{}))
		must[[]byte](t)(runner.Do(ctx, "o", func(context.Context, once.Attempt) ([]byte, error) { return nil, nil }))
		limitStore, ok := driver.As[limits.Store](store)
		if !ok {
			t.Fatal("no limits")
		}
		limiter := must[*ratelimit.Limiter](t)(ratelimit.New(limitStore, ratelimit.SlidingLog(2, time.Minute)))
		for i, want := range []bool{true, true, false} {
			if r := must[ratelimit.Result](t)(limiter.Allow(ctx, "k")); r.OK != want {
				t.Errorf("call %d: %+v", i, r)
			}
		}
		inner, outer := first.take(), second.take()
		takes := 0
		for _, e := range inner {
			if e == "memory take 1 0s " {
				takes++
			}
		}
		if takes != 3 || !slices.Equal(inner, outer) {
			t.Errorf("the inner wrapper was told %q, the outer %q", inner, outer)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
		if _, err := locks.TryLock(ctx, "k"); err == nil {
			t.Error("Close closed nothing")
		}
	})
}

func TestClass(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{&driver.HeldError{Key: "k"}, observe.Held},
		{&driver.QueueFullError{Key: "k"}, observe.Held},
		{fmt.Errorf("x: %w", driver.ErrNoRecord), observe.Missing},
		{fmt.Errorf("x: %w", driver.ErrLost), observe.Lost},
		{&driver.SupersededError{}, observe.Lost},
		{fmt.Errorf("x: %w", driver.ErrUnavailable), observe.Unavailable},
		{fmt.Errorf("x: %w: %w", driver.ErrUnknown, context.DeadlineExceeded), observe.Unknown},
		{fmt.Errorf("x: %w: %w", driver.ErrUnknown, context.Canceled), observe.Canceled},
		{context.Canceled, observe.Canceled},
		{context.DeadlineExceeded, observe.Canceled},
		{&driver.KeyError{}, observe.Refused},
		{&driver.CapacityError{}, observe.Refused},
		{driver.ErrClosed, observe.Refused},
		{errors.ErrUnsupported, observe.Refused},
	} {
		if got := observe.Class(c.err); got != c.want {
			t.Errorf("%v is %q, want %q", c.err, got, c.want)
		}
	}
}
