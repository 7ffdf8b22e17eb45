package pgstore

import (
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
)

// A log that is full is decided about where it is: the answer is short.
func TestLimitLongLogsStayWhereTheyAre(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	const n = 5000
	limit := limits.Limit{Algorithm: limits.SlidingLog, N: n, Period: time.Hour}
	soon := time.Now().Add(time.Minute).UnixMicro()
	state := []int64{1, 1<<51 + limit.Period.Microseconds()}
	for i := range int64(n - 1) {
		state = append(state, soon+1000*i, 1)
	}
	for _, key := range []string{"one", "both"} {
		if _, err := s.pool.Exec(t.Context(), `INSERT INTO baton_limit (key, state, expires) VALUES ($1, $2, 'infinity')`, []byte(key), state); err != nil {
			t.Fatal(err)
		}
	}
	take := limits.Take{Key: "one", Limit: limit, Cost: 1}
	other := limits.Take{Key: "other", Limit: limits.Limit{Algorithm: limits.FixedWindow, N: 100, Period: time.Hour}, Cost: 1}
	for name, r := range map[string]limits.Request{
		"one limit":  {Takes: []limits.Take{take}},
		"two limits": {Takes: []limits.Take{{Key: "both", Limit: limit, Cost: 1}, other}},
	} {
		for i := range 3 {
			q, err := rate.NewRequest(r)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := s.takeAlone(t.Context(), q, false)
			if err != nil || len(answer) > 20 || (answer[0] == wasAllowed) != (i == 0) {
				t.Errorf("%s, request %d: %v, and an answer of %d numbers: %v", name, i, err, len(answer), answer[:min(len(answer), 20)])
			}
		}
	}
	take.Cost = 3
	d, err := s.Take(t.Context(), limits.Request{Takes: []limits.Take{take}})
	if retry := time.Duration(soon+2000-d.At) * time.Microsecond; err != nil || d.OK || d.Retry != retry || d.Limits[0].Next != retry-2*time.Millisecond {
		t.Errorf("three more: %+v, %v, want a retry after %v", d, err, retry)
	}
}
