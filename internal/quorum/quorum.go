// Package quorum is the contract between redlock and its stores, beyond that for locks.
package quorum

import (
	"context"
	"time"

	"github.com/batonhq/baton/driver"
)

// Member is implemented by stores that can be one of several independent servers of which
// a majority grants (package redlock).
type Member interface {
	driver.Locks
	driver.Downgrader
	driver.Renamer

	// Raise makes every later grant of key carry a token above token, and lowers nothing.
	// It returns a number that every later token is above and no earlier token exceeds.
	// It neither needs nor changes a claim.
	Raise(ctx context.Context, key string, token int64) (int64, error)

	// Life tells which server has answered so far, and since when it has kept its grants.
	// It is called after every grant, so it asks the server only if the Life may have
	// changed. A store that cannot detect a restart must always ask.
	Life(ctx context.Context) (Life, error)
}

// A Life is the time of a server between two starts. After a start the server may have
// lost earlier grants.
type Life struct {
	// Server identifies the life. Two stores on one server have the same; a restart
	// changes it.
	Server string

	// Age is how long the server has lived, at least.
	Age time.Duration

	// Replicas is the number of servers that may be promoted in its stead without all of
	// its grants.
	Replicas int
}
