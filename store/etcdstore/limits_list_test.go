package etcdstore

import (
	"fmt"
	"testing"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/testserver"
)

// What no program of this version wrote is listed as unknown, and hides no other.
func TestListStatesWithGarbage(t *testing.T) {
	testserver.NeedEtcd(t)
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	garbage := []string{"", "x", "1 2 x", "{}", "9223372036854775807 3 9 9 9 9 9", "7 9 9", "7"}
	for i, text := range garbage {
		if _, err := s.client.Put(t.Context(), s.stateName(fmt.Sprint("k", i)), text); err != nil {
			t.Fatal(err)
		}
	}
	mustTake(t, s, asks("z", five, 2))
	n := 0
	for st, err := range s.ListStates(t.Context(), "", "") {
		if err != nil {
			t.Fatal(err)
		}
		switch n++; {
		case st.Key == "z" && st.Kind == limits.Window && st.Used == 2:
		case st.Key != "z" && st.Kind == limits.Unknown && st.Used == 0 && st.Reset == 0:
		default:
			t.Errorf("%+v", st)
		}
	}
	if n != len(garbage)+1 {
		t.Errorf("%d are listed", n)
	}
}
