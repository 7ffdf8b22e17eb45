package driver

import (
	"context"
	"time"
)

// Examiner is implemented by stores that can find what makes locks unsafe or slow, in
// their servers or in the connection to them.
type Examiner interface {
	// Examine changes nothing. An error says that something could not be examined; the
	// findings returned with it are valid.
	Examine(ctx context.Context) ([]Finding, error)
}

// Clock is implemented by stores whose server has a clock of its own, to compare it with
// this machine's. Locks never depend on the difference.
type Clock interface {
	// ServerTime returns the server's time.
	ServerTime(ctx context.Context) (time.Time, error)
}

// Refusal is implemented by errors of constructors that refuse a server or
// file because locks would not be safe there.
type Refusal interface {
	error

	// Finding returns the reason of the refusal. ok is false if the error is about
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
	What     string // a sentence: the fact, and its possible effect on a lock
	Mend     string // a command or a setting that helps; "" if there is none
}
