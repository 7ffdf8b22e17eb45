package zkstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

const (
	maxFlying = 4                    // transactions under way
	maxItems  = 64                   // in one transaction
	maxBytes  = 64 << 10             // of one; servers take no more than 1 MB as they come
	unhurried = 4 * time.Millisecond // how long a patient item waits for others
)

// An item is a transaction that may be made part of a greater one.
type item struct {
	parent  string
	creates bool      // nodes below parent
	patient bool      // let it go with others if there are any soon
	queued  time.Time // since when
	ops     []any
	bytes   int

	sent, left bool // guarded by batcher.mu; left: nobody waits for the answer

	done    chan struct{} // closed when the rest is set
	results []zk.MultiResponse
	trip    trip
	err     error
}

// batcher sends items to the server: at once while few are under way, and
// otherwise those that have gathered meanwhile in one transaction. Each
// transaction costs the server several times what one more operation in it
// costs.
//
// A transaction is done as a whole or not at all. If one item is refused, all
// are asked for again, each alone: what an item is told is never the doing of
// another one.
type batcher struct {
	store    *Store
	patience time.Duration

	mu     sync.Mutex
	queue  []*item
	flying int
	armed  bool // somebody looks whether patience is at an end

	// Below these parents patient items are creating nodes, one at a time: who
	// learns his place before the next one does need not read the line.
	creating map[string]struct{}
}

// multi is Store.multi for operations that may be joined with others'.
func (b *batcher) multi(ctx context.Context, it *item) (r []zk.MultiResponse, t trip, failed int, err error) {
	if err := ctx.Err(); err != nil {
		return nil, t, -1, err
	}
	if !b.store.session.link().up {
		return nil, t, -1, unavailable(errNoSession)
	}
	it.bytes, it.done, it.queued = size(it.ops), make(chan struct{}), time.Now()
	b.mu.Lock()
	b.queue = append(b.queue, it)
	b.launchLocked()
	b.mu.Unlock()
	select {
	case <-it.done:
	case <-ctx.Done():
		if err := b.leave(ctx, it); err != nil {
			return nil, trip{done: it.done}, -1, err
		}
	}
	return it.results, it.trip, refusedAt(it.results, it.err), it.err
}

// leave ends the wait for it when its caller's context has ended. The error is
// nil if it is done after all.
func (b *batcher) leave(ctx context.Context, it *item) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-it.done:
		return nil
	default:
	}
	it.left = true
	if it.sent {
		return fmt.Errorf("zookeeper: %w: %w", driver.ErrUnknown, ctx.Err())
	}
	b.queue = slices.DeleteFunc(b.queue, func(o *item) bool { return o == it })
	close(it.done)
	return ctx.Err()
}

func (b *batcher) launchLocked() {
	if b.flying >= maxFlying {
		return
	}
	if batch := b.takeLocked(); batch != nil {
		b.flying++
		b.store.workers.Go(func() { b.fly(batch) })
	}
}

// fly sends until nothing is left to send.
func (b *batcher) fly(batch []*item) {
	for batch != nil {
		b.send(batch)
		b.mu.Lock()
		b.answeredLocked(batch)
		if batch = b.takeLocked(); batch == nil {
			b.flying--
		}
		b.mu.Unlock()
	}
}

func (b *batcher) answeredLocked(batch []*item) {
	for _, it := range batch {
		if it.patient && it.creates {
			delete(b.creating, it.parent)
		}
	}
}

// waitLocked reports whether all in the queue are patient. It sees to it
// that what is there goes in a while.
func (b *batcher) waitLocked() bool {
	if len(b.queue) == 0 || slices.ContainsFunc(b.queue, func(it *item) bool { return !it.patient }) {
		return false
	}
	left := b.patience - time.Since(b.queue[0].queued)
	if left <= 0 {
		return false
	}
	if !b.armed {
		b.armed = true
		time.AfterFunc(left, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.armed = false
			b.launchLocked()
		})
	}
	return true
}

// takeLocked takes what may go together. Only one may create nodes below a
// parent: two would get the same token. What is left for that goes when the one
// before it has been answered.
func (b *batcher) takeLocked() (batch []*item) {
	if b.waitLocked() {
		return nil
	}
	if len(b.queue) == 1 && !b.queue[0].patient {
		batch, b.queue = b.queue, nil
		batch[0].sent = true
		return batch
	}
	var rest []*item
	bytes := 0
	var created map[string]struct{}
	for i, it := range b.queue {
		if len(batch) == maxItems {
			rest = append(rest, b.queue[i:]...)
			break
		}
		_, twice := created[it.parent]
		if it.patient && !twice {
			_, twice = b.creating[it.parent]
		}
		if len(batch) > 0 && bytes+it.bytes > maxBytes || twice && it.creates {
			rest = append(rest, it)
			continue
		}
		if it.creates {
			if created == nil {
				created = make(map[string]struct{})
			}
			created[it.parent] = struct{}{}
			if it.patient {
				b.creating[it.parent] = struct{}{}
			}
		}
		bytes += it.bytes
		it.sent = true
		batch = append(batch, it)
	}
	b.queue = rest
	return batch
}

func (b *batcher) send(batch []*item) {
	ops := batch[0].ops
	if len(batch) > 1 {
		ops = nil
		for _, it := range batch {
			ops = append(ops, it.ops...)
		}
	}
	results, t, err := b.store.transact(ops)
	if len(batch) > 1 && refusedAt(results, err) >= 0 {
		var alone sync.WaitGroup
		for _, it := range batch {
			alone.Go(func() { b.sendAgain(it) })
		}
		alone.Wait()
		return
	}
	for _, it := range batch {
		it.trip, it.err = t, err
		if len(results) >= len(it.ops) {
			it.results, results = results[:len(it.ops):len(it.ops)], results[len(it.ops):]
		}
		close(it.done)
	}
}

// sendAgain sends an item alone of which nothing was done. If nobody waits for
// it any more, nobody wants it.
func (b *batcher) sendAgain(it *item) {
	b.mu.Lock()
	left := it.left
	b.mu.Unlock()
	if !left {
		it.results, it.trip, it.err = b.store.transact(it.ops)
	}
	close(it.done)
}

// transact sends a transaction and waits for its answer.
func (s *Store) transact(ops []any) (r []zk.MultiResponse, t trip, err error) {
	t = trip{link: s.session.link(), sent: bootclock.Now()}
	if !t.link.up {
		return nil, t, unavailable(errNoSession)
	}
	r, err = s.conn.Multi(ops...)
	if err = s.outcome(t, true, err); err == nil || err == zk.ErrAPIError {
		t.sure = s.session.commit(t.link, t.sent)
	}
	return r, t, err
}

// size is about how long the operations are on the wire.
func size(ops []any) (n int) {
	for _, op := range ops {
		n += 64
		switch op := op.(type) {
		case *zk.CreateRequest:
			n += len(op.Path) + len(op.Data)
			for _, a := range op.Acl {
				n += 12 + len(a.Scheme) + len(a.ID)
			}
		case *zk.SetDataRequest:
			n += len(op.Path) + len(op.Data)
		case *zk.DeleteRequest:
			n += len(op.Path)
		case *zk.CheckVersionRequest:
			n += len(op.Path)
		}
	}
	return n
}
