package redisstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// What is under the name of the overrides, and is none, is left as it is; what others put
// beside them is not told.
func TestOverridesBesideOthers(t *testing.T) {
	l := newLab(t, 1)
	s, o := l.stores[0], limits.Override{Key: "k", N: 5, Period: time.Minute}
	name := s.names.overrides()
	l.do("SET", name, "x")
	_, errLook := s.Overrides(t.Context())
	for what, err := range map[string]error{"set": s.SetOverride(t.Context(), o, time.Hour), "removed": s.SetOverride(t.Context(), o, 0), "looked up": errLook} {
		if e, ok := errors.AsType[*limits.Error](err); !ok || !strings.Contains(e.Error(), name) {
			t.Errorf("%s: %v, want a *limits.Error that names it", what, err)
		}
	}
	if l.do("GET", name) != "x" {
		t.Error("it was changed")
	}
	l.do("DEL", name)
	l.do("HSET", name, "a", "x", "b", "1 2 3", "c", "-1 0 0 9999999999999999", "d", "1 0 0 9999999999999999 ", "e", "x 9999999999999999")
	if all, err := s.Overrides(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	l.do("DEL", name)
	// The hash goes with the last override.
	for _, keep := range []time.Duration{200 * time.Millisecond, 100 * time.Millisecond} {
		o.Key += "k"
		if err := s.SetOverride(t.Context(), o, keep); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the hash is gone", 10*time.Second, func() bool { return l.do("EXISTS", name) == "0" })
}
