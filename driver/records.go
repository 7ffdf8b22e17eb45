package driver

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

var (
	// ErrNoRecord says that the store has no record of the operation: it never began, its
	// record was forgotten, or the time to keep the record has passed.
	ErrNoRecord = errors.New("no record of this operation")

	// ErrSuperseded is what errors.Is finds in every *SupersededError.
	ErrSuperseded = errors.New("superseded by another attempt")
)

// Records remembers the outcomes of operations that are to succeed once. An operation is
// a key. A process that runs it holds a lock of its choice meanwhile and passes that
// lock's fencing token. Of the attempts that have begun, only the one with the highest
// token may finish, and only one attempt ever does.
//
// All methods are safe for concurrent use and obey their context. Errors are those named
// here, of package check, context errors, or wrap ErrUnavailable or ErrUnknown. Records,
// locks and limits are separate: one key can name all three.
type Records interface {
	// A record is kept for at least its time by the store's clock, and for a few seconds
	// longer at most.

	// BeginAttempt notes that an attempt begins, and returns the resulting record.
	//
	// If the operation is finished it returns that record and changes nothing. If an
	// attempt with a higher token has begun, it fails with *SupersededError. Otherwise
	// the record names this attempt, and is kept for keep from now. BeginAttempt is
	// idempotent in the token: only the first call adds to Record.Attempts.
	BeginAttempt(ctx context.Context, a Attempt, keep time.Duration) (Record, error)

	// FinishAttempt records the outcome of the attempt with a.Token, if that attempt was
	// the last to begin and no outcome is recorded yet. It keeps the record for keep from
	// now, and returns it. If this attempt has finished before, it returns the earlier
	// outcome. In all other cases nothing changes and it fails with *SupersededError:
	// another attempt has begun or finished, or the record is gone.
	//
	// An Outcome with Retry does not finish the operation. It is kept in the same way,
	// until the next attempt begins or this one finishes.
	FinishAttempt(ctx context.Context, a Attempt, o Outcome, keep time.Duration) (Record, error)

	// FindRecord returns the record of an operation, or ErrNoRecord.
	FindRecord(ctx context.Context, key string) (Record, error)

	// ForgetRecord removes the record, so that the operation can run again. An attempt
	// that is under way can no longer finish. Without a record it fails with ErrNoRecord.
	ForgetRecord(ctx context.Context, key string) error
}

// RecordLister is implemented by stores of records that can show them to people.
type RecordLister interface {
	// ListRecords shows the record of every operation whose key begins with prefix, in no
	// particular order. prefix is literal text. Record.Result is nil for finished
	// operations.
	//
	// It reads page by page and is no snapshot. A record that exists throughout is shown
	// once; one that begins or ends meanwhile is shown once or not at all. The first
	// error ends it.
	ListRecords(ctx context.Context, prefix string) iter.Seq2[Record, error]
}

// An Attempt to run an operation.
type Attempt struct {
	// Key names the operation; check.Key accepts it.
	Key string

	// Token is positive. No other attempt has the same for this key.
	Token int64

	// Owner is for people: at most 128 bytes of printable UTF-8, kept byte by byte and
	// never compared. FinishAttempt ignores it.
	Owner string
}

// An Outcome is the result of an attempt, for all later callers, or its failure.
type Outcome struct {
	// Failed distinguishes a final error from a success.
	Failed bool

	// Retry says that the attempt failed and that another one may begin: the operation is
	// not finished. Result is the reason, for people, in at most check.MaxFailure bytes.
	// Failed is false.
	Retry bool

	// Result is any bytes, at most check.MaxResult.
	Result []byte
}

// A Record is the store's knowledge of an operation. Unknown fields are zero.
type Record struct {
	Key      string
	Token    int64 // of the last attempt that began
	Owner    string
	Attempts int64 // how many have begun

	// Done says that the operation is finished, with Outcome. Otherwise Outcome is the
	// failure of the last attempt if Retry is true, and zero if the store knows of no
	// end.
	Done bool
	Outcome

	// Began and Finished are the times of the last attempt, by the clocks of the machines
	// that reported them, for people.
	Began, Finished time.Time

	// Left is how much longer the record is kept, at least.
	Left time.Duration
}

// SupersededError refuses an attempt that may not finish. Nothing was changed.
type SupersededError struct {
	Key   string
	Token int64 // of the attempt that was refused
	Last  int64 // of the last attempt that began; 0 if there is no record
	Done  bool  // Last has finished
}

// Is makes errors.Is(err, ErrSuperseded) true.
func (e *SupersededError) Is(target error) bool { return target == ErrSuperseded }

func (e *SupersededError) Error() string {
	s := fmt.Sprintf("operation %q: the attempt with token %d ", e.Key, e.Token)
	switch {
	case e.Last == 0:
		return s + "has no record any more: it was forgotten, or kept for too short a time"
	case e.Done:
		return s + fmt.Sprintf("came too late: the one with token %d has finished", e.Last)
	}
	return s + fmt.Sprintf("is superseded by the one with token %d", e.Last)
}
