package election_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/store/memstore"
)

type told struct {
	what  string
	value any   // of the context
	ended error // of the context
	election.LeadershipEvent
}

type valueKey struct{}

// diary collects what Events are told.
type diary struct {
	mu  sync.Mutex
	all []told

	on map[string]func(election.LeadershipEvent) // called, too, after the event was noted
}

func (d *diary) events() *election.Events {
	note := func(what string) func(context.Context, election.LeadershipEvent) {
		return func(ctx context.Context, e election.LeadershipEvent) {
			d.mu.Lock()
			d.all = append(d.all, told{what, ctx.Value(valueKey{}), ctx.Err(), e})
			d.mu.Unlock()
			if f := d.on[what]; f != nil {
				f(e)
			}
		}
	}
	return &election.Events{Elected: note("elected"), Late: note("late"), Ended: note("ended"), Failed: note("failed")}
}

func (d *diary) take() []told {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.all
	d.all = nil
	return all
}

// wrong says which promise of Events was broken, if any. All leaderships have ended.
func wrong(all []told) (problems []string) {
	say := func(e told, what string) {
		problems = append(problems, fmt.Sprintf("%s of token %d %s", e.what, e.Token, what))
	}
	var now *election.Leadership
	for _, e := range all {
		if e.Store != "memory" || e.Name != "e" || e.value != "here" {
			say(e, fmt.Sprintf("is of store %q, name %q, value %v", e.Store, e.Name, e.value))
		}
		if e.what == "failed" {
			if e.Leadership != nil || e.Token != 0 || e.Err == nil || e.Cause != nil || e.Led != 0 || e.Since != 0 {
				say(e, "has fields of others, or no error")
			}
			continue
		}
		if e.Leadership == nil || e.Token != e.Leadership.Token() || e.Token <= 0 {
			say(e, "has no leadership, or that of another token")
		}
		switch {
		case e.what == "elected" && now != nil:
			say(e, "comes before the end of the one before")
		case e.what != "elected" && now != e.Leadership:
			say(e, "is of no leader")
		case e.what != "elected" && e.ended != nil:
			say(e, "has a context that has ended")
		case e.what == "late" && (e.Cause == nil || e.Since < time.Second || e.Err != nil):
			say(e, fmt.Sprintf("has cause %v, since %v, error %v", e.Cause, e.Since, e.Err))
		case e.what == "ended" && e.Cause == nil && e.Since != 0:
			say(e, fmt.Sprintf("has no cause, but since %v", e.Since))
		case e.what == "elected" && (e.Cause != nil || e.Err != nil || e.Led != 0 || e.Since != 0):
			say(e, "has fields of others")
		}
		switch e.what {
		case "elected":
			now = e.Leadership
		case "ended":
			now = nil
		}
	}
	if now != nil {
		problems = append(problems, "the last leadership has no end")
	}
	return problems
}

func words(all []told) string {
	var w []string
	for _, e := range all {
		w = append(w, e.what)
	}
	return strings.Join(w, " ")
}

// However a leadership ends, Elected is followed by one Ended that says why.
func TestEveryElectedIsEnded(t *testing.T) {
	type act = func(cancel func(), lose func(), l *election.Leadership)
	cancels := func(cancel, _ func(), _ *election.Leadership) { cancel() }
	loses := func(_, lose func(), _ *election.Leadership) { lose() }
	resigns := func(_, _ func(), l *election.Leadership) { l.Resign() }
	fails := func() error { return errWork }
	panics := func() error { panic("on purpose") }
	for _, c := range []struct {
		name string
		on   act // Elected
		late act // a minute after it
		then func() error

		cause, err error
		uncalled   bool // lead
		again      bool // the candidate stands again
		gone       bool // Run does not return
	}{
		{name: "done", then: func() error { return nil }},
		{name: "failed", then: fails, err: errWork},
		{name: "lost", late: loses, then: fails, err: errWork, cause: baton.ErrLost, again: true},
		{name: "resigned", late: resigns, then: func() error { return nil }, cause: election.ErrResigned, again: true},
		{name: "told to end", late: cancels, then: fails, err: errWork, cause: context.Canceled},
		{name: "told to end meanwhile", on: cancels, cause: context.Canceled, uncalled: true},
		{name: "resigned meanwhile", on: resigns, cause: election.ErrResigned, uncalled: true, again: true},
		{name: "lost meanwhile", on: loses, cause: baton.ErrLost, uncalled: true, again: true},
		{name: "panic", then: panics, err: election.ErrNoReturn, gone: true},
		{name: "goexit", then: func() error { runtime.Goexit(); return nil }, err: election.ErrNoReturn, gone: true},
		{name: "panic after the end", late: resigns, then: panics, err: election.ErrNoReturn, cause: election.ErrResigned, gone: true},
		{name: "panic of Elected", on: func(_, _ func(), _ *election.Leadership) { panic("on purpose") }, err: election.ErrNoReturn, uncalled: true, gone: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				locks := newLocker(t, memstore.New(), baton.Config{})
				ctx, cancel := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "here"))
				defer cancel()
				lose := func() {
					if _, err := locks.Break(t.Context(), "e"); err != nil {
						t.Error(err)
					}
				}
				elections, calls, returned := 0, 0, false
				d := &diary{on: map[string]func(election.LeadershipEvent){
					"elected": func(e election.LeadershipEvent) {
						if !e.Leadership.IsLeader() {
							t.Errorf("elected, and not leader: %v", e.Leadership.Err())
						}
						if elections++; elections > 1 {
							return
						}
						if c.late != nil {
							time.AfterFunc(time.Minute, func() { c.late(cancel, lose, e.Leadership) })
						}
						if c.on != nil {
							c.on(cancel, lose, e.Leadership)
							time.Sleep(ttl) // until a loss is noticed
						}
					},
					"ended": func(e election.LeadershipEvent) {
						if _, err := locks.TryLock(t.Context(), "e", baton.Owner("x")); elections == 1 && err != nil {
							t.Errorf("at the end the leadership was not given up: %v", err)
						}
						lose() // what was just locked
					},
				}}
				over := make(chan bool)
				go func() {
					defer close(over)
					defer func() { _ = recover() }()
					_ = (&election.Candidate{Locks: locks, Name: "e", Logger: quiet, Events: d.events()}).Run(ctx, func(ctx context.Context, l *election.Leadership) error {
						calls++
						if elections > 1 {
							return nil
						}
						time.Sleep(time.Minute)
						if c.late != nil {
							<-ctx.Done()
							time.Sleep(200 * time.Millisecond)
						}
						return c.then()
					})
					returned = true
				}()
				<-over
				all := d.take()
				for _, problem := range wrong(all) {
					t.Error(problem)
				}
				// An Elected that takes long is late.
				all = slices.DeleteFunc(all, func(e told) bool { return e.what == "late" && c.uncalled })
				if (elections == 2) != c.again || returned == c.gone || len(all) != 2*elections {
					t.Fatalf("%s, returned: %v", words(all), returned)
				}
				if want := map[bool]int{true: elections - 1, false: elections}[c.uncalled]; calls != want {
					t.Errorf("lead was called %d times, want %d", calls, want)
				}
				e := all[1]
				if !errors.Is(e.Cause, c.cause) || (e.Cause == nil) != (c.cause == nil) || e.Err != c.err {
					t.Errorf("ended with cause %v, error %v", e.Cause, e.Err)
				}
				var led, since time.Duration
				if !c.uncalled {
					led = time.Minute
				}
				if c.late != nil {
					since = 200 * time.Millisecond
				}
				if e.Since != since && !c.uncalled || e.Led < led || e.Led > led+ttl {
					t.Errorf("led %v, and since then %v; want about %v, and %v", e.Led, e.Since, led, since)
				}
			})
		})
	}
}

// A leadership that is over before lead could be called has no event.
func TestNoEventWithoutALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "here"))
		locks := newLocker(t, memstore.New(), baton.Config{Events: &baton.Events{Acquired: func(context.Context, baton.LockEvent) { cancel() }}})
		d := new(diary)
		err := (&election.Candidate{Locks: locks, Name: "e", Logger: quiet, Events: d.events()}).Run(ctx, elected(nil))
		if all := d.take(); !errors.Is(err, context.Canceled) || len(all) != 0 {
			t.Errorf("%v, told %+v", err, all)
		}
	})
}

// Late tells again and again of a leader that does not stop, and Led stands still.
func TestLateGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "here"))
		d := new(diary)
		locks := newLocker(t, memstore.New(), baton.Config{})
		const stubborn = 10 * time.Minute
		err := (&election.Candidate{Locks: locks, Name: "e", Logger: quiet, Events: d.events()}).Run(ctx, func(context.Context, *election.Leadership) error {
			time.Sleep(time.Hour)
			cancel()
			time.Sleep(stubborn)
			return nil
		})
		all := d.take()
		for _, problem := range wrong(all) {
			t.Error(problem)
		}
		if !errors.Is(err, context.Canceled) || len(all) < 10 || len(all) > 20 {
			t.Fatalf("%v: %s", err, words(all))
		}
		last := time.Duration(0)
		for i, e := range all[1:] {
			if !errors.Is(e.Cause, context.Canceled) || e.Led != time.Hour || e.Since <= last || e.Since-last > time.Minute {
				t.Errorf("%s %d: cause %v, led %v, since %v", e.what, i, e.Cause, e.Led, e.Since)
			}
			last = e.Since
		}
		if last != stubborn {
			t.Errorf("Ended says %v", last)
		}
	})
}

// A Late that does not return keeps the leadership no longer than lead does.
func TestLateThatBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "here"))
		release := make(chan bool)
		d := &diary{on: map[string]func(election.LeadershipEvent){"late": func(election.LeadershipEvent) { <-release }}}
		first := run(ctx, &election.Candidate{Locks: newLocker(t, store, baton.Config{}), Name: "e", Logger: quiet, Events: d.events()}, func(context.Context, *election.Leadership) error {
			cancel()
			time.Sleep(time.Minute)
			return nil
		})
		synctest.Wait()
		next := make(chan *election.Leadership, 1)
		ctx, cancel2 := context.WithCancel(t.Context())
		began := time.Now()
		second := run(ctx, &election.Candidate{Locks: newLocker(t, store, baton.Config{}), Name: "e"}, elected(next))
		get(t, "the next leader", next)
		if d := time.Since(began); d < time.Minute || d > time.Minute+ttl {
			t.Errorf("elected after %v", d)
		}
		if all := d.take(); words(all) != "elected late" {
			t.Errorf("told %s", words(all))
		}
		close(release)
		if err := get(t, "the end", first); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if all := d.take(); words(all) != "ended" || all[0].Since != time.Minute {
			t.Errorf("told %+v", all)
		}
		cancel2()
		<-second
	})
}

// Candidates of one process, by one Locker: each leadership has its two events, and is
// that of one candidate.
func TestEventsOfSeveralCandidates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memstore.New(), baton.Config{MaxHold: time.Minute})
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "here"))
		diaries := make([]diary, 3)
		var all []<-chan error
		for i := range diaries {
			c := &election.Candidate{Locks: locks, Name: "e", Value: fmt.Sprint(i), Logger: quiet, Events: diaries[i].events()}
			all = append(all, run(ctx, c, func(ctx context.Context, l *election.Leadership) error {
				if i == 0 {
					l.Resign()
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			}))
		}
		time.Sleep(time.Hour)
		cancel()
		for _, ended := range all {
			if err := get(t, "the end", ended); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		leaderships := make(map[int64]bool)
		for i := range diaries {
			seen := diaries[i].take()
			for _, problem := range wrong(seen) {
				t.Errorf("candidate %d: %s", i, problem)
			}
			if len(seen) < 20 {
				t.Errorf("candidate %d is told %s", i, words(seen))
			}
			for _, e := range seen {
				if e.what == "elected" && leaderships[e.Token] {
					t.Errorf("token %d twice", e.Token)
				}
				leaderships[e.Token] = true
			}
		}
	})
}

// Functions of Events may stand for another election, and end their own.
func TestEventsCallBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memstore.New(), baton.Config{})
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "here"))
		other := 0
		stand := func(e election.LeadershipEvent) {
			if err := election.Run(t.Context(), locks, "other", func(context.Context, *election.Leadership) error { other++; return nil }); err != nil {
				t.Error(err)
			}
			e.Leadership.Resign()
			if _, err := election.Leader(t.Context(), locks, "e"); err != nil && !errors.Is(err, election.ErrNoLeader) {
				t.Error(err)
			}
		}
		n := 0
		d := &diary{on: map[string]func(election.LeadershipEvent){
			"late": stand, "ended": stand,
			"elected": func(e election.LeadershipEvent) {
				if n++; n%2 == 0 {
					stand(e)
				}
			},
		}}
		c := &election.Candidate{Locks: locks, Name: "e", Logger: quiet, Events: d.events()}
		err := c.Run(ctx, func(ctx context.Context, l *election.Leadership) error {
			if n > 5 {
				cancel()
			}
			l.Resign()
			time.Sleep(10 * time.Second)
			return nil
		})
		seen := d.take()
		for _, problem := range wrong(seen) {
			t.Error(problem)
		}
		if !errors.Is(err, context.Canceled) || other < 10 {
			t.Errorf("%v, %d other elections, %s", err, other, words(seen))
		}
	})
}

// Elected has the context of lead: it knows that it is within the leadership, and ends
// with it.
func TestContextOfElected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newLocker(t, memstore.New(), baton.Config{})
		c := &election.Candidate{Locks: locks, Name: "e", Logger: quiet}
		n := 0
		c.Events = &election.Events{Elected: func(ctx context.Context, e election.LeadershipEvent) {
			if n++; n > 1 {
				return
			}
			if err := c.Run(ctx, nil); !errors.Is(err, baton.ErrNested) {
				t.Errorf("within itself: %v", err)
			}
			if _, err := locks.Break(ctx, "e"); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			if err := context.Cause(ctx); !errors.Is(err, baton.ErrLost) {
				t.Errorf("ended by %v", err)
			}
		}}
		err := c.Run(t.Context(), func(context.Context, *election.Leadership) error {
			if n != 2 {
				t.Error("called after the loss")
			}
			return nil
		})
		if err != nil || n != 2 {
			t.Errorf("%v after %d elections", err, n)
		}
	})
}

// Failed tells of the store, with Run's context.
func TestFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &down{Store: memstore.New()}
		store.set(driver.ErrUnavailable)
		d := new(diary)
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "here"))
		ended := run(ctx, &election.Candidate{Locks: newLocker(t, store, baton.Config{}), Name: "e", Logger: quiet, Events: d.events()}, elected(nil))
		time.Sleep(time.Hour)
		cancel()
		if err := get(t, "the end", ended); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		all := d.take()
		for _, problem := range wrong(all) {
			t.Error(problem)
		}
		if len(all) < 100 || !errors.Is(all[0].Err, baton.ErrUnavailable) || strings.Count(words(all), "failed") != len(all) {
			t.Errorf("told %s", words(all))
		}
	})
}
