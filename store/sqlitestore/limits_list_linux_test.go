package sqlitestore

import (
	"fmt"
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// A row that no program of this version wrote is listed as unknown, and hides no other.
func TestListStatesWithGarbage(t *testing.T) {
	t.Parallel()
	s := openNew(t)
	l := bucketOf(1, 1000*time.Hour, 5)
	garbage := []string{"x", "", "1", "1 5 -3 4", "3 1", "9 9 9 9 9 9", "3 99999999999999999999 0 1 1 0", " ", "3.5"}
	for i := range garbage {
		takeOne(t, s, fmt.Sprint("k", i), l, 2)
	}
	takeOne(t, s, "z", l, 2)
	tx := foreign(t, s)
	for i, text := range garbage {
		if _, err := tx.Exec("UPDATE baton_limit SET state = ? WHERE k = ?", text, []byte(fmt.Sprint("k", i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for st, err := range s.ListStates(t.Context(), "", "") {
		if err != nil {
			t.Fatal(err)
		}
		switch n++; {
		case st.Key == "z" && st.Kind == limits.Bucket && st.Used == 2:
		case st.Key != "z" && st.Kind == limits.Unknown && st.Used == 0 && st.Reset > time.Hour:
		default:
			t.Errorf("%+v", st)
		}
	}
	if n != len(garbage)+1 {
		t.Errorf("%d are listed", n)
	}
}
