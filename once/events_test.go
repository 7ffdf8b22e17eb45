package once_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/store/memstore"
)

type callName struct{}

// told is one event, with the call whose context it came with.
type told struct {
	name string
	call any
	once.OperationEvent
}

// A notebook writes down events, and how many of them there are.
type notebook struct {
	mu  sync.Mutex
	all []told
}

func (n *notebook) events() *once.Events {
	note := func(name string) func(context.Context, once.OperationEvent) {
		return func(ctx context.Context, e once.OperationEvent) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.all = append(n.all, told{name, ctx.Value(callName{}), e})
		}
	}
	return &once.Events{Began: note("began"), Replayed: note("replayed"), Finished: note("finished"), Superseded: note("superseded"), GaveUp: note("gave up")}
}

// take returns the events since its last call.
func (n *notebook) take() []told {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.all
	n.all = nil
	return all
}

// What each kind of call tells.
func TestEvents(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		before func(t *testing.T, ctx context.Context, p *process) context.Context
		fn     func(context.Context, once.Attempt) ([]byte, error)
		opts   []once.Option
		try    bool          // TryDo
		want   string        // the events
		took   time.Duration // of the end, in whole seconds
		waited time.Duration
		late   bool                // waited for a store, for however long
		end    once.OperationEvent // Recorded and Failed of the last event
		err    func(error) bool    // Err of the last event; nil: there is none
	}{
		"a success":      {want: "began finished", took: time.Second, end: once.OperationEvent{Recorded: true}},
		"an error":       {fn: fails(boom), want: "began finished", took: time.Second, end: once.OperationEvent{Failed: true}, err: func(err error) bool { return err == boom }},
		"a final error":  {fn: fails(once.Final(boom)), want: "began finished", took: time.Second, end: once.OperationEvent{Recorded: true, Failed: true}, err: isFinal},
		"a panic":        {fn: panics, want: "began finished", took: time.Second, end: once.OperationEvent{Failed: true}, err: func(err error) bool { return strings.Contains(err.Error(), "did not return") }},
		"an end":         {fn: func(context.Context, once.Attempt) ([]byte, error) { runtime.Goexit(); return nil, nil }, want: "began finished", end: once.OperationEvent{Failed: true}, err: func(err error) bool { return strings.Contains(err.Error(), "did not return") }},
		"too long":       {fn: func(context.Context, once.Attempt) ([]byte, error) { return make([]byte, check.MaxResult+1), nil }, want: "began finished", err: isUnrecorded},
		"a lost success": {fn: losing(nil), want: "began finished", end: once.OperationEvent{Recorded: true}},
		"a lost error":   {fn: losing(boom), want: "began finished", end: once.OperationEvent{Failed: true}, err: func(err error) bool { return errors.Is(err, boom) && errors.Is(err, baton.ErrLost) }},
		"followed":       {fn: followed(nil), want: "began superseded", err: isUnrecorded},
		"followed, failing": {fn: followed(once.Final(boom)), want: "began superseded", end: once.OperationEvent{Failed: true}, err: func(err error) bool {
			return isUnrecorded(err) && errors.Is(err, driver.ErrSuperseded)
		}},
		"another's outcome": {fn: fails(&once.UnrecordedError{Err: driver.ErrSuperseded}), want: "began finished", took: time.Second, end: once.OperationEvent{Failed: true}, err: isUnrecorded},
		"forgotten": {fn: func(ctx context.Context, a once.Attempt) ([]byte, error) {
			return nil, storeOf(ctx).ForgetRecord(ctx, a.Key)
		}, want: "began superseded", err: isUnrecorded},
		"out of reach at last": {fn: func(ctx context.Context, _ once.Attempt) ([]byte, error) {
			storeOf(ctx).loses("finish")
			return nil, nil
		}, want: "began finished", took: 30 * time.Second, err: func(err error) bool {
			return isUnrecorded(err) && errors.Is(err, baton.ErrUnknown)
		}},

		"done":       {before: done(nil), want: "replayed"},
		"failed":     {before: done(once.Final(boom)), want: "replayed", end: once.OperationEvent{Failed: true}, err: isFinal},
		"waited for": {before: running(nil), want: "replayed", waited: time.Minute},
		"in vain":    {before: running(boom), want: "began finished", took: time.Second, waited: time.Minute, end: once.OperationEvent{Recorded: true}},

		"another request": {
			before: done(nil, once.Fingerprint("a")), opts: []once.Option{once.Fingerprint("b")},
			want: "gave up", err: func(err error) bool { return errors.Is(err, once.ErrOtherRequest) },
		},
		"held, and it does not wait": {before: running(nil), try: true, want: "gave up", err: func(err error) bool { return errors.Is(err, baton.ErrHeld) }},
		"no patience": {want: "gave up", waited: time.Second, err: isLate, before: func(t *testing.T, ctx context.Context, p *process) context.Context {
			ctx, cancel := context.WithTimeout(running(nil)(t, ctx, p), time.Second)
			t.Cleanup(cancel)
			return ctx
		}},
		"already over": {want: "gave up", err: func(err error) bool { return errors.Is(err, context.Canceled) }, before: func(_ *testing.T, ctx context.Context, _ *process) context.Context {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx
		}},
		"out of reach": {want: "gave up", late: true, err: func(err error) bool { return errors.Is(err, baton.ErrUnknown) }, before: func(_ *testing.T, ctx context.Context, p *process) context.Context {
			p.loses("acquire")
			return ctx
		}},
		"out of reach at first": {want: "gave up", late: true, err: func(err error) bool { return errors.Is(err, baton.ErrUnknown) }, before: func(_ *testing.T, ctx context.Context, p *process) context.Context {
			p.loses("begin")
			return ctx
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var book notebook
				p := newProcess(memstore.New())
				r := newRunner(t, p, once.Config{Events: book.events()})
				ctx := context.WithValue(context.WithValue(t.Context(), callName{}, name), storeName{}, p)
				if c.before != nil {
					ctx = c.before(t, ctx, p)
				}
				fn := c.fn
				if fn == nil {
					fn = fails(nil)
				}
				var err error
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					defer func() { _ = recover() }()
					do := r.Do
					if c.try {
						do = r.TryDo
					}
					_, err = do(ctx, "k", fn, c.opts...)
				}()
				<-ended
				time.Sleep(time.Hour) // whoever else runs it has ended
				all := book.take()
				var names []string
				for _, e := range all {
					names = append(names, e.name)
					begun := e.name != "gave up"
					if e.Store != "memory" || e.Key != "k" || (e.Token > 0) != begun || (e.Attempts > 0) != begun || e.Token != all[0].Token || e.Attempts != all[0].Attempts || e.call != name {
						t.Errorf("told of %+v", e)
					}
				}
				if got := strings.Join(names, " "); got != c.want {
					t.Errorf("told %q, want %q; error %v", got, c.want, err)
				}
				if len(all) == 0 {
					return
				}
				if first := all[0]; first.Waited != c.waited && !(c.late && first.Waited > 0) || first.Took != 0 {
					t.Errorf("the first event is %+v, want it after %v", first, c.waited)
				}
				last := all[len(all)-1]
				if last.Took.Truncate(time.Second) != c.took || last.Recorded != c.end.Recorded || last.Failed != c.end.Failed {
					t.Errorf("the last event is %+v, want %v, %+v", last, c.took, c.end)
				}
				if (last.Err != nil) != (c.err != nil) || c.err != nil && !c.err(last.Err) {
					t.Errorf("it has the error %v", last.Err)
				}
				if err != nil && err != last.Err {
					t.Errorf("it has the error %v, but the call %v", last.Err, err)
				}
			})
		})
	}
}

// fails is a function that takes a second and returns err.
func fails(err error) func(context.Context, once.Attempt) ([]byte, error) {
	return func(context.Context, once.Attempt) ([]byte, error) {
		time.Sleep(time.Second)
		return nil, err
	}
}

func panics(context.Context, once.Attempt) ([]byte, error) {
	time.Sleep(time.Second)
	panic("boom")
}

func isFinal(err error) bool { return errors.Is(err, once.ErrFinal) }

func isLate(err error) bool { return errors.Is(err, context.DeadlineExceeded) }

func isUnrecorded(err error) bool { return errors.As(err, new(*once.UnrecordedError)) }

type storeName struct{}

// storeOf is the store of the process that makes the call.
func storeOf(ctx context.Context) *process { return ctx.Value(storeName{}).(*process) }

// loses loses the answers to all requests of a kind from now on.
func (p *process) loses(call string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = func(c string, after bool) error {
		if c == call && after {
			return driver.ErrUnknown
		}
		return nil
	}
}

// losing is a function during which the lease is lost.
func losing(err error) func(context.Context, once.Attempt) ([]byte, error) {
	return func(ctx context.Context, a once.Attempt) ([]byte, error) {
		if n, err := storeOf(ctx).Break(ctx, once.LockPrefix+a.Key); n != 1 || err != nil {
			return nil, fmt.Errorf("break: %d, %w", n, err)
		}
		<-ctx.Done()
		return nil, err
	}
}

// followed is a function during which another attempt begins.
func followed(err error) func(context.Context, once.Attempt) ([]byte, error) {
	return func(ctx context.Context, a once.Attempt) ([]byte, error) {
		if _, err := storeOf(ctx).BeginAttempt(ctx, driver.Attempt{Key: a.Key, Token: a.Token + 1}, time.Hour); err != nil {
			return nil, err
		}
		return nil, err
	}
}

// done has another process run the operation.
func done(err error, opts ...once.Option) func(*testing.T, context.Context, *process) context.Context {
	return func(t *testing.T, ctx context.Context, p *process) context.Context {
		_, _ = newRunner(t, p.Store, once.Config{}).Do(t.Context(), "k", func(context.Context, once.Attempt) ([]byte, error) { return nil, err }, opts...)
		return ctx
	}
}

// running has another process run the operation for a minute.
func running(err error) func(*testing.T, context.Context, *process) context.Context {
	return func(t *testing.T, ctx context.Context, p *process) context.Context {
		other := newRunner(t, p.Store, once.Config{})
		go func() {
			_, _ = other.Do(t.Context(), "k", func(context.Context, once.Attempt) ([]byte, error) {
				time.Sleep(time.Minute)
				return nil, err
			})
		}()
		synctest.Wait()
		return ctx
	}
}

// A storm of calls, with functions that fail in all ways, locks that are broken and
// answers that are lost: every Began is followed by one end, every call tells one of
// the sets of events that are documented, and that set fits what the call returns.
func TestEventsInAStorm(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { eventsInAStorm(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func eventsInAStorm(t *testing.T, random *rand.Rand) {
	var mu sync.Mutex
	dice := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(n)
	}
	store := memstore.New()
	var book notebook
	var runners []*once.Runner
	for range 3 {
		p := newProcess(store)
		p.lose = func(call string, after bool) error {
			switch n := dice(12); {
			case call == "renew":
				return nil
			case n == 0 && !after:
				return driver.ErrUnavailable
			case n == 1:
				return driver.ErrUnknown
			}
			return nil
		}
		runners = append(runners, newRunner(t, p, once.Config{Events: book.events(), Lock: baton.Config{TTL: 5 * time.Second}}))
	}
	type ending struct {
		ran, returned bool
		err           error
	}
	endings := make(map[int]ending)
	var wg sync.WaitGroup
	const calls = 150
	for i := range calls {
		wg.Go(func() {
			time.Sleep(time.Duration(dice(120)) * time.Second)
			ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), callName{}, i), time.Duration(5+dice(60))*time.Second)
			defer cancel()
			key := fmt.Sprint("job ", dice(6))
			r := runners[dice(len(runners))]
			var e ending
			fn := func(ctx context.Context, a once.Attempt) ([]byte, error) {
				e.ran = true
				time.Sleep(time.Duration(dice(3000)) * time.Millisecond)
				switch dice(9) {
				case 0:
					panic("boom")
				case 1:
					runtime.Goexit()
				case 2, 3:
					return nil, errors.New("boom")
				case 4:
					return nil, once.Final(errors.New("boom"))
				case 5:
					_, _ = store.Break(ctx, once.LockPrefix+a.Key)
					time.Sleep(10 * time.Second)
				case 6:
					_ = store.ForgetRecord(ctx, a.Key)
				case 7:
					return make([]byte, check.MaxResult+1), nil
				}
				return nil, nil
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				defer func() { _ = recover() }()
				if dice(2) == 0 {
					_, e.err = r.Do(ctx, key, fn)
				} else {
					_, e.err = r.TryDo(ctx, key, fn)
				}
				e.returned = true
			}()
			<-ended
			mu.Lock()
			defer mu.Unlock()
			endings[i] = e
		})
	}
	wg.Wait()
	of := make(map[any][]told)
	all := book.take()
	for _, e := range all {
		of[e.call] = append(of[e.call], e)
	}
	seen := make(map[string]int)
	for i := range calls {
		var names []string
		for _, e := range of[i] {
			names = append(names, e.name)
		}
		set, got := strings.Join(names, " "), endings[i]
		seen[set]++
		ok := false
		switch set {
		case "gave up":
			e := of[i][0]
			ok = !got.ran && got.returned && got.err != nil && e.Err == got.err
		case "replayed":
			e := of[i][0]
			ok = !got.ran && got.returned && e.Err == got.err && e.Failed == (got.err != nil)
		case "began finished":
			e := of[i][1]
			ok = got.ran && e.Token == of[i][0].Token && (!got.returned && e.Failed && !e.Recorded || got.returned && e.Err == got.err)
		case "began superseded":
			e := of[i][1]
			ok = got.ran && got.returned && e.Token == of[i][0].Token && e.Err == got.err && errors.Is(got.err, driver.ErrSuperseded)
		}
		if !ok {
			t.Errorf("a call that ended with %+v told %q", got, set)
		}
	}
	if len(all) == 0 || seen["began finished"] == 0 || seen["replayed"] == 0 || seen["gave up"] == 0 {
		t.Errorf("the storm is none: %v", seen)
	}
}

// The logger of the locks gets operations, too.
func TestLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		r := newRunner(t, newProcess(memstore.New()), once.Config{Lock: baton.Config{Owner: "me", Logger: slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))}})
		_, err := r.Do(t.Context(), "k", func(ctx context.Context, a once.Attempt) ([]byte, error) { return nil, r.Forget(ctx, a.Key) })
		if !isUnrecorded(err) {
			t.Errorf("error %v", err)
		}
		expect(t, r, "k", "x", (&says{text: "x"}).run)
		expect(t, r, "k", "x", never(t))
		last := 0
		for _, want := range []string{
			`level=DEBUG msg="operation began" operation.key=k operation.token=`,
			`level=ERROR msg="outcome not recorded" operation.key=k operation.token=`,
			`operation.attempts=1 operation.owner=me operation.store=memory superseded=true error="once: operation`,
			`level=DEBUG msg="operation began" operation.key=k`,
			`level=DEBUG msg="operation ended" operation.key=k`,
			`level=DEBUG msg="operation replayed" operation.key=k`,
		} {
			at := strings.Index(text.String()[last:], want)
			if at < 0 {
				t.Fatalf("%q is not logged, or not then:\n%s", want, text.String())
			}
			last += at
		}
	})
}
