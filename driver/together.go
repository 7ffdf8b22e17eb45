package driver

import (
	"context"
	"fmt"
)

// MaxTogether is how many locks are asked for in one act at the most.
const MaxTogether = 64

// Together is implemented by stores that can grant several locks in one act.
type Together interface {
	// AcquireAll makes one attempt for all requests, which CheckTogether
	// accepts: it grants all of them, in the order of the grants that it
	// returns, or none. Nobody sees some of them granted and others not, and
	// it overtakes no waiter that is alive. It is idempotent in the IDs of the
	// claims, as Acquire is.
	//
	// Errors are Acquire's: a *HeldError names a key that is in the way. If it
	// is refused nothing is left of it, nor of an earlier attempt with the
	// same IDs. errors.ErrUnsupported says that this store cannot grant these
	// together, because they are too many, not in one place or not all
	// exclusive; then nothing was done, and they can be acquired one by one.
	AcquireAll(ctx context.Context, r []Request) ([]Grant, error)
}

// CheckTogether returns the error that AcquireAll must give for r before it
// does anything: CheckRequest's, or a *RequestError unless there are 1 to
// MaxTogether requests, each on another key, and none with Queue.
func CheckTogether(r []Request, t Traits) error {
	if n := len(r); n < 1 || n > MaxTogether {
		return &RequestError{"", "number", fmt.Sprintf("%d requests, legal are 1 to %d", n, MaxTogether)}
	}
	keys := make(map[string]bool, len(r))
	for _, q := range r {
		if err := CheckRequest(q, t); err != nil {
			return err
		}
		switch {
		case keys[q.Key]:
			return &RequestError{q.Key, "key", "it is asked for twice"}
		case q.Queue:
			return &RequestError{q.Key, "queue", "there is no line for several locks"}
		}
		keys[q.Key] = true
	}
	return nil
}
