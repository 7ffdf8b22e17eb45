package batch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
)

type request struct {
	Item
	name    string
	shared  []Key
	kind    int
	length  int
	patient bool
}

func ask(name string, keys ...Key) *request {
	return &request{Item: NewItem(), name: name, shared: keys}
}

// a lab records what is sent. A send lasts until it is let go on.
type lab struct {
	*Batcher[*request]
	mu    sync.Mutex
	sends []string
	gates []chan struct{}
}

func newLab(c Config[*request]) *lab {
	l := &lab{}
	c.Keys = func(r *request) []Key { return r.shared }
	c.Kind = func(r *request) int { return r.kind }
	c.Size = func(r *request) int { return r.length }
	c.Patient = func(r *request) bool { return r.patient }
	c.Send = func(all []*request) {
		names := make([]string, len(all))
		for i, r := range all {
			names[i] = r.name
		}
		gate := make(chan struct{})
		l.mu.Lock()
		l.sends = append(l.sends, strings.Join(names, "+"))
		l.gates = append(l.gates, gate)
		l.mu.Unlock()
		<-gate
	}
	l.Batcher = New(c)
	return l
}

// begin has requests asked for, one after another.
func (l *lab) begin(t *testing.T, all ...*request) {
	t.Helper()
	for _, r := range all {
		go func() {
			if err := l.Do(context.Background(), r); err != nil {
				t.Errorf("%s: %v", r.name, err)
			}
		}()
		synctest.Wait()
	}
}

// end ends a send.
func (l *lab) end(i int) {
	l.mu.Lock()
	gate := l.gates[i]
	l.mu.Unlock()
	close(gate)
	synctest.Wait()
}

func (l *lab) want(t *testing.T, sends ...string) {
	t.Helper()
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.sends, sends) {
		t.Errorf("sent %q, want %q", l.sends, sends)
	}
}

// endAll ends what is under way and what follows.
func (l *lab) endAll() {
	for i := 0; ; i++ {
		synctest.Wait()
		l.mu.Lock()
		n := len(l.gates)
		l.mu.Unlock()
		if i == n {
			return
		}
		l.mu.Lock()
		gate := l.gates[i]
		l.mu.Unlock()
		select {
		case <-gate:
		default:
			close(gate)
		}
	}
}

func TestRules(t *testing.T) {
	once, serial, apart := Key{"k", Once}, Key{"k", Serial}, Key{"k", Once | Serial}
	of := func(kind, length int, name string, keys ...Key) *request {
		r := ask(name, keys...)
		r.kind, r.length = kind, length
		return r
	}
	for name, tt := range map[string]struct {
		all   []*request
		first []string // what is sent while nothing is answered, with room for three sends
		last  []string // what was sent in the end
	}{
		"nothing in common": {[]*request{ask("a"), ask("b"), ask("c")}, []string{"a+b+c"}, []string{"a+b+c"}},
		"no more than four": {[]*request{ask("a"), ask("b"), ask("c"), ask("d"), ask("e")}, []string{"a+b+c+d", "e"}, []string{"a+b+c+d", "e"}},
		"once":              {[]*request{ask("a", once), ask("b", once), ask("c")}, []string{"a+c", "b"}, []string{"a+c", "b"}},
		"serial":            {[]*request{ask("a", serial), ask("b", serial), ask("c")}, []string{"a+b+c"}, []string{"a+b+c"}},
		"apart":             {[]*request{ask("a", apart), ask("b", apart), ask("c")}, []string{"a+c"}, []string{"a+c", "b"}},
		"one serial, one once": {
			[]*request{ask("a", apart), ask("b", apart), ask("c", once)},
			[]string{"a", "c"},
			[]string{"a", "b", "c"},
		},
		"who waits may be overtaken": {
			[]*request{ask("a", once), ask("b", once, Key{"l", Serial}), ask("c", Key{"l", Serial})},
			[]string{"a+c"},
			[]string{"a+c", "b"},
		},
		"or may not": {
			[]*request{ask("a", once), ask("b", once, Key{"l", Order}), ask("c", Key{"l", Order})},
			[]string{"a", "b+c"},
			[]string{"a", "b+c"},
		},
		"in one send, in order": {
			[]*request{ask("a", Key{"k", Once | Order}), ask("b", Key{"k", Once | Order}), ask("c", Key{"k", Once | Order})},
			[]string{"a", "b", "c"},
			[]string{"a", "b", "c"},
		},
		"kinds": {
			[]*request{of(0, 0, "a"), of(1, 0, "b"), of(0, 0, "c"), of(1, 0, "d")},
			[]string{"a+c", "b+d"},
			[]string{"a+c", "b+d"},
		},
		"sizes": {
			[]*request{of(0, 70, "a"), of(0, 40, "b"), of(0, 30, "c"), of(0, 1000, "d")},
			[]string{"a+c", "b", "d"},
			[]string{"a+c", "b", "d"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(Config[*request]{Max: 4, InFlight: 3, MaxSize: 100})
				resume := l.Pause()
				for _, r := range tt.all { // anew, as channels belong to the bubble
					l.begin(t, &request{Item: NewItem(), name: r.name, shared: r.shared, kind: r.kind, length: r.length})
				}
				if n := l.Waiting(); n != len(tt.all) {
					t.Errorf("%d wait, want %d", n, len(tt.all))
				}
				resume()
				synctest.Wait()
				l.mu.Lock()
				slices.Sort(l.sends) // at one instant, in any order
				l.mu.Unlock()
				l.want(t, tt.first...)
				l.endAll()
				l.mu.Lock()
				slices.Sort(l.sends)
				l.mu.Unlock()
				slices.Sort(tt.last)
				l.want(t, tt.last...)
				if len(l.held) > 0 || l.flying != 0 {
					t.Errorf("%v are held, %d fly", l.held, l.flying)
				}
			})
		})
	}
}

// What is under way takes the place of as many sends as there may be. What comes
// meanwhile goes together.
func TestGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(Config[*request]{Max: 10, InFlight: 2})
		l.begin(t, ask("a"), ask("b"), ask("c"), ask("d"))
		l.want(t, "a", "b")
		l.end(1)
		l.want(t, "a", "b", "c+d")
		l.endAll()
		l.begin(t, ask("e"))
		l.want(t, "a", "b", "c+d", "e")
		l.endAll()
	})
}

func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(Config[*request]{Max: 10, InFlight: 1})
		leave := func(r *request) (func() error, context.CancelFunc) {
			ctx, cancel := context.WithCancel(t.Context())
			var err error
			go func() { err = l.Do(ctx, r) }()
			synctest.Wait()
			return func() error {
				synctest.Wait()
				return err
			}, cancel
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		late := ask("late")
		if err := l.Do(over, late); !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("a context that had ended: %v", err)
		}
		<-late.Done()

		sent, behind := ask("sent", Key{"k", Once | Serial}), ask("behind", Key{"k", Once | Serial})
		whenSent, leaveSent := leave(sent)
		whenBehind, leaveBehind := leave(behind)
		l.begin(t, ask("next", Key{"k", Once | Serial}))
		leaveSent()
		if err := whenSent(); !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.Canceled) {
			t.Errorf("who leaves what was sent: %v", err)
		}
		select {
		case <-sent.Done():
			t.Error("it is done before it was answered")
		default:
		}
		leaveBehind()
		if err := whenBehind(); !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("who leaves what was not sent: %v", err)
		}
		<-behind.Done()
		l.end(0)
		<-sent.Done()
		l.want(t, "sent", "next")
		l.endAll()
	})
}

// One that another one kept back goes when that one leaves.
func TestLeavingMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(Config[*request]{Max: 10, InFlight: 2})
		k, other := Key{"k", Serial}, Key{"l", Order}
		l.begin(t, ask("first", k))
		ctx, cancel := context.WithCancel(t.Context())
		go l.Do(ctx, ask("both", k, other))
		synctest.Wait()
		l.begin(t, ask("second", other))
		l.want(t, "first")
		cancel()
		l.want(t, "first", "second")
		l.endAll()
	})
}

// A send that is stuck gives its place away once, and keeps its keys.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(Config[*request]{Max: 10, InFlight: 1, Stuck: time.Second})
		k := Key{"k", Serial}
		l.begin(t, ask("stuck", k), ask("other"), ask("same", k))
		l.want(t, "stuck")
		time.Sleep(time.Second)
		l.want(t, "stuck", "other")
		l.begin(t, ask("more"))
		l.end(1)
		l.want(t, "stuck", "other", "more")
		l.end(2)
		l.end(0)
		l.want(t, "stuck", "other", "more", "same")
		l.endAll()
		if l.flying != 0 || len(l.held) > 0 {
			t.Errorf("%d fly, %v are held", l.flying, l.held)
		}
	})
}

func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(Config[*request]{Max: 10, InFlight: 2, Linger: time.Second})
		patient := func(name string) *request {
			r := ask(name)
			r.patient = true
			return r
		}
		l.begin(t, patient("a"))
		time.Sleep(time.Second / 2)
		l.begin(t, patient("b"))
		l.want(t)
		time.Sleep(time.Second / 2)
		l.want(t, "a+b")
		l.begin(t, patient("c"), ask("d"))
		l.want(t, "a+b", "c+d")
		l.endAll()
	})
}

// The goroutines are those of Go.
func TestGo(t *testing.T) {
	n := 0
	b := New(Config[*request]{Send: func([]*request) {}, Max: 1, InFlight: 1, Go: func(f func()) { n++; go f() }})
	if err := b.Do(t.Context(), ask("a")); err != nil || n != 1 {
		t.Errorf("%v, Go was called %d times", err, n)
	}
}

// Many ask at once, some leave. Each is answered once, and never two with one key at
// the same time.
func TestStorm(t *testing.T) {
	t.Parallel()
	const keys, callers, each = 5, 40, 200
	var mu sync.Mutex
	var served [keys][]int // numbers, in the order of sending
	var flying [keys]int
	b := New(Config[*storming]{
		Max: 8, InFlight: 3, Stuck: time.Millisecond,
		Keys: func(r *storming) []Key { return []Key{{fmt.Sprint(r.key), Once | Serial | Order}} },
		Send: func(all []*storming) {
			mu.Lock()
			for _, r := range all {
				served[r.key] = append(served[r.key], r.no)
				if flying[r.key]++; flying[r.key] > 1 {
					t.Errorf("two with key %d at the same time", r.key)
				}
			}
			mu.Unlock()
			if rand.N(20) == 0 {
				time.Sleep(2 * time.Millisecond) // as a slow server: long enough to be stuck
			}
			mu.Lock()
			defer mu.Unlock()
			for _, r := range all {
				flying[r.key]--
				r.answer = r.no
			}
		},
	})
	var work sync.WaitGroup
	for i := range callers {
		work.Go(func() {
			for n := range each {
				r := &storming{Item: NewItem(), key: rand.N(keys), no: i*each + n, answer: -1}
				ctx, cancel := context.WithCancel(t.Context())
				if rand.N(4) == 0 {
					time.AfterFunc(rand.N(time.Millisecond), cancel)
				}
				err := b.Do(ctx, r)
				cancel()
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				<-r.Done()
				unsent := err != nil && !errors.Is(err, driver.ErrUnknown)
				if (r.answer == -1) != unsent {
					t.Errorf("%v, and the answer is %d", err, r.answer)
				}
			}
		})
	}
	work.Wait()
	for k := range served {
		mu.Lock()
		all := slices.Clone(served[k])
		mu.Unlock()
		slices.Sort(all)
		if len(slices.Compact(all)) != len(served[k]) {
			t.Errorf("key %d: something was sent twice", k)
		}
	}
	if b.Waiting() != 0 || len(b.held) != 0 {
		t.Errorf("%d wait, %v are held", b.Waiting(), b.held)
	}
}

type storming struct {
	Item
	key, no, answer int
}
