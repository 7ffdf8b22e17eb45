package rate

import (
	"slices"
	"sync"

	"github.com/batonhq/baton/driver/limits"
)

// Known makes requests, and caches the algorithms of limits. The zero Known is ready to
// use. Its methods are safe for concurrent use.
type Known struct {
	mu   sync.RWMutex
	made map[limits.Limit]Algorithm
}

// mostKnown bounds the memory of a program with ever new limits.
const mostKnown = 1000

// NewRequest is the function NewRequest. The request has a copy of the takes: the caller
// may leave while the request is under way.
func (k *Known) NewRequest(r limits.Request) (*Request, error) {
	q, err := newRequest(r, k.of)
	if err != nil {
		return nil, err
	}
	q.Takes = slices.Clone(q.Takes)
	return q, nil
}

func (k *Known) of(l limits.Limit) (Algorithm, error) {
	k.mu.RLock()
	a := k.made[l]
	k.mu.RUnlock()
	if a != nil {
		return a, nil
	}
	a, err := Of(l)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.made == nil || len(k.made) >= mostKnown {
		k.made = make(map[limits.Limit]Algorithm)
	}
	k.made[l] = a
	return a, nil
}
