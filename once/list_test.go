package once_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/store/memstore"
)

func TestList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, memstore.New(), once.Config{Keep: time.Hour, Lock: baton.Config{Owner: "me"}})
		list := func(prefix string) string {
			var all []string
			for rec, err := range r.List(t.Context(), prefix) {
				if err != nil {
					t.Fatal(err)
				}
				if rec.Owner != "me" || rec.Token <= 0 || rec.Attempts != 1 || rec.Done && rec.Result != nil {
					t.Errorf("listed %+v", rec)
				}
				all = append(all, fmt.Sprintf("%s %v %v %q %v", rec.Key, rec.Done, rec.Failed, rec.Result, rec.Left))
			}
			slices.Sort(all)
			return strings.Join(all, ", ")
		}
		if got := list(""); got != "" {
			t.Errorf("listed %q", got)
		}
		boom := errors.New("boom")
		for key, err := range map[string]error{"a/1": nil, "a/2": once.Final(boom), "a/3": boom, "b": nil} {
			_, _ = r.Do(t.Context(), key, func(context.Context, once.Attempt) ([]byte, error) { return []byte("x"), err }, once.Fingerprint(key))
		}
		if got, want := list("a/"), `a/1 true false "" 1h0m0s, a/2 true true "" 1h0m0s, a/3 false false "boom" 168h0m0s`; got != want {
			t.Errorf("listed %q, want %q", got, want)
		}
		if n := strings.Count(list(""), ","); n != 3 {
			t.Errorf("listed %q", list(""))
		}
		for range r.List(t.Context(), "") {
			break
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for rec, err := range r.List(ctx, "a") {
			if !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), `once: list "a": `) || rec.Key != "" {
				t.Errorf("listed %+v, %v", rec, err)
			}
		}
	})
}

// deaf is a store that keeps records and cannot list them.
type deaf struct {
	driver.Locks
	driver.Records
}

func TestListUnsupported(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	n := 0
	for _, err := range newRunner(t, deaf{store, store}, once.Config{}).List(t.Context(), "") {
		if n++; !errors.Is(err, errors.ErrUnsupported) || n > 1 {
			t.Errorf("error %v", err)
		}
	}
	if n == 0 {
		t.Error("a list of nothing")
	}
}
