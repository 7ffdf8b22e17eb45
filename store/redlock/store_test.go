package redlock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
	"github.com/batonhq/baton/store/redlock"
)

func TestRefusesBadSets(t *testing.T) {
	t.Parallel()
	var m []redlock.Member
	for range 4 {
		m = append(m, memstore.New())
	}
	for _, n := range []int{0, 1, 2, 4} {
		if _, err := redlock.New(m[:n], redlock.Config{}); !is[*redlock.CountError](err) {
			t.Errorf("%d nodes: %v", n, err)
		}
	}
	if _, err := redlock.New([]redlock.Member{m[0], m[1], m[0]}, redlock.Config{Durable: true}); !is[*redlock.DuplicateError](err) {
		t.Errorf("one server twice: %v", err)
	}
	if _, err := redlock.New([]redlock.Member{m[0], m[1], tokenless{m[2]}}, redlock.Config{}); err == nil || !strings.Contains(err.Error(), "node 3") {
		t.Errorf("a node that cannot be one: %v", err)
	}
	l, err := redlock.New(m[:3], redlock.Config{Durable: true, LongestTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Acquire(t.Context(), driver.Request{Claim: claimOf("k"), TTL: 2 * time.Second}); !is[*driver.RequestError](err) {
		t.Errorf("a TTL above the longest: %v", err)
	}
	c := claimOf("k")
	c.Weight, c.Capacity = 1, 3
	if _, err := l.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Second}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("permits: %v", err)
	}
}

// tokenless grants without tokens.
type tokenless struct{ redlock.Member }

func (m tokenless) Traits() driver.Traits {
	t := m.Member.Traits()
	t.Fencing = false
	return t
}

func is[E error](err error) bool { _, ok := errors.AsType[E](err); return ok }
