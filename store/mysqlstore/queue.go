package mysqlstore

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	sqldriver "database/sql/driver"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/sqlstore"
)

const (
	// maxBatch bounds the requests about one key in a transaction.
	maxBatch = 64

	// maxTries bounds the attempts at a transaction that the server undoes.
	maxTries = 5

	// patience bounds a transaction, with or without waiting callers.
	patience = 15 * time.Second
)

// An op is a request that needs a transaction. Requests of this process for one key that
// wait at the same time share a transaction and a commit, and never wait for each other
// in the server.
type op struct {
	batch.Item
	// run acts within the transaction. It may run again after the transaction was undone,
	// so it sets results rather than adding to them.
	run   func(*tx) error
	fresh bool // see tx.fresh
	err   error
}

// A keyQueue has the requests of this process for one key. Each key has its own, so that
// a request need not look through those for other keys.
type keyQueue struct {
	*batch.Batcher[*op]
	users atomic.Int32 // callers, and the sending goroutine; becomes 0 only under Store.mu
}

// do makes run part of a transaction about key and returns once that is durable. What run
// sets may be read only if the result is nil.
func (s *Store) do(ctx context.Context, key string, fresh bool, run func(*tx) error) error {
	q, err := s.enter(key)
	if err != nil {
		return err
	}
	defer s.exit(key, q)
	o := &op{Item: batch.NewItem(), run: run, fresh: fresh}
	if err := q.Do(ctx, o); err != nil {
		return err
	}
	return o.err
}

// enter returns the keyQueue of a key. Each enter needs an exit.
func (s *Store) enter(key string) (*keyQueue, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, driver.ErrClosed
	}
	q := s.queues[key]
	if q == nil {
		q = s.newKeyQueue(key)
		s.queues[key] = q
	}
	q.users.Add(1)
	return q, nil
}

func (s *Store) exit(key string, q *keyQueue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.users.Add(-1) == 0 {
		delete(s.queues, key)
	}
}

func (s *Store) newKeyQueue(key string) *keyQueue {
	q := new(keyQueue)
	q.Batcher = batch.New(batch.Config[*op]{
		Send: func(ctx context.Context, ops []*op) { s.transact(ctx, key, ops) },
		Go: func(send func()) {
			q.users.Add(1) // besides the caller for which it sends
			s.serving.Go(func() {
				defer s.exit(key, q)
				send()
			})
		},
		Max: maxBatch, InFlight: 1, Yield: true,
		Context: s.life, Timeout: patience, Grace: sqlstore.Grace, // see sqlstore.Outlive
	})
	return q
}

// transact makes one transaction about key, and repeats it if the server undid it.
func (s *Store) transact(ctx context.Context, key string, ops []*op) {
	for try := 1; ; try++ {
		t, unsure, err := s.attempt(ctx, key, ops)
		if err == nil {
			s.tell(t.fx)
			return
		}
		if unsure || try == maxTries || !undone(err) {
			err = s.blame(ctx, err, unsure)
			for _, o := range ops {
				o.err = err
			}
			return
		}
	}
}

// call makes a transaction about several keys, and repeats it if the server undid it, or
// ended the connection before any effect. unsure is as in attempt. Refusals of the
// contract are returned as they are.
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
		// The server may have ended a connection that was too slow for it.
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

// undone reports whether the server undid a transaction for a passing reason: a deadlock,
// another transaction that inserted the key's row first, a row that has changed since it
// was read without a lock (innodb_snapshot_isolation), or a connection in a transaction,
// which is closed now.
func undone(err error) bool {
	switch number(err) {
	case erDeadlock, erDuplicate, erChanged, erInTransaction:
		return true
	}
	return false
}

// blame makes the error of a request. ctx is the transaction's own.
func (s *Store) blame(ctx context.Context, err error, unsure bool) error {
	if s.life.Err() != nil && !unsure {
		return driver.ErrClosed
	}
	if ctx.Err() != nil {
		// No caller's context has ended, only the transaction's own.
		outcome := driver.ErrUnavailable
		if unsure {
			outcome = driver.ErrUnknown
		}
		return errors.Join(outcome, errSlow)
	}
	return s.failure(err, unsure)
}

var errSlow = errors.New("mysql: the server has not answered in time")

// attempt makes the transaction once. unsure says that it may have been committed in
// spite of the error.
func (s *Store) attempt(ctx context.Context, key string, ops []*op) (t *tx, unsure bool, err error) {
	ses, err := s.session(ctx)
	if err != nil {
		return nil, false, err
	}
	defer ses.close()
	t = &tx{ctx: ctx, ses: ses, key: key}
	for _, o := range ops {
		t.fresh = o.fresh
		if err := o.run(t); err != nil {
			return nil, false, err
		}
	}
	if unsure, err := t.commit(); err != nil {
		return nil, unsure, err
	}
	s.hot.Set(key, t.row.Busy)
	return t, false, nil
}

// tell wakes the watchers of this process about a commit. Other processes poll.
func (s *Store) tell(fx sqlstore.Effects) {
	for _, g := range fx.Granted {
		s.watchers.Deliver(g.Key, g.ID, g.Hint())
	}
	for _, b := range fx.Broken {
		s.watchers.Deliver(b.Key, b.ID, driver.Hint{})
	}
}
