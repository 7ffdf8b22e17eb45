package ratelimit_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

func TestDecider(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &moody{Store: memstore.New()}
		d, err := ratelimit.NewDecider(store, ratelimit.FailOpen(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		api, all := ratelimit.SlidingWindow(5, time.Minute).Named("api"), ratelimit.FixedWindow(8, time.Hour).Named("all").ForAll()
		ask := func(q ratelimit.Question) ratelimit.Result {
			t.Helper()
			r, err := d.Decide(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		question := func(user string, n int64) ratelimit.Question {
			return ratelimit.Question{Key: user, Cost: n, Asks: []ratelimit.Ask{
				{Name: "one", Limit: api, Key: api.StoreKey(user), Cost: n},
				{Name: "two", Limit: all, Key: all.StoreKey(user), Cost: n},
			}}
		}
		if r := ask(question("a", 4)); !r.OK || r.Name != "one" || r.Remaining != 1 || r.Limits()[1].Remaining != 4 {
			t.Errorf("%+v", r)
		}
		if r := ask(question("b", 5)); r.OK || r.Name != "two" || r.Remaining != 4 || r.Limits()[0].Remaining != 5 {
			t.Errorf("all or nothing: %+v", r)
		}
		// It counts together with a Limiter.
		l := limiter(t, store, api)
		if r, err := l.Peek(t.Context(), "a"); err != nil || r.Remaining != 1 {
			t.Errorf("a Limiter finds %+v, %v", r, err)
		}
		if err := d.Forget(t.Context(), question("a", 0)); err != nil {
			t.Error(err)
		}
		if r := ask(question("a", 0)); r.Remaining != 5 || r.Limits()[1].Remaining != 8 {
			t.Errorf("after Forget: %+v", r)
		}
		// A moment of its own.
		at := time.Date(2026, 3, 29, 0, 30, 0, 0, time.UTC)
		day := ratelimit.PerDay(1, nil)
		q := ratelimit.Question{Key: "c", Cost: 1, At: at, Asks: []ratelimit.Ask{{Limit: day, Key: "c", Cost: 1}}}
		if r := ask(q); !r.OK || !r.At.Equal(at) || r.ResetAfter != 23*time.Hour+30*time.Minute {
			t.Errorf("%+v", r)
		}
		q.At = at.Add(23 * time.Hour)
		if r := ask(q); r.OK || r.RetryAfter != 30*time.Minute {
			t.Errorf("%+v", r)
		}
		store.fail(driver.ErrUnavailable)
		if r := ask(question("a", 1)); !r.OK || r.By != ratelimit.ByOpen {
			t.Errorf("while the store fails: %+v", r)
		}
		var refused *ratelimit.LimitError
		if _, err := d.Decide(t.Context(), ratelimit.Question{Key: "k"}); !errors.As(err, &refused) {
			t.Errorf("no limits: %v", err)
		}
	})
}

func TestNewDeciderRefuses(t *testing.T) {
	t.Parallel()
	for _, o := range []ratelimit.Option{
		ratelimit.SlidingWindow(1, time.Minute), ratelimit.InBatches(2, time.Second, 1, 2), ratelimit.FailOpen(0),
	} {
		var refused *ratelimit.LimitError
		if _, err := ratelimit.NewDecider(memstore.New(), o); !errors.As(err, &refused) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	var refused *ratelimit.LimitError
	if err := ratelimit.SlidingWindow(1, time.Minute).Parts(7).Check(); !errors.As(err, &refused) {
		t.Errorf("Check: %v", err)
	}
}
