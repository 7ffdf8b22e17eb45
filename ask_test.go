package baton_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

// A holder that looks for requests learns of each one, once, wherever it comes from and
// whether it stood before.
func TestAHolderIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l, other := newLocker(t, store, baton.Config{TTL: 6 * time.Second}), newLocker(t, store, baton.Config{})
		first, err := other.Ask(t.Context(), "k", "deploy 7")
		if err != nil {
			t.Fatal(err)
		}
		lease := mustLock(t, l, "k") // a request keeps nobody out
		asked := lease.Asked()
		if got := <-asked; got != "deploy 7" {
			t.Errorf("asked for %q", got)
		}
		began := time.Now()
		time.AfterFunc(10*time.Second, func() {
			if _, err := l.Ask(t.Context(), "k", "backup"); err != nil {
				t.Error(err)
			}
		})
		if got := <-asked; got != "backup" {
			t.Errorf("asked for %q", got)
		}
		if d := time.Since(began); d > 12*time.Second {
			t.Errorf("told after %v", d)
		}
		mustUnlock(t, first)
		select {
		case got, open := <-asked:
			t.Errorf("asked again: %q, %v", got, open)
		case <-time.After(time.Minute):
		}
		if err := lease.Err(); err != nil {
			t.Errorf("a request has ended the lease: %v", err)
		}
		if lease.Asked() != asked {
			t.Error("another channel")
		}
		mustUnlock(t, lease)
		if _, open := <-asked; open {
			t.Error("the channel is open after the end of the lease")
		}
		if _, open := <-lease.Asked(); open {
			t.Error("asked after the end of the lease")
		}
	})
}

// A lock of a program is no request, although "ask/" is a likely beginning of its name.
func TestALockIsNoRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := newLocker(t, store, baton.Config{TTL: 3 * time.Second})
		mustLock(t, newLocker(t, store, baton.Config{Owner: "worker-7"}), "ask/question/42")
		lease := mustLock(t, l, "question/42")
		select {
		case reason := <-lease.Asked():
			t.Errorf("asked by a lock of another program: %q", reason)
		case <-time.After(10 * time.Second):
		}
		request, err := l.Ask(t.Context(), "question/42", "why")
		if err != nil {
			t.Fatal(err)
		}
		if got := <-lease.Asked(); got != "why" {
			t.Errorf("asked for %q", got)
		}
		mustUnlock(t, request)
		mustUnlock(t, lease)
	})
}

// The store is out of reach for a while: the request is seen when it answers again.
func TestAskedDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, inspectFails{store, time.Now().Add(20 * time.Second)}, baton.Config{})
		lease := mustLock(t, l, "k")
		if _, err := l.Ask(t.Context(), "k", "why"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if got := <-lease.Asked(); got != "why" {
			t.Errorf("asked for %q", got)
		}
		if d := time.Since(began); d < 20*time.Second || d > 26*time.Second {
			t.Errorf("told after %v", d)
		}
		mustUnlock(t, lease)
	})
}

type inspectFails struct {
	*hooked
	until time.Time
}

func (s inspectFails) Inspect(ctx context.Context, key string) (driver.KeyInfo, error) {
	if time.Now().Before(s.until) {
		return driver.KeyInfo{}, driver.ErrUnavailable
	}
	return s.hooked.Inspect(ctx, key)
}

// Who asks may ask in vain; bad input is refused.
func TestRequestsThatCannotBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New(), baton.Config{})
		long := strings.Repeat("k", 510)
		var key *baton.KeyError
		for _, k := range []string{"", long} {
			if _, err := l.Ask(t.Context(), k, "why"); !errors.As(err, &key) {
				t.Errorf("%.5q: %v", k, err)
			}
		}
		if _, err := l.Ask(t.Context(), "k", "no\nline"); err == nil {
			t.Error("a reason of two lines")
		}
		lease, err := l.Lock(t.Context(), long)
		if err != nil {
			t.Fatal(err)
		}
		if _, open := <-lease.Asked(); open {
			t.Error("asked for a key that nobody can ask for")
		}
		mustUnlock(t, lease)
		silent := newLocker(t, struct{ driver.Locks }{memstore.New()}, baton.Config{})
		if _, err := silent.Ask(t.Context(), "k", "why"); !errors.Is(err, baton.ErrUnsupported) {
			t.Errorf("a store that cannot show its locks: %v", err)
		}
	})
}
