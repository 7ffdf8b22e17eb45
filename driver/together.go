package driver

import "context"

// Together is implemented by stores that can grant several locks in one atomic step.
type Together interface {
	// AcquireAll makes one attempt for all requests, which check.Together accepts: it
	// grants all of them, in the order of the grants that it returns, or none. No other
	// client ever sees only some of them granted. AcquireAll overtakes no waiter that is
	// alive. It is idempotent in the IDs of the claims, as Acquire is.
	//
	// Errors are Acquire's: a *HeldError names a key that could not be granted. After a
	// refusal nothing is left of this attempt, nor of an earlier one with the same IDs.
	// errors.ErrUnsupported says that this store cannot grant these together, because
	// they are too many, on several servers, or not all exclusive. Then nothing was
	// changed, and the caller can acquire them one by one.
	AcquireAll(ctx context.Context, r []Request) ([]Grant, error)
}
