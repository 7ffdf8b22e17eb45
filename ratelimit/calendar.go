package ratelimit

import (
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// calendar computes windows of a calendar: days, weeks, months, years.
type calendar struct {
	unit  unit
	place *time.Location
}

type unit uint8

const (
	byDay unit = iota + 1
	byWeek
	byMonth
	byYear
)

// PerDay allows n on every day of a place, from midnight to midnight: 23 or 25 hours when
// its clocks change. A nil place is UTC, here and below.
func PerDay(n int64, place *time.Location) Limit { return perUnit(n, byDay, place) }

// PerWeek allows n in every week of a place, from Monday.
func PerWeek(n int64, place *time.Location) Limit { return perUnit(n, byWeek, place) }

// PerMonth allows n in every month of a place.
func PerMonth(n int64, place *time.Location) Limit { return perUnit(n, byMonth, place) }

// PerYear allows n in every year of a place.
func PerYear(n int64, place *time.Location) Limit { return perUnit(n, byYear, place) }

func perUnit(n int64, u unit, place *time.Location) Limit {
	if place == nil {
		place = time.UTC
	}
	return Limit{rule: limits.Limit{Algorithm: limits.FixedWindow, N: n}, calendar: calendar{u, place}}
}

// begin is the start of the window that is after windows later than that of now.
func (c calendar) begin(now time.Time, after int) time.Time {
	y, m, d := now.In(c.place).Date()
	switch c.unit {
	case byDay:
		d += after
	case byWeek:
		weekday := (int(time.Date(y, m, d, 12, 0, 0, 0, time.UTC).Weekday()) + 6) % 7
		d += 7*after - weekday
	case byMonth:
		m, d = m+time.Month(after), 1
	case byYear:
		y, m, d = y+after, 1, 1
	}
	return firstMoment(y, m, d, c.place)
}

// firstMoment is the beginning of a day: midnight, or the first moment after it if the
// clocks are set forward at midnight.
func firstMoment(y int, m time.Month, d int, place *time.Location) time.Time {
	t := time.Date(y, m, d, 0, 0, 0, 0, place)
	want := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	if _, _, day := t.Date(); day == want.Day() {
		// If the clocks are set back over midnight, there are two: take the first.
		if earlier := t.Add(-time.Hour); earlier.Day() == want.Day() {
			return earlier
		}
		return t
	}
	// time.Date returned a moment of the day before: the change is within the next hours.
	lo, hi := t, t.Add(3*time.Hour)
	for hi.Sub(lo) > time.Second {
		mid := lo.Add(hi.Sub(lo) / 2).Truncate(time.Second)
		if mid.Equal(lo) {
			break
		}
		if mid.Day() == want.Day() {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi
}

// around returns the boundaries of the windows before, at and after now.
func (c calendar) around(now time.Time) (w [4]int64) {
	for i := range w {
		w[i] = c.begin(now, i-1).UnixMicro()
	}
	return w
}

func (c calendar) String() string {
	return [...]string{byDay: "day", byWeek: "week", byMonth: "month", byYear: "year"}[c.unit] + " in " + c.place.String()
}
