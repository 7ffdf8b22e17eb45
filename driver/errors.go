package driver

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

var (
	// ErrHeld is what errors.Is finds in every *HeldError.
	ErrHeld = errors.New("the lock is held")

	// ErrQueueFull is what errors.Is finds in every *QueueFullError.
	ErrQueueFull = errors.New("as many wait for the lock as may")

	// ErrLost says that a claim is no longer valid: it expired, or was released, broken,
	// or deleted in the store by other means.
	ErrLost = errors.New("the claim does not stand any more")

	// ErrUnavailable says that the store could not be reached, or was not ready to
	// answer, and that the request had no effect. The caller should try again later.
	ErrUnavailable = errors.New("store unavailable")

	// ErrDenied says that the store denies access: a password is wrong, or a right is
	// missing. The request had no effect, and only another configuration helps.
	ErrDenied = errors.New("the store denies access")

	// ErrUnknown says that the request may or may not have taken effect.
	ErrUnknown = errors.New("outcome unknown")

	// ErrClosed says that the store was closed by this process.
	ErrClosed = errors.New("store closed")
)

// Answered wraps err, which a server of the store has answered, so that AnswerOf returns
// text. text must not contain an address.
func Answered(err error, text string) error { return &answered{err, text} }

type answered struct {
	error
	text string
}

func (a *answered) Unwrap() error { return a.error }

// AnswerOf returns the text of a server's answer, printable. ok is false for other
// errors, such as those of the network.
func AnswerOf(err error) (text string, ok bool) {
	a, ok := errors.AsType[*answered](err)
	if !ok {
		return "", false
	}
	return Printable(a.text), true
}

// HeldError refuses an attempt because the lock is held or has waiters. A field is zero
// if the store does not know its value.
type HeldError struct {
	Key       string
	Owner     string        // one of the holders
	Age       time.Duration // how long that owner has held it; 0 if not known
	Remaining time.Duration // how long until it expires, unless renewed
	Waiting   int           // how many waiters the store's queue has
	Foreign   bool          // held by a program that is not Baton
	Local     bool          // held by the same Locker; package baton sets it, a store never does
}

// Is makes errors.Is(err, ErrHeld) true.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

func (e *HeldError) Error() string {
	s := fmt.Sprintf("lock %q is held", e.Key)
	if e.Owner != "" {
		s += " by " + quoted(e.Owner)
	} else if e.Foreign {
		s += " by a program that is not Baton"
	}
	if e.Age > 0 {
		s += " for " + roundAge(e.Age).String()
	}
	if e.Remaining > 0 {
		s += ", expires in " + roundAge(e.Remaining).String() + " unless renewed"
	}
	if e.Waiting > 0 {
		s += fmt.Sprintf(", %d waiting", e.Waiting)
	}
	if e.Local {
		s += "; this Locker holds it itself (see baton.ErrNested)"
	}
	return s
}

// QueueFullError refuses an attempt that would have to wait, because the queue has
// Request.MaxWaiting waiters already.
type QueueFullError struct {
	Key     string
	Waiting int  // how many wait, at least
	Local   bool // they are goroutines of this process; package baton sets it, a store never does
}

// Is makes errors.Is(err, ErrQueueFull) true.
func (e *QueueFullError) Is(target error) bool { return target == ErrQueueFull }

func (e *QueueFullError) Error() string {
	where := "in the store"
	if e.Local {
		where = "in this process"
	}
	return fmt.Sprintf("lock %q is held, with %d waiting already %s, as many as the caller allows: try again later, or allow more", e.Key, e.Waiting, where)
}

// Printable escapes every invisible character of text as in a Go string, including line
// ends and marks that change the direction of writing. Text from other programs must pass
// through it before a terminal or a log.
func Printable(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return r == utf8.RuneError || !strconv.IsPrint(r) }) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		if r == utf8.RuneError || !strconv.IsPrint(r) {
			q := strconv.Quote(text[:n])
			b.WriteString(q[1 : len(q)-1])
		} else {
			b.WriteString(text[:n])
		}
		text = text[n:]
	}
	return b.String()
}

// quoted puts a name in quotes if it is ambiguous in an error message without them.
func quoted(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool {
		return r == utf8.RuneError || r == '"' || r == ',' || r == ' ' || !strconv.IsPrint(r)
	}) {
		return strconv.Quote(name)
	}
	return name
}

func roundAge(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}

// CapacityError refuses an attempt because the key is held with another capacity.
// Programs that share a key must agree on its capacity.
type CapacityError struct {
	Key          string
	InUse, Asked int64 // Whole: readers
}

func (e *CapacityError) Error() string {
	return fmt.Sprintf("lock %q is in use as %s, asked for as %s: programs that share a key must agree on its capacity",
		e.Key, capacityName(e.InUse), capacityName(e.Asked))
}

func capacityName(n int64) string {
	if n == Whole {
		return "a read-write lock"
	}
	return fmt.Sprintf("%d permits", n)
}

// NotLockError says that something other than a lock is stored under the key. The store
// did not change it.
type NotLockError struct {
	Key   string
	Store string
	Found string // "a hash", "a string without expiry"
}

func (e *NotLockError) Error() string {
	return fmt.Sprintf("%s key %q holds %s, which is not a lock: choose another key or a prefix, or remove it", e.Store, e.Key, Printable(e.Found))
}

// KeyError refuses a key before anything was sent.
type KeyError struct {
	Key    string
	Reason string
}

func (e *KeyError) Error() string {
	k := e.Key
	if len(k) > 40 {
		k = k[:40] + "…"
	}
	return fmt.Sprintf("bad key %q: %s", k, Printable(e.Reason))
}

// RequestError refuses a request before anything was sent.
type RequestError struct {
	Key    string
	Field  string // "id", "owner", "weight", "ttl", "waiting", "token", "keep", "result"
	Reason string // never shows an ID
}

func (e *RequestError) Error() string {
	return fmt.Sprintf("bad %s for %q: %s", e.Field, e.Key, e.Reason)
}
