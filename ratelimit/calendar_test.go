package ratelimit

import (
	"testing"
	"time"
)

func TestCalendar(t *testing.T) {
	t.Parallel()
	place := func(name string) *time.Location {
		l, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	for _, c := range []struct {
		unit  unit
		place string
		now   string
		want  [4]string
	}{
		{byDay, "UTC", "2026-11-21T12:00:00Z", [4]string{"2026-11-20T00:00:00Z", "2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z", "2026-11-23T00:00:00Z"}},
		// 23 hours, and 25.
		{byDay, "Europe/Berlin", "2026-03-29T12:00:00Z", [4]string{"2026-03-27T23:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "2026-03-30T22:00:00Z"}},
		{byDay, "Europe/Berlin", "2026-10-25T00:30:00Z", [4]string{"2026-10-23T22:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", "2026-10-26T23:00:00Z"}},
		// A day without midnight: clocks go from 0:00 to 1:00.
		{byDay, "America/Sao_Paulo", "2018-11-04T12:00:00Z", [4]string{"2018-11-03T03:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z", "2018-11-06T02:00:00Z"}},
		// A day with two midnights: clocks go from 1:00 to 0:00.
		{byDay, "America/Havana", "2026-11-01T12:00:00Z", [4]string{"2026-10-31T04:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z", "2026-11-03T05:00:00Z"}},
		{byWeek, "UTC", "2026-11-22T23:59:59Z", [4]string{"2026-11-09T00:00:00Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"}},
		{byWeek, "UTC", "2026-11-23T00:00:00Z", [4]string{"2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z", "2026-12-07T00:00:00Z"}},
		{byMonth, "UTC", "2028-02-29T12:00:00Z", [4]string{"2028-01-01T00:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z", "2028-04-01T00:00:00Z"}},
		{byMonth, "Asia/Tokyo", "2026-12-31T16:00:00Z", [4]string{"2026-11-30T15:00:00Z", "2026-12-31T15:00:00Z", "2027-01-31T15:00:00Z", "2027-02-28T15:00:00Z"}},
		{byYear, "UTC", "2026-06-01T00:00:00Z", [4]string{"2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"}},
	} {
		now, err := time.Parse(time.RFC3339, c.now)
		if err != nil {
			t.Fatal(err)
		}
		got := calendar{c.unit, place(c.place)}.around(now)
		for i, us := range got {
			if at := time.UnixMicro(us).UTC().Format(time.RFC3339); at != c.want[i] {
				t.Errorf("%v at %s: boundary %d is %s, want %s", calendar{c.unit, place(c.place)}, c.now, i, at, c.want[i])
			}
		}
	}
}
