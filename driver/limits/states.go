package limits

import (
	"context"
	"iter"
	"time"
)

// Lister is implemented by stores of limits that can show their state to people.
type Lister interface {
	// ListStates shows the state of every key that begins with prefix and sorts after
	// after, in the order of the bytes of the keys, if something that was taken has not
	// come back. With "" as after it starts at the first key. prefix is literal text.
	//
	// It reads page by page, changes nothing, delays other requests by one page at most,
	// and is no snapshot. A state that exists throughout is shown once; one that begins
	// or ends meanwhile is shown once or not at all. The first error ends it.
	ListStates(ctx context.Context, prefix, after string) iter.Seq2[State, error]
}

// ListerOf returns s, or a store that s wraps, as a Lister, if it is one: see driver.As.
func ListerOf(s Store) (Lister, bool) { return abilityOf[Lister](s) }

// A State is what a store keeps of one key. The limit itself comes with the requests of
// programs, so the store mostly knows what was taken, but not of how much.
type State struct {
	// Key is the key of the limit in the store: see Take.Key. A key that another program
	// has written may be illegal for check.Key.
	Key  string
	Kind Kind

	// Used is how much was taken and has not come back: for an Estimate, the present
	// estimate; for a Bucket, promised turns included, whole tokens, rounded up; for
	// Several, the sum. It is 0 for Unknown, else above 0.
	Used int64

	// Of is the number that Used counts against, or 0 if the store does not know it. For
	// an Estimate it is the limit, for a Bucket the burst, of the last take. A Bucket
	// that had more than its burst out, as debt or as promises, shows that amount until
	// the first take after it. Other kinds have 0.
	Of int64

	// N per Period is the rate of a Bucket, in lowest terms, or the limit of an Estimate.
	// For other kinds both are 0.
	N      int64
	Period time.Duration

	// Reset is the time until all has come back if nothing else is taken. For Unknown it
	// is how long the store keeps the state, or 0 if the store does not know.
	Reset time.Duration
}

// Kind is the kind of a key's state. Limits of one kind share a state.
type Kind string

const (
	Window   Kind = "window"   // FixedWindow, SlidingWindow, SlidingLog
	Estimate Kind = "estimate" // EstimatedWindow
	Bucket   Kind = "bucket"   // TokenBucket, LeakyBucket
	Several  Kind = "several"  // limits of several kinds have taken from the key
	Unknown  Kind = "unknown"  // written by a program whose format this one does not know
)
