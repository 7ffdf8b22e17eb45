package simulate

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Origin is the zero of offsets. Windows of every usual length begin at it.
var Origin = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC) // a Monday

// MaxEvents bounds the requests of a replay.
const MaxEvents = 1_000_000

// Burst reads N@TIME or N@TIME+DURATION: N requests at once, or spread evenly.
func Burst(text string) ([]Event, error) {
	count, when, ok := strings.Cut(text, "@")
	n, err := strconv.Atoi(count)
	if !ok || err != nil || n < 1 || n > MaxEvents {
		return nil, fmt.Errorf("%q is not N@TIME or N@TIME+DURATION, such as 60@0:50 or 600@10s+1m, with N from 1 to %d", text, MaxEvents)
	}
	when, length, spread := strings.Cut(when, "+")
	from, err := offset(when)
	if err != nil {
		return nil, err
	}
	var over time.Duration
	if spread {
		if over, err = time.ParseDuration(length); err != nil || over <= 0 {
			return nil, fmt.Errorf("%q: %q is not a duration above zero, such as 30s", text, length)
		}
	}
	events := make([]Event, n)
	for i := range events {
		at := from.Add(time.Duration(float64(over) * float64(i) / float64(n))).Truncate(time.Microsecond)
		events[i] = Event{At: at, Cost: 1}
	}
	return events, nil
}

// offset reads a time after Origin: 50s, 1m10s, 0:50, 1:10, 1:00:00.
func offset(text string) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return Origin.Add(d), nil
	}
	parts := strings.Split(text, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return time.Time{}, fmt.Errorf("%q is not a time such as 50s, 0:50 or 1:00:00", text)
	}
	var whole int64
	for i, part := range parts[:len(parts)-1] {
		n, err := strconv.ParseInt(part, 10, 32)
		if err != nil || n < 0 || i > 0 && n > 59 {
			return time.Time{}, fmt.Errorf("%q is not a time such as 50s, 0:50 or 1:00:00", text)
		}
		whole = whole*60 + n
	}
	s, err := time.ParseDuration(parts[len(parts)-1] + "s")
	if err != nil || s < 0 || s >= time.Minute {
		return time.Time{}, fmt.Errorf("%q is not a time such as 50s, 0:50 or 1:00:00", text)
	}
	return Origin.Add(time.Duration(whole)*time.Minute + s), nil
}

// access is a line of a web server's log: address and time.
var access = regexp.MustCompile(`^(\S+) \S+ .*?\[(\d{1,2}/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\]`)

// A LineError names the line of a log that cannot be read.
type LineError struct {
	Line int
	Text string
	Err  error
}

func (e *LineError) Error() string {
	text := e.Text
	if len(text) > 60 {
		text = text[:60] + "…"
	}
	return fmt.Sprintf("line %d, %q: %v", e.Line, text, e.Err)
}

func (e *LineError) Unwrap() error { return e.Err }

// Read reads a log: one request on each line, as
//
//	TIME [COST [KEY]]     with a time as RFC 3339, as seconds since 1970, or as an offset: 50s, 0:50
//	a line of a web server's access log, whose key is the client's address
//
// Lines that are empty or begin with # are skipped.
func Read(r io.Reader) ([]Event, error) {
	var events []Event
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		e, err := event(text)
		if err != nil {
			return nil, &LineError{n, text, err}
		}
		if events = append(events, e); len(events) > MaxEvents {
			return nil, &LineError{n, text, fmt.Errorf("there are more than %d requests", MaxEvents)}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return events, nil
}

func event(text string) (Event, error) {
	if !utf8.ValidString(text) {
		return Event{}, errors.New("it is not UTF-8")
	}
	if m := access.FindStringSubmatch(text); m != nil {
		at, err := time.Parse("2/Jan/2006:15:04:05 -0700", m[2])
		return Event{At: at, Key: m[1], Cost: 1}, err
	}
	fields := strings.Fields(text)
	e := Event{Cost: 1}
	var err error
	if e.At, err = moment(fields[0]); err != nil {
		return e, err
	}
	if len(fields) > 1 {
		if e.Cost, err = strconv.ParseInt(fields[1], 10, 64); err != nil || e.Cost < 1 {
			return e, fmt.Errorf("%q is not a cost, a number above zero", fields[1])
		}
	}
	if len(fields) > 2 {
		e.Key = strings.Join(fields[2:], " ")
	}
	return e, nil
}

func moment(text string) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at, nil
	}
	whole, fraction, _ := strings.Cut(text, ".")
	if s, err := strconv.ParseInt(whole, 10, 64); err == nil && s >= 0 && s < 1<<33 {
		ns, err := strconv.ParseInt((fraction + "000000000")[:9], 10, 64)
		if err == nil && ns >= 0 {
			return time.Unix(s, ns), nil
		}
	}
	at, err := offset(text)
	if err != nil {
		err = fmt.Errorf("%q is no time: write RFC 3339, seconds since 1970, or an offset such as 50s or 0:50", text)
	}
	return at, err
}
