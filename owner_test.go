package baton_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

// A call is shown under the name that it gave. The process does not hand a lease
// over to a call with another name, because the store would continue to show the
// first.
func TestOwnerOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New(), baton.Config{Owner: "everybody"})
		shown := func() string {
			t.Helper()
			info, err := l.Inspect(t.Context(), "k")
			if err != nil || len(info.Holders) != 1 {
				t.Fatalf("%d holders, %v", len(info.Holders), err)
			}
			return info.Holders[0].Owner
		}
		var leases []*baton.Lease
		for i, c := range []struct {
			opts  []baton.Option
			want  string
			grant bool // by the store
		}{
			{nil, "everybody", true},
			{[]baton.Option{baton.Owner("me")}, "me", true},
			{[]baton.Option{baton.Owner("me")}, "me", false},
			{[]baton.Option{baton.Owner("you")}, "you", true},
			{[]baton.Option{baton.Owner("")}, "everybody", true},
			{[]baton.Option{baton.Owner("everybody")}, "everybody", false},
		} {
			if i == 0 {
				leases = append(leases, mustLock(t, l, "k"))
			} else {
				next := lockSoon(t, l, c.opts...)
				mustUnlock(t, leases[i-1])
				leases = append(leases, within(t, 10*time.Second, next))
			}
			if got := shown(); got != c.want {
				t.Errorf("lease %d is shown as %q, want %q", i, got, c.want)
			}
			if i > 0 {
				last, now := leases[i-1].Token(), leases[i].Token()
				if now <= last || (now/64 != last/64) != c.grant {
					t.Errorf("lease %d: token %d after %d, want a grant of the store: %v", i, now, last, c.grant)
				}
			}
			_, err := l.TryLock(t.Context(), "k")
			if held, ok := errors.AsType[*baton.HeldError](err); !ok || held.Owner != c.want {
				t.Errorf("lease %d: TryLock says %v", i, err)
			}
		}
		mustUnlock(t, leases[len(leases)-1])
	})
}

func TestOwnerThatCannotBeShown(t *testing.T) {
	l := newLocker(t, memstore.New(), baton.Config{})
	for _, owner := range []string{strings.Repeat("x", 129), "a\nb", "\xff"} {
		_, err := l.Lock(t.Context(), "k", baton.Owner(owner))
		if bad, ok := errors.AsType[*driver.RequestError](err); !ok || bad.Field != "owner" {
			t.Errorf("owner %q: %v", owner, err)
		}
	}
	mustUnlock(t, mustLock(t, l, "k"))
}
