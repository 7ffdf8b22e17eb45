// Package record is the state machine of driver.Records for one operation: how each
// call changes it. It has no clock and no store. Stores that cannot decide on their
// servers run it between a read and a conditional write, and the other stores are
// compared with it.
package record

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/batonhq/baton/driver"
)

// A State is what is kept of one operation. Times are microseconds since 1970. The zero
// State is that of an unknown operation.
type State struct {
	Token    int64  `json:"token,string"`
	Owner    string `json:"owner,omitempty"`
	Attempts int64  `json:"attempts"`
	Done     bool   `json:"done,omitempty"`
	Failed   bool   `json:"failed,omitempty"`
	Retry    bool   `json:"retry,omitempty"`
	Result   []byte `json:"result,omitempty"`
	Began    int64  `json:"began_us"`
	Finished int64  `json:"finished_us,omitempty"`
	Until    int64  `json:"until_us,omitempty"` // 0 where the store itself removes what has expired
}

// Exists reports whether there is a record at a time.
func (s State) Exists(now int64) bool { return s.Token != 0 && (s.Until == 0 || now < s.Until) }

// Begin is what driver.Records says, at now. It reports whether the state
// changed.
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

// Finish is what driver.Records says, at now. It reports whether the state
// changed.
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
	// Two processes that estimate the server's clock may differ by a little.
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

// Forget is what driver.Records says, at now. It reports whether the state
// changed.
func (s *State) Forget(now int64) (changed bool, err error) {
	if _, err := s.Find(now); err != nil {
		return false, err
	}
	*s = State{}
	return true, nil
}

// until is the end in microseconds, rounded up.
func until(now int64, keep time.Duration) int64 {
	return now + int64((keep+time.Microsecond-1)/time.Microsecond)
}

// Record is the state as callers see it, at now.
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

// Listed is Record without the result of an operation that is finished.
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

// Word is the word for the state.
func (s State) Word() string { return Word(s.Done, driver.Outcome{Failed: s.Failed, Retry: s.Retry}) }

// SetWord sets what Word has said.
func (s *State) SetWord(word string) {
	done, o := Read(word)
	s.Done, s.Failed, s.Retry = done, o.Failed, o.Retry
}

// Text is the state in one line of JSON, for stores that keep text; an operator can
// read it.
func (s State) Text() []byte {
	b, _ := json.Marshal(s) // nothing in it can fail
	return b
}

// Parse reads what Text has written.
func Parse(text []byte) (State, error) {
	var s State
	if err := json.Unmarshal(text, &s); err != nil {
		return State{}, fmt.Errorf("what is kept of an operation cannot be read: %w", err)
	}
	if s.Token <= 0 {
		return State{}, fmt.Errorf("what is kept of an operation has no token: %.100q", text)
	}
	return s, nil
}
