package page

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
)

// grants returns the grants of the holders that a person sees.
func (s *site) grants(t *testing.T, key string) []string {
	t.Helper()
	info, err := s.others.Inspect(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return info.Grants()
}

// A later holder with the same owner, and without a token, is neither broken nor asked in
// place of the holder that the person saw.
func TestActsOnTheNextGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := inMemory(t, nil)
		first := mustLock(t, s.others, "k")
		saw := s.grants(t, "k")
		if code, body := s.post(t, "/page/ask", act{Key: "k", Reason: "r", Grants: saw}, nil); code != 200 {
			t.Fatalf("ask: %d %s", code, body)
		}
		_ = first.Unlock()
		next := mustLock(t, s.others, "k")
		time.Sleep(2 * askLook)
		if info, err := s.others.Inspect(t.Context(), baton.AskPrefix+"k"); err != nil || len(info.Holders) > 0 {
			t.Errorf("the request stands against the next holder: %+v, %v", info, err)
		}
		for _, path := range []string{"/page/break", "/page/ask"} {
			if code, body := s.post(t, path, act{Key: "k", Reason: "r", Grants: saw}, nil); code != 409 || !strings.Contains(body, `"changed"`) {
				t.Errorf("%s: %d %s, want 409", path, code, body)
			}
		}
		if err := next.Err(); err != nil {
			t.Errorf("the next holder was broken: %v", err)
		}
	})
}

func TestBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &journal{}
		s := inMemory(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
		lease := mustLock(t, s.others, "k")
		saw := s.grants(t, "k")
		for _, c := range []struct {
			name string
			act  act
			want int
			code string
		}{
			{"no reason", act{Key: "k", Grants: saw}, 400, "reason"},
			{"a reason of spaces", act{Key: "k", Reason: "  ", Grants: saw}, 400, "reason"},
			{"a long reason", act{Key: "k", Reason: strings.Repeat("é", 65), Grants: saw}, 400, "reason"},
			{"a reason that turns the line", act{Key: "k", Reason: "a\u202eb", Grants: saw}, 400, "reason"},
			{"a reason of two lines", act{Key: "k", Reason: "a\nb", Grants: saw}, 400, "reason"},
			{"a bad key", act{Key: "a\x00", Reason: "r", Grants: saw}, 400, "bad"},
			{"a free lock", act{Key: "free", Reason: "r"}, 409, "free"},
			{"nobody was seen", act{Key: "k", Reason: "r"}, 409, "changed"},
			{"another was seen", act{Key: "k", Reason: "r", Grants: []string{driver.GrantOf("another")}}, 409, "changed"},
			{"two were seen", act{Key: "k", Reason: "r", Grants: append(slices.Clone(saw), saw...)}, 409, "changed"},
		} {
			if code, body := s.post(t, "/page/break", c.act, nil); code != c.want || !strings.Contains(body, `"error":"`+c.code+`"`) {
				t.Errorf("%s: %d %s", c.name, code, body)
			}
			if err := lease.Err(); err != nil {
				t.Fatalf("%s: the lock was broken", c.name)
			}
		}
		b := s.open(t, look{Kind: kindLocks})
		if code, body := s.post(t, "/page/break", act{Key: "k", Reason: "stuck since noon", Grants: saw}, nil); code != 200 || body != `{"holders":1}` {
			t.Fatalf("%d %s", code, body)
		}
		<-lease.Done()
		b.until("the event", func(s shot) bool { return s.happened("broken", "k") })
		if !log.has(`reason="stuck since noon"`) {
			t.Error("the log does not say why")
		}
	})
}

// leaver is a log that closes the browser before the lock is broken.
type leaver struct {
	journal
	leave func()
}

func (l *leaver) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("a lock is to be broken")) {
		l.leave()
	}
	return l.journal.Write(p)
}

// A break has a line before it, and is not half done if the browser goes meanwhile.
func TestBreakOfABrowserThatGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		log := &leaver{leave: leave}
		s := inMemory(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
		mustLock(t, s.others, "k")
		wish := act{Key: "k", Reason: "stuck", Grants: s.grants(t, "k")}
		if code, body := s.post(t, "/page/break", wish, func(r *http.Request) { *r = *r.WithContext(ctx) }); code != 200 {
			t.Errorf("%d %s", code, body)
		}
		if ctx.Err() == nil {
			t.Error("there is no line before the break")
		}
		if !log.has(`msg="a lock was broken" caller="" remote=192.0.2.1:1234 key=k reason=stuck holders=1`) {
			t.Errorf("the log: %s", &log.text)
		}
	})
}

// deadlines is a browser's connection that knows what was written without a deadline.
type deadlines struct {
	*httptest.ResponseRecorder
	until time.Time
	bare  int
}

func (d *deadlines) SetWriteDeadline(t time.Time) error { d.until = t; return nil }

func (d *deadlines) Write(p []byte) (int, error) {
	if d.until.IsZero() {
		d.bare++
	}
	return d.ResponseRecorder.Write(p)
}

// A client that does not read cannot hold an answer that needs no token, and a deadline
// does not stay on the connection.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	s := inMemory(t, func(c *Config) { c.Caller, c.Hosts = teams, Loopback })
	for _, c := range []struct {
		method, path, host string
		want               int
	}{{"GET", "/", "localhost", 200}, {"GET", "/", "evil.example", 403}, {"POST", "/page/watch", "localhost", 401}} {
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		r := httptest.NewRequestWithContext(t.Context(), c.method, c.path, nil)
		r.Host = c.host
		s.page.ServeHTTP(w, r)
		if w.Code != c.want || w.Body.Len() == 0 || w.bare > 0 || !w.until.IsZero() {
			t.Errorf("%+v: %d, %d bytes, %d writes without a deadline; it is %v afterwards", c, w.Code, w.Body.Len(), w.bare, w.until)
		}
	}
}

func TestAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := inMemory(t, nil)
		lease := mustLock(t, s.others, "k")
		asked := lease.Asked()
		b := s.open(t, look{Kind: kindLocks, Open: "k"})
		if code, body := s.post(t, "/page/ask", act{Key: "k", Reason: "deploy 7"}, nil); code != 200 {
			t.Fatalf("%d %s", code, body)
		}
		if got := <-asked; got != "deploy 7" {
			t.Errorf("the holder was told %q", got)
		}
		b.until("the request", func(s shot) bool {
			return s.Detail != nil && slices.Equal(s.Detail.Asked, []string{"deploy 7"}) && s.happened("asked", "k")
		})
		if r, ok := b.now.row("@ask/k"); !ok || r.AsksFor != "k" {
			t.Errorf("the request is shown as %+v", r)
		}
		_ = lease.Unlock()
		b.until("the end of it", func(s shot) bool { _, ok := s.row("@ask/k"); return !ok && len(s.Detail.Asked) == 0 })

		b.close()

		// The holder does not obey: the request ends by itself, and at Close at once.
		lease = mustLock(t, s.others, "k")
		if code, body := s.post(t, "/page/ask", act{Key: "k", Reason: "again"}, nil); code != 200 {
			t.Fatalf("%d %s", code, body)
		}
		time.Sleep(askFor + 2*askLook)
		stands := func() bool {
			info, err := s.others.Inspect(t.Context(), "@ask/k")
			if err != nil {
				t.Fatal(err)
			}
			return len(info.Holders) > 0
		}
		if stands() {
			t.Errorf("the request stands after %v", askFor)
		}
		if code, body := s.post(t, "/page/ask", act{Key: "k", Reason: "at last"}, nil); code != 200 || !stands() {
			t.Fatalf("%d %s", code, body)
		}
		s.page.Close()
		if stands() {
			t.Error("the request stands after Close")
		}
		if err := lease.Err(); err != nil {
			t.Error(err)
		}
	})
}
