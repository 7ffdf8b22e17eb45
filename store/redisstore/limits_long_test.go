package redisstore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// A log that is full is decided about where it is: the answer is short, and once
// something was taken it need not be read as a whole.
func TestLongLogsStayWhereTheyAre(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	const n = 5000
	limit := limits.Limit{Algorithm: limits.SlidingLog, N: n, Period: time.Hour}
	soon := time.Now().Add(time.Minute).UnixMicro()
	var log strings.Builder
	fmt.Fprintf(&log, "1 %d", lifeMark+limit.Period.Microseconds())
	for i := range int64(n - 2) {
		fmt.Fprintf(&log, " %d 1", soon+1000*i)
	}
	l.do("SET", l.limit("k"), log.String())
	for i, want := range []string{"", " 0 4999 ", " 0 5000 ", " 0 5000 ", " 0 5000 "} {
		if state := l.do("GET", l.limit("k")); want != "" && !strings.Contains(state[:40], want) {
			t.Errorf("request %d: the state begins with %q, and not with its sum", i, state[:40])
		}
		known, err := s.limits.of(limit)
		if err != nil {
			t.Fatal(err)
		}
		ask := question{known, "k", 1}
		answer, err := s.runSimple(t.Context(), []string{s.names.beside("k").limit()}, []string{ask.told(1)})
		if err != nil || len(text(answer)) > 150 {
			t.Errorf("request %d: %v, and an answer of %d bytes", i, err, len(text(answer)))
		}
	}
	d := l.taken(s, asking("k", limit, 3))
	if retry := time.Duration(soon+2000-d.At) * time.Microsecond; d.OK || d.Retry != retry || d.Limits[0].Remaining != 0 || d.Limits[0].Next != retry-2*time.Millisecond {
		t.Errorf("three more: %+v, want a retry after %v", d, retry)
	}
}

const lifeMark = 1 << 51 // of rate
