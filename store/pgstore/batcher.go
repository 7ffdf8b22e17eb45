package pgstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/contended"
)

const manySQL = `SELECT baton_many_1($1::bytea[], $2::text[], $3::bytea[], $4::text[], $5::text[], $6::bigint[], $7::text)`

// batcher sends the acquires and releases of many goroutines in few statements when
// there are more of them than connections. The first operation of a statement and commit
// costs the server several times what each further one does.
//
// Of locks it merges only exclusive claims of uncontended keys, and the statement waits
// for no row. An operation that the statement does not answer goes alone.
//
// It is not a batch.Batcher because each call goes alone, on its caller's goroutine,
// while there are connections, and because operations that wait are taken only when
// there is a connection: until then callers may give up, and nothing was sent.
type batcher struct {
	store *Store
	limit int // how many statements may be under way

	// send serves the operations that waited, and notes which it served.
	send func(context.Context, *pgxpool.Conn, []*operation) error

	mu      sync.Mutex
	calls   int               // under way, alone or merged
	waiting queue             // only while calls are at their limit
	keys    map[string]*queue // of keys that a statement is under way for; see shareKey
	closed  bool
	ctx     context.Context // of all merged statements
	cancel  context.CancelFunc
	running sync.WaitGroup

	hot contended.Keys
}

// maxMerged bounds how long a statement delays the operations that wait.
const maxMerged = 64

// operation is an acquire or a release that may be merged with others.
type operation struct {
	claim driver.Claim
	ttl   time.Duration // 0 is a release
	queue bool          // the acquire takes a position

	in     *queue        // guarded, as batch is, by batcher.mu
	batch  *merged       // that it was sent with
	done   chan struct{} // closed when the rest is set
	served bool
	grant  driver.Grant
	err    error
}

// queue is operations that wait to be sent; guarded by batcher.mu.
type queue struct{ all []*operation }

func (q *queue) add(o *operation) {
	o.in, o.done = q, make(chan struct{})
	q.all = append(q.all, o)
}

// take makes a batch of the operations that wait longest.
func (q *queue) take(cancel context.CancelFunc) *merged {
	n := min(len(q.all), maxMerged)
	b := &merged{all: slices.Clone(q.all[:n]), cancel: cancel}
	q.all = slices.Delete(q.all, 0, n)
	for _, o := range b.all {
		o.batch = b
	}
	return b
}

func (q *queue) remove(o *operation) {
	q.all = slices.DeleteFunc(q.all, func(other *operation) bool { return other == o })
}

// merged is operations that are sent together.
type merged struct {
	all    []*operation
	left   int // whose callers have given up; guarded by batcher.mu
	cancel context.CancelFunc
}

func (c *batcher) init(s *Store, send func(context.Context, *pgxpool.Conn, []*operation) error) {
	c.store, c.limit, c.send = s, int(s.pool.Config().MaxConns), send
	c.keys = make(map[string]*queue)
	c.ctx, c.cancel = context.WithCancel(context.Background())
}

func (c *batcher) close() {
	c.mu.Lock()
	c.closed = true
	c.refuse(&c.waiting)
	for _, q := range c.keys {
		c.refuse(q)
	}
	c.mu.Unlock()
	c.cancel()
	c.running.Wait()
}

func (c *batcher) refuse(q *queue) {
	for _, o := range q.all {
		o.err = driver.ErrClosed
		close(o.done)
	}
	q.all = nil
}

// do serves o together with other operations, or alone.
func (c *batcher) do(ctx context.Context, o *operation, alone func() error) error {
	switch {
	case ctx.Err() != nil:
		return alone()
	case c.hot.Has(o.claim.Key):
		return c.shareKey(ctx, o, alone)
	}
	return c.share(ctx, o, alone)
}

// share serves o together with other operations if no more statements may be under way. If one may, or if
// that did not serve it, o goes alone.
func (c *batcher) share(ctx context.Context, o *operation, alone func() error) error {
	c.mu.Lock()
	if c.calls < c.limit || c.closed || ctx.Err() != nil {
		c.calls++
		c.mu.Unlock()
		defer c.finished()
		return alone()
	}
	c.waiting.add(o)
	c.mu.Unlock()
	select {
	case <-o.done:
	case <-ctx.Done():
		if err := c.leave(ctx, o); err != nil {
			return err
		}
	}
	if o.served || o.err != nil {
		return o.err
	}
	c.hot.Set(o.claim.Key, true)
	return alone()
}

// leave ends the wait for o when its caller's context has ended. The error is
// nil if o is done after all.
func (c *batcher) leave(ctx context.Context, o *operation) error {
	c.mu.Lock()
	b := o.batch
	if b == nil {
		o.in.remove(o)
		c.mu.Unlock()
		return ctx.Err()
	}
	c.mu.Unlock()
	timer := time.NewTimer(c.store.patience) // see sqlstore.Outlive
	defer timer.Stop()
	select {
	case <-o.done:
		return nil
	case <-timer.C:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.left++; b.left == len(b.all) {
		b.cancel()
	}
	return errors.Join(driver.ErrUnknown, ctx.Err())
}

// finished serves the operations that waited meanwhile, or makes room.
func (c *batcher) finished() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting.all) == 0 || c.closed {
		c.calls--
		return
	}
	c.running.Go(func() {
		defer c.finished()
		c.serve(&c.waiting, c.send)
	})
}

// serve serves the operations that wait together. Their callers may give up until there
// is a connection, and nothing was sent then.
func (c *batcher) serve(q *queue, send func(context.Context, *pgxpool.Conn, []*operation) error) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	conn, err := c.store.pool.Acquire(ctx)
	c.mu.Lock()
	b := q.take(cancel)
	c.mu.Unlock()
	switch {
	case err != nil:
		err = failure(ctx, notSent{err})
	case len(b.all) == 0:
		conn.Release()
	default:
		err = send(ctx, conn, b.all)
	}
	b.answer(err)
}

// answer tells the callers what became of their operations.
func (b *merged) answer(err error) {
	for _, o := range b.all {
		if !o.served {
			o.err = err
		}
		close(o.done)
	}
}

// sendLocks sends the operations in one statement and notes which it served. An error
// that is harmless is nil: each operation then goes alone.
func (c *batcher) sendLocks(ctx context.Context, conn *pgxpool.Conn, all []*operation) error {
	var ends, grants []*operation
	var endKeys, keys [][]byte
	var endIDs, ids, owners []string
	var ttls []int64
	for _, o := range all {
		if o.ttl == 0 {
			ends = append(ends, o)
			endKeys, endIDs = append(endKeys, []byte(o.claim.Key)), append(endIDs, o.claim.ID)
			continue
		}
		grants = append(grants, o)
		keys, ids = append(keys, []byte(o.claim.Key)), append(ids, o.claim.ID)
		owners, ttls = append(owners, o.claim.Owner), append(ttls, o.ttl.Microseconds())
	}
	var text string
	err := c.store.askWith(ctx, conn, manySQL, []any{endKeys, endIDs, keys, ids, owners, ttls, c.store.hints.node}, oneRow(&text))
	if errors.Is(err, driver.ErrUnavailable) && !errors.As(err, new(*SchemaError)) {
		return nil
	} else if err != nil {
		return err
	}
	ended, granted, _ := strings.Cut(text, "\n\n")
	for line := range strings.FieldsSeq(ended) {
		ends[number(line)-1].served = true
	}
	for line := range strings.Lines(granted) {
		if i, token, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " "); ok {
			o := grants[number(i)-1]
			o.served, o.grant = true, driver.Grant{Token: number(token), Ticket: number(token), TTL: o.ttl}
		}
	}
	return nil
}
