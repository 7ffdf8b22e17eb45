package driver

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

var (
	// ErrNoRecord says that the store knows nothing of an operation: it never
	// began, or its record was forgotten, or the time to keep it has passed.
	ErrNoRecord = errors.New("no record of this operation")

	// ErrSuperseded is what errors.Is finds in every *SupersededError.
	ErrSuperseded = errors.New("superseded by another attempt")
)

// Records remembers the outcomes of operations that are to succeed once. An
// operation is a key. A process that runs it holds a lock of its choice meanwhile
// and brings that lock's fencing token: of the attempts that have begun, only the
// one with the highest token may finish, and only one ever does.
//
// All methods are safe for concurrent use and obey their context. Errors are those
// named here, of package check, context errors, or wrap one of ErrUnavailable and
// ErrUnknown. Records, locks and limits are separate: one key can name all three.
type Records interface {
	// A record is kept for at least its time by the store's clock, and is answered
	// for a few seconds longer at most.

	// BeginAttempt notes that an attempt begins, and returns the record after that.
	//
	// If the operation is finished it returns that record and changes nothing. If
	// an attempt with a higher token has begun, it fails with *SupersededError.
	// Otherwise the record now names this attempt, and is kept for keep from now.
	// It is idempotent in the token: only the first call adds to Record.Attempts.
	BeginAttempt(ctx context.Context, a Attempt, keep time.Duration) (Record, error)

	// FinishAttempt records the outcome of the attempt with a.Token, if it is the
	// last that has begun and no outcome is recorded yet, keeps it for keep from
	// now, and returns the record. If this attempt has finished before, that
	// outcome stays and is returned. In all other cases nothing changes and it
	// fails with *SupersededError: another attempt has begun or finished, or the
	// record is gone.
	//
	// An Outcome with Retry finishes nothing. It is kept in the same way, until the
	// next attempt begins or this one finishes after all.
	FinishAttempt(ctx context.Context, a Attempt, o Outcome, keep time.Duration) (Record, error)

	// FindRecord returns the record of an operation, or ErrNoRecord.
	FindRecord(ctx context.Context, key string) (Record, error)

	// ForgetRecord removes the record, whatever it says, so that the operation can
	// run again. An attempt that is under way cannot finish any more. If there is
	// no record it fails with ErrNoRecord.
	ForgetRecord(ctx context.Context, key string) error
}

// RecordLister is implemented by stores of records that can show them to people.
type RecordLister interface {
	// ListRecords shows the record of every operation whose key begins with prefix, in
	// no particular order. It leaves out the results of operations that are finished:
	// Record.Result is nil. Any text is a prefix, and none of its characters has a
	// meaning.
	//
	// It reads page by page and is no snapshot. A record that stays from before to after
	// is shown once; one that begins or ends meanwhile is shown once or not at all, and
	// is no error. The first error ends it.
	ListRecords(ctx context.Context, prefix string) iter.Seq2[Record, error]
}

// An Attempt to run an operation.
type Attempt struct {
	// Key names the operation; check.Key accepts it.
	Key string

	// Token is positive. No other attempt has the same for this key.
	Token int64

	// Owner is shown to people. The store never compares it, and keeps it byte by
	// byte: at most 128 bytes of printable UTF-8. FinishAttempt ignores it.
	Owner string
}

// An Outcome is the result of an attempt, for all later callers, or how it failed.
type Outcome struct {
	// Failed distinguishes a final error from a success.
	Failed bool

	// Retry says that the attempt failed and that another one may begin: the operation
	// is not finished. Result says how, for people, in at most check.MaxFailure bytes.
	// Failed is false.
	Retry bool

	// Result is any bytes, at most check.MaxResult.
	Result []byte
}

// A Record is what the store knows of an operation. What it does not know is zero.
type Record struct {
	Key      string
	Token    int64 // of the last attempt that began
	Owner    string
	Attempts int64 // how many have begun

	// Done says that the operation is finished, with Outcome. Otherwise Outcome is how
	// the last attempt failed if Retry is true, and zero if it has not ended as far as
	// the store knows.
	Done bool
	Outcome

	// When the last attempt began and ended, by the clocks of the machines that said so, to
	// be shown to people.
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
