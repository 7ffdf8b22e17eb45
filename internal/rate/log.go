package rate

// Log is the sliding window that remembers when each was allowed: never more
// than Limit in any window of the Period, and nothing is refused that a window
// allows. It remembers up to Limit moments. Its state is
//
//	kind, limit, moment, how many, moment, how many, …
type Log struct{ Limit, Period int64 }

// MaxLog is the most that a log remembers of one key.
const MaxLog = 10_000

// NewLog returns an exact sliding window.
func NewLog(limit, period int64) (*Log, error) {
	if err := checkWindow(limit, period); err != nil {
		return nil, err
	}
	if limit > MaxLog {
		return nil, refuse("a log of %d is too long: the longest is %d; choose a sliding window", limit, MaxLog)
	}
	return &Log{limit, period}, nil
}

// Capacity is the limit.
func (l *Log) Capacity() int64 { return l.Limit }

// Settle is as Algorithm says.
func (l *Log) Settle(s State, now int64) State {
	if len(s) < 4 || len(s)%2 == 1 || s[0] != kindLog || s[1] < 1 {
		return s[:0]
	}
	last := s[len(s)-2]
	if back := last - now; back > l.Period {
		for i := 2; i < len(s); i += 2 {
			s[i] -= back
		}
	} else if back > 0 {
		now = last
	}
	first := 2
	for first < len(s) && s[first] <= now-l.Period {
		first += 2
	}
	if first == len(s) {
		return s[:0]
	}
	s = append(s[:2], s[first:]...)
	if s[1] != l.Limit {
		over := max(l.sum(s)-l.Limit, 0)
		s = l.drop(s, over)
		s[1] = l.Limit
	}
	return s
}

// drop removes the n oldest.
func (l *Log) drop(s State, n int64) State {
	first := 2
	for n > 0 && first < len(s) {
		cut := min(n, s[first+1])
		n -= cut
		if s[first+1] -= cut; s[first+1] == 0 {
			first += 2
		}
	}
	return append(s[:2], s[first:]...)
}

func (l *Log) sum(s State) (n int64) {
	for i := 3; i < len(s); i += 2 {
		n += s[i]
	}
	return n
}

// until is how long it takes until so many have come back.
func (l *Log) until(s State, now, n int64) int64 {
	for i := 2; i < len(s); i += 2 {
		if n -= s[i+1]; n <= 0 {
			return s[i] + l.Period - now
		}
	}
	return 0
}

// Status is as Algorithm says.
func (l *Log) Status(s State, now int64) Status {
	n := l.sum(s)
	st := Status{Remaining: max(l.Limit-n, 0)}
	if n > 0 {
		st.Next = l.until(s, now, max(n-l.Limit, 0)+1)
		st.Reset = l.until(s, now, n)
	}
	return st
}

// Ask is as Algorithm says.
func (l *Log) Ask(s State, now, cost int64) Answer {
	if over := l.sum(s) + cost - l.Limit; over > 0 {
		return Answer{Retry: l.until(s, now, over)}
	}
	return Answer{OK: true}
}

// Take is as Algorithm says.
func (l *Log) Take(s State, now, cost int64) State {
	if len(s) == 0 {
		s = append(s, kindLog, l.Limit)
	}
	cost = min(cost, 2*l.Limit-l.sum(s))
	if cost <= 0 {
		return s
	}
	if n := len(s); n > 2 && s[n-2] >= now { // at once, or a clock that went back
		s[n-1] += cost
		return s
	}
	return append(s, now, cost)
}

// Give is as Algorithm says.
func (l *Log) Give(s State, now, cost, at int64) State {
	for i := 2; i < len(s); i += 2 {
		if s[i] != at {
			continue
		}
		if s[i+1] > cost {
			s[i+1] -= cost
			return s
		}
		if s = append(s[:i], s[i+2:]...); len(s) == 2 {
			return s[:0]
		}
		return s
	}
	return s
}
