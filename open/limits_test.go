package open_test

import (
	"errors"
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
)

func TestLimits(t *testing.T) {
	t.Parallel()
	store, err := open.Limits(t.Context(), "memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	r := limits.Request{Takes: []limits.Take{{Key: "k", Limit: limits.Limit{Algorithm: limits.FixedWindow, N: 1, Period: time.Hour}, Cost: 1}}}
	if d, err := store.Take(t.Context(), r); err != nil || !d.OK {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := open.Limits(t.Context(), "reds://h"); err == nil {
		t.Error("a scheme that is none")
	}
}

// A store without limits is refused and closed at once.
func TestNoLimits(t *testing.T) {
	t.Parallel()
	_, err := open.Limits(t.Context(), "redlock://"+testserver.Redis(t).Addr+","+testserver.Redis(t).Addr+","+testserver.Redis(t).Addr)
	var bad *open.URLError
	if !errors.As(err, &bad) || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("%v", err)
	}
}

// That a kind of store has no limits is known from its URL, also while it is down.
func TestNoLimitsOfAStoreThatIsDown(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"zk://127.0.0.1:1/locks", "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"} {
		_, err := open.Limits(t.Context(), url)
		if bad, ok := errors.AsType[*open.URLError](err); !ok || !errors.Is(bad, errors.ErrUnsupported) {
			t.Errorf("%s: %v, want a *URLError", url, err)
		}
	}
}
