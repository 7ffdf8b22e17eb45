package httponce_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/httponce"
	"github.com/batonhq/baton/store/memstore"
)

// A rival is a model of idempotency middleware as it is often written: look whether an
// answer is kept, mark the key, run the handler, keep its answer. Its fields are the
// mistakes that issues of such projects tell of.
type rival struct {
	kept     *kept
	noMark   bool          // two at once both find nothing
	own      *sync.Mutex   // marks are in the process, not in the store
	lasts    time.Duration // a mark ends by itself after so long; 0: never
	orphans  bool          // a mark without an end is taken for that of a dead process
	oneLock  *sync.Mutex   // all keys wait for each other
	keyOnly  bool          // the answer of another path is sent
	bodyless bool          // the body is not compared
	anyUser  bool          // users share their keys
	guessed  bool          // without a key the body is one
	all      bool          // failures are kept, too
	late     bool          // answers are kept some time after they were sent: here, not yet
	open     bool          // if the store fails the handler runs
	lenient  bool          // an attempt whose mark has ended keeps its answer, over that of the next
	dropBody bool          // only the status is kept
	cookies  bool          // all header fields are kept, and sent to whoever asks again
}

// kept is what processes share.
type kept struct {
	mu      sync.Mutex
	marks   map[string]time.Time
	answers map[string]*httptest.ResponseRecorder
	down    bool
}

func newKept() *kept {
	return &kept{marks: map[string]time.Time{}, answers: map[string]*httptest.ResponseRecorder{}}
}

func (m *rival) middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		key := r.Header.Get("Idempotency-Key")
		if key == "" && m.guessed {
			key = "body:" + string(body)
		}
		if key == "" {
			next.ServeHTTP(w, r)
			return
		}
		if !m.anyUser {
			key = byUser(r) + "/" + key
		}
		if !m.keyOnly {
			key += " " + r.URL.Path
		}
		if !m.bodyless {
			key += " " + string(body)
		}
		if m.oneLock != nil {
			m.oneLock.Lock()
			defer m.oneLock.Unlock()
		}
		k := m.kept
		k.mu.Lock()
		if k.down {
			k.mu.Unlock()
			if m.open {
				next.ServeHTTP(w, r)
			} else {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			return
		}
		if a := k.answers[key]; a != nil {
			k.mu.Unlock()
			m.send(w, a)
			return
		}
		marked, busy := k.marks[key]
		if busy && (m.orphans || m.lasts > 0 && time.Since(marked) > m.lasts) {
			busy = false
		}
		if busy && !m.noMark && m.own == nil {
			k.mu.Unlock()
			w.WriteHeader(http.StatusConflict)
			return
		}
		k.marks[key] = time.Now()
		k.mu.Unlock()
		if m.own != nil {
			m.own.Lock()
			defer m.own.Unlock()
		}
		a := httptest.NewRecorder()
		next.ServeHTTP(a, r)
		k.mu.Lock()
		delete(k.marks, key)
		if !m.late && (m.all || a.Code < 500) && (m.lenient || k.answers[key] == nil) {
			k.answers[key] = a
		}
		k.mu.Unlock()
		for name, values := range a.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(a.Code)
		_, _ = w.Write(a.Body.Bytes())
	})
}

func (m *rival) send(w http.ResponseWriter, a *httptest.ResponseRecorder) {
	if m.cookies {
		for name, values := range a.Header() {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(a.Code)
	if !m.dropBody {
		_, _ = w.Write(a.Body.Bytes())
	}
}

// A fleet is two processes with one store.
type fleet struct {
	t      *testing.T
	ours   bool
	url    [2]string
	down   func() // the store fails from now on
	breaks func(key string)
	ran    atomic.Int64
	most   atomic.Int64 // how many handlers ran at a time
	now    atomic.Int64
}

// wantBug reports whether the scenario that has run shows the mistake: it must on the
// model and must not here.
func (f *fleet) wantBug(bug bool, format string, args ...any) {
	f.t.Helper()
	if bug == f.ours {
		f.t.Errorf("ours %v, the mistake is there: %v: %s", f.ours, bug, fmt.Sprintf(format, args...))
	}
}

func (f *fleet) post(process int, path, body string, header ...string) got {
	f.t.Helper()
	s := &site{t: f.t, url: f.url[process]}
	return s.ask(http.MethodPost, path, body, header...)
}

func (f *fleet) key(process int, key string) got {
	f.t.Helper()
	return f.post(process, "/pay", "x", "Idempotency-Key", key)
}

// onBoth runs a scenario on the model and on ours.
func onBoth(t *testing.T, name string, models [2]*rival, handler func(f *fleet) http.HandlerFunc, scenario func(f *fleet)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		for _, ours := range []bool{false, true} {
			f := &fleet{t: t, ours: ours}
			work := handler(f)
			counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				f.ran.Add(1)
				n := f.now.Add(1)
				defer f.now.Add(-1)
				for most := f.most.Load(); n > most && !f.most.CompareAndSwap(most, n); most = f.most.Load() {
				}
				work(w, r)
			})
			store := memstore.New()
			for i := range f.url {
				var h http.Handler
				if ours {
					ops, err := once.New(store, once.Config{Lock: baton.Config{TTL: 300 * time.Millisecond}})
					if err != nil {
						t.Fatal(err)
					}
					idempotent, err := httponce.New(ops, httponce.Config{Scope: byUser})
					if err != nil {
						t.Fatal(err)
					}
					h = idempotent(counted)
				} else {
					h = models[i].middleware(counted)
				}
				server := httptest.NewServer(h)
				defer server.Close()
				f.url[i] = server.URL
			}
			f.breaks = func(key string) {
				if ours {
					if _, err := store.Break(t.Context(), key); err != nil {
						t.Error(err)
					}
				}
			}
			f.down = func() {
				if ours {
					_ = store.Close()
				} else {
					models[0].kept.mu.Lock()
					models[0].kept.down = true
					models[0].kept.mu.Unlock()
				}
			}
			scenario(f)
		}
	})
}

// same is two processes of one model.
func same(m rival) [2]*rival {
	m.kept = newKept()
	return [2]*rival{&m, &m}
}

func paid(*fleet) http.HandlerFunc { return numbered() }

// held is a handler that stays until it is let go, and says when it has begun.
func held(begun chan<- struct{}, goOn <-chan struct{}) func(*fleet) http.HandlerFunc {
	return func(*fleet) http.HandlerFunc {
		answer := numbered()
		return func(w http.ResponseWriter, r *http.Request) {
			begun <- struct{}{}
			<-goOn
			answer(w, r)
		}
	}
}

// TestRivals: the mistakes that issues of other projects tell of are in a model of each,
// and not here. The names are those of the issues.
func TestRivals(t *testing.T) {
	t.Parallel()

	// overlapping sends a second request to the other process while the first one is at
	// work, and wants it not to run.
	overlapping := func(name string, models [2]*rival, pause time.Duration) {
		begun, goOn := make(chan struct{}, 9), make(chan struct{}, 9)
		onBoth(t, name, models, held(begun, goOn), func(f *fleet) {
			first := make(chan got, 1)
			go func() { first <- f.key(0, "k") }()
			<-begun
			time.Sleep(pause) // longer than the mark of the model lasts
			second := make(chan got, 1)
			go func() { second <- f.key(1, "k") }()
			ran := false
			select {
			case <-begun:
				ran = true
				goOn <- struct{}{}
			case a := <-second:
				second <- a
			}
			goOn <- struct{}{}
			a, b := <-first, <-second
			f.wantBug(ran, "both ran: %v %v", a.body, b.body)
		})
	}
	ownMutexes := func() [2]*rival {
		k := newKept()
		return [2]*rival{{kept: k, own: new(sync.Mutex)}, {kept: k, own: new(sync.Mutex)}}
	}
	overlapping("fiber#2163: the lock is in the process", ownMutexes(), 0)
	overlapping("powertools-python#8386: a live attempt is taken for an orphan", same(rival{orphans: true}), 0)
	overlapping("powertools-typescript#5678: an attempt without a deadline is overwritten", same(rival{orphans: true}), time.Millisecond)
	overlapping("powertools-python#8049: an attempt that takes long is run again", same(rival{lasts: 50 * time.Millisecond}), time.Second)
	overlapping("Truxify#4001: look, then run", same(rival{noMark: true}), 0)

	onBoth(t, "powertools#53: a process that ends in its handler blocks the key", same(rival{}), func(f *fleet) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if f.ran.Load() == 1 {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(http.StatusCreated)
		}
	}, func(f *fleet) {
		s := &site{t: f.t, url: f.url[0]}
		if _, err := s.try(f.t.Context(), "POST", "/pay", "x", "Idempotency-Key", "k"); err == nil {
			f.t.Error("the process did not end")
		}
		a := f.key(1, "k")
		f.wantBug(a.status == http.StatusConflict, "%d", a.status)
	})

	begun, goOn := make(chan struct{}, 9), make(chan struct{}, 9)
	onBoth(t, "django-idempotency-key#60: all keys have one lock", same(rival{oneLock: new(sync.Mutex)}), held(begun, goOn), func(f *fleet) {
		answers := make(chan got, 2)
		for i, key := range []string{"a", "b"} {
			go func() { answers <- f.key(i, key) }()
		}
		<-begun
		waits := false
		select {
		case <-begun:
		case <-time.After(300 * time.Millisecond):
			waits = true
		}
		goOn <- struct{}{}
		goOn <- struct{}{}
		if waits {
			<-begun
		}
		<-answers
		<-answers
		f.wantBug(waits, "another key waits")
	})

	onBoth(t, "devlink#1195: the key is not bound to the request", same(rival{keyOnly: true, bodyless: true}), paid, func(f *fleet) {
		f.post(0, "/projects", "x", "Idempotency-Key", "k")
		a := f.post(1, "/applications", "x", "Idempotency-Key", "k")
		f.wantBug(a.status == 201, "another request got the answer %q", a.body)
	})
	onBoth(t, "powertools-python#3821: another payload gets the first one's answer", same(rival{bodyless: true}), paid, func(f *fleet) {
		f.post(0, "/pay", "5 euros", "Idempotency-Key", "k")
		a := f.post(1, "/pay", "5000 euros", "Idempotency-Key", "k")
		f.wantBug(a.status == 201, "%d %q", a.status, a.body)
	})
	onBoth(t, "a payload in the key runs as an operation of its own (Truxify#2387)", same(rival{}), paid, func(f *fleet) {
		f.post(0, "/pay", "5 euros", "Idempotency-Key", "k")
		f.post(1, "/pay", "5000 euros", "Idempotency-Key", "k")
		f.wantBug(f.ran.Load() == 2, "two payments for one key")
	})
	onBoth(t, "devlink#773: users share their keys", same(rival{anyUser: true}), paid, func(f *fleet) {
		f.key(0, "k")
		r, err := http.NewRequestWithContext(f.t.Context(), "POST", f.url[1]+"/pay", strings.NewReader("x"))
		if err != nil {
			f.t.Fatal(err)
		}
		r.Header.Set("User", "mallory")
		r.Header.Set("Idempotency-Key", "k")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			f.t.Fatal(err)
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		f.wantBug(strings.HasPrefix(string(text), "1:"), "mallory got %q", text)
	})
	onBoth(t, "trinity#1437: a key that is guessed from the body swallows requests without one", same(rival{guessed: true}), paid, func(f *fleet) {
		f.post(0, "/trigger", "")
		f.post(1, "/trigger", "")
		f.wantBug(f.ran.Load() == 1, "two triggers, one run")
	})
	onBoth(t, "a failure is kept for a day (ietf-wg-httpapi/idempotency#9)", same(rival{all: true}), func(f *fleet) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if f.ran.Load() == 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}
	}, func(f *fleet) {
		f.key(0, "k")
		a := f.key(1, "k")
		f.wantBug(a.status == 503, "%d", a.status)
	})
	onBoth(t, "aura-vault-protocol#581: the answer is kept after it was sent", same(rival{late: true}), paid, func(f *fleet) {
		f.key(0, "k")
		f.key(1, "k")
		f.wantBug(f.ran.Load() == 2, "it ran again at once")
	})
	onBoth(t, "aura-vault-protocol#581: without its store it lets all pass", same(rival{open: true}), paid, func(f *fleet) {
		f.key(0, "k")
		f.down()
		a := f.key(1, "k")
		f.wantBug(f.ran.Load() == 2, "%d", a.status)
	})
	onBoth(t, "enkan#139: an answer without its body", same(rival{dropBody: true}), paid, func(f *fleet) {
		first := f.key(0, "k")
		a := f.key(1, "k")
		f.wantBug(a.body != first.body, "%q, then %q", first.body, a.body)
	})
	onBoth(t, "AnchorNet-Backend#221: answers are in the memory of one process", [2]*rival{{kept: newKept()}, {kept: newKept()}}, paid, func(f *fleet) {
		f.key(0, "k")
		f.key(1, "k")
		f.wantBug(f.ran.Load() == 2, "each process runs it")
	})
	onBoth(t, "cookies are sent to whoever asks again", same(rival{cookies: true}), paid, func(f *fleet) {
		f.key(0, "k")
		a := f.key(1, "k")
		f.wantBug(a.header.Get("Set-Cookie") != "", "%v", a.header)
	})

	slow := make(chan struct{})
	onBoth(t, "asynq#369: an attempt whose lock has ended overwrites what its successor has done", same(rival{lasts: time.Millisecond, lenient: true}),
		func(f *fleet) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				n := f.ran.Load()
				if n == 1 {
					<-slow
				}
				fmt.Fprintf(w, "attempt %d", n)
			}
		}, func(f *fleet) {
			first := make(chan got, 1)
			go func() { first <- f.key(0, "k") }()
			for f.ran.Load() == 0 {
				runtime.Gosched()
			}
			f.breaks("once/http/eve/k")      // the model's mark ends by itself
			time.Sleep(5 * time.Millisecond) // longer than that mark lasts
			second := f.key(1, "k")
			slow <- struct{}{}
			a := <-first
			f.wantBug(a.body == "attempt 1", "the first attempt answers %q", a.body)
			a = f.key(1, "k")
			f.wantBug(a.body != second.body, "%q, after %q", a.body, second.body)
		})
}
