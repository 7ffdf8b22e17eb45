package verify

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// The bounds of weigh: a key that is no longer used costs a process no memory.
const (
	mostBytes    = 256 // that each key leaves behind
	bytesKeys    = 400 // in a round
	bytesRounds  = 5
	bytesAskers  = 8
	bytesPatient = 10 * time.Second // for the answer to one request
)

// weigh uses fresh keys, each once, round after round, and measures whether they stay in the
// memory of this process. Memory that grows in only one round does not belong to the keys.
func (c *client) weigh() {
	defer c.say(sayWeighed, "")
	before, grown := int64(0), int64(0)
	for round := range bytesRounds {
		if err := c.useKeys(round); err != nil {
			return // a store that does not answer shows nothing
		}
		after := heap()
		if round > 0 { // the first fills pools and buffers
			grown = (after - before) / bytesKeys
			if grown <= mostBytes {
				return
			}
		}
		before = after
	}
	c.say(sayGrows, fmt.Sprintf("of each key %d bytes stay behind in the memory of the process, round after round", grown))
}

// useKeys locks and unlocks keys, and asks for their limits.
func (c *client) useKeys(round int) error {
	var next atomic.Int64
	var askers sync.WaitGroup
	var failed atomic.Pointer[error]
	for range bytesAskers {
		askers.Go(func() {
			for n := next.Add(1); n <= bytesKeys && failed.Load() == nil; n = next.Add(1) {
				if err := c.useKey(fmt.Sprintf("%sbytes/%d/%d", c.Prefix, round, n)); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	askers.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (c *client) useKey(key string) error {
	ctx, cancel := context.WithTimeout(c.waiting, bytesPatient)
	defer cancel()
	lease, err := c.locks.Lock(ctx, key)
	if err != nil {
		return err
	}
	if err := lease.Unlock(); err != nil {
		return err
	}
	if len(c.limiters) == 0 {
		return nil
	}
	for _, l := range append(c.limiters[:plainLimits:plainLimits], c.batches) {
		if _, err := l.Allow(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// heap returns the bytes in use.
func heap() int64 {
	var m runtime.MemStats
	for range 2 { // the second sweeps objects that finalizers released
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
