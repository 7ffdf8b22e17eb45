package rate

// Sliding is the sliding window over sub-windows: Limit in Parts of them that
// follow each other, of which the present one is not over. Strict looks at one
// more, so that never more than the limit is allowed in any window of the whole
// length, and what was taken comes back up to one part late; otherwise it comes
// back up to one part early, and in a bad moment almost twice the limit is
// allowed within a window. Its state is
//
//	kind, length of a part, number of the newest, limit, for how many parts
//	something counts, how many in the newest part, in the one before, …
type Sliding struct {
	Limit, Part int64
	Parts       int64
	Strict      bool
}

// MaxParts is the most sub-windows that a window is made of.
const MaxParts = 1000

// NewSliding returns a sliding window of the period in parts, which must divide
// it.
func NewSliding(limit, period, parts int64, strict bool) (*Sliding, error) {
	if err := checkWindow(limit, period); err != nil {
		return nil, err
	}
	if parts < 1 || parts > MaxParts {
		return nil, refuse("%d sub-windows: there can be 1 to %d", parts, MaxParts)
	}
	if period%parts != 0 {
		return nil, refuse("%d sub-windows do not divide %d µs: choose a number that does", parts, period)
	}
	return &Sliding{Limit: limit, Part: period / parts, Parts: parts, Strict: strict}, nil
}

// counts is where the counts begin in a state.
const counts = 5

// life is for how many parts something counts, that of its own included.
func (w *Sliding) life() int64 {
	if w.Strict {
		return w.Parts + 1
	}
	return w.Parts
}

func (w *Sliding) index(now int64) int64 { return (now - floorMod(now, w.Part)) / w.Part }

// Capacity is the limit.
func (w *Sliding) Capacity() int64 { return w.Limit }

// Settle is as Algorithm says.
func (w *Sliding) Settle(s State, now int64) State {
	if len(s) <= counts || s[0] != kindSliding || s[1] < 1 || s[3] < 1 || s[4] < 1 {
		return s[:0]
	}
	at := w.index(now)
	if s[1] != w.Part { // a part of another length: what still counts is as of now
		old := Sliding{Limit: s[3], Part: s[1], Parts: s[4]}
		if s = old.Settle(s, now); len(s) == 0 {
			return s
		}
		s = append(s[:0], kindSliding, w.Part, at, s[3], w.life(), old.sum(s))
	}
	s[4] = w.life()
	if back := s[2] - at; back > w.Parts {
		s[2] = at
	}
	if on := at - s[2]; on > 0 {
		if on >= w.life() {
			return s[:0]
		}
		s = w.shift(s, on)
		s[2] = at
	}
	s = s[:min(int64(len(s)), counts+w.life())]
	for s[len(s)-1] == 0 {
		if s = s[:len(s)-1]; len(s) == counts {
			return s[:0]
		}
	}
	if s[3] != w.Limit { // the oldest have been consumed longest
		over := max(w.sum(s)-w.Limit, 0)
		for i := len(s) - 1; i >= counts && over > 0; i-- {
			cut := min(over, s[i])
			s[i], over = s[i]-cut, over-cut
		}
		s[3] = w.Limit
	}
	return s
}

// shift moves the counts on parts into the past.
func (w *Sliding) shift(s State, on int64) State {
	n := int64(len(s))
	for range min(on, counts+w.life()-n) {
		s = append(s, 0)
	}
	for i := int64(len(s)) - 1; i >= counts; i-- {
		if s[i] = 0; i-on >= counts && i-on < n {
			s[i] = s[i-on]
		}
	}
	return s
}

func (w *Sliding) sum(s State) (n int64) {
	for i := counts; i < len(s); i++ {
		n += s[i]
	}
	return n
}

// until is how long it takes until so many have come back.
func (w *Sliding) until(s State, now, n int64) int64 {
	for i := len(s) - 1; i >= counts; i-- {
		if n -= s[i]; n <= 0 {
			return (s[2]-int64(i-counts)+w.life())*w.Part - now
		}
	}
	return 0
}

// Status is as Algorithm says.
func (w *Sliding) Status(s State, now int64) Status {
	n := w.sum(s)
	st := Status{Remaining: max(w.Limit-n, 0)}
	if n > 0 {
		st.Next = w.until(s, now, max(n-w.Limit, 0)+1)
		st.Reset = w.until(s, now, n)
	}
	return st
}

// Ask is as Algorithm says.
func (w *Sliding) Ask(s State, now, cost int64) Answer {
	if over := w.sum(s) + cost - w.Limit; over > 0 {
		return Answer{Retry: w.until(s, now, over)}
	}
	return Answer{OK: true}
}

// Take is as Algorithm says.
func (w *Sliding) Take(s State, now, cost int64) State {
	if len(s) == 0 {
		s = append(s, kindSliding, w.Part, w.index(now), w.Limit, w.life(), 0)
	}
	s[counts] += min(cost, 2*w.Limit-w.sum(s))
	return s
}

// Give is as Algorithm says.
func (w *Sliding) Give(s State, now, cost, at int64) State {
	if len(s) == 0 {
		return s
	}
	i := counts + s[2] - w.index(at)
	if i < counts || i >= int64(len(s)) {
		return s
	}
	s[i] -= min(s[i], cost)
	return w.Settle(s, now)
}
