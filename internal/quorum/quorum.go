// Package quorum is what redlock needs of a store beyond the contract for locks.
package quorum

import (
	"context"
	"time"

	"github.com/batonhq/baton/driver"
)

// Member is implemented by stores that can be one of several independent
// servers of which a majority grants (package redlock).
type Member interface {
	driver.Locks
	driver.Downgrader
	driver.Renamer

	// Raise makes every later grant of key carry a token above token, and
	// lowers nothing. It returns the number that every later token is above,
	// which no token granted so far is. It neither needs nor changes a claim.
	Raise(ctx context.Context, key string, token int64) (int64, error)

	// Life tells which server has given the answers so far, and since when
	// it has kept what it granted. It is called after every grant, so it asks
	// the server only if that may have changed since. Where a store cannot
	// know whether its server has restarted, that is always.
	Life(ctx context.Context) (Life, error)
}

// A Life is the time of a server from a start to its end. A server that starts
// again may have forgotten what it granted before.
type Life struct {
	// Server names this life of the server. Two stores on one server have
	// the same; it is another one after a restart.
	Server string

	// Age is how long the server has lived at least.
	Age time.Duration

	// Replicas is how many servers may be promoted in its stead without
	// knowing all that it granted.
	Replicas int
}
