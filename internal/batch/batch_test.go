package batch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
)

type request struct {
	Item
	name   string
	shared []Key
	kind   int
	length int
}

func ask(name string, keys ...Key) *request {
	return &request{Item: NewItem(), name: name, shared: keys}
}

// a lab records what is sent. A send lasts until it is let go on.
type lab struct {
	*Batcher[*request]
	mu       sync.Mutex
	sends    []string
	contexts []context.Context
	gates    []chan struct{}
}

func newLab(c Config[*request]) *lab {
	l := &lab{}
	c.Keys = func(r *request) []Key { return r.shared }
	c.Kind = func(r *request) any { return r.kind }
	c.Size = func(r *request) int { return r.length }
	c.Send = func(ctx context.Context, all []*request) {
		names := make([]string, len(all))
		for i, r := range all {
			names[i] = r.name
		}
		gate := make(chan struct{})
		l.mu.Lock()
		l.sends = append(l.sends, strings.Join(names, "+"))
		l.contexts = append(l.contexts, ctx)
		l.gates = append(l.gates, gate)
		l.mu.Unlock()
		<-gate
	}
	l.Batcher = New(c)
	return l
}

// begin sends requests, one after another.
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

// call sends one request, whose caller leaves when leave is called. outcome tells what
// Do returned, and reports whether it did.
func (l *lab) call(t *testing.T, r *request) (leave context.CancelFunc, outcome func() (err error, returned bool)) {
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- l.Do(ctx, r) }()
	synctest.Wait()
	return cancel, func() (error, bool) {
		synctest.Wait()
		select {
		case err := <-result:
			return err, true
		default:
			return nil, false
		}
	}
}

// context is the error of a send's context.
func (l *lab) context(i int) error {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.contexts[i].Err()
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

// endAll ends all sends that are under way, and those that follow.
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
	many := func(first, n int) (keys []Key) {
		for i := range n {
			keys = append(keys, Key{fmt.Sprint("k", first+i), Serial})
		}
		return keys
	}
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
		"numbers of keys": {
			[]*request{ask("a", many(0, 3)...), ask("b", many(3, 3)...), ask("c", many(0, 3)...), ask("d", many(6, 9)...)},
			[]string{"a+c", "b", "d"},
			[]string{"a+c", "b", "d"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(Config[*request]{Max: 4, InFlight: 3, MaxSize: 100, MaxKeys: 5})
				resume := l.Pause()
				for _, r := range tt.all { // made again, as channels belong to the bubble
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

// Sends under way use up InFlight. Requests that come meanwhile go together.
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

// When a send ends, what it has kept back goes at once, in several sends if it is too
// much for one.
func TestSeveralSendsAfterOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(Config[*request]{Max: 2, InFlight: 2})
		k, m := Key{"k", Serial}, Key{"m", Serial}
		l.begin(t, ask("both", k, m), ask("a", k), ask("b", k), ask("c", m), ask("d", m))
		l.want(t, "both")
		l.end(0)
		l.mu.Lock()
		slices.Sort(l.sends)
		l.mu.Unlock()
		l.want(t, "a+b", "both", "c+d")
		l.endAll()
	})
}

// Callers that were answered and ask again go together.
func TestYield(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const callers, each = 8, 50
	sends := 0
	b := New(Config[*request]{Max: callers, InFlight: 1, Yield: true, Send: func(context.Context, []*request) { sends++ }})
	resume := b.Pause()
	var work sync.WaitGroup
	for range callers {
		work.Go(func() {
			for range each {
				if err := b.Do(t.Context(), ask("a")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for b.Waiting() < callers {
		runtime.Gosched()
	}
	resume()
	work.Wait()
	if sends > 2*each {
		t.Errorf("%d sends for %d callers who ask %d times", sends, callers, each)
	}
}

// A send that is stuck lets another begin once, and keeps its keys.
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

// The goroutines are those of Go.
func TestGo(t *testing.T) {
	n := 0
	b := New(Config[*request]{Send: func(context.Context, []*request) {}, Max: 1, InFlight: 1, Go: func(f func()) { n++; go f() }})
	if err := b.Do(t.Context(), ask("a")); err != nil || n != 1 {
		t.Errorf("%v, Go was called %d times", err, n)
	}
}

// Many callers ask at once, some leave. Each is answered once, and never two with one
// key at the same time. With a grace, sends that all callers have left end, and the
// batcher is closed in the middle.
func TestStorm(t *testing.T) {
	for _, grace := range []time.Duration{0, time.Millisecond / 4} {
		t.Run(grace.String(), func(t *testing.T) {
			t.Parallel()
			storm(t, grace)
		})
	}
}

func storm(t *testing.T, grace time.Duration) {
	const keys, callers, each = 5, 40, 200
	var mu sync.Mutex
	var served [keys][]int // numbers, in the order of sending
	var flying [keys]int
	var abandoned, closed atomic.Int64
	var flights sync.WaitGroup
	b := New(Config[*storming]{
		Max: 8, InFlight: 3, Stuck: time.Millisecond, Grace: grace, Yield: grace > 0, Go: flights.Go,
		Keys: func(r *storming) []Key { return []Key{{fmt.Sprint(r.key), Once | Serial | Order}} },
		Send: func(ctx context.Context, all []*storming) {
			mu.Lock()
			for _, r := range all {
				served[r.key] = append(served[r.key], r.no)
				if flying[r.key]++; flying[r.key] > 1 {
					t.Errorf("two with key %d at the same time", r.key)
				}
			}
			mu.Unlock()
			if rand.N(20) == 0 {
				select { // as a slow server: long enough to be stuck
				case <-time.After(2 * time.Millisecond):
				case <-ctx.Done():
					abandoned.Add(1)
				}
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
				if errors.Is(err, driver.ErrClosed) {
					closed.Add(1)
				} else if err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				if grace > 0 && i == 0 && n == each*3/4 {
					b.Close()
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
	flights.Wait()
	if n := abandoned.Load(); grace == 0 && n > 0 {
		t.Errorf("%d sends were abandoned", n)
	}
	t.Logf("%d sends were abandoned, %d requests came to a closed batcher", abandoned.Load(), closed.Load())
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
