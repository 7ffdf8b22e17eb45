package redisstore

import (
	"context"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
)

// orphans ends claims again that were released while nobody knew whether they
// stood. A request whose connection was lost may still be executed, and after
// the release that was to clean up behind it. What it then leaves would hold the
// lock for its whole TTL.
//
// An ID is never used again after its release, so ending it once more harms
// nobody.
type orphans struct {
	mu     sync.Mutex
	count  int
	closed bool
	stop   context.CancelFunc
	ctx    context.Context
	wg     sync.WaitGroup
}

// What the network held back comes soon or not at all: TCP repeats what was lost
// within a second or so.
var orphanDelays = []time.Duration{200 * time.Millisecond, 2 * time.Second}

// maxOrphans bounds the work when everything fails at once. The TTL ends the
// rest.
const maxOrphans = 1000

func (o *orphans) watch(c driver.Claim, end func(context.Context, driver.Claim) error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.count == maxOrphans {
		return
	}
	if o.ctx == nil {
		o.ctx, o.stop = context.WithCancel(context.Background())
	}
	o.count++
	o.wg.Go(func() {
		defer func() {
			o.mu.Lock()
			o.count--
			o.mu.Unlock()
		}()
		for _, d := range orphanDelays {
			if wait(o.ctx, d) != nil {
				return
			}
			ctx, cancel := context.WithTimeout(o.ctx, checkTimeout)
			err := end(ctx, c)
			cancel()
			if err == nil {
				return // found, and there is but one
			}
		}
	})
}

// wait pauses, at most until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func (o *orphans) close() {
	o.mu.Lock()
	o.closed = true
	if o.stop != nil {
		o.stop()
	}
	o.mu.Unlock()
	o.wg.Wait()
}
