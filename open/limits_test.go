package open_test

import (
	"errors"
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/store/etcdstore"
	"github.com/batonhq/baton/store/memstore"
	"github.com/batonhq/baton/store/mysqlstore"
	"github.com/batonhq/baton/store/pgstore"
	"github.com/batonhq/baton/store/redisstore"
	"github.com/batonhq/baton/store/sqlitestore"
)

// These are the stores that Limits opens.
var _ = []open.LimitStore{
	(*memstore.Store)(nil), (*sqlitestore.Store)(nil), (*redisstore.Store)(nil),
	(*mysqlstore.Store)(nil), (*pgstore.Store)(nil), (*etcdstore.Store)(nil),
}

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
