package zkstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/bootclock"
)

type request struct {
	link   *link
	sent   time.Time
	done   <-chan struct{} // closed when the client is done with the request
	proven time.Duration   // see Session.committed
}

// send makes one request of the client, which has no contexts, on another goroutine. If
// ctx ends first the request continues without its caller, until request.done.
//
// A request is refused while there is no session: the client would queue it and send it
// in the next session. A session may still end between this check and the request, so an
// answer counts only if it came in the intended session.
//
// write says that the request changes something, so that an unknown outcome is
// driver.ErrUnknown. Errors of the server are returned as they are.
func send[T any](ctx context.Context, s *Store, write bool, do func(*zk.Conn) (T, error)) (v T, t request, err error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, t, err
	}
	t = request{link: s.session.link()}
	if !t.link.up {
		return none, t, unavailable(errNoSession)
	}
	done := make(chan struct{})
	t.done, t.sent = done, bootclock.Now()
	var got T
	var failed error
	s.workers.Go(func() {
		got, failed = do(s.conn)
		close(done)
	})
	select {
	case <-done:
	case <-ctx.Done():
		if write {
			return none, t, fmt.Errorf("zookeeper: %w: %w", driver.ErrUnknown, ctx.Err())
		}
		return none, t, ctx.Err()
	}
	if err = s.outcome(t, write, failed); err != nil && !answer(err) {
		return none, t, err
	}
	return got, t, err
}

// outcome makes an error of the store out of the client's result.
func (s *Store) outcome(t request, write bool, err error) error {
	if s.session.link().id != t.link.id {
		err = errors.Join(errReplaced, err)
	}
	switch {
	case err == nil || answer(err):
		s.session.active(t.link, t.sent)
		return err
	case !write || errors.Is(err, zk.ErrNoServer): // never sent
		return unavailable(err)
	}
	return fmt.Errorf("zookeeper: %w: %w", driver.ErrUnknown, err)
}

// multi sends a transaction. failed is the index of the refused operation, or -1.
func (s *Store) multi(ctx context.Context, ops []any) (r []zk.MultiResponse, t request, failed int, err error) {
	r, t, err = send(ctx, s, true, func(c *zk.Conn) ([]zk.MultiResponse, error) { return c.Multi(ops...) })
	if err == nil || err == zk.ErrAPIError {
		t.proven = s.session.committed(t.link, t.sent)
	}
	return r, t, refusedAt(r, err), err
}

func (s *Store) children(ctx context.Context, path string) (names []string, stat *zk.Stat, err error) {
	type listing struct {
		names []string
		stat  *zk.Stat
	}
	l, _, err := send(ctx, s, false, func(c *zk.Conn) (listing, error) {
		names, stat, err := c.Children(path)
		return listing{names, stat}, err
	})
	return l.names, l.stat, err
}

func (s *Store) exists(ctx context.Context, path string) (*zk.Stat, error) {
	stat, _, err := send(ctx, s, false, func(c *zk.Conn) (*zk.Stat, error) {
		ok, stat, err := c.Exists(path)
		if err == nil && !ok {
			err = zk.ErrNoNode
		}
		return stat, err
	})
	return stat, err
}

type nodeData struct {
	data []byte
	stat *zk.Stat
}

func (s *Store) get(ctx context.Context, path string) (nodeData, error) {
	v, _, err := send(ctx, s, false, func(c *zk.Conn) (nodeData, error) {
		data, stat, err := c.Get(path)
		return nodeData{data, stat}, err
	})
	return v, err
}

// sync returns when the server of this session has everything that was committed before,
// and has sent all watch events about it to this process.
func (s *Store) sync(ctx context.Context) error {
	_, _, err := send(ctx, s, false, func(c *zk.Conn) (string, error) { return c.Sync(s.root) })
	return err
}

const (
	maxFlying = 4        // concurrent transactions
	maxItems  = 64       // in one transaction
	maxBytes  = 64 << 10 // in one transaction; servers accept at most 1 MB by default
)

// An item is a transaction that may become part of a larger one.
type item struct {
	batch.Item
	parent  string
	creates bool // nodes below parent
	ops     []any
	keys    [1]batch.Key

	abandoned atomic.Bool // its caller has left

	results []zk.MultiResponse
	trip    request
	err     error
}

// newBatcher merges the transactions of items: a transaction costs the server several
// times what one more operation in it costs.
func (s *Store) newBatcher() *batch.Batcher[*item] {
	return batch.New(batch.Config[*item]{
		Send: s.sendItems, Go: s.workers.Go,
		Max: maxItems, InFlight: maxFlying,
		Size: func(it *item) int { return size(it.ops) }, MaxSize: maxBytes,
		Keys: (*item).batchKeys,
	})
}

// batchKeys prevents that two items create nodes below one parent in one transaction:
// they would get the same token.
func (it *item) batchKeys() []batch.Key {
	if !it.creates {
		return nil
	}
	it.keys[0] = batch.Key{Name: it.parent, Rule: batch.Once}
	return it.keys[:]
}

// join is multi for operations that may share a transaction with those of other calls.
func (s *Store) join(ctx context.Context, it *item) (r []zk.MultiResponse, t request, failed int, err error) {
	if err := ctx.Err(); err != nil {
		return nil, t, -1, err
	}
	if !s.session.link().up {
		return nil, t, -1, unavailable(errNoSession)
	}
	it.Item = batch.NewItem()
	if err := s.batch.Do(ctx, it); err != nil {
		it.abandoned.Store(true)
		if errors.Is(err, driver.ErrUnknown) {
			err = fmt.Errorf("zookeeper: %w", err)
		}
		return nil, request{done: it.Done()}, -1, err
	}
	return it.results, it.trip, refusedAt(it.results, it.err), it.err
}

// sendItems makes one atomic transaction. If one item is refused, it sends each again
// alone, so the answer about an item never depends on another one.
func (s *Store) sendItems(_ context.Context, all []*item) {
	ops := all[0].ops
	if len(all) > 1 {
		ops = nil
		for _, it := range all {
			ops = append(ops, it.ops...)
		}
	}
	results, t, err := s.transact(ops)
	if len(all) > 1 && refusedAt(results, err) >= 0 {
		var alone sync.WaitGroup
		for _, it := range all {
			alone.Go(func() { s.sendAgain(it) })
		}
		alone.Wait()
		return
	}
	for _, it := range all {
		it.trip, it.err = t, err
		if len(results) >= len(it.ops) {
			it.results, results = results[:len(it.ops):len(it.ops)], results[len(it.ops):]
		}
	}
}

// sendAgain sends an item alone, of which nothing was done, unless its caller has left.
func (s *Store) sendAgain(it *item) {
	if !it.abandoned.Load() {
		it.results, it.trip, it.err = s.transact(it.ops)
	}
	it.Finish()
}

func (s *Store) transact(ops []any) (r []zk.MultiResponse, t request, err error) {
	t = request{link: s.session.link(), sent: bootclock.Now()}
	if !t.link.up {
		return nil, t, unavailable(errNoSession)
	}
	r, err = s.conn.Multi(ops...)
	if err = s.outcome(t, true, err); err == nil || err == zk.ErrAPIError {
		t.proven = s.session.committed(t.link, t.sent)
	}
	return r, t, err
}

// size is the approximate length of the operations in the protocol.
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
