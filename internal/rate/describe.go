package rate

import (
	"math/bits"
	"slices"

	"github.com/batonhq/baton/driver/limits"
)

// Describe describes the state of a key, without its limit, at now. ends is when the
// store drops the state, 0 if unknown. ok is false if the state has no effect any more. s
// is not changed; an empty one is a stored state that cannot be read.
func Describe(key string, s State, now, ends int64) (d limits.State, ok bool) {
	if ends != 0 && ends <= now {
		return d, false
	}
	known, unknown := 0, false
	parts := s.parts()
	for _, part := range parts {
		one, readable := describe(part, now)
		switch {
		case !readable:
			unknown = true
		case one.Used > 0 && known == 0:
			known, d = 1, one
		case one.Used > 0:
			known++
			d = limits.State{Kind: limits.Several, Used: min(d.Used+one.Used, mostConsumed), Reset: max(d.Reset, one.Reset)}
		}
	}
	if known == 0 {
		if !unknown && len(parts) > 0 {
			return d, false
		}
		d = limits.State{Kind: limits.Unknown, Reset: micros(max(ends-now, 0))}
	}
	d.Key = key
	return d, true
}

// describe describes the state of one kind. ok is false if it cannot be read.
func describe(s State, now int64) (d limits.State, ok bool) {
	if len(s) == 0 || slices.ContainsFunc(s, func(n int64) bool { return n < 0 || n >= exact }) {
		return d, false
	}
	switch s[0] {
	case kindWindow:
		return describeWindow(s, now)
	case kindApprox:
		return describeApprox(s, now)
	case kindBucket:
		return describeBucket(s, now)
	}
	return d, false
}

func describeWindow(s State, now int64) (d limits.State, ok bool) {
	if len(s) <= entries || len(s)%2 == 1 || s[1] < 1 {
		return d, false
	}
	used, back := consumed(s, now)
	if life := s[1] - lifeMark; life > 0 { // more is left only if the clock was set back
		back = min(back, life)
	}
	return limits.State{Kind: limits.Window, Used: used, Reset: micros(back)}, true
}

func describeApprox(s State, now int64) (d limits.State, ok bool) {
	if len(s) != 6 || s[1] < 1 || s[2] >= exact/s[1]-2 || s[3] < 1 {
		return d, false
	}
	d = limits.State{Kind: limits.Estimate, Of: s[3], N: s[3], Period: micros(s[1])}
	a := Approx{Limit: s[3], Period: s[1], Grain: 1}
	s, _ = a.Settle(slices.Clone(s), now)
	if len(s) == 0 {
		return d, true
	}
	before, count, passed, length := a.parts(s, now)
	// before · rest / length, rounded up: at most before, so it fits.
	hi, lo := bits.Mul64(uint64(before), uint64(max(length-passed, 0)))
	lo, carry := bits.Add64(lo, uint64(length-1), 0)
	counts, _ := bits.Div64(hi+carry, lo, uint64(length))
	d.Used = min(count+int64(counts), mostConsumed)
	end := s[2] + 1
	if count > 0 {
		end++
	}
	d.Reset = micros(max(end*a.Period-now, 0))
	return d, true
}

func describeBucket(s State, now int64) (d limits.State, ok bool) {
	if len(s) != 6 || s[3] < 1 || s[4] < 1 || s[2] >= s[3] {
		return d, false
	}
	b := &Bucket{Tokens: s[3], Period: s[4], Most: mostTokens(s[3], s[4])}
	if b.Most < 1 {
		return d, false
	}
	if b.Burst = min(s[5], b.Most); b.Burst == 0 { // an older version without the number
		b.Burst = b.Most
	}
	d = limits.State{Kind: limits.Bucket, N: b.Tokens, Period: micros(b.Period)}
	s, _ = b.Settle(slices.Clone(s), now)
	if len(s) == 0 {
		return d, true
	}
	u := b.used(s, now)
	d.Used, d.Reset = b.whole(u, min(b.Most, mostConsumed)), micros(u.ceil())
	if b.Burst < b.Most {
		d.Of = b.Burst
	}
	return d, true
}
