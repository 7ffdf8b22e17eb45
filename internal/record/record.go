// Package record is the state machine of driver.Records for one operation. It has no
// clock and no store. Package kept runs it between a read and a compare-and-swap.
package record

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
)

// A State is the record of one operation. Times are microseconds since 1970. The zero
// State is that of an unknown operation.
type State struct {
	Token    int64
	Owner    string
	Attempts int64
	Done     bool
	Failed   bool
	Retry    bool
	Result   []byte
	Began    int64
	Finished int64
	Until    int64 // when it ends; 0: only the store knows. It is not part of the text
}

func (s State) Exists(now int64) bool { return s.Token != 0 && (s.Until == 0 || now < s.Until) }

// Begin is driver.Records.BeginAttempt, at now. It reports whether the state changed.
func (s *State) Begin(a driver.Attempt, now int64, keep time.Duration) (changed bool, err error) {
	if !s.Exists(now) {
		*s = State{}
	}
	switch {
	case s.Done:
		return false, nil
	case a.Token < s.Token:
		return false, &driver.SupersededError{Key: a.Key, Token: a.Token, Last: s.Token}
	case a.Token > s.Token:
		*s = State{Token: a.Token, Owner: a.Owner, Attempts: s.Attempts + 1, Began: now}
	}
	s.Until = until(now, keep)
	return true, nil
}

// Finish is driver.Records.FinishAttempt, at now. It reports whether the state changed.
func (s *State) Finish(a driver.Attempt, o driver.Outcome, now int64, keep time.Duration) (changed bool, err error) {
	if !s.Exists(now) {
		*s = State{}
	}
	if a.Token != s.Token {
		return false, &driver.SupersededError{Key: a.Key, Token: a.Token, Last: s.Token, Done: s.Done}
	}
	if s.Done {
		return false, nil
	}
	s.Done, s.Failed, s.Retry, s.Result = !o.Retry, o.Failed, o.Retry, append([]byte(nil), o.Result...)
	// Estimates of the server's clock by two processes may differ a little.
	s.Finished, s.Until = max(now, s.Began), until(now, keep)
	return true, nil
}

// Find returns driver.ErrNoRecord if there is no record at now.
func (s *State) Find(now int64) (changed bool, err error) {
	if !s.Exists(now) {
		return false, driver.ErrNoRecord
	}
	return false, nil
}

// Forget is driver.Records.ForgetRecord, at now. It reports whether the state changed.
func (s *State) Forget(now int64) (changed bool, err error) {
	if _, err := s.Find(now); err != nil {
		return false, err
	}
	*s = State{}
	return true, nil
}

func until(now int64, keep time.Duration) int64 {
	return now + int64((keep+time.Microsecond-1)/time.Microsecond)
}

// Record is the state for callers, at now.
func (s State) Record(key string, now int64) driver.Record {
	r := driver.Record{
		Key: key, Token: s.Token, Owner: s.Owner, Attempts: s.Attempts,
		Done: s.Done, Outcome: driver.Outcome{Failed: s.Failed, Retry: s.Retry, Result: append([]byte(nil), s.Result...)},
		Began: moment(s.Began), Finished: moment(s.Finished),
	}
	if s.Until != 0 {
		r.Left = max(time.Duration(s.Until-now)*time.Microsecond, 0)
	}
	return r
}

// Listed is Record without the result of a finished operation.
func (s State) Listed(key string, now int64) driver.Record {
	if s.Done {
		s.Result = nil
	}
	return s.Record(key, now)
}

func moment(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros)
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// The words for the state of an operation, for operators.
const (
	begun     = "begun"  // or crashed
	failed    = "failed" // another attempt may begin
	final     = "final"  // failed for good
	succeeded = "succeeded"
)

func (s State) word() string {
	switch {
	case s.Retry:
		return failed
	case s.Failed:
		return final
	case s.Done:
		return succeeded
	}
	return begun
}

// A head is the first line of the text of a State.
type head struct {
	State    string    `json:"state"`
	Token    int64     `json:"token,string"`
	Owner    string    `json:"owner"`
	Attempts int64     `json:"attempts"`
	Began    time.Time `json:"began"`
	Finished time.Time `json:"finished,omitzero"`
}

// Text is what stores keep: a line of JSON that an operator can read, of less than a
// kilobyte, and the result as it is.
func (s State) Text() string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(head{s.word(), s.Token, s.Owner, s.Attempts, moment(s.Began).UTC(), moment(s.Finished).UTC()}) // cannot fail
	b.Write(s.Result)
	return b.String()
}

// Parse is the inverse of Text. A result that was cut off stays cut.
func Parse(text string) (State, error) {
	line, result, _ := strings.Cut(text, "\n")
	var h head
	if err := json.Unmarshal([]byte(line), &h); err != nil {
		return State{}, fmt.Errorf("what is kept of an operation cannot be read: %w", err)
	}
	s := State{
		Token: h.Token, Owner: h.Owner, Attempts: h.Attempts, Result: []byte(result), Began: micros(h.Began), Finished: micros(h.Finished),
		Done: h.State == succeeded || h.State == final, Failed: h.State == final, Retry: h.State == failed,
	}
	if s.Token <= 0 || s.word() != h.State {
		return State{}, fmt.Errorf("what is kept of an operation has no token or no state: %.100q", line)
	}
	return s, nil
}
