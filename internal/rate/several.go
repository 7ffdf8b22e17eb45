package rate

import "slices"

// Each kind of limit (windows and the log; estimates of one period; buckets) has a state
// of its own, even for the same key. So a change of kind forgets nothing: what was taken
// under one kind counts under the others, until it has come back there. A State of
// several kinds has them one after the other:
//
//	kind, length of the first, the first, length of the next, …
//
// A program that knows only one kind takes that for the state of a new key.

// parts are the states in s.
func (s State) parts() (all []State) {
	switch {
	case len(s) == 0:
		return nil
	case s[0] != kindSeveral:
		return []State{s}
	}
	for rest := s[1:]; len(rest) > 0; {
		n := rest[0]
		if n < 1 || n >= int64(len(rest)) {
			break // written by another program
		}
		all = append(all, rest[1:1+n:1+n])
		rest = rest[1+n:]
	}
	return all
}

type mixed struct {
	own    State
	others []State // those that still count, with nil at the place of own; nil if there are none
	n      int64   // what has not come back of the others
	back   int64   // µs until all of that has come back
}

// split separates the algorithm's own state.
func split(a Algorithm, s State, now int64) mixed {
	if len(s) == 0 || a.Owns(s) {
		return mixed{own: s}
	}
	var m mixed
	for _, part := range s.parts() {
		if m.own == nil && a.Owns(part) {
			m.own, m.others = slices.Clone(part), append(m.others, nil) // a copy: it may grow, and must not grow into the others
		} else if n, back := consumed(part, now); n > 0 {
			m.others = append(m.others, part)
			m.n, m.back = min(m.n+n, mostConsumed), max(m.back, back)
		}
	}
	return m
}

// join is the inverse of split: a new state comes last.
func (m *mixed) join() State {
	if m.others == nil {
		return m.own
	}
	all := make([]State, 0, len(m.others)+1)
	placed := false
	for _, s := range m.others {
		if s == nil {
			s, placed = m.own, true
		}
		if len(s) > 0 {
			all = append(all, s)
		}
	}
	if !placed && len(m.own) > 0 {
		all = append(all, m.own)
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	several := State{kindSeveral}
	for _, s := range all {
		several = append(append(several, int64(len(s))), s...)
	}
	return several
}

// mostConsumed bounds what counts of other kinds.
const mostConsumed = exact / 8

// consumed is how much of s has not come back, and the time in µs until all of it has.
func consumed(s State, now int64) (n, back int64) {
	switch {
	case len(s) > entries && len(s)%2 == 0 && s[0] == kindWindow && s[1] >= 1:
		for i := entries; i < len(s); i += 2 {
			if s[i] > now {
				n, back = min(n+s[i+1], mostConsumed), max(back, s[i]-now)
			}
		}
	case len(s) == 6 && s[0] == kindApprox && s[1] >= 1 && s[3] >= 1 && s[2] < exact/s[1]-2:
		n, end := s[4]+s[5], s[2]+1
		if s[5] > 0 {
			end++
		}
		if (s[2]+1)*s[1] <= now {
			n = s[5]
		}
		if back = end*s[1] - now; back > 0 && n > 0 {
			return min(n, mostConsumed), back
		}
		return 0, 0
	case len(s) == 6 && s[0] == kindBucket && s[3] >= 1 && s[4] >= 1 && s[2] < s[3] && s[1] >= now:
		b := Bucket{Tokens: s[3], Period: s[4]}
		u := b.used(s, now)
		return b.whole(u, min(mostTokens(s[3], s[4]), mostConsumed)), u.ceil()
	}
	if n == 0 {
		return 0, 0
	}
	return n, back
}

// ask is Ask while other kinds have consumed some of the capacity. Retry may be later
// than necessary.
func (m *mixed) ask(a Algorithm, now, cost, ahead int64) Answer {
	switch {
	case m.n == 0:
		return a.Ask(m.own, now, cost, ahead)
	case cost+m.n <= a.Capacity():
		return a.Ask(m.own, now, cost+m.n, ahead)
	}
	x := a.Ask(m.own, now, cost, ahead)
	return Answer{Retry: max(m.back, x.Wait, x.Retry)}
}

// status is Status, likewise. Next may be later than necessary.
func (m *mixed) status(a Algorithm, now int64) Status {
	st := a.Status(m.own, now)
	if m.n > 0 {
		st = Status{max(st.Remaining-m.n, 0), max(st.Next, m.back), max(st.Reset, m.back)}
	}
	return st
}
