package page

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

// The streams of one caller are bounded, so that others get some.
func TestTooManyBrowsersOfACaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := inMemory(t, func(c *Config) { c.Caller = teams })
		for range maxStreamsOf {
			s.openAs(t, look{Kind: kindLocks}, "Bearer of-a").next()
		}
		if code, body := s.post(t, "/page/watch", look{Kind: kindLocks}, func(r *http.Request) { r.Header.Set("Authorization", "Bearer of-a") }); code != 503 || !strings.Contains(body, `"busy"`) {
			t.Errorf("%d %s", code, body)
		}
		b := s.openAs(t, look{Kind: kindLocks}, "Bearer of-b")
		b.until("the list", func(s shot) bool { return s.List.Read })
	})
}

// Text of a store, and the size of a list, are for callers who may see everything.
func TestWhatIsNotForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &journal{}
		store := &slow{Store: memstore.New(), list: time.Second}
		s := newSite(t, store, func(c *Config) { c.Caller, c.Logger = teams, slog.New(slog.NewTextHandler(log, nil)) })
		mustLock(t, s.others, "a/own")
		own := s.openAs(t, look{Kind: kindLocks, Prefix: "a/"}, "Bearer of-a")
		all := s.openAs(t, look{Kind: kindLocks}, "Bearer of-a")
		own.until("the list", func(s shot) bool { return s.List.Read })
		all.until("the list", func(s shot) bool { return s.List.Read })
		if own.now.List.Took == 0 || all.now.List.Took != 0 {
			t.Errorf("the list took %d ms for the team, and %d for all", own.now.List.Took, all.now.List.Took)
		}
		store.mu.Lock()
		store.fail = fmt.Errorf("dial 10.1.2.3: %w", driver.ErrUnavailable)
		store.mu.Unlock()
		own.until("the failure", func(s shot) bool { return s.Failed == "the store has not answered" })
		if !log.has("10.1.2.3") {
			t.Error("the log does not say what the store said")
		}
	})
}

// No more browsers than are allowed are served, and those that go make room.
func TestTooManyBrowsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := inMemory(t, nil)
		var open []*browser
		for range maxStreams {
			b := s.open(t, look{Kind: kindLocks})
			b.next()
			open = append(open, b)
		}
		if code, body := s.post(t, "/page/watch", look{Kind: kindLocks}, nil); code != 503 || !strings.Contains(body, `"busy"`) {
			t.Errorf("%d %s", code, body)
		}
		open[0].close()
		synctest.Wait()
		b := s.open(t, look{Kind: kindLocks})
		b.until("the list", func(s shot) bool { return s.List.Read })
	})
}
