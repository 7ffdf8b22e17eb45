package limits

import (
	"context"
	"iter"
	"time"
)

// Lister is implemented by stores of limits that can show people what they keep.
type Lister interface {
	// ListStates shows the state of every key that begins with prefix and comes after
	// after, in the order of the bytes of the keys, as far as something that was taken
	// has not come back. To list all that begins with a prefix, after is "". Any text is
	// a prefix, and none of its characters has a meaning.
	//
	// It reads page by page, changes nothing, keeps no request about limits waiting for
	// longer than one page, and is no snapshot. A state that stays from before to after
	// is shown once; one that begins or comes back meanwhile is shown once or not at
	// all, and is no error. The first error ends it.
	ListStates(ctx context.Context, prefix, after string) iter.Seq2[State, error]
}

// ListerOf returns s, or a store that s wraps, as a Lister, if it is one: see driver.As.
func ListerOf(s Store) (Lister, bool) { return abilityOf[Lister](s) }

// A State is what a store keeps of one key. The limit itself comes with the requests of
// programs: the store knows what was taken, and mostly not out of how much.
type State struct {
	// Key is that of the limit in the store: see Take.Key. A store may have one that
	// check.Key refuses, if another program has written it.
	Key  string
	Kind Kind

	// Used is how much was taken and has not come back: of an Estimate, what it counts
	// now; of a Bucket, also what was promised to requests whose turn is ahead, in whole
	// tokens, rounded up; of Several, the sum. It is 0 if the state is Unknown, and
	// above 0 otherwise.
	Used int64

	// Of is out of how much, or 0 if the store does not know. Of an Estimate it is the
	// limit, of a Bucket the burst, by which something was taken last. While more than
	// the burst is out, as debt or as promises, and until something is taken after that,
	// it is how much was out then. Of other kinds it is 0.
	Of int64

	// N per Period is the rate at which a Bucket gives back, in lowest terms, and the
	// limit of an Estimate. Of other kinds both are 0.
	N      int64
	Period time.Duration

	// Reset is how long until all has come back if nothing else is taken. If the state
	// is Unknown it is how long the store keeps it, or 0 if the store does not know.
	Reset time.Duration
}

// Kind is what the state of a key is of. What is taken by limits of one kind shares a
// state.
type Kind string

const (
	Window   Kind = "window"   // FixedWindow, SlidingWindow, SlidingLog
	Estimate Kind = "estimate" // EstimatedWindow
	Bucket   Kind = "bucket"   // TokenBucket, LeakyBucket
	Several  Kind = "several"  // limits of several kinds have taken from the key
	Unknown  Kind = "unknown"  // the program that wrote it knows what this one does not
)
