package history

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// A line is one written event. Event decides which fields it has.
type line struct {
	Event event `json:"event"`
	At    int64 `json:"at"`
	Op
	Key    string `json:"key,omitempty"`
	Mode   Mode   `json:"mode,omitempty"`
	Weight int64  `json:"weight,omitempty"`
	Of     int64  `json:"of,omitempty"`
	Waits  bool   `json:"waits,omitempty"`
	Result Result `json:"result,omitempty"`
	Error  string `json:"error,omitempty"`
	Token  int64  `json:"token,omitempty"`
	N      int64  `json:"n,omitempty"`
	Left   int64  `json:"left,omitempty"`
	Stored int64  `json:"stored,omitempty"`

	Patience time.Duration `json:"patience,omitempty"`
	Hung     bool          `json:"hung,omitempty"`
}

type event string

const (
	acquires event = "acquires"
	acquired event = "acquired"
	believes event = "believes"
	releases event = "releases"
	released event = "released"
	loses    event = "loses"
	asks     event = "asks"
	decided  event = "decided"
)

// A Log writes the events of one client. Every event is one write call, so a kill loses no earlier event.
// Its methods are safe for concurrent use; after an error of the writer they do nothing, and Err returns
// it.
type Log struct {
	client int

	mu   sync.Mutex
	w    io.Writer
	next int64
	err  error
}

// NewLog returns the log of a client.
func NewLog(w io.Writer, client int) *Log { return &Log{w: w, client: client} }

// Err returns the first error of the writer.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *Log) write(x line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.put(x)
}

func (l *Log) put(x line) {
	b, err := json.Marshal(x)
	if err == nil && l.err == nil {
		_, err = l.w.Write(append(b, '\n'))
	}
	l.err = cmp.Or(l.err, err)
}

// begin writes x as a new operation. Its instant is read before the operation begins, even if the
// writing takes long.
func (l *Log) begin(x line) Op {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	x.Op = Op{l.client, l.next}
	x.At = Now()
	l.put(x)
	return x.Op
}

// Acquires is called right before an attempt, which h describes.
func (l *Log) Acquires(h Hold) Op {
	return l.begin(line{Event: acquires, Key: h.Key, Mode: h.Mode, Weight: h.Weight, Of: h.Of, Waits: h.Waits})
}

// Acquired is called after the attempt returned. token has a meaning only with Granted.
func (l *Log) Acquired(op Op, r Result, token int64, err error) {
	l.write(line{Event: acquired, At: Now(), Op: op, Result: r, Token: token, Error: text(err)})
}

// Believes says that a lease was valid at an instant that was read after the attempt returned, and
// before the lease was found valid. A lease that ended is never valid again, so the lease was valid
// between any two such instants. This holds even if the client stops for long between its steps.
func (l *Log) Believes(op Op, at int64) { l.write(line{Event: believes, At: at, Op: op}) }

// Releases is called right before a release.
func (l *Log) Releases(op Op) { l.write(line{Event: releases, At: Now(), Op: op}) }

// Released is called after the release returned: Granted if the lock was still held.
func (l *Log) Released(op Op, r Result, err error) {
	l.write(line{Event: released, At: Now(), Op: op, Result: r, Error: text(err)})
}

// Loses is called after a lease was found lost.
func (l *Log) Loses(op Op, cause error) {
	l.write(line{Event: loses, At: Now(), Op: op, Error: text(cause)})
}

// Asks is called right before a request to a limiter; d describes it.
func (l *Log) Asks(d Decision) Op {
	return l.begin(line{Event: asks, Key: d.Key, N: d.N, Waits: d.Waits, Patience: d.Patience})
}

// Decided is called after the limiter's answer: at is Decision.At.
func (l *Log) Decided(op Op, r Result, left, at int64, err error) {
	l.write(line{Event: decided, At: Now(), Op: op, Result: r, Left: left, Stored: at, Error: text(err)})
}

// HungUp is called instead of Decided if the caller did not wait for the answer.
func (l *Log) HungUp(op Op) {
	l.write(line{Event: decided, At: Now(), Op: op, Result: Unknown, Hung: true})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Read adds a client's log to h. It skips a last line that a kill has truncated; any other invalid line
// is an error.
func (h *History) Read(r io.Reader) error {
	holds, decisions := make(map[Op]int), make(map[Op]int)
	torn := error(nil)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		if torn != nil {
			return torn
		}
		var x line
		if err := json.Unmarshal(lines.Bytes(), &x); err != nil {
			torn = fmt.Errorf("line %d of a history: %w", n, err)
			continue
		}
		if err := h.add(x, holds, decisions); err != nil {
			return fmt.Errorf("line %d of a history: %w", n, err)
		}
	}
	return lines.Err()
}

func (h *History) add(x line, holds, decisions map[Op]int) error {
	switch x.Event {
	case acquires:
		holds[x.Op] = len(h.Holds)
		h.Holds = append(h.Holds, Hold{Op: x.Op, Key: x.Key, Mode: x.Mode, Weight: x.Weight, Of: x.Of, Waits: x.Waits, Called: x.At, Result: Unknown})
		return nil
	case asks:
		decisions[x.Op] = len(h.Decisions)
		h.Decisions = append(h.Decisions, Decision{
			Op: x.Op, Key: x.Key, N: x.N, Waits: x.Waits, Patience: x.Patience, Called: x.At, Result: Unknown,
		})
		return nil
	case decided:
		i, ok := decisions[x.Op]
		if !ok {
			return errors.New("a decision was never asked for")
		}
		d := &h.Decisions[i]
		d.Returned, d.Result, d.Remaining, d.At, d.Error, d.Hung = x.At, x.Result, x.Left, x.Stored, x.Error, x.Hung
		return nil
	}
	i, ok := holds[x.Op]
	if !ok {
		return fmt.Errorf("%q is of a lock that was never asked for", x.Event)
	}
	o := &h.Holds[i]
	switch x.Event {
	case acquired:
		o.Returned, o.Result, o.Token, o.Error = x.At, x.Result, x.Token, x.Error
	case believes:
		if o.SureFrom == 0 {
			o.SureFrom = x.At
		}
		o.SureTo = max(o.SureTo, x.At)
	case releases:
		o.ReleaseCalled = x.At
	case released:
		o.ReleaseReturned, o.Released, o.Cause = x.At, x.Result, x.Error
	case loses:
		o.LostAt, o.Cause = x.At, x.Error
	default:
		return fmt.Errorf("%q is no event", x.Event)
	}
	return nil
}

// Sort sorts all fields in the order of their doc comments, after the last Read.
func (h *History) Sort() {
	slices.SortStableFunc(h.Holds, func(a, b Hold) int { return cmp.Compare(a.Called, b.Called) })
	slices.SortStableFunc(h.Decisions, func(a, b Decision) int { return cmp.Compare(a.Called, b.Called) })
	slices.SortStableFunc(h.Marks, func(a, b Mark) int { return cmp.Compare(a.At, b.At) })
}
