package rate

import "slices"

// Window allows Limit within a window. What is taken at a moment counts until the end
// that until returns: the fixed window, the sliding window and the log differ only in
// that.
//
//   - In the fixed window it counts until the window ends. Around a boundary up to twice
//     the limit can be allowed within less than a window.
//   - In the sliding window time is cut into parts, and what was taken counts for a
//     number of parts, beginning with its own. With one part more than the window has
//     (strict) never more than the limit is allowed in any window, and what was taken
//     comes back up to one part late. With as many as it has (classic) it comes back up
//     to one part early, and almost twice the limit may be allowed within a window.
//   - The log is the sliding window whose parts are a microsecond long.
//
// Its state is
//
//	kind, longest life, moment, how many, moment, how many, …
//
// Each number of takes counts until its moment, the earliest first. The second number is
// lifeMark plus the longest life of the limits of the takes that still count. Programs of
// older versions write their limit instead.
type Window struct {
	Limit  int64
	Part   int64 // µs; the boundaries are Offset and all its multiples before and after
	Life   int64 // µs, from the begin of a part until its takes come back
	Offset int64 // µs

	// Windows, if set, are the boundaries of the windows instead, for a day or a month in
	// its time zone.
	Windows [4]int64
}

const (
	// MaxParts is the greatest number of sub-windows of a window.
	MaxParts = 1000

	// MaxLog is the greatest limit of a log.
	MaxLog = 10_000
)

func NewFixed(limit, period, offset int64) (*Window, error) {
	if err := checkWindow(limit, period); err != nil {
		return nil, err
	}
	return &Window{Limit: limit, Part: period, Life: period, Offset: floorMod(offset, period)}, nil
}

func NewCalendar(limit int64, w [4]int64) (*Window, error) {
	if err := checkWindow(limit, 1); err != nil {
		return nil, err
	}
	for i, at := range w {
		if at <= 0 || at >= latest || i > 0 && at <= w[i-1] {
			return nil, refuse("%v are not the boundaries of three windows", w)
		}
	}
	return &Window{Limit: limit, Windows: w}, nil
}

// NewSliding returns a sliding window of the period in parts, which must divide it.
func NewSliding(limit, period, parts int64, strict bool) (*Window, error) {
	if err := checkWindow(limit, period); err != nil {
		return nil, err
	}
	if parts < 1 || parts > MaxParts {
		return nil, refuse("%d sub-windows: there can be 1 to %d", parts, MaxParts)
	}
	if period%parts != 0 {
		return nil, refuse("%d sub-windows do not divide %d µs: choose a number that does", parts, period)
	}
	w := &Window{Limit: limit, Part: period / parts, Life: period}
	if strict {
		w.Life += w.Part
	}
	if err := checkWindow(limit, w.Life); err != nil {
		return nil, err
	}
	return w, nil
}

func NewLog(limit, period int64) (*Window, error) {
	if err := checkWindow(limit, period); err != nil {
		return nil, err
	}
	if limit > MaxLog {
		return nil, refuse("a log of %d is too long: the longest is %d; choose a sliding window", limit, MaxLog)
	}
	return &Window{Limit: limit, Part: 1, Life: period}, nil
}

func floorMod(a, b int64) int64 { return (a%b + b) % b }

// lifeMark is added to the life in a state. A limit is always less.
const lifeMark = exact / 4

// entries is the index of the first moment in a state.
const entries = 2

// until is the moment until which a take at now counts, and the longest time for which a
// take can count.
func (w *Window) until(now int64) (end, life int64) {
	if w.Windows[0] != 0 {
		i := 1
		for i < 3 && w.Windows[i] <= now {
			i++
		}
		return w.Windows[i], w.Windows[i] - w.Windows[i-1]
	}
	return now - floorMod(now-w.Offset, w.Part) + w.Life, w.Life
}

// Mark is the second number of a state whose takes had limits of the same life.
func (w *Window) Mark() int64 { return lifeMark + w.Life }

func (w *Window) Capacity() int64 { return w.Limit }

func (w *Window) Owns(s State) bool { return s[0] == kindWindow }

func (w *Window) Settle(s State, now int64) (_ State, converted bool) {
	if len(s) <= entries || len(s)%2 == 1 || s[0] != kindWindow || s[1] < 1 {
		return s[:0], false
	}
	first := entries
	for first < len(s) && s[first] <= now {
		first += 2
	}
	if first == len(s) {
		return s[:0], false
	}
	s = drop(s, first)
	// A take that counts for longer than one at present was made when the clock was
	// ahead.
	end, life := w.until(now)
	longest := max(life, s[1]-lifeMark)
	if s[len(s)-2] > end+longest {
		if longest > life {
			end = now + longest
		}
		n := int64(0)
		last := len(s)
		for last > entries && s[last-2] >= end {
			last -= 2
			n += s[last+1]
		}
		s, converted = append(s[:last], end, n), true
	}
	return s, converted
}

// drop removes the entries before the index first.
func drop(s State, first int) State {
	if first == entries {
		return s
	}
	return append(s[:entries], s[first:]...)
}

func (w *Window) used(s State) (n int64) {
	for i := entries; i < len(s); i += 2 {
		n += s[i+1]
	}
	return n
}

// back is the time until n have come back.
func (w *Window) back(s State, now, n int64) int64 {
	for i := entries; i < len(s); i += 2 {
		if n -= s[i+1]; n <= 0 {
			return s[i] - now
		}
	}
	return 0
}

func (w *Window) Status(s State, now int64) Status {
	n := w.used(s)
	st := Status{Remaining: max(w.Limit-n, 0)}
	if n > 0 {
		st.Next = w.back(s, now, max(n-w.Limit, 0)+1)
		st.Reset = s[len(s)-2] - now
	}
	return st
}

func (w *Window) Ask(s State, now, cost, _ int64) Answer {
	if over := w.used(s) + cost - w.Limit; over > 0 {
		return Answer{Retry: w.back(s, now, over)}
	}
	return Answer{OK: true}
}

func (w *Window) Take(s State, now, cost int64) State {
	end, life := w.until(now)
	n := len(s)
	if n == 0 {
		return append(s, kindWindow, lifeMark+life, end, cost)
	}
	last := s[n-2]
	if last <= end {
		s[1] = lifeMark + life
		if last == end {
			s[n-1] += cost
			return s
		}
		return append(s, end, cost)
	}
	if s[1]-lifeMark <= life { // a clock that was set back writes to the last moment
		s[1] = lifeMark + life
		s[n-1] += cost
		return s
	}
	// Some entries count for longer.
	i := entries
	for s[i] < end {
		i += 2
	}
	if s[i] == end {
		s[i+1] += cost
		return s
	}
	return slices.Insert(s, i, end, cost)
}

func (w *Window) Debt(s State, now int64) int64 {
	if over := w.used(s) - w.Limit; over > 0 {
		return w.back(s, now, over)
	}
	return 0
}

func (w *Window) Charge(s State, now, cost int64) State {
	if cost = min(cost, 2*w.Limit-w.used(s)); cost <= 0 {
		return s
	}
	return w.Take(s, now, cost)
}

func (w *Window) Give(s State, _, cost, at, _ int64) State {
	if at == 0 { // the entry that ends first, so that real takes never count for too short a time
		i := entries
		for ; i < len(s) && s[i+1] <= cost; i += 2 {
			cost -= s[i+1]
		}
		if i >= len(s) {
			return s[:0]
		}
		s[i+1] -= cost
		return append(s[:entries], s[i:]...)
	}
	end, _ := w.until(at)
	for i := entries; i < len(s); i += 2 {
		switch {
		case s[i] != end:
		case s[i+1] > cost:
			s[i+1] -= cost
			return s
		case len(s) == entries+2:
			return s[:0]
		default:
			return append(s[:i], s[i+2:]...)
		}
	}
	return s
}

// Numbers are the kind, Limit, Part, Life, Offset and Windows.
func (w *Window) Numbers() []int64 {
	return append([]int64{kindWindow, w.Limit, w.Part, w.Life, w.Offset}, w.Windows[:]...)
}

// Longest is the greatest length of a state of the algorithm.
func Longest(a Algorithm) int {
	if w, ok := a.(*Window); ok && w.Part > 0 {
		return entries + 2*int(min(w.Limit, w.Life/w.Part))
	}
	return 6 // a bucket or an estimate
}
