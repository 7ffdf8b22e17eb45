package mysqlstore

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"time"

	sqldriver "database/sql/driver"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/sqlstore"
)

const (
	// maxBatch bounds how many requests about one key share a transaction.
	maxBatch = 64

	// maxTries is how often a transaction is made that the server undid.
	maxTries = 5

	// patience bounds a transaction, whoever waits for it.
	patience = 15 * time.Second
)

// An op is a request that needs a transaction. Those about one key that meet
// in this process share one, and one commit, and never wait for each other in
// the server.
type op struct {
	// run acts within the transaction. It may be run again after the
	// transaction was undone, so it sets results rather than adding to them.
	run   func(*tx) error
	fresh bool       // see tx.fresh
	done  chan error // of capacity one
	batch *batch     // once it was taken
}

// A batch is the ops of one transaction.
type batch struct {
	ops    []*op
	left   int // how many still wait for it
	ctx    context.Context
	cancel context.CancelFunc
}

// do makes run take part in a transaction about key and returns once that is
// durable. What run sets may be read only if the result is nil.
func (s *Store) do(ctx context.Context, key string, fresh bool, run func(*tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o := &op{run: run, fresh: fresh, done: make(chan error, 1)}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return driver.ErrClosed
	}
	queue, serving := s.queues[key]
	s.queues[key] = append(queue, o)
	if !serving {
		s.serving.Add(1)
		go s.serve(key)
	}
	s.mu.Unlock()

	select {
	case err := <-o.done:
		return err
	case <-ctx.Done():
	}
	s.mu.Lock()
	if o.batch == nil {
		s.queues[key] = slices.DeleteFunc(s.queues[key], func(x *op) bool { return x == o })
		s.mu.Unlock()
		return ctx.Err()
	}
	s.mu.Unlock()
	timer := time.NewTimer(sqlstore.Grace) // see sqlstore.Outlive
	defer timer.Stop()
	select {
	case err := <-o.done:
		return err
	case <-timer.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.batch.left--; o.batch.left == 0 {
		o.batch.cancel()
	}
	return errors.Join(driver.ErrUnknown, ctx.Err())
}

// serve makes transactions about key until nobody asks for one.
func (s *Store) serve(key string) {
	defer s.serving.Done()
	for {
		b := s.take(key)
		if b == nil {
			return
		}
		fx, err := s.transact(b, key)
		b.cancel()
		s.tell(fx)
		for _, o := range b.ops {
			o.done <- err
		}
		// Those who were woken come now, as a rule, and share the next one.
		for range 3 {
			runtime.Gosched()
		}
	}
}

// take takes the next batch out of the queue. From here on it may take effect.
// Without one, the serving has ended.
func (s *Store) take(key string) *batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue := s.queues[key]
	if len(queue) == 0 {
		delete(s.queues, key)
		return nil
	}
	n := min(len(queue), maxBatch)
	b := &batch{ops: slices.Clone(queue[:n]), left: n}
	b.ctx, b.cancel = context.WithTimeout(s.life, patience)
	s.queues[key] = slices.Clone(queue[n:])
	for _, o := range b.ops {
		o.batch = b
	}
	return b
}

// transact makes one transaction, again if the server undid it.
func (s *Store) transact(b *batch, key string) (sqlstore.Effects, error) {
	for try := 1; ; try++ {
		t, unsure, err := s.attempt(b, key)
		if err == nil {
			return t.fx, nil
		}
		if unsure || try == maxTries || !undone(err) {
			return sqlstore.Effects{}, s.blame(b.ctx, err, unsure)
		}
	}
}

// call makes a transaction that is about no single key, again if the server
// undid it, or ended the connection before it had done anything. unsure is as in
// attempt. Answers of the contract pass.
func (s *Store) call(ctx context.Context, attempt func(context.Context) (unsure bool, err error)) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return driver.ErrClosed
	}
	s.serving.Add(1)
	s.mu.Unlock()
	defer s.serving.Done()

	later, stop := sqlstore.Outlive(ctx, sqlstore.Grace)
	defer stop()
	later, cancel := context.WithTimeout(later, patience)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	for try := 1; ; try++ {
		unsure, err := attempt(later)
		if err == nil || errors.Is(err, driver.ErrNoRecord) || errors.Is(err, driver.ErrSuperseded) {
			return err
		}
		// If the server ended the connection, we may have been too slow for it.
		if !unsure && later.Err() == nil && (undone(err) || errors.Is(err, sqldriver.ErrBadConn) && try < maxTries) {
			continue
		}
		if ctx.Err() != nil {
			if unsure {
				return joinUnknown(ctx)
			}
			return ctx.Err()
		}
		return s.blame(later, err, unsure)
	}
}

// undone reports whether the server undid a transaction for a reason that may
// be gone when it is made again: it would have closed a circle of waiting, or
// somebody else inserted the key's row first, or a row has changed since it was
// read without a lock (innodb_snapshot_isolation), or the connection was in a
// transaction, and is closed by now.
func undone(err error) bool {
	switch number(err) {
	case erDeadlock, erDuplicate, erChanged, erInTransaction:
		return true
	}
	return false
}

// blame makes the error of a request. The context is the transaction's own.
func (s *Store) blame(ctx context.Context, err error, unsure bool) error {
	if s.life.Err() != nil && !unsure {
		return driver.ErrClosed
	}
	if ctx.Err() != nil {
		// Nobody's context has ended but the transaction's own.
		outcome := driver.ErrUnavailable
		if unsure {
			outcome = driver.ErrUnknown
		}
		return errors.Join(outcome, errSlow)
	}
	return failure(err, unsure)
}

var errSlow = errors.New("mysql: the server has not answered in time")

// attempt makes the transaction once. unsure says that it may have been
// committed in spite of the error.
func (s *Store) attempt(b *batch, key string) (t *tx, unsure bool, err error) {
	ses, err := s.session(b.ctx)
	if err != nil {
		return nil, false, err
	}
	defer ses.close()
	t = &tx{ctx: b.ctx, ses: ses, key: key}
	for _, o := range b.ops {
		t.fresh = o.fresh
		if err := o.run(t); err != nil {
			return nil, false, err
		}
	}
	if unsure, err := t.commit(); err != nil {
		return nil, unsure, err
	}
	s.remember(key, t.row.Busy)
	return t, false, nil
}

// maxHot bounds the memory of contended keys.
const maxHot = 4096

// remember notes whether the fast path can be of use for the key.
func (s *Store) remember(key string, busy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch _, is := s.hot[key]; {
	case is && !busy:
		delete(s.hot, key)
	case !is && busy:
		if len(s.hot) >= maxHot {
			clear(s.hot) // costs each key one attempt
		}
		s.hot[key] = struct{}{}
	}
}

func (s *Store) isHot(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, is := s.hot[key]
	return is
}

// tell wakes those of this process that a commit concerns. The others poll.
func (s *Store) tell(fx sqlstore.Effects) {
	for _, g := range fx.Granted {
		s.watchers.Deliver(g.Key, g.ID, g.Hint())
	}
	for _, b := range fx.Broken {
		s.watchers.Deliver(b.Key, b.ID, driver.Hint{})
	}
}
