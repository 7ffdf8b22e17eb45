package rate

// Fixed is the fixed window: Limit in each window. The windows are those that
// begin at Offset and at every multiple of Period before and after it, or what
// Windows says. Around a boundary up to twice the limit can be allowed within
// less than a window. Its state is
//
//	kind, begin of the window, its end, limit, how many
type Fixed struct {
	Limit, Period, Offset int64
	Windows               Windows
}

// Windows tells the window that a moment is in: from begin, up to but not with
// end. So a day or a month can be one, in its time zone.
type Windows func(now int64) (begin, end int64)

// NewFixed returns windows of the same length.
func NewFixed(limit, period, offset int64) (*Fixed, error) {
	if err := checkWindow(limit, period); err != nil {
		return nil, err
	}
	return &Fixed{Limit: limit, Period: period, Offset: floorMod(offset, period)}, nil
}

// NewCalendar returns windows of the calendar.
func NewCalendar(limit int64, w Windows) (*Fixed, error) {
	if err := checkWindow(limit, 1); err != nil {
		return nil, err
	}
	return &Fixed{Limit: limit, Windows: w}, nil
}

func floorMod(a, b int64) int64 { return (a%b + b) % b }

// Capacity is the limit.
func (f *Fixed) Capacity() int64 { return f.Limit }

// Window is the one that now is in.
func (f *Fixed) Window(now int64) (begin, end int64) {
	if f.Windows != nil {
		return f.Windows(now)
	}
	begin = now - floorMod(now-f.Offset, f.Period)
	return begin, begin + f.Period
}

// Settle is as Algorithm says.
func (f *Fixed) Settle(s State, now int64) State {
	if len(s) != 5 || s[0] != kindFixed || s[2] <= s[1] || s[3] < 1 || s[4] < 1 || now >= s[2] {
		return s[:0]
	}
	begin, end := f.Window(now)
	switch {
	case now >= s[1]:
		s[1], s[2] = begin, end // other windows, perhaps
	case s[1]-now > end-begin:
		s[1], s[2] = begin, end // a clock that went back
	}
	if s[3] != f.Limit {
		s[3], s[4] = f.Limit, min(s[4], f.Limit)
	}
	return s
}

func (f *Fixed) count(s State) int64 {
	if len(s) == 0 {
		return 0
	}
	return s[4]
}

// Status is as Algorithm says.
func (f *Fixed) Status(s State, now int64) Status {
	n := f.count(s)
	if n == 0 {
		return Status{Remaining: f.Limit}
	}
	return Status{Remaining: max(f.Limit-n, 0), Next: s[2] - now, Reset: s[2] - now}
}

// Ask is as Algorithm says.
func (f *Fixed) Ask(s State, now, cost int64) Answer {
	if f.count(s)+cost > f.Limit {
		return Answer{Retry: s[2] - now}
	}
	return Answer{OK: true}
}

// Take is as Algorithm says.
func (f *Fixed) Take(s State, now, cost int64) State {
	if len(s) == 0 {
		begin, end := f.Window(now)
		s = append(s, kindFixed, begin, end, f.Limit, 0)
	}
	s[4] = min(s[4]+min(cost, 2*f.Limit), 2*f.Limit)
	return s
}

// Give is as Algorithm says.
func (f *Fixed) Give(s State, now, cost, at int64) State {
	if len(s) == 0 || at < s[1] || at >= s[2] {
		return s
	}
	if s[4] <= cost {
		return s[:0]
	}
	s[4] -= cost
	return s
}
