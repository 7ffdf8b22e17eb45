package redisstore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// More keys than are kept in memory at a time are listed in several walks, each once and
// in order.
func TestListStatesInSeveralWalks(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	var keys []string
	for i := range 100 {
		keys = append(keys, fmt.Sprint("k", i))
		l.taken(s, asking(keys[i], tokens(1, time.Hour, 5), 1))
		l.taken(s, asking(fmt.Sprint("other ", i), tokens(1, time.Hour, 5), 1))
	}
	slices.Sort(keys)
	for _, most := range []int{1, 7, 99, 100, 101} {
		for _, after := range []string{"", keys[50]} {
			var got []string
			for st, err := range s.listStates(t.Context(), "k", after, most) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, st.Key)
			}
			if want := keys[slices.Index(keys, after)+1:]; !slices.Equal(got, want) {
				t.Errorf("%d at a time, after %q: %q, want %q", most, after, got, want)
			}
		}
	}
}

// What no program of this version wrote is listed as unknown, and hides nothing; what is
// no state is left out.
func TestListStatesWithGarbage(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	unknown := []string{"x", "1", "1 5 -3 4", "9 9 9 9 9 9", "3 99999999999999999999 0 1 1 0", " ", strings.Repeat("1 ", 1<<20)}
	for i, text := range unknown {
		l.do("SET", l.limit(fmt.Sprint("k", i)), text)
		l.do("PEXPIRE", l.limit(fmt.Sprint("k", i)), "3600000")
	}
	l.do("SET", l.limit("without end"), "x")
	l.do("RPUSH", l.limit("list"), "x")
	l.do("SET", s.names.own+"r:no name", "1")
	l.do("SET", s.names.own+"r:{no name", "1")
	l.taken(s, asking("z", tokens(1, time.Hour, 5), 2))
	n := 0
	for st, err := range s.ListStates(t.Context(), "", "") {
		if err != nil {
			t.Fatal(err)
		}
		switch n++; {
		case st.Key == "z" && st.Kind == limits.Bucket && st.Used == 2:
		case st.Key == "without end" && st.Kind == limits.Unknown && st.Reset == 0:
		case strings.HasPrefix(st.Key, "k") && st.Kind == limits.Unknown && st.Used == 0 && st.Reset > 59*time.Minute:
		default:
			t.Errorf("%+v", st)
		}
	}
	if n != len(unknown)+2 {
		t.Errorf("%d are listed", n)
	}
}
