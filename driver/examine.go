package driver

import (
	"context"
	"time"
)

// Examiner is implemented by stores that can tell what makes locks unsafe or slow:
// in their servers, or in how the process reaches them.
type Examiner interface {
	// Examine asks and changes nothing. It returns what it found even with an
	// error, which says that it could not ask about something.
	Examine(ctx context.Context) ([]Finding, error)
}

// Clock is implemented by stores whose server has a clock of its own. It serves to
// compare that clock with this machine's. Locks never depend on the difference.
type Clock interface {
	// ServerTime asks the server what time it is.
	ServerTime(ctx context.Context) (time.Time, error)
}

// Refusal is implemented by errors of constructors that refuse a server or
// file because locks would not be safe there.
type Refusal interface {
	error

	// Finding says what was found. ok is false if the error is about
	// something else.
	Finding() (f Finding, ok bool)
}

// Severity says what a Finding puts at risk.
type Severity uint8

const (
	Note   Severity = iota // worth knowing; nothing is wrong
	Slow                   // costs speed
	Unsafe                 // can cost a promise: exclusion, rising tokens, or that a wait ends
)

func (s Severity) String() string {
	switch s {
	case Slow:
		return "slow"
	case Unsafe:
		return "unsafe"
	}
	return "note"
}

// A Finding is one fact about a store. No text shows a secret.
type Finding struct {
	Name     string // short and stable, for programs: "maxmemory-policy"
	Severity Severity
	What     string // a sentence: what was found, and what it can do to a lock
	Mend     string // what to do about it: a command or a setting; "" if nothing
}
