package rate

import "math/bits"

// Approx estimates a sliding window from two counters: that of the present window, and
// that of the one before, as if that had been taken evenly. It needs little memory,
// allows less than twice the limit within any window, and may refuse what an exact
// sliding window allows. Its state is
//
//	kind, period, number of the window, limit, count in the window before, count
//
// of which the limit is at least half of either count. Limits with another period have
// another state.
type Approx struct {
	Limit, Period int64
	Grain         int64 // µs: time is rounded to it, so that products are exact
}

func NewApprox(limit, period int64) (*Approx, error) {
	if err := checkWindow(limit, period); err != nil {
		return nil, err
	}
	if err := checkWindow(limit, 2*period); err != nil { // a count lasts for two periods
		return nil, err
	}
	a := &Approx{Limit: limit, Period: period, Grain: 1}
	for {
		if hi, lo := bits.Mul64(uint64(8*limit), uint64(period/a.Grain)); hi == 0 && lo < exact {
			return a, nil
		}
		a.Grain *= 10
		if period%a.Grain != 0 {
			return nil, refuse("%d per %d µs cannot be counted exactly: choose a rounder period or a smaller limit", limit, period)
		}
	}
}

func (a *Approx) Capacity() int64 { return a.Limit }

func (a *Approx) index(now int64) int64 { return (now - floorMod(now, a.Period)) / a.Period }

func (a *Approx) Owns(s State) bool { return s[0] == kindApprox && len(s) == 6 && s[1] == a.Period }

func (a *Approx) Settle(s State, now int64) (_ State, converted bool) {
	if len(s) != 6 || s[0] != kindApprox || s[1] != a.Period || s[3] < 1 || s[4] < 0 || s[5] < 0 {
		return s[:0], false
	}
	at := a.index(now)
	switch on := at - s[2]; {
	case on >= 2 || on == 1 && s[5] == 0:
		return s[:0], false
	case on == 1:
		s[2], s[4], s[5] = at, s[5], 0
	case on < -1:
		s[2], s[4], s[5], converted = at, 0, min(s[4]+s[5], 2*s[3]), true
	}
	return s, converted
}

// parts are the counts, and the passed part of the window, 0 if the clock is behind the
// window.
func (a *Approx) parts(s State, now int64) (before, count, passed, length int64) {
	length = a.Period / a.Grain
	if len(s) == 0 {
		return 0, 0, floorMod(now, a.Period) / a.Grain, length
	}
	return s[4], s[5], max(now-s[2]*a.Period, 0) / a.Grain, length
}

// free is the part of the limit that the window before leaves, below 0 if none. Products
// are at most the limit times the length, for any count of other limits.
func (a *Approx) free(before, passed, length int64) int64 {
	rest, all := length-passed, a.Limit*length
	if before > 0 && rest > all/before {
		return -1
	}
	return (all - before*rest) / length
}

func (a *Approx) Status(s State, now int64) Status {
	before, count, passed, length := a.parts(s, now)
	st := Status{Remaining: max(a.free(before, passed, length)-count, 0)}
	begin := now - passed*a.Grain
	if len(s) > 0 {
		begin = s[2] * a.Period
	}
	switch {
	case count > 0:
		st.Reset = begin + 2*a.Period - now
	case before > 0:
		st.Reset = begin + a.Period - now
	}
	if st.Remaining < a.Limit {
		st.Next = a.retry(s, now, st.Remaining+1)
	}
	return st
}

func (a *Approx) Ask(s State, now, cost, _ int64) Answer {
	before, count, passed, length := a.parts(s, now)
	if count+cost <= a.free(before, passed, length) {
		return Answer{OK: true}
	}
	return Answer{Retry: a.retry(s, now, cost)}
}

func (a *Approx) retry(s State, now, cost int64) int64 {
	before, count, _, length := a.parts(s, now)
	begin := s[2] * a.Period
	if count+cost > a.Limit { // not in this window
		begin += a.Period
		before, count = count, 0
	}
	at := int64(0)
	if before > 0 {
		at = max(length-(a.Limit-count-cost)*length/before, 0)
	}
	return begin + at*a.Grain - now
}

func (a *Approx) Take(s State, now, cost int64) State {
	if len(s) == 0 {
		s = append(s, kindApprox, a.Period, a.index(now), a.Limit, 0, 0)
	}
	s[5] += cost
	if max(s[4], s[5]) <= 2*a.Limit {
		s[3] = a.Limit
	} else {
		s[3] = max(s[3], a.Limit)
	}
	return s
}

func (a *Approx) Debt(s State, now int64) int64 {
	if len(s) == 0 || a.Ask(s, now, 0, 0).OK {
		return 0
	}
	return a.retry(s, now, 0)
}

func (a *Approx) Charge(s State, now, cost int64) State {
	if len(s) > 0 {
		cost = min(cost, max(2*a.Limit-s[5], 0))
	}
	if cost <= 0 {
		return s
	}
	return a.Take(s, now, min(cost, 2*a.Limit))
}

func (a *Approx) Give(s State, _, cost, at, _ int64) State {
	if len(s) == 0 {
		return s
	}
	if i := a.index(at); at == 0 {
		old := min(s[4], cost)
		s[4], s[5] = s[4]-old, s[5]-min(s[5], cost-old)
	} else if i == s[2] {
		s[5] -= min(s[5], cost)
	} else if i == s[2]-1 {
		s[4] -= min(s[4], cost)
	}
	if s[4] == 0 && s[5] == 0 {
		return s[:0]
	}
	return s
}

// Numbers are the kind, Limit, Period and Grain.
func (a *Approx) Numbers() []int64 { return []int64{kindApprox, a.Limit, a.Period, a.Grain} }
