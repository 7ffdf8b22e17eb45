package pgstore

import (
	"fmt"
	"testing"

	"github.com/batonhq/baton/driver/limits"
)

// A row that no program of this version wrote is listed as unknown, and hides no other.
func TestListStatesWithGarbage(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openDirect(t, url)
	mustTake(t, s, take(bucket(5), 2, "z"))
	garbage := []string{
		"", "x", "1", "1 5 x x", "9 9 9 9 9 9", "1 5 9223372036854775807 5", "1 5 1900000000000000 -1",
		"3 9223372036854775807 0 1 3600000000000 0", "3 1900000000000000 0 1 3600000000000 x", "3 1900000000000000 -1 1 3600000000000 0",
	}
	for i, text := range garbage {
		for _, ends := range []string{"infinity", "-infinity", "294276-01-01", "2026-01-01"} {
			exec(t, s, `INSERT INTO baton_limit VALUES ($1, $2, $3::text::timestamptz)`, []byte(fmt.Sprint(ends, i)), text, ends)
		}
	}
	all := make(map[string]limits.State)
	for st, err := range s.ListStates(t.Context(), "", "") {
		if err != nil {
			t.Fatal(err)
		}
		all[st.Key] = st
	}
	for i, text := range garbage {
		for _, ends := range []string{"infinity", "294276-01-01"} {
			if st := all[fmt.Sprint(ends, i)]; st.Kind != limits.Unknown || st.Used != 0 || st.Reset <= 0 {
				t.Errorf("%s until %s: %+v", text, ends, st)
			}
		}
	}
	if st := all["z"]; st.Kind != limits.Bucket || st.Used != 2 || len(all) != 2*len(garbage)+1 {
		t.Errorf("%+v, and %d in all", st, len(all))
	}
}
