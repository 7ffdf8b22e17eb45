// Package redsync has the names and signatures of github.com/go-redsync/redsync/v4
// v4.18.1, and locks by Baton: a program changes only its imports.
//
// What it keeps: Lock tries again, as often as Options say; a lock lasts for its expiry,
// is extended only by Extend, and ends by Unlock. A lock excludes, and is excluded by,
// locks of the original library and of Baton with the same name on the same servers.
//
// What it adds: Mutex.FencingToken for what the lock protects, and Mutex.Attach, which
// makes the lock a Baton lease with renewal and contexts. "baton ls" shows the locks. An
// attempt whose answer was lost is released, and does not hold the name for its expiry.
//
// What differs:
//   - Pools are those of redis/goredis/v9 of this module. For another client, such as
//     rueidis, or other settings, make a store and call Over. Redigo, go-redis before v9
//     and valkey-go are not supported.
//   - The servers are those that store/redisstore accepts: one that may evict locks is
//     refused, with a *redisstore.EvictionError. Several pools are package store/redlock:
//     servers that have run for less than a minute do not vote, and an expiry of more
//     than a minute is refused. Over takes a store with other settings.
//   - An expiry is at least 100ms and at most 24h, a name at most 512 bytes. Otherwise
//     the call fails without an effect.
//   - An attempt does not overtake waiters of Baton: it fails with a *ErrTaken while they
//     wait.
//   - Value is not the value on the server, and a Mutex of the original does not unlock
//     with it. WithGenValueFunc generates the beginning of Value.
package redsync

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/batonhq/baton/adapters/compat/redsync/redis"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/redlock"
)

// Redsync makes mutexes. All methods are safe for concurrent use. It needs no Close, and
// does not close the clients of its pools.
type Redsync struct {
	pools []redis.Pool

	mu    sync.Mutex
	store driver.Locks // nil until a call has reached the servers
}

// New makes a Redsync of one pool, or of an odd number of three or more with independent
// servers. It sends no request: the first call of a Mutex does, and fails if locks would
// not be safe on the servers.
func New(pools ...redis.Pool) *Redsync { return &Redsync{pools: pools} }

// Over makes a Redsync over a store, which the caller closes.
func Over(store driver.Locks) *Redsync { return &Redsync{store: store} }

// Store is the store of the locks: make a baton.Locker of it, for locks with a queue and
// automatic renewal. The first call asks the servers for their versions, roles and
// eviction policies, for at most five seconds.
func (r *Redsync) Store() (driver.Locks, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.store != nil {
		return r.store, nil
	}
	store, err := open(r.pools)
	if err != nil {
		return nil, err
	}
	r.store = store
	return store, nil
}

func open(pools []redis.Pool) (driver.Locks, error) {
	if len(pools) == 1 {
		return pools[0].Store()
	}
	nodes := make([]redlock.Node, 0, len(pools))
	for i, pool := range pools {
		nodes = append(nodes, redlock.Node{Name: fmt.Sprintf("pool %d", i), Open: func(context.Context) (redlock.OpenMember, error) {
			return pool.Store()
		}})
	}
	ctx, cancel := context.WithTimeout(context.Background(), opening)
	defer cancel()
	return redlock.Open(ctx, nodes, redlock.Config{})
}

const (
	opening = 5 * time.Second // bounds the first questions to several servers
	cleanup = 5 * time.Second // bounds the release after an attempt without an answer
)

// NewMutex makes a Mutex. Its name is the key of the lock.
func (r *Redsync) NewMutex(name string, options ...Option) *Mutex {
	m := &Mutex{
		of: r, name: name, expiry: 8 * time.Second, tries: 32,
		delayFunc: func(int) time.Duration {
			return 50*time.Millisecond + time.Duration(rand.Int64N(int64(200*time.Millisecond)))
		},
		driftFactor: 0.01, timeoutFactor: 0.05,
	}
	for _, o := range options {
		o.Apply(m)
	}
	return m
}

// failed is the original's error for an error of a store.
func (r *Redsync) failed(err error) error {
	if !errors.Is(err, driver.ErrHeld) {
		return &RedisError{Err: err}
	}
	if len(r.pools) == 1 {
		return &ErrTaken{Nodes: []int{0}}
	}
	return &ErrTaken{}
}
