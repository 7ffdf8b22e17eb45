// Package redis has the Pool that package redsync takes.
package redis

import "github.com/batonhq/baton/store/redisstore"

// A Pool is one Redis server, Sentinel group or Cluster. NewPool of package goredis/v9 makes
// one of a client. The original's Pool has other methods: one of your own does not compile
// here, and becomes a store for redsync.Over.
type Pool interface {
	// Store makes a store on the client, which stays the caller's. It may ask the server.
	Store() (*redisstore.Store, error)
}
