package redisstore

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
)

// A long line is searched by ticket, which must find every place, whatever an
// operator or a lost counter has done to the order.
func TestPlaceInALongLine(t *testing.T) {
	l := newLab(t, 1)
	s, queue, alive := l.stores[0], l.names(l.key).queue(), l.names(l.key).waiters()
	holder, _ := take(t, s, claimOf(l.key, "holder"), time.Minute, false)
	const n = 301
	line := make([]driver.Claim, n)
	for i := range line {
		line[i], _ = take(t, s, claimOf(l.key, fmt.Sprint("w", i)), time.Minute, true)
	}
	revive := func() { // however slow the machine is
		stay := []string{"HSET", alive}
		for _, c := range line {
			stay = append(stay, c.ID, "9000000000000000")
		}
		l.do(stay...)
	}
	check := func(what string, gone ...int) {
		t.Helper()
		revive()
		for i, r := range s.Renew(t.Context(), line, time.Minute) {
			want := driver.Waiting
			if slices.Contains(gone, i) {
				want = driver.Lost
			}
			if r.State != want || r.Err != nil {
				t.Errorf("%s: place %d is %v, %v, want %v", what, i, r.State, r.Err, want)
			}
		}
	}
	scans := l.calls("lpos") + l.calls("lrange")
	check("in order")
	if more := l.calls("lpos") + l.calls("lrange") - scans; more != 0 {
		t.Errorf("the whole line was read %d times for %d places", more, n)
	}
	revive()
	mustRelease(t, s, line[150])
	check("one has left", 150)
	l.do("LMOVE", queue, queue, "RIGHT", "LEFT") // the last is the first
	check("in disorder", 150)
	l.do("LSET", queue, "149", "nonsense")
	check("with nonsense in it", 148, 150)
	revive()
	mustRelease(t, s, holder)
	if r := renewOne(t, s, line[n-1], time.Minute); r.State != driver.Held {
		t.Errorf("who was moved to the head is %v, want held", r.State)
	}
}
