package sqlitestore

import (
	"context"
	"errors"
	"slices"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/sqlstore"
)

// maxBatch bounds the requests of a transaction, and so how long other processes wait to
// write.
const maxBatch = 64

// An op is a request to the writer. Requests that wait at the same time share a
// transaction and its commit.
//
// Their queue is no batch.Batcher: one goroutine stays to write, and a request that was
// taken alone without effect goes back to the queue.
type op struct {
	// fast, if not nil, is one statement that does the same as run, or changes nothing
	// and reports false.
	fast func(*tx) (done bool, err error)

	// lazy says that a reboot may undo fast: see Store.sync.
	lazy bool

	// run acts within the transaction. Its error undoes the transaction. It may run again
	// after that, so it sets results rather than adding to them.
	run func(*tx) error

	done chan error // of capacity one
	left bool       // its caller has given up; guarded by Store.mu
}

func (o *op) act(t *tx) error {
	if o.fast != nil {
		if done, err := o.fast(t); done || err != nil {
			return err
		}
	}
	return o.run(t)
}

// do makes run part of a transaction and returns once that is durable. It obeys its
// context even during a write. What run sets may be read only if the result is nil.
func (s *Store) do(ctx context.Context, run func(*tx) error) error {
	return s.ask(ctx, &op{run: run})
}

func (s *Store) ask(ctx context.Context, o *op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o.done = make(chan error, 1)
	s.mu.Lock()
	switch {
	case s.closed:
		s.mu.Unlock()
		return driver.ErrClosed
	case s.broken != nil:
		err := s.broken
		s.mu.Unlock()
		return err
	}
	s.queue = append(s.queue, o)
	s.mu.Unlock()
	s.work.Signal()

	select {
	case err := <-o.done:
		return err
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.queue, o); i >= 0 {
		s.queue = slices.Delete(s.queue, i, i+1)
		return ctx.Err()
	}
	o.left = true
	select {
	case err := <-o.done:
		return err
	default:
		return errors.Join(driver.ErrUnknown, ctx.Err())
	}
}

// serve writes until the store is closed. It has a goroutine of its own so that a caller
// can give up while the disk or another process is slow. The goroutine stays because
// SQLite needs a deep stack, which a new one would have to grow again.
func (s *Store) serve() {
	defer close(s.served)
	for s.wanted() {
		err := s.turn.enter()
		if err != nil {
			s.fail(s.take(), s.failure(err, driver.ErrUnavailable))
			continue
		}
		s.serveTurn()
	}
}

// wanted waits for work. It returns false if the store was closed.
func (s *Store) wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) == 0 && !s.closed {
		s.work.Wait()
	}
	return len(s.queue) > 0
}

func (s *Store) waiting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue) > 0
}

// take takes the next requests out of the queue. From then on they may take effect.
func (s *Store) take() []*op {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(s.queue), maxBatch)
	batch := slices.Clone(s.queue[:n])
	s.queue = slices.Delete(s.queue, 0, n)
	return batch
}

// takeAlone takes the only request out of the queue, if it is fast and no sweep is due.
func (s *Store) takeAlone() *op {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) != 1 || s.queue[0].fast == nil || s.sweeper.commits+1 >= s.opts.sweepGap {
		return nil
	}
	o := s.queue[0]
	s.queue = slices.Delete(s.queue, 0, 1)
	return o
}

// giveBack puts o, which had no effect, back at the front of the queue, unless its caller
// has given up.
func (s *Store) giveBack(o *op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !o.left {
		s.queue = slices.Insert(s.queue, 0, o)
	}
}

func (s *Store) fail(batch []*op, err error) {
	for _, o := range batch {
		o.done <- err
	}
}

// serveTurn makes one transaction, in this process's turn to write.
func (s *Store) serveTurn() {
	left := false
	leave := func() {
		if !left {
			left = true
			s.turn.leave()
		}
	}
	defer leave()

	if o, err := s.alone(); o != nil {
		leave()
		o.done <- err
		return
	}
	if err := s.begin(); err != nil {
		s.fail(s.take(), s.failure(err, driver.ErrUnavailable))
		return
	}
	if err := s.check(); err != nil {
		s.rollback()
		err = s.failure(err, driver.ErrUnavailable)
		if errors.Is(err, ErrReplaced) || errors.Is(err, ErrOtherMachine) {
			s.mu.Lock()
			s.broken = err
			s.mu.Unlock()
			s.watchers.Nudge()
		}
		s.fail(s.take(), err)
		return
	}
	batch := s.take()
	if len(batch) == 0 { // all callers gave up before this process's turn
		s.rollback()
		return
	}
	errs, fx := s.transact(batch)
	leave() // the next process need not wait for the answers
	for i, o := range batch {
		o.done <- errs[i]
	}
	s.tell(fx)
}

// alone makes a fast request without BEGIN and COMMIT: SQLite begins and commits a single
// statement by itself. The result is nil if nothing was changed, for any reason: the
// transaction that follows meets the reason again.
func (s *Store) alone() (o *op, err error) {
	if o = s.takeAlone(); o == nil {
		return nil, nil
	}
	if s.check() == nil && s.sync(!o.lazy) == nil {
		// SQLite may wait for the lock of the file after this. That shortens the grant,
		// and ends no other claim.
		s.tx.now = s.opts.clock()
		done, err := o.fast(&s.tx)
		if done {
			s.sweeper.count(1)
			return o, nil
		}
		if err != nil && commitOutcome(err) == driver.ErrUnknown {
			return o, s.failure(err, driver.ErrUnknown)
		}
		o.fast = nil
	}
	s.giveBack(o)
	return nil, nil
}

// transact runs the batch in the transaction that was begun and commits it. If a request
// fails, which would undo the other ones, each gets a transaction of its own.
func (s *Store) transact(batch []*op) (errs []error, fx sqlstore.Effects) {
	errs = make([]error, len(batch))
	err, outcome := s.inRoom(batch, s.attempt)
	if err == nil {
		return errs, s.tx.fx
	}
	if len(batch) == 1 || outcome == driver.ErrUnknown {
		for i := range errs {
			errs[i] = s.failure(err, outcome)
		}
		return errs, fx
	}
	for i := range batch {
		if err, outcome = s.inRoom(batch[i:i+1], s.transaction); err != nil {
			errs[i] = s.failure(err, outcome)
			continue
		}
		fx.Granted = append(fx.Granted, s.tx.fx.Granted...)
		fx.Broken = append(fx.Broken, s.tx.fx.Broken...)
	}
	return errs, fx
}

// inRoom makes room for the batch and repeats it if first finds the database or the disk
// full.
func (s *Store) inRoom(batch []*op, first func([]*op) (err, outcome error)) (err, outcome error) {
	err, outcome = first(batch)
	retry, grows := true, true
	for bytes := min(max(1<<16, s.size/8), 1<<20); code(err) == sqlite3.SQLITE_FULL && retry && grows && bytes <= 1<<24; bytes <<= 4 {
		if retry, grows = s.makeRoom(bytes); retry {
			err, outcome = s.transaction(batch)
		}
	}
	return err, outcome
}

// transaction is attempt in a new transaction.
func (s *Store) transaction(batch []*op) (err, outcome error) {
	if err := s.begin(); err != nil {
		return err, driver.ErrUnavailable
	}
	return s.attempt(batch)
}

// attempt runs the batch and commits, or undoes everything. outcome is
// driver.ErrUnavailable or driver.ErrUnknown: the class of err for callers.
func (s *Store) attempt(batch []*op) (err, outcome error) {
	s.tx.fx = sqlstore.Effects{}
	for _, o := range batch {
		s.tx.now = s.opts.clock()
		if err := o.act(&s.tx); err != nil {
			s.rollback()
			return err, driver.ErrUnavailable
		}
	}
	if err := s.sweep(len(batch)); err != nil {
		s.rollback()
		return err, driver.ErrUnavailable
	}
	if err := s.sweepLimits(); err != nil {
		s.rollback()
		return err, driver.ErrUnavailable
	}
	if err := s.exec(stCommit); err != nil {
		s.rollback()
		return err, commitOutcome(err)
	}
	return nil, nil
}
