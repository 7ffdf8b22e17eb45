package rules

import (
	"fmt"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
)

// algorithm is the algorithm with its default.
func (l Limit) algorithm() limits.Algorithm {
	switch {
	case l.Algorithm != 0:
		return l.Algorithm
	case l.Calendar != 0:
		return limits.FixedWindow
	}
	return limits.SlidingWindow
}

// limit makes a limit of package ratelimit. A limit of 0 has none: it refuses without the
// store.
func (l Limit) limit() (out ratelimit.Limit, err error) {
	refuse := func(format string, args ...any) (ratelimit.Limit, error) {
		return out, fmt.Errorf(format, args...)
	}
	a := l.algorithm()
	switch {
	case l.N < 0:
		return refuse("it allows %d: that must not be negative", l.N)
	case l.Calendar > Year:
		return refuse("calendar %d is none", l.Calendar)
	case l.Calendar != 0 && l.Period != 0:
		return refuse("it has a period of %v and counts by the %v: it can have one of them", l.Period, l.Calendar)
	case l.Calendar != 0 && a != limits.FixedWindow:
		return refuse("a %v cannot count by the %v: only a fixed-window can", a, l.Calendar)
	case l.Calendar == 0 && l.Period <= 0:
		return refuse("a period of %v: it must be above zero", l.Period)
	case l.Zone != nil && l.Calendar == 0:
		return refuse("a time zone is for a period of a day, week, month or year")
	}
	for _, f := range []struct {
		name string
		n    int64
		of   limits.Algorithm
	}{
		{"burst", l.Burst, limits.TokenBucket},
		{"longest wait", int64(l.MaxWait), limits.LeakyBucket},
		{"number that goes ahead", l.Ahead, limits.LeakyBucket},
		{"number of parts", l.Parts, limits.SlidingWindow},
		{"offset", int64(l.Offset), limits.FixedWindow},
	} {
		switch {
		case f.n < 0:
			return refuse("its %s is negative", f.name)
		case f.n != 0 && a != f.of:
			return refuse("a %s is for a %v, and this is a %v", f.name, f.of, a)
		}
	}
	switch {
	case l.Classic && a != limits.SlidingWindow:
		return refuse("classic is for a %v, and this is a %v", limits.SlidingWindow, a)
	case l.Offset != 0 && l.Calendar != 0:
		return refuse("an offset is for a period of a fixed length")
	case l.N == 0:
		return out, nil
	}
	switch a {
	case limits.FixedWindow:
		switch l.Calendar {
		case Day:
			out = ratelimit.PerDay(l.N, l.Zone)
		case Week:
			out = ratelimit.PerWeek(l.N, l.Zone)
		case Month:
			out = ratelimit.PerMonth(l.N, l.Zone)
		case Year:
			out = ratelimit.PerYear(l.N, l.Zone)
		default:
			out = ratelimit.FixedWindow(l.N, l.Period).Offset(l.Offset)
		}
	case limits.SlidingWindow:
		out = ratelimit.SlidingWindow(l.N, l.Period)
		if l.Parts != 0 {
			out = out.Parts(l.Parts)
		}
		if l.Classic {
			out = out.Classic()
		}
	case limits.SlidingLog:
		out = ratelimit.SlidingLog(l.N, l.Period)
	case limits.EstimatedWindow:
		out = ratelimit.EstimatedWindow(l.N, l.Period)
	case limits.TokenBucket:
		out = ratelimit.TokenBucket(l.N, l.Period, or(l.Burst, l.N))
	case limits.LeakyBucket:
		out = ratelimit.LeakyBucket(l.N, l.Period, or(l.MaxWait, l.Period))
		if l.Ahead != 0 {
			out = out.Ahead(l.Ahead)
		}
	default:
		return refuse("%v is not known", a)
	}
	if l.ForAll {
		out = out.ForAll()
	}
	if l.PerCall {
		out = out.PerCall()
	}
	if l.Shadow {
		out = out.Shadow()
	}
	if l.Warn != 0 {
		out = out.Warn(l.Warn)
	}
	return out, nil
}

func or[T int64 | time.Duration](a, b T) T {
	if a != 0 {
		return a
	}
	return b
}

// per is the period for people: "1m", "day in Europe/Berlin".
func (l Limit) per() string {
	switch {
	case l.Calendar != 0 && l.Zone != nil:
		return l.Calendar.String() + " in " + l.Zone.String()
	case l.Calendar != 0:
		return l.Calendar.String()
	}
	return shortPeriod(l.Period)
}

// String describes the limit: "100 per 1m, sliding-window".
func (l Limit) String() string {
	s := fmt.Sprintf("%d per %s, %v", l.N, l.per(), l.algorithm())
	if l.Name != "" {
		s = l.Name + ": " + s
	}
	if l.algorithm() == limits.TokenBucket {
		s += fmt.Sprintf(", burst %d", or(l.Burst, l.N))
	}
	if l.algorithm() == limits.LeakyBucket {
		s += ", waits of " + shortPeriod(or(l.MaxWait, l.Period))
	}
	if l.Classic {
		s += ", classic"
	}
	if l.ForAll {
		s += ", for all keys together"
	}
	if l.PerCall {
		s += ", per call"
	}
	if l.Warn != 0 {
		s += fmt.Sprintf(", warns from %g", l.Warn)
	}
	if l.Shadow {
		s += ", shadow"
	}
	return s
}

// shortPeriod is a duration without zero parts: "1h" for "1h0m0s".
func shortPeriod(d time.Duration) string {
	switch {
	case d >= time.Hour && d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= time.Minute && d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}
