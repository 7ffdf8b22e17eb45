package page

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/store/memstore"
)

func goFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A site is a page over a store in memory.
type site struct {
	page   *Page
	locks  *baton.Locker // tells the page of its events
	others *baton.Locker // another process
	recent *Recent
	store  driver.Locks
}

func newSite(t *testing.T, store driver.Locks, change func(*Config)) *site {
	t.Helper()
	s := &site{recent: NewRecent(), store: store}
	locker := func(cfg baton.Config) *baton.Locker {
		l, err := baton.New(store, cfg)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	s.locks = locker(baton.Config{Owner: "here", Events: s.recent.Events().Locks})
	s.others = locker(baton.Config{Owner: "there"})
	ops, err := once.New(store, once.Config{Events: s.recent.Events().Once})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Locks: s.locks, Once: ops, Recent: s.recent}
	cfg.Limits, _ = driver.As[limits.Lister](store)
	if change != nil {
		change(&cfg)
	}
	if s.page, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.page.Close)
	return s
}

func inMemory(t *testing.T, change func(*Config)) *site { return newSite(t, memstore.New(), change) }

func mustLock(t *testing.T, l *baton.Locker, key string, opts ...baton.Option) *baton.Lease {
	t.Helper()
	lease, err := l.TryLock(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.Unlock() })
	return lease
}

// shot is what a browser knows from all frames so far.
type shot struct {
	Hello  hello       `json:"hello"`
	Now    int64       `json:"now"`
	List   listView    `json:"list"`
	Keys   []string    `json:"keys"`
	Rows   []gotRow    `json:"rows"` // of the last frame
	Hot    []count     `json:"hot"`
	Detail *detailView `json:"detail"`
	Events []event     `json:"events"` // of the last frame
	Failed string      `json:"failed"`

	all  map[string]gotRow
	told []event
}

type gotRow struct {
	lockView
	Used     int64  `json:"used"`
	Of       int64  `json:"of"`
	State    string `json:"state"`
	Attempts int64  `json:"attempts"`
}

// browser is an open page.
type browser struct {
	t      *testing.T
	frames chan string
	header http.Header
	code   int
	ctx    context.Context
	close  context.CancelFunc
	ended  chan struct{}
	now    shot
}

func (b *browser) Header() http.Header  { return b.header }
func (b *browser) WriteHeader(code int) { b.code = code }
func (b *browser) Write(text []byte) (int, error) {
	select {
	case b.frames <- string(text):
		return len(text), nil
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}
func (b *browser) Flush() {}

// open opens the page.
func (s *site) open(t *testing.T, l look) *browser { return s.openAs(t, l, "") }

// openAs opens the page with an Authorization header.
func (s *site) openAs(t *testing.T, l look, authorization string) *browser {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	b := &browser{
		t: t, frames: make(chan string, 1000), header: http.Header{}, ctx: ctx, close: cancel,
		ended: make(chan struct{}), now: shot{all: map[string]gotRow{}},
	}
	r := httptest.NewRequestWithContext(ctx, "POST", "/page/watch", bytes.NewReader(encode(l)))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", authorization)
	go func() { defer close(b.ended); s.page.ServeHTTP(b, r) }()
	t.Cleanup(func() { cancel(); <-b.ended })
	return b
}

// next reads one more frame.
func (b *browser) next() {
	b.t.Helper()
	select {
	case line := <-b.frames:
		b.now.Rows, b.now.Events = nil, nil
		if strings.Contains(line, `"detail":`) {
			b.now.Detail = nil
		}
		if err := json.Unmarshal([]byte(line), &b.now); err != nil {
			b.t.Fatalf("%v: %s", err, line)
		}
		for _, r := range b.now.Rows {
			b.now.all[r.Key] = r
		}
		b.now.told = append(b.now.told, b.now.Events...)
	case <-time.After(30 * time.Second):
		b.t.Fatal("no frame")
	}
}

// until reads frames until what is known satisfies ok.
func (b *browser) until(what string, ok func(shot) bool) {
	b.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok(b.now) {
		if time.Now().After(deadline) {
			b.t.Fatalf("never seen: %s; now %+v", what, b.now)
		}
		b.next()
	}
}

// row is what the screen shows of a key; ok is false if it is not on the screen.
func (s shot) row(key string) (r gotRow, ok bool) {
	for _, k := range s.Keys {
		if k == key {
			return s.all[key], true
		}
	}
	return r, false
}

func (s shot) happened(what, key string) bool {
	for _, e := range s.told {
		if e.What == what && e.Key == key {
			return true
		}
	}
	return false
}

// post sends a request, and returns the status and the body.
func (s *site) post(t *testing.T, path string, v any, change func(*http.Request)) (int, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), "POST", path, bytes.NewReader(encode(v)))
	r.Header.Set("Content-Type", "application/json")
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	s.page.ServeHTTP(w, r)
	return w.Code, strings.TrimSpace(w.Body.String())
}
