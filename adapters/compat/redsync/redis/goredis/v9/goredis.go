// Package goredis makes a pool of a client of go-redis v9.
package goredis

import (
	goredislib "github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/adapters/compat/redsync/redis"
	"github.com/batonhq/baton/store/redisstore"
)

type pool struct{ client goredislib.UniversalClient }

func (p pool) Store() (*redisstore.Store, error) {
	return redisstore.New(p.client, redisstore.Config{})
}

// NewPool makes a pool of a client, which stays the caller's. It does not talk to the server.
func NewPool(delegate goredislib.UniversalClient) redis.Pool { return pool{delegate} }
