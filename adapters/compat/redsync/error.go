package redsync

import (
	"errors"
	"fmt"
)

var (
	// ErrFailed says that the context ended between two attempts, that the last answer
	// came when the lock may have ended, or that there was no answer.
	ErrFailed = errors.New("redsync: failed to acquire lock")

	// ErrExtendFailed says that extending took longer than the lock lasts.
	ErrExtendFailed = errors.New("redsync: failed to extend lock")

	// ErrLockAlreadyExpired says that the lock to unlock has ended: it expired, was
	// unlocked, or was broken.
	ErrLockAlreadyExpired = errors.New("redsync: failed to unlock, lock was already expired")
)

// ErrTaken says that another caller holds the lock or waits for it, or, for Extend, that
// the lock has ended. This package returns a *ErrTaken.
type ErrTaken struct {
	// Nodes has the number 0 if there is one pool. For several pools it is empty: the
	// refusing ones are unknown.
	Nodes []int
}

func (err ErrTaken) Error() string {
	return fmt.Sprintf("lock already taken, locked nodes: %v", err.Nodes)
}

// ErrNodeTaken exists because the original has it. This package does not return it.
type ErrNodeTaken struct {
	Node int
}

func (err ErrNodeTaken) Error() string {
	return fmt.Sprintf("node #%d: lock already taken", err.Node)
}

// A RedisError says that the server refused a request, or did not answer. With several
// pools Node is 0, and Err names the servers.
type RedisError struct {
	Node int
	Err  error
}

func (e RedisError) Error() string { return fmt.Sprintf("node #%d: %s", e.Node, e.Err) }

func (e RedisError) Unwrap() error { return e.Err }
